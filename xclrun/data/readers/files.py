"""Shared code of readers: find the file of each split, select languages, and read lines and JSON.

A layout is a list of file names with the placeholders ``{language}``, ``{split}``, ``{any}`` (any text), ``{folder}``
(name of a folder), ``{treebank}`` (a name that becomes part of the key of a language with several treebanks) and
``{part}`` (name of a part of the split, whose parts are joined by name). In a name with ``{any}`` or ``{treebank}``,
the language's name must not contain dots or underscores. If several names match files of one split, the first
name is read. Every error is one line: the file as the user wrote it, the line, the reason.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import unicodedata
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.files import open_file, read_bytes
from xclrun.core.languages import key_of
from xclrun.data.example import SPLITS
from xclrun.data.readers.values import BadRow

SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "eval", "validation", "valid", "val"), "test": ("test",)}

# A gzip file is refused if it unpacks to more than UNPACKED bytes and to more than RATIO times its size. Text shrinks
# to a third or a tenth, so only gzip bombs exceed both limits.
UNPACKED, RATIO = 100 << 20, 100

# Placeholders of file names in a layout.
PLACES = frozenset(("language", "split", "any", "folder", "part", "treebank"))


@dataclass(frozen=True)
class SplitFile:
    """The file with one split of one language, or a part of it.

    Attributes:
        name: the path as the user would write it.
        ignored: number of other files with this split, which are not read.
    """

    language: str
    split: str
    path: Path
    name: str
    ignored: int = 0


@dataclass(frozen=True)
class Root:
    """The folder of a dataset; ``name`` is its path as the user wrote it."""

    path: Path
    name: str

    def error(self, reason: str) -> UsageError:
        return UsageError(f"dataset.root={self.name}: {reason}")

    def filled(self, name: str) -> bool:
        """Whether a path is not an empty file."""
        path = self.path / name
        return not path.is_file() or path.stat().st_size > 0

    def file(self, language: str, split: str, name: str) -> SplitFile:
        return SplitFile(language, split, self.path / name, os.path.join(self.name, name))

    def first(self, language: str, split: str, names: Iterable[str]) -> SplitFile | None:
        """Return the first of some files that exists, if possible one that is not empty, or None."""
        existing = [name for name in names if (self.path / name).is_file()]
        name = next((name for name in existing if (self.path / name).stat().st_size), next(iter(existing), None))
        return None if name is None else self.file(language, split, name)

    def required(self, language: str, split: str, names: Sequence[str]) -> SplitFile:
        """Return the first of some files that exists; a missing file is an error."""
        if (file := self.first(language, split, names)) is None:
            raise self.error(f"no {split} split; looked for {' or '.join(names)}")
        return file


def find_files(
    cfg: DatasetConfig,
    layout: Sequence[str],
    split_names: Mapping[str, tuple[str, ...]] = SPLIT_NAMES,
    languages: Mapping[str, str] | None = None,
    may_lack: Collection[str] = (),
    shared: str = "",
) -> list[SplitFile]:
    """Return the file of every selected language and split under ``dataset.root``, by language, then by split.

    Args:
        split_names: split → its names in file names.
        languages: name in file names → language key; other names are keys themselves.
        may_lack: splits that no language needs. Languages without dev, and languages that are only evaluated, need
            none; but ``train`` must exist in one language.
        shared: what to set if a split's file without a language in its name is meant, for errors.
    """
    root = root_of(cfg, layout, split_names)
    # Language and split → rank (of the layout's name, of the split's name) → files.
    files: dict[tuple[str, str], dict[tuple[int, int], list[str]]] = {}
    patterns = [_pattern(name, split_names) for name in layout]
    # Language → keys of its treebanks.
    treebanks: dict[str, set[str]] = {}
    for name in _names(root):
        matches = ((rank, pattern.fullmatch(name)) for rank, pattern in enumerate(patterns))
        rank, match = next(((rank, match) for rank, match in matches if match), (0, None))
        if match is not None:
            split = next(s for s, names in split_names.items() if match["split"] in names)
            language = (languages or {}).get(match["language"], match["language"])
            ranks = rank, split_names[split].index(match["split"])
            if treebank := match.groupdict().get("treebank"):
                key = f"{language}_{treebank}"
                treebanks.setdefault(language, set()).add(key)
                language = key
            files.setdefault((language, split), {}).setdefault(ranks, []).append(name)
    for language, [key, *others] in treebanks.items():
        for split in () if others else SPLITS:
            for ranks, names in files.pop((key, split), {}).items():
                files.setdefault((language, split), {}).setdefault(ranks, []).extend(names)
    available = {language for language, _ in files}
    if not available:
        ends = [name.rpartition("{split}")[2] for name in layout]
        bare = [alias + end for names in split_names.values() for alias in names for end in ends]
        file = root.first("", "", bare)
        nearly = f"{file.path.name} names no language{shared}; " if file else ""
        raise root.error(f"no data found; {nearly}looked for {_candidates('<language>', 'train', layout, split_names)}")
    if any(split == "train" for _, split in files):
        may_lack = (*may_lack, "train")
    selected = []
    chosen = choose_languages(cfg.languages, available, root.name)
    needed = [split for split in SPLITS if split not in (*may_lack, "dev")]
    for language in chosen:
        for split in SPLITS:
            names, ignored = _preferred(root, layout, (language, split), files.get((language, split), {}))
            if not names and split in needed:
                candidates = _candidates(language, split, layout, split_names)
                rest = [other for other in chosen if all((other, split) in files for split in needed)]
                without = f"; to leave it out, set dataset.languages=[{','.join(rest)}]" if 0 < len(rest) <= 20 else ""
                raise root.error(f"'{language}' has no {split} split; looked for {candidates}{without}")
            found = [root.file(language, split, name) for name in names]
            selected += [replace(file, ignored=0 if i else ignored) for i, file in enumerate(found)]
    return selected


def _preferred(
    root: Root, layout: Sequence[str], key: tuple[str, str], ranked: Mapping[tuple[int, int], list[str]]
) -> tuple[list[str], int]:
    """Return the files of one split, and the number of ignored files that are not empty.

    The first file by rank that is not empty is read, with all parts if it is a part. Two files of one rank, such as two
    sizes of a training set, are an error.
    """
    filled = {rank: full for rank, names in ranked.items() if (full := [n for n in names if root.filled(n)])}
    for rank, names in sorted((filled or ranked).items()):
        if len(names) > 1 and "{part}" not in layout[rank[0]]:
            language, split = key
            raise root.error(f"'{language}' has two files for {split}: {' and '.join(sorted(names))}; remove one")
        return sorted(names), sum(map(len, filled.values())) - len(filled.get(rank, ()))
    return [], 0


def named_files(cfg: DatasetConfig, language: str, files: Mapping[str, Sequence[str]]) -> list[SplitFile]:
    """Return the files of a dataset in one language: for each split, the first name in ``files`` that exists."""
    root = root_of(cfg, [names[0] for names in files.values()])
    choose_languages(cfg.languages, [language], f"{cfg.reader}, whose only language is '{language}'")
    found = (
        (root.first if split == "dev" else root.required)(language, split, names) for split, names in files.items()
    )
    return [file for file in found if file is not None]


def choose_languages(selected: Sequence[str] | None, available: Collection[str], where: str) -> tuple[str, ...]:
    """Return the keys of the selected languages, which may be any codes of them (``deu``); by default all, sorted."""
    if selected is None:
        return tuple(sorted(available))
    if not selected:
        raise UsageError(f"dataset.languages is empty; remove it to use all of {', '.join(sorted(available))}")
    # Names of files may be in another Unicode normalization than typed keys, for example on macOS.
    written = {unicodedata.normalize("NFC", key): key for key in available}
    typed = [written.get(unicodedata.normalize("NFC", str(language)), str(language)) for language in selected]
    keys = [key_of(language, available, "dataset.languages") for language in typed]
    for i, key in enumerate(keys):
        if key not in available:
            raise UsageError(f"dataset.languages: no '{key}' in {where}; {did_you_mean(str(key), available)}")
        if key in keys[:i]:
            raise UsageError(f"dataset.languages: '{key}' is repeated: {', '.join(keys)}; remove one")
    return tuple(keys)


def blocks(file: SplitFile) -> Iterator[list[bytes]]:
    """Yield one item per line: at the first line of a block, the lines up to a blank line; otherwise an empty list.

    The position of a block in the output is therefore its line number.
    """
    block: list[bytes] = []
    for line in [*lines(file), b""]:
        if line.strip():
            block.append(line)
            continue
        if block:
            yield block
        yield from [[]] * max(1, len(block))
        block = []


def lines(file: SplitFile) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; as bytes, so that one bad character affects one line only."""
    # str.splitlines would also split at line separators, which tokens may contain.
    for line in read_regular(file.path, file.name).removeprefix(BOM_UTF8).split(b"\n"):
        yield line.rstrip(b"\r")


