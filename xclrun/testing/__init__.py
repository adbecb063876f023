"""Contract suites for authors of plug-ins: checks of strategies, tasks, metrics, readers and trackers.

Each suite has a function that runs all checks (``check_reader``) and one that returns them for
``pytest.mark.parametrize`` (``reader_checks``). pytest is not needed.
"""

from typing import TYPE_CHECKING, Any

from xclrun.testing.metrics import check_metric, metric_checks
from xclrun.testing.readers import check_reader, reader_checks
from xclrun.testing.suite import Check, ContractError
from xclrun.testing.trackers import Sent, check_tracker, example_record, tracker_checks

if TYPE_CHECKING:
    from xclrun.testing.strategies import check_strategy, strategy_checks
    from xclrun.testing.tasks import check_task, task_checks

__all__ = [
    "Check",
    "ContractError",
    "Sent",
    "check_metric",
    "check_reader",
    "check_strategy",
    "check_task",
    "check_tracker",
    "example_record",
    "metric_checks",
    "reader_checks",
    "strategy_checks",
    "task_checks",
    "tracker_checks",
]


def __getattr__(name: str) -> Any:
    # The checks of strategies and tasks import torch.
    if name in __all__:
        from xclrun.testing import strategies, tasks

        return getattr(tasks if "task" in name else strategies, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
