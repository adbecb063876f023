"""Contracts: lists of named checks that every plug-in of a kind must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Subject = TypeVar("Subject")


class ContractError(AssertionError):
    """A plug-in fails a check; the message names the plug-in, the check, the requirement and what was observed."""


@dataclass(frozen=True)
class Check:
    """One requirement of a contract for one plug-in. Call it to test the plug-in; ``str`` returns its name.

    Attributes:
        requirement: a sentence, for messages and for docs/extending/testing.md.
    """

    name: str
    requirement: str
    plugin: str
    run: Callable[[], None] = field(repr=False)

    def __call__(self) -> None:
        try:
            self.run()
        except Exception as error:
            observed = str(error) if isinstance(error, ContractError) else f"{type(error).__name__}: {error}"
            observed = shortened(" ".join(observed.split()), 600)
            raise ContractError(f"{self.plugin}: {self.name}: {self.requirement} {observed}") from error

    def __str__(self) -> str:
        return self.name


def bound(plugin: str, contract: Iterable[Callable[[Subject], None]], subject: Subject) -> list[Check]:
    """Return the checks of a contract for a subject; a check's requirement is the docstring of its function."""

    def check(function: Callable[[Subject], None]) -> Check:
        requirement = " ".join(str(function.__doc__).split())
        return Check(function.__name__, requirement, plugin, lambda: function(subject))

    return [check(function) for function in contract]


def run_all(checks: Sequence[Check]) -> None:
    """Run checks; raise one `ContractError` with a line per failed check."""
    problems = []
    for check in checks:
        try:
            check()
        except ContractError as error:
            problems.append(str(error))
    if problems:
        raise ContractError("\n".join(problems))


def expect(condition: object, observed: str) -> None:
    """Raise a `ContractError` unless a condition holds; unlike ``assert``, also under ``python -O``."""
    if not condition:
        raise ContractError(f"Observed: {observed}.")


def expect_equal(observed: object, expected: object, name: str) -> None:
    expect(observed == expected, f"{name} {shortened(repr(observed))} instead of {shortened(repr(expected))}")


def shortened(text: str, longest: int = 300) -> str:
    return text if len(text) <= longest else f"{text[:longest]} …"
