"""The trials of a search, as Optuna keeps them on disk: which setting comes next, and how each one did.

What comes next follows from the trials before it and the search's seed alone: each value is drawn by a sampler of its
own, whose seed is derived from the number of the trial and the key. So a search that was killed anywhere, also while
its journal was written, goes on as an undisturbed one would have.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.compose.space import Interval, Space
from xclrun.core.errors import RunError, UsageError, require
from xclrun.core.identity import derive
from xclrun.store.files import writing

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler

SAMPLERS = ("tpe", "random")
# Settings in a row that were drawn before: then one that was not is taken, where all can be listed; else none is left.
REPEATED = 20
LISTED = 10_000
# Of a journal: what begins otherwise is another file, of which nothing may be cut off.
_BEGINNING = b'{"op_code":'


@dataclass(frozen=True)
class Asked:
    """One trial.

    Attributes:
        number: Optuna's, from 0; settings that were drawn again have one too.
        values: key → value as text.
        score: on dev; None where it has none (yet).
        open: whether it is yet to be told.
    """

    number: int
    values: Mapping[str, str]
    score: float | None
    open: bool


class Trials:
    """The trials of one search.

    Args:
        space: what is searched; its ``sampler`` and ``seed`` decide which settings come.
        name: of the search, by what it is: another one cannot go on with its journal.
        higher_is_better: which way is better.
        journal: Optuna's journal; None: in memory. One process at a time may have it: see `xclrun.launch.search`.
        copied: whether to work on a copy in memory: the file, which another process may have, is only read.

    Raises:
        UsageError: Optuna is not installed; the journal is that of another search.
        RunError: the journal is damaged.
    """

    def __init__(
        self, space: Space, name: str, higher_is_better: bool, journal: Path | None = None, *, copied: bool = False
    ) -> None:
        require("optuna", "hydra/sweeper=optuna", "search")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.file = space, journal
        storage: Any = optuna.storages.InMemoryStorage()
        try:
            if journal is not None and copied:
                storage = _copy(journal)
            elif journal is not None:
                with writing(journal):
                    storage = _opened(journal)
                if others := {study.study_name for study in storage.get_all_studies()} - {name}:
                    raise UsageError(
                        f"{journal} is the journal of another search ({others.pop()[:8]}): values, objective, data or "
                        "seed were others; give this one a name of its own with sweep_name=NAME"
                    )
            self.study: Study = optuna.create_study(
                storage=storage,
                study_name=name,
                direction="maximize" if higher_is_better else "minimize",
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as error:
            # Optuna checks nothing that it reads: a line that is JSON and none of its own ends in any of these.
            raise RunError(
                f"{journal} is damaged ({error}); remove it, and the same command begins anew, with the runs that are "
                "done"
            ) from error

    def next(self, most: int, together: int) -> list[Asked]:
        """Return the settings to try now: those that were begun and not told, and new ones up to ``together``.

        Args:
            most: settings of the whole search.
        """
        # As many as an undisturbed search had begun at the same time, so that the same ones are drawn.
        tried = len(self.told)
        wanted = min(together - tried % together, most - tried)
        while len(found := self._open()) < wanted and self._ask():
            pass
        return found[:wanted] if wanted > 0 else []

    def tell(self, one: Asked, score: float | None) -> None:
        """Note how a setting did on dev; None: it could not be done."""
        from optuna.trial import TrialState

        if score is None:
            self.study.tell(one.number, state=TrialState.FAIL)
        else:
            self.study.tell(one.number, score)

    @property
    def told(self) -> list[Asked]:
        """The settings that were tried, each once."""
        return [one for one in self._once() if not one.open]

    def _open(self) -> list[Asked]:
        """Return the settings that are yet to be told; those of a process that was killed while it drew them too."""
        for trial in self.study.get_trials(deepcopy=False):
            if not trial.state.is_finished():
                self._draw(trial.number)
        return [one for one in self._once() if one.open]

    def _once(self) -> list[Asked]:
        """Return all trials but those whose setting had come before."""
        found: dict[tuple[str, ...], Asked] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if len(trial.params) == len(self.space.searched):
                one = Asked(trial.number, self._texts(trial.params), trial.value, not trial.state.is_finished())
                found.setdefault(tuple(one.values.values()), one)
        return list(found.values())

    def _texts(self, params: Mapping[str, Any]) -> dict[str, str]:
        ranges = self.space.searched
        return {k: of.text(params[k]) if isinstance(of, Interval) else str(params[k]) for k, of in ranges.items()}

    def _ask(self) -> bool:
        """Begin a new trial; return False where no setting is left."""
        trials = self.study.get_trials(deepcopy=False)
        if len(self._once()) >= self.space.number or len(trials) - self._last_new() > 10 * REPEATED:
            return False
        self._draw(self.study.ask().number)
        return True

    def _last_new(self) -> int:
        """Return the number of the last trial whose setting had not come before; -1 without any."""
        return max((one.number for one in self._once()), default=-1)

    def _draw(self, number: int) -> None:
        """Draw the values of a trial that was begun, but for those that it has.

        One whose setting has come before is told at once: with the score of that one.
        """
        import optuna

        trial = optuna.trial.Trial(self.study, self.study.get_trials(deepcopy=False)[number]._trial_id)
        untried = self._untried() if number - self._last_new() > REPEATED else None
        for key, of in self.space.searched.items():
            sampler = self._sampler(derive(self.space.settings["seed"], "search", number, key) % 2**32)
            if untried is not None:
                sampler = optuna.samplers.PartialFixedSampler(untried, sampler)
            self.study.sampler = sampler
            if not isinstance(of, Interval):
                trial.suggest_categorical(key, of.texts)
            elif of.whole:
                trial.suggest_int(key, int(of.low), int(of.high), log=of.log)
            else:
                trial.suggest_float(key, of.low, of.high, log=of.log)
        values = self._texts(trial.params)
        before = next(one for one in self._once() if one.values == values)
        if before.number != number:
            self.tell(Asked(number, values, None, True), before.score)

    def _untried(self) -> dict[str, Any] | None:
        """Return the first setting that has not come yet; None where they are too many to list."""
        if self.space.number > LISTED:
            return None
        tried = {tuple(one.values.values()) for one in self._once()}
        own = [
            [(str(v), v) for v in range(int(of.low), int(of.high) + 1)]
            if isinstance(of, Interval)
            else [(text, text) for text in of.texts]
            for of in self.space.searched.values()
        ]
        left = (setting for setting in itertools.product(*own) if tuple(text for text, _ in setting) not in tried)
        first = next(left, None)
        if first is None:
            return None
        return {key: value for key, (_, value) in zip(self.space.searched, first, strict=True)}

    def _sampler(self, seed: int) -> BaseSampler:
        import optuna

        if self.space.settings["sampler"] == "random":
            return optuna.samplers.RandomSampler(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Trials that are under way count as bad ones: those begun together differ.
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _opened(journal: Path) -> Any:
    """Return Optuna's storage in a file, without the end of a line that a killed process has left.

    Raises:
        ValueError: the file is no journal; it is left as it is.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("ab+") as file:
        file.seek(0)
        content = file.read()
        _check_beginning(content)
        file.truncate(content.rfind(b"\n") + 1)
    backend: BaseJournalBackend = JournalFileBackend(str(journal), lock_obj=_alone())
    return JournalStorage(backend)


def _copy(journal: Path) -> Any:
    """Return Optuna's storage in memory, with the whole lines of a file.

    Raises:
        ValueError: the file is no journal.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import BaseJournalBackend

    content = journal.read_bytes()
    _check_beginning(content)
    logs = [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]

    class Copy(BaseJournalBackend):
        def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
            return logs[log_number_from:]

        def append_logs(self, new: list[dict[str, Any]]) -> None:
            logs.extend(new)

    return JournalStorage(Copy())


def _check_beginning(content: bytes) -> None:
    if not (content.startswith(_BEGINNING) or _BEGINNING.startswith(content)):
        raise ValueError("it does not begin as a journal of Optuna does")


def _alone() -> Any:
    """Return a lock for Optuna that locks nothing: the search has a lease, and a killed process would leave one."""
    from optuna.storages.journal._file import BaseJournalFileLock

    class Alone(BaseJournalFileLock):
        def acquire(self) -> bool:
            return True

        def release(self) -> None: ...

    return Alone()
