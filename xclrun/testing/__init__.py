"""Contract suites for authors of plug-ins: checks of readers and trackers.

Each suite has a function that runs all checks (``check_reader``) and one that returns them for
``pytest.mark.parametrize`` (``reader_checks``). pytest is not needed.
"""

from xclrun.testing.readers import check_reader, reader_checks
from xclrun.testing.suite import Check, ContractError
from xclrun.testing.trackers import Sent, check_tracker, example_record, tracker_checks

__all__ = [
    "Check",
    "ContractError",
    "Sent",
    "check_reader",
    "check_tracker",
    "example_record",
    "reader_checks",
    "tracker_checks",
]
