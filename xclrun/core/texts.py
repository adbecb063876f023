"""Targets of the task ``text_to_text``: what a text's answer is, and what comes before it in a dialogue."""

from __future__ import annotations

from typing import Any, NamedTuple

ROLES = ("system", "user", "assistant")


class Reply(NamedTuple):
    """What a model should write after a prompt.

    Attributes:
        references: correct answers; the first one is learned.
        choices: the answers to choose from, one of which is ``references[0]``; empty without a choice.
        turns: (role, content) of the dialogue before the prompt, which is the last turn of the user.
    """

    references: tuple[str, ...]
    choices: tuple[str, ...] = ()
    turns: tuple[tuple[str, str], ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts: references, choices, and contents of turns."""
        return (*self.references, *self.choices, *(content for _, content in self.turns))

    @property
    def right(self) -> int:
        """Index of the correct choice; −1 without choices."""
        return self.choices.index(self.references[0]) if self.choices else -1


def reply(value: Any) -> Reply:
    """Return the target of a row: a reference, a list of references, or an object.

    The keys of an object are ``references`` (one or several), ``choices`` with ``answer`` (the index of the correct
    one, from 0), and ``turns``, messages with ``role`` and ``content``.

    Raises:
        ValueError: the value is none of these.
    """
    if isinstance(value, Reply):
        return value
    if not isinstance(value, dict):
        return Reply(_texts(value, "a reference"))
    if unknown := value.keys() - {"references", "choices", "answer", "turns"}:
        raise ValueError(f"unknown key '{min(unknown)}'; use references, choices with answer, turns")
    choices = _texts(value["choices"], "a choice") if value.get("choices") is not None else ()
    if value.get("references") is not None:
        references = _texts(value["references"], "a reference")
    elif type(answer := value.get("answer")) is int and 0 <= answer < len(choices):
        references = (choices[answer],)
    else:
        raise ValueError("needs references, or choices and answer, the index of the correct one from 0")
    if choices and references[0] not in choices:
        raise ValueError("the first reference is not one of the choices")
    return Reply(references, choices, tuple(map(_turn, value.get("turns") or ())))


def _texts(value: Any, what: str) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{what} must be a text; give one, or a list of several")
    return tuple(texts)


def _turn(turn: Any) -> tuple[str, str]:
    if isinstance(turn, dict):
        turn = turn.get("role"), turn.get("content")
    if not isinstance(turn, list | tuple) or len(turn) != 2 or turn[0] not in ROLES or not isinstance(turn[1], str):
        raise ValueError(f"a turn needs a role ({', '.join(ROLES)}) and a content, a text")
    return turn[0], turn[1]
