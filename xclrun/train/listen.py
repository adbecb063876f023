"""What a run tells while it goes: the loop and `execute` call a `Listener`; files, terminals and logs are listeners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xclrun.core.stream import Hop
from xclrun.run import Run


@dataclass(frozen=True)
class Progress:
    """Where a hop's training is.

    Attributes:
        hop: the hop.
        epoch: from 1.
        epochs: at the most.
        step: main steps taken in the hop.
        steps: main steps of the hop at the most.
        examples: sentences trained on in the hop, replayed ones included.
        seconds: of training in the hop.
    """

    hop: Hop
    epoch: int
    epochs: int
    step: int
    steps: int
    examples: int
    seconds: float


class Listener:
    """Hears everything and does nothing; subclasses act on what they want."""

    def run_started(self, run: Run) -> None: ...

    def hop_started(self, run: Run, hop: Hop) -> None: ...

    def noted(self, text: str) -> None:
        """Hear something that a person should know."""

    def stepped(self, progress: Progress) -> None: ...

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None: ...

    def hop_ended(self, run: Run, hop: Hop, scores: dict[str, dict[str, float]], shared: bool) -> None:
        """Hear a hop's scores: language → metric → value in [0, 1]; ``shared``: another run has trained it."""

    def run_ended(self, run: Run, seconds: float) -> None: ...

    def run_failed(self, run: Run, error: BaseException) -> None: ...


class Listeners(Listener):
    """Passes on to several listeners, in order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners

    def run_started(self, run: Run) -> None:
        for listener in self.listeners:
            listener.run_started(run)

    def hop_started(self, run: Run, hop: Hop) -> None:
        for listener in self.listeners:
            listener.hop_started(run, hop)

    def noted(self, text: str) -> None:
        for listener in self.listeners:
            listener.noted(text)

    def stepped(self, progress: Progress) -> None:
        for listener in self.listeners:
            listener.stepped(progress)

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
        for listener in self.listeners:
            listener.epoch_ended(progress, facts)

    def hop_ended(self, run: Run, hop: Hop, scores: dict[str, dict[str, float]], shared: bool) -> None:
        for listener in self.listeners:
            listener.hop_ended(run, hop, scores, shared)

    def run_ended(self, run: Run, seconds: float) -> None:
        for listener in self.listeners:
            listener.run_ended(run, seconds)

    def run_failed(self, run: Run, error: BaseException) -> None:
        for listener in self.listeners:
            listener.run_failed(run, error)
