"""Tables and figures over many runs: what a researcher reads. matplotlib, pandas and Jinja are imported when used."""

from xclrun.report.section import Options
from xclrun.report.write import Report, write_report

__all__ = ["Options", "Report", "write_report"]
