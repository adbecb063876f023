"""Tables and figures over many runs: what a researcher reads. matplotlib and pandas are imported when used."""

from xclrun.report.write import Report, write_report

__all__ = ["Report", "write_report"]
