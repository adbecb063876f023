"""Plug-ins: external code that registers strategies, dataset readers, tasks, metrics or measures.

A plug-in is a file (``--plugin FILE.py``, or a line of ``plugins.yaml`` in a ``--config-dir``) or an installed package
with an entry point in one of `GROUPS`. Importing a plug-in registers its strategies, readers, tasks, metrics and
measures, and `provides` records them. The ID and stage keys of a run depend on the source hashes of the plug-ins that
it uses. The frozen config of the run contains the locations and hashes of these plug-ins, so another process loads the
same code or raises an error.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from xclrun.core.errors import UsageError, XclrunError
from xclrun.core.files import read_bytes, read_text
from xclrun.core.names import check_name, check_plain
from xclrun.core.terminal import note, printable, shortened

# Entry-point group → kind of registration.
GROUPS = {
    "xclrun.strategies": "strategy",
    "xclrun.datasets": "dataset",
    "xclrun.tasks": "task",
    "xclrun.metrics": "metric",
    "xclrun.measures": "measure",
}
# Modules that register xclrun's own strategies, readers, tasks, metrics and measures. Import them before a plug-in;
# otherwise their registrations are attributed to the plug-in.
_REGISTRIES = ("xclrun.core.task", "xclrun.analysis.measures", "xclrun.data.readers", "xclrun.strategy")
# Prefix of the module names of plug-in files, omitted from messages.
MODULE = "xclrun_plugin_"
# File in a config folder, with the content {plugins: [FILE.py, …]}; paths are relative to the folder.
LISTED = "plugins.yaml"


@dataclass
class Plugin:
    """A plug-in.

    Attributes:
        source: absolute path of the file, or import name of the package.
        sha256: hash of the file, or of all Python files of the package.
        provides: (kind, name) of each registration → description in one line; kinds are the values of `GROUPS`.
    """

    source: str
    sha256: str
    provides: dict[tuple[str, str], str] = field(default_factory=dict)

    def registers(self, kind: str) -> bool:
        """Whether the plug-in registered anything of this kind."""
        return any(registered == kind for registered, _ in self.provides)


# Source → plug-in, in the order of loading.
_loaded: dict[str, Plugin] = {}
_loading: list[Plugin] = []
# (kind, name) of registrations outside plug-ins, except xclrun's own: those of a notebook or a script.
_outside: set[tuple[str, str]] = set()
# Files of --plugin, as typed, and folders of --config-dir.
_files: list[str] = []
_folders: list[Path] = []


def provides(kind: str, name: str, about: str | None = None) -> None:
    """Record a registration for the plug-in that is being loaded, if any.

    Args:
        about: description; lists show its first line.
    """
    if _loading:
        (check_name if kind == "measure" else check_plain)(kind, name)
        _loading[-1].provides[kind, name] = (about or "").strip().partition("\n")[0]
    else:
        _outside.add((kind, name))


def packaged(kind: str, names: Iterable[str]) -> None:
    """Mark registrations as xclrun's own, which nothing replaces."""
    _outside.difference_update((kind, name) for name in names)


def replaces(kind: str, name: str) -> bool:
    """Return whether a registration may replace an earlier one: both are outside plug-ins, as if a cell runs again."""
    return not _loading and (kind, name) in _outside


def provided(kind: str) -> dict[str, str]:
    """Return name → description for everything of a kind that plug-ins registered."""
    return {n: about for plugin in _loaded.values() for (k, n), about in plugin.provides.items() if k == kind}


def place(cls: type) -> str:
    """Return the name of a class for error messages, with its module unless it comes from a plug-in file."""
    return cls.__qualname__ if cls.__module__.startswith(MODULE) else f"{cls.__module__}.{cls.__qualname__}"


def without_yaml(kind: str) -> list[str]:
    """Return the names of this kind that plug-ins registered and that have no YAML file in a config folder."""
    return [n for n in provided(kind) if not any((folder / kind / f"{n}.yaml").is_file() for folder in _folders)]


def used(*names: tuple[str, str]) -> list[str]:
    """Return the plug-ins that provide any of the (kind, name) pairs, as sorted ``sha256sum`` lines: hash, source."""
    return sorted(f"{p.sha256}  {p.source}" for p in _loaded.values() if not p.provides.keys().isdisjoint(names))


def hashes() -> list[str]:
    """Return the hashes of all loaded plug-ins, sorted."""
    return sorted(plugin.sha256 for plugin in _loaded.values())


def flags() -> list[str]:
    """Return the ``--plugin`` arguments of this command."""
    return [text for file in _files for text in ("--plugin", file)]


def typed_command() -> str:
    """Return the command line of this process, quoted for a shell."""
    # Omit --multirun, because `xclrun.cli` adds it to every command.
    arguments = [argument for argument in sys.argv[1:] if argument != "--multirun"]
    several = ["-m"] if len(arguments) < len(sys.argv) - 1 else []
    return shlex.join(["xclrun", *flags(), *arguments, *several])


def load_files(arguments: Sequence[str]) -> list[str]:
    """Load the file of each ``--plugin FILE`` or ``--plugin=FILE``; return the remaining arguments."""
    rest: list[str] = []
    words = iter(arguments)
    for argument in words:
        flag, equals, value = argument.partition("=")
        if flag != "--plugin":
            rest.append(argument)
            continue
        file = value if equals else next(words, "")
        if not file:
            raise UsageError("--plugin: a Python file is needed, as in --plugin my_strategy.py")
        load_file(Path(file), f"--plugin {file}")
        _files.append(file)
    return rest


