"""The progress of a run: the loop and `execute` report it to a `Listener`; terminals, files and logs are listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        epochs: at most.
        step: main steps taken in the hop.
        steps: main steps of the hop at most.
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
    """Ignores everything; subclasses override what they need."""

    def run_started(self, run: Run) -> None: ...

    def hop_started(self, run: Run, hop: Hop) -> None: ...

    def noted(self, text: str) -> None:
        """Take a message for a person."""

    def stepped(self, progress: Progress) -> None: ...

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None: ...

    def hop_ended(self, run: Run, hop: Hop, scores: dict[str, dict[str, float]], shared: bool) -> None:
        """Take a hop's scores: language → metric → value in [0, 1]; ``shared``: another run has trained it."""

    def run_ended(self, run: Run, seconds: float) -> None: ...

    def run_failed(self, run: Run, error: BaseException) -> None: ...


class Listeners(Listener):
    """Passes everything on to several listeners, in order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners


def _passed_on(hook: str) -> Callable[..., None]:
    def call(self: Listeners, *given: Any) -> None:
        for listener in self.listeners:
            getattr(listener, hook)(*given)

    return call


for _hook in [name for name in vars(Listener) if not name.startswith("_")]:
    setattr(Listeners, _hook, _passed_on(_hook))
