"""Progress of a run, reported to listeners such as terminals, files and logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xclrun.core.stream import Hop
from xclrun.plan import Run


@dataclass(frozen=True)
class Progress:
    """The progress of a hop's training.

    Attributes:
        epoch: current epoch, from 1.
        epochs: maximum number of epochs.
        step: main steps taken in the hop.
        steps: maximum number of main steps.
        examples: sentences trained on in the hop, including replayed sentences.
        seconds: training time of the hop.
    """

    hop: Hop
    epoch: int
    epochs: int
    step: int
    steps: int
    examples: int
    seconds: float


class Listener:
    """Receives the events of runs. All methods do nothing; subclasses override some of them."""

    def run_started(self, run: Run) -> None: ...

    def hop_started(self, run: Run, hop: Hop) -> None: ...

    def noted(self, text: str) -> None:
        """Show a note to the user."""

    def stepped(self, progress: Progress) -> None: ...

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None: ...

    def hop_ended(self, run: Run, hop: Hop, scores: dict[str, dict[str, float]], shared: bool) -> None:
        """Receive a hop's scores, language → metric → score; if ``shared``, another run trained the hop."""

    def run_ended(self, run: Run, seconds: float) -> None: ...

    def run_failed(self, run: Run, error: BaseException) -> None: ...


class Listeners(Listener):
    """Forwards every call to several listeners, in order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners


def _forwarded(hook: str) -> Callable[..., None]:
    def call(self: Listeners, *arguments: Any) -> None:
        for listener in self.listeners:
            getattr(listener, hook)(*arguments)

    return call


for _hook in [name for name in vars(Listener) if not name.startswith("_")]:
    setattr(Listeners, _hook, _forwarded(_hook))
