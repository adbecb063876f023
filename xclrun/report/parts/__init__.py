"""The parts of a report. New files are imported automatically; see `xclrun.report.part`."""

from importlib import import_module
from pkgutil import iter_modules

from xclrun.report.part import PARTS

__all__ = ["PARTS"]

for _module in iter_modules(__path__):
    _name = f"{__name__}.{_module.name}"
    import_module(_name)
    if not any(entry.make.__module__ == _name for entry in PARTS.values()):
        raise ImportError(f"{_name} registers no part; add one (see xclrun.report.part) or remove the file")