def load_folder(folder: Path) -> None:
    """Load the files that the ``plugins.yaml`` of a config folder lists, if it has one."""
    import yaml

    _folders.append(folder)
    listed = folder / LISTED
    if not listed.is_file():
        return
    try:
        content = yaml.load(read_text(listed), Loader=yaml.CSafeLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{listed}: cannot be read ({' '.join(str(error).split())})") from None
    files = content.get("plugins") if isinstance(content, dict) and set(content) == {"plugins"} else None
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise UsageError(f"{listed}: must be a list of Python files, as in plugins: [my_strategy.py]")
    for file in files:
        load_file(folder / Path(file).expanduser(), f"{listed}: {file}")


def load_file(path: Path, subject: str, expected: str | None = None) -> None:
    """Import a plug-in file, unless it is already loaded.

    Args:
        subject: name of the file in errors.
        expected: required SHA-256 of the file; None: any.
    """
    path = path.expanduser().resolve()
    if str(path) in _loaded:
        _check_unchanged(_loaded[str(path)].sha256, expected, subject)
        return
    try:
        source = read_bytes(path)
    except OSError as error:
        raise UsageError(f"{subject}: cannot be read ({error.strerror})") from None
    sha256 = hashlib.sha256(source).hexdigest()
    if expected is not None:
        _check_unchanged(sha256, expected, subject)
        note(f"{subject}: executing this file")
    name = f"{MODULE}{sha256[:12]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    with _loading_of(Plugin(str(path), sha256), subject):
        # Dataclasses look up their module by name: add it first. Execute the hashed bytes, since the file may change.
        sys.modules[name] = module
        exec(compile(source, str(path), "exec"), vars(module))


def load_installed() -> None:
    """Import the plug-ins of installed packages, each once."""
    from importlib.metadata import entry_points

    # Call this only once, because each call reads the metadata of all packages.
    points = entry_points()
    for group, kind in GROUPS.items():
        for point in points.select(group=group):
            package, subject = point.module.partition(".")[0], f"entry point {group} '{point.name}' ({point.value})"
            plugin = _loaded.get(package) or Plugin(package, _hash_of_package(package, subject))
            if not plugin.registers(kind):
                with _loading_of(plugin, subject):
                    point.load()
            if not plugin.registers(kind):
                raise UsageError(f"{subject}: registers no {kind}")


def _hash_of_package(package: str, subject: str) -> str:
    """Return the hash of a package's Python files, or of a module's file."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise UsageError(f"{subject}: there is no package '{package}'")
    roots = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [(path.relative_to(root).as_posix(), path) for root in roots for path in root.rglob("*.py")]
    if not roots and spec.origin is not None:
        files = [("", Path(spec.origin))]
    digest = hashlib.sha256()
    for name, path in sorted(files):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@contextmanager
def _loading_of(plugin: Plugin, subject: str) -> Iterator[None]:
    """Attribute all registrations of a ``with`` block to a plug-in; mark it as loaded if the block succeeds."""
    for name in _REGISTRIES:
        importlib.import_module(name)
    _loading.append(plugin)
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{subject}: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{subject}: cannot be imported: {one_line(error)}") from error
    finally:
        _loading.remove(plugin)
    if not plugin.provides:
        raise UsageError(f"{subject}: registers no {', '.join([*GROUPS.values()][:-1])} or {[*GROUPS.values()][-1]}")
    _loaded[plugin.source] = plugin


def version_of(function: object) -> str:
    """Return the hash of the plug-in that defines a function; empty for functions of xclrun."""
    module = str(getattr(getattr(function, "func", function), "__module__", ""))
    for plugin in _loaded.values():
        if module.partition(".")[0] in (plugin.source, f"{MODULE}{plugin.sha256[:12]}"):
            return plugin.sha256[:12]
    return ""


def raised_in(error: BaseException) -> str:
    """Return the innermost line of plug-in code in an error's traceback, as file or module and line; else empty."""
    sources = {plugin.source for plugin in (*_loaded.values(), *_loading)}
    for frame, number in reversed([*traceback.walk_tb(error.__traceback__)]):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if file in sources:
            return f"{Path(file).name}, line {number}"
        if module.partition(".")[0] in sources:
            return f"{module}, line {number}"
    return ""


def one_line(error: BaseException) -> str:
    """Format an error as one line; add the type and the location in a plug-in unless it is an `XclrunError`."""
    if isinstance(error, XclrunError):
        return shortened(" ".join(printable(str(error)).split("\n")))
    line = shortened(": ".join(filter(None, (type(error).__name__, " ".join(printable(str(error)).split())))))
    return line + (f" (in {place})" if (place := raised_in(error)) else "")


def require(plugins: Iterable[str], user: str) -> None:
    """Load the plug-ins of a planned run, and print a note for each file.

    Args:
        plugins: lines of `used`.
        user: the run or command that needs the plug-ins, for error messages.
    """
    for plugin in plugins:
        sha256, _, source = plugin.partition("  ")
        subject = f"{user}: plug-in {source}"
        if Path(source).is_absolute():
            load_file(Path(source), subject, sha256)
            continue
        # Skip names with a dot: `find_spec` would import their parent package.
        if source not in _loaded and source.isidentifier() and importlib.util.find_spec(source) is not None:
            _check_unchanged(_hash_of_package(source, subject), sha256, subject)
            load_installed()
        if source not in _loaded:
            raise UsageError(f"{user}: the plug-in '{source}' is not installed; install its package")
        _check_unchanged(_loaded[source].sha256, sha256, subject)


def _check_unchanged(sha256: str, expected: str | None, subject: str) -> None:
    if expected is not None and sha256 != expected:
        raise UsageError(
            f"{subject} has changed since it was planned (SHA-256 {expected[:12]}, now {sha256[:12]}); "
            "run the original command again"
        )
