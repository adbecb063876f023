"""Plug-ins: code from outside the package that registers strategies, dataset readers, tasks or measures.

A plug-in is a file (``--plugin FILE.py``, or a line of ``plugins.yaml`` in a ``--config-dir``) or an installed package
with an entry point in one of `GROUPS`. Loading it is importing it; what it defines registers itself, and `provides`
notes whose it is. A run that uses something of a plug-in has the hash of its source in its id and stage keys, and its
place and hash in its frozen config, so that another process can load the same code, or refuse it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from xclrun.core.errors import UsageError, XclrunError
from xclrun.core.names import check_name
from xclrun.core.terminal import note

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Group of entry points → what is registered there.
GROUPS = {
    "xclrun.strategies": "strategy",
    "xclrun.datasets": "dataset",
    "xclrun.tasks": "task",
    "xclrun.measures": "measure",
}
# Where the package's own are registered: imported first, or a plug-in would seem to provide what it imports of them.
_REGISTRIES = ("xclrun.core.task", "xclrun.analysis.measures", "xclrun.data.readers", "xclrun.strategy")
# Of the modules that files become: their names are in no message.
MODULE = "xclrun_plugin_"
# In a config folder: {plugins: [FILE.py, …]}, relative to the folder.
LISTED = "plugins.yaml"


@dataclass
class Plugin:
    """Something loaded from outside.

    Attributes:
        source: the file, absolute; or the name of the package, as it is imported.
        sha256: of the file, or of all Python files of the package.
        provides: (kind, name) of what it registered → one line on it; kinds are the values of `GROUPS`.
    """

    source: str
    sha256: str
    provides: dict[tuple[str, str], str] = field(default_factory=dict)


# Source → plug-in, in the order of loading.
_loaded: dict[str, Plugin] = {}
_loading: list[Plugin] = []
# Files of the command, as they were typed, and its config folders.
_given: list[str] = []
_folders: list[Path] = []


def provides(kind: str, name: str, about: str | None = None) -> None:
    """Note that the plug-in being loaded registers something; nothing is noted for the package's own.

    Args:
        about: what it is; the first line describes it in lists.

    Raises:
        UsageError: it would do harm as the name of a folder or in a command.
    """
    if _loading:
        check_name(kind, name)
        if kind != "measure" and not re.fullmatch(r"[\w.+-]+", name):
            raise UsageError(f"{kind}={name}: a name that commands take has letters, digits and _ . + - alone")
        _loading[-1].provides[kind, name] = (about or "").strip().partition("\n")[0]


def provided(kind: str) -> dict[str, str]:
    """Return name → description of what plug-ins registered of a kind."""
    return {n: about for plugin in _loaded.values() for (k, n), about in plugin.provides.items() if k == kind}


def place(cls: type) -> str:
    """Return how errors name a class: its module and its name; of a plug-in's file, which they name, the name alone."""
    return cls.__qualname__ if cls.__module__.startswith(MODULE) else f"{cls.__module__}.{cls.__qualname__}"


def without_yaml(kind: str) -> list[str]:
    """Return the names of a kind that no YAML of the user's configures, in the folder of that group."""
    return [n for n in provided(kind) if not any((folder / kind / f"{n}.yaml").is_file() for folder in _folders)]


def used(*names: tuple[str, str]) -> list[str]:
    """Return the plug-ins that provide any of some (kind, name), sorted, as ``sha256sum`` writes them: hash, source."""
    return sorted(f"{p.sha256}  {p.source}" for p in _loaded.values() if not p.provides.keys().isdisjoint(names))


def hashes() -> list[str]:
    """Return the hashes of all plug-ins that are loaded, sorted."""
    return sorted(plugin.sha256 for plugin in _loaded.values())


def flags() -> list[str]:
    """Return the arguments that load the same files again."""
    return [text for file in _given for text in ("--plugin", file)]


def typed_command() -> str:
    """Return this process's command as it can be typed again."""
    # For every command, Hydra gets the long form of -m (see `xclrun.cli`).
    arguments = [argument for argument in sys.argv[1:] if argument != "--multirun"]
    several = ["-m"] if len(arguments) < len(sys.argv) - 1 else []
    return shlex.join(["xclrun", *flags(), *arguments, *several])


def load_given(arguments: Sequence[str]) -> list[str]:
    """Load the files of ``--plugin FILE`` and ``--plugin=FILE``; return a command's other arguments.

    Raises:
        UsageError: a file is missing after the flag; or see `load_file`.
    """
    rest: list[str] = []
    given = iter(arguments)
    for argument in given:
        flag, equals, value = argument.partition("=")
        if flag != "--plugin":
            rest.append(argument)
            continue
        file = value if equals else next(given, "")
        if not file:
            raise UsageError("--plugin: a Python file is needed, as in --plugin my_strategy.py")
        load_file(Path(file), f"--plugin {file}")
        _given.append(file)
    return rest