def read_regular(path: Path, name: str) -> bytes:
    """Return the content of a file, decompressed if its name ends in ``.gz``.

    Pipes and devices, which may be endless, and gzip bombs are refused.
    """
    try:
        if path.suffix != ".gz":
            return _utf8(read_bytes(path), name)
        limit = max(UNPACKED, RATIO * path.stat().st_size)
        with open_file(path) as file, gzip.open(file) as packed:
            content = packed.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(content) > limit:
        raise UsageError(f"{name}: unpacks to more than {limit >> 20} MB; if the content is right, unpack it")
    return _utf8(content, name)


def _utf8(content: bytes, name: str) -> bytes:
    """Refuse UTF-16, which begins with a mark, or has a NUL next to each ASCII character."""
    nuls = [byte == 0 for byte in content[:4]]
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or nuls in ([True, False] * 2, [False, True] * 2):
        raise UsageError(f"{name}: UTF-16; save the file as UTF-8")
    return content


def parse_json(text: str, subject: str) -> Any:
    """Parse a JSON text; error messages (`BadRow`) begin with ``subject``, such as ``the line``."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except BadRow as bad:
        raise BadRow(f"{subject}: {bad}") from None
    except json.JSONDecodeError as error:
        raise BadRow(f"{subject} is not JSON ({error.msg} at character {error.pos + 1})") from None
    except (ValueError, RecursionError):
        raise BadRow(f"{subject} is not readable JSON (nested too deeply, or a number with too many digits)") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        raise BadRow(f"the key '{next(key for key in keys if keys.count(key) > 1)}' is repeated")
    return content


def parse_utf8(line: bytes) -> str:
    """Decode a line; raise `BadRow` if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadRow(f"not UTF-8 (byte {error.start + 1} of the line)") from None


