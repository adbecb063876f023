"""Trials of a search, stored in an Optuna journal with their dev scores.

The next setting depends only on the earlier trials and the seed of the search. It is sampled from a copy of the study
in memory and written as one line, so a killed search continues exactly like an uninterrupted one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.compose.space import Interval, Space, Values
from xclrun.core.errors import RunError, UsageError, require
from xclrun.core.identity import derive
from xclrun.store.files import writing

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

SAMPLERS = ("tpe", "random")
# After this number of consecutive repeated settings, switch to an exhaustive sampler.
REPEATED = 20


@dataclass(frozen=True)
class Setting:
    """One trial.

    Attributes:
        number: Optuna's number, from 0.
        values: key → value as text.
        score: score on dev, or None.
        open: whether `Trials.tell` must still be called.
    """

    number: int
    values: Mapping[str, str]
    score: float | None
    open: bool


class Trials:
    """The trials of one search.

    Args:
        name: identity of the search; only this search can continue its journal.
        journal: Optuna's journal, which one process at a time may open; None: in memory.
    """

    def __init__(self, space: Space, name: str, higher_is_better: bool, journal: Path | None = None) -> None:
        require("optuna", "hydra/sweeper=optuna", "search")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        directions = optuna.study.StudyDirection
        self.space, self.direction = space, directions.MAXIMIZE if higher_is_better else directions.MINIMIZE
        storage: Any = None
        try:
            if journal is not None:
                storage = _opened(journal)
                if foreign := set(optuna.get_all_study_names(storage)) - {name}:
                    raise UsageError(
                        f"{journal} is the journal of another search ({foreign.pop()[:8]}) with different values, "
                        "objective, data or seed; set sweep_name=NAME to start a separate one"
                    )
            self.study: Study = optuna.create_study(
                storage=storage, study_name=name, direction=self.direction, load_if_exists=True
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as error:
            # Optuna does not validate the journal, so unexpected JSON can raise any of these.
            raise RunError(
                f"{journal} is damaged ({error}); remove it and re-run the same command to restart the search; "
                "finished runs are reused"
            ) from error

    def next(self, most: int, together: int) -> list[Setting]:
        """Return the settings to try now: open ones, and new ones up to ``together``.

        Args:
            most: number of settings of the whole search.
        """
        # After an interruption, complete the same batch, so the same settings are sampled.
        tried = len(self.tried)
        count = max(0, min(together - tried % together, most - tried))
        while len(batch := [setting for setting in self._all() if setting.open]) < count and self._draw():
            pass
        return batch[:count]

    def tell(self, setting: Setting, score: float | None) -> None:
        """Record the dev score of a setting, or None for a failure."""
        from optuna.trial import TrialState

        self.study.tell(setting.number, score, state=TrialState.FAIL if score is None else None)

    @property
    def tried(self) -> list[Setting]:
        """The completed settings."""
        return [setting for setting in self._all() if not setting.open]

    def _all(self) -> list[Setting]:
        return [
            Setting(trial.number, self._texts(trial.params), trial.value, not trial.state.is_finished())
            for trial in self.study.get_trials(deepcopy=False)
        ]

    def _texts(self, params: Mapping[str, Any]) -> dict[str, str]:
        return {
            key: domain.text(params[key]) if isinstance(domain, Interval) else str(params[key])
            for key, domain in self.space.searched.items()
        }

    def _draw(self) -> bool:
        """Start a new trial; return False if no setting is left."""
        import optuna
        from optuna.trial import TrialState

        earlier = [setting.values for setting in self._all()]
        if len(earlier) >= self.space.number:
            return False
        distributions = {key: _distribution(domain) for key, domain in self.space.searched.items()}
        seed = derive(self.space.settings["seed"], "search", len(earlier)) % 2**32
        memory = optuna.create_study(direction=self.direction, sampler=_sampler(self.space.settings["sampler"], seed))
        memory.add_trials(self.study.get_trials(deepcopy=False))
        for attempt in range(10 * REPEATED):
            if attempt == REPEATED and self.space.number != float("inf"):
                memory.sampler = _sampler("exhaustive", seed)
            trial = memory.ask(distributions)
            if self._texts(trial.params) not in earlier:
                self.study.add_trial(
                    optuna.trial.create_trial(
                        state=TrialState.RUNNING, params=trial.params, distributions=trial.distributions
                    )
                )
                return True
            memory.tell(trial, state=TrialState.FAIL)
        return False


def _distribution(domain: Values | Interval) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(domain, Interval):
        return CategoricalDistribution(domain.texts)
    if domain.whole:
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)


def _sampler(name: str, seed: int) -> BaseSampler:
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":
            # constant_liar scores unfinished trials as bad, so parallel trials get different settings.
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return (optuna.samplers.RandomSampler if name == "random" else optuna.samplers.BruteForceSampler)(seed)


def _opened(journal: Path) -> Any:
    """Open Optuna's storage in a file; first remove a killed process's lock and incomplete last line.

    The caller holds the lease of the search, so no other process writes. Optuna would wait for the lock, and for ever
    if the lock is a symbolic link to a relative path.

    Raises:
        ValueError: the file is not a journal; it is unchanged.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    # Optuna keeps the path, which must not depend on the working directory.
    journal = journal.absolute()
    with writing(journal):
        journal.parent.mkdir(parents=True, exist_ok=True)
        journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
        with journal.open("ab+") as file:
            file.seek(0)
            content = file.read()
            if not content.startswith(b'{"op_code":'[: len(content)]):
                raise ValueError("not an Optuna journal")
            file.truncate(content.rfind(b"\n") + 1)
        return JournalStorage(JournalFileBackend(str(journal), JournalFileOpenLock(str(journal))))