def load_folder(folder: Path) -> None:
    """Take note of a config folder, and load the files that its ``plugins.yaml`` lists, where it has one.

    Raises:
        UsageError: it is not a list of files; or see `load_file`.
    """
    import yaml

    _folders.append(folder)
    listed = folder / LISTED
    if not listed.is_file():
        return
    try:
        content = yaml.load(listed.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{listed}: cannot be read ({' '.join(str(error).split())})") from None
    files = content.get("plugins") if isinstance(content, dict) and set(content) == {"plugins"} else None
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise UsageError(f"{listed}: lists Python files, as in plugins: [my_strategy.py]")
    for file in files:
        load_file(folder / Path(file).expanduser(), f"{listed}: {file}")


def load_file(path: Path, shown: str, expected: str | None = None) -> None:
    """Import a plug-in's file, unless it is loaded already.

    Args:
        shown: how errors name it.
        expected: the SHA-256 that the file must have; None: any.

    Raises:
        UsageError: it is not there, has another checksum, cannot be imported, or registers nothing.
    """
    path = path.expanduser().resolve()
    if str(path) in _loaded:
        _check_unchanged(_loaded[str(path)].sha256, expected, shown)
        return
    try:
        # Reading a pipe or a device may wait, or continue, forever.
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UsageError(f"{shown}: is a pipe, a socket or a device, and no file")
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read ({error.strerror})") from None
    sha256 = hashlib.sha256(source).hexdigest()
    if expected is not None:
        _check_unchanged(sha256, expected, shown)
        note(f"{shown}: running its code")
    name = f"{MODULE}{sha256[:12]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    with _as(Plugin(str(path), sha256), shown):
        # Dataclasses look their module up by name. What runs is what was hashed.
        sys.modules[name] = module
        exec(compile(source, str(path), "exec"), vars(module))


def load_installed() -> None:
    """Import the plug-ins of installed packages, each once.

    Raises:
        UsageError: one cannot be imported, or registers nothing of the kind that its entry point says.
    """
    from importlib.metadata import entry_points

    # Asked for once: every question reads the files of all packages.
    found = entry_points()
    for group, kind in GROUPS.items():
        for point in found.select(group=group):
            _load_entry_point(point, kind)


def _load_entry_point(point: EntryPoint, kind: str) -> None:
    package, shown = point.module.partition(".")[0], f"entry point {point.group} '{point.name}' ({point.value})"
    plugin = _loaded.get(package)
    if plugin is None or not any(k == kind for k, _ in plugin.provides):
        new = plugin or Plugin(package, _hash_of_package(package, shown))
        with _as(new, shown):
            point.load()
        if not any(k == kind for k, _ in new.provides):
            raise UsageError(f"{shown}: registers no {kind}")


def _hash_of_package(package: str, shown: str) -> str:
    """Return the hash of a package's Python files, or of a module that is one file."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise UsageError(f"{shown}: there is no package '{package}'")
    roots = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [(path.relative_to(root).as_posix(), path) for root in roots for path in root.rglob("*.py")]
    if not roots and spec.origin is not None:
        files = [("", Path(spec.origin))]
    digest = hashlib.sha256()
    for name, path in sorted(files):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@contextmanager
def _as(plugin: Plugin, shown: str) -> Iterator[None]:
    """Note what is registered meanwhile as a plug-in's; it counts as loaded if all goes well."""
    for name in _REGISTRIES:
        importlib.import_module(name)
    _loading.append(plugin)
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{shown}: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{shown}: cannot be imported: {told(error)}") from error
    finally:
        _loading.remove(plugin)
    if not plugin.provides:
        raise UsageError(f"{shown}: registers no {', '.join([*GROUPS.values()][:-1])} or {[*GROUPS.values()][-1]}")
    _loaded[plugin.source] = plugin


def raised_in(error: BaseException) -> str:
    """Return the innermost place in a plug-in where an error was raised: file or module, and line; empty if in none."""
    sources = {plugin.source for plugin in (*_loaded.values(), *_loading)}
    for frame, number in reversed([*traceback.walk_tb(error.__traceback__)]):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if file in sources:
            return f"{Path(file).name}, line {number}"
        if module.partition(".")[0] in sources:
            return f"{module}, line {number}"
    return ""


def told(error: BaseException) -> str:
    """Return an error as one line; an unexpected one with its type and its place in a plug-in."""
    if isinstance(error, XclrunError):
        return str(error)
    line = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
    return line + (f" (in {place})" if (place := raised_in(error)) else "")


def require(plugins: Iterable[str], of: str) -> None:
    """Load the plug-ins that a run was planned with; a note names each file whose code this runs.

    Args:
        plugins: as `used` gives them.
        of: what needs them, for error lines.

    Raises:
        UsageError: one is gone, or is not the same any more; then nothing of it is executed.
    """
    for plugin in plugins:
        sha256, _, source = plugin.partition("  ")
        shown = f"{of}: plug-in {source}"
        if Path(source).is_absolute():
            load_file(Path(source), shown, sha256)
            continue
        # A name with a dot would be imported by looking for it.
        if source not in _loaded and source.isidentifier() and importlib.util.find_spec(source) is not None:
            _check_unchanged(_hash_of_package(source, shown), sha256, shown)
            load_installed()
        if source not in _loaded:
            raise UsageError(f"{of}: the plug-in '{source}' is not installed")
        _check_unchanged(_loaded[source].sha256, sha256, shown)


def _check_unchanged(sha256: str, expected: str | None, shown: str) -> None:
    if expected is not None and sha256 != expected:
        raise UsageError(
            f"{shown} has changed since it was planned (SHA-256 {expected[:12]}, now {sha256[:12]}); "
            "give the command again"
        )