def json_file(path: Path, name: str, hint: str = "") -> dict[str, Any]:
    """Read a JSON file that must contain an object; ``hint`` is appended to error messages."""
    parsed = json_content(read_regular(path, name).removeprefix(BOM_UTF8), name, hint)
    if not isinstance(parsed, dict):
        raise UsageError(f"{name}: must be an object, not {type(parsed).__name__}{hint}")
    return parsed


def json_content(content: bytes, name: str, hint: str = "") -> Any:
    """Parse the content of a JSON file."""
    try:
        return parse_json(content.decode(), "the file")
    except BadRow as bad:
        raise UsageError(f"{name}: {bad}{hint}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 (byte {error.start + 1})") from None


def root_of(
    cfg: DatasetConfig, layout: Sequence[str], split_names: Mapping[str, tuple[str, ...]] = SPLIT_NAMES
) -> Root:
    """Return the folder ``dataset.root``, which must exist."""
    if cfg.root is None:
        example = _candidates("<language>", "train", layout, split_names)
        raise UsageError(f"dataset.root is needed: the folder that holds {example} and so on")
    path = Path(cfg.root).expanduser()
    root = Root(path, str(cfg.root))
    if not path.is_dir():
        raise root.error(f"{'is not a folder' if path.exists() else 'no such folder'} ({path.absolute()})")
    return root


def _names(root: Root) -> list[str]:
    """Return the sorted relative names of all files and folders in a folder and, one level deeper, in its folders."""
    try:
        inside = [entry.name for entry in root.path.iterdir()]
    except OSError as error:
        raise root.error(f"cannot be read ({error.strerror})") from None
    if not inside:
        raise root.error("the folder is empty")
    names = sorted([*inside, *(entry.relative_to(root.path).as_posix() for entry in root.path.glob("*/*"))])
    return [name for name in names if not hidden(name)]


def hidden(name: str) -> bool:
    """Whether a relative path is hidden, such as the files ``._de.train.conll`` of macOS and editors' copies."""
    return any(part.startswith((".", "#", "~")) or part == "__MACOSX" for part in name.split("/")) or name.endswith(
        ("~", ".bak", ".orig", ".swp", ".tmp")
    )


def check_layout(layout: Sequence[str]) -> None:
    """Refuse a layout that is not a list of file names, or has an unknown placeholder."""
    if isinstance(layout, str):
        raise UsageError(f"the layout must be a list of file names: [{layout!r}]")
    for name in layout:
        try:
            name.format_map(dict.fromkeys(PLACES, ""))
        except KeyError as unknown:
            places = ", ".join(f"{{{place}}}" for place in sorted(PLACES))
            raise UsageError(f"layout {name!r}: unknown placeholder {{{unknown.args[0]}}}; known: {places}") from None
        except ValueError as error:
            raise UsageError(f"layout {name!r}: {error}") from None


def _pattern(name: str, split_names: Mapping[str, tuple[str, ...]]) -> re.Pattern[str]:
    """Return the regular expression for a layout's file name, with the groups ``language`` and ``split``."""
    splits = "|".join(alias for names in split_names.values() for alias in names)
    key = r"(?P<language>[^/._]+)" if "{any}" in name or "{treebank}" in name else r"(?P<language>[^/.][^/]*)"
    groups = {"{language}": key, "{split}": f"(?P<split>{splits})", "{any}": r"[^/]+", "{folder}": r"[^/]+"}
    groups["{treebank}"] = r"(?P<treebank>[^/._-]+)"
    groups["{part}"] = r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
    escaped = re.escape(name)
    for place, group in groups.items():
        escaped = escaped.replace(re.escape(place), group)
    return re.compile(escaped)


def _candidates(language: str, split: str, layout: Sequence[str], split_names: Mapping[str, tuple[str, ...]]) -> str:
    """Return the possible file names of a split, for an error line: its first alias, uncompressed if possible."""
    alias, *others = split_names[split]
    names = [n for n in layout if "{part}" not in n and not (n.endswith(".gz") and n.removesuffix(".gz") in layout)]
    listed = _either([name.format(language=language, split=alias, any="*", folder="*", treebank="*") for name in names])
    return listed + (f" (or {_either(others)} instead of {alias})" if others else "")


def _either(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
