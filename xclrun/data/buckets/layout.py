"""The published layout of buckets: one folder per (K, language, bucket id), written and read.

``{task}/{K}-shots/{language}/{b}-th/sampled.json`` holds examples with labels: a dict label → list of examples with
``uid``, ``text_a``, ``text_b`` and ``label``; ``…/train.tsv`` holds sentences with tags: ``word TAB tag``, blank line
between sentences. ``task`` is the dataset's name, or is left out; languages go by their key (``de``) or their English
name (``german``).

What we write has a file ``bucket.json`` beside it: a fingerprint of the examples, which is checked when they are read,
how they were drawn, and the ids and texts that ``train.tsv`` cannot hold. In ``sampled.json`` an example has ``tokens``
and ``tags`` too, where ``text_a`` does not say them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xclrun.core.errors import UsageError, did_you_mean
from xclrun.data.example import Example, fingerprint
from xclrun.data.readers.files import BadRow, check_text, check_word, parse_json, parse_utf8, read_regular, strings_of
from xclrun.store.files import atomic_write, write_json

CLASSES, TAGS, OURS = "sampled.json", "train.tsv", "bucket.json"

NAMES = {
    "ar": "arabic", "bg": "bulgarian", "de": "german", "el": "greek", "en": "english", "es": "spanish", "fi": "finnish",
    "fr": "french", "hi": "hindi", "it": "italian", "ja": "japanese", "ko": "korean", "ru": "russian", "sw": "swahili",
    "th": "thai", "tr": "turkish", "ur": "urdu", "vi": "vietnamese", "zh": "chinese",
}  # fmt: skip


@dataclass(frozen=True)
class Bucket:
    """The examples of one bucket and what they were drawn as.

    Attributes:
        language: key of the dataset's part.
        shots: K.
        number: the bucket's id.
        examples: what it holds, in order.
        drawn: how it was drawn, as ``bucket.json`` says it; empty where others wrote it.
        shown: its file, for error lines; empty where it was drawn just now.
    """

    language: str
    shots: int
    number: int
    examples: tuple[Example, ...]
    drawn: dict[str, Any]
    shown: str = ""

    @property
    def name(self) -> str:
        """The place in the layout below the task: ``4-shots/de/7-th``."""
        return f"{self.shots}-shots/{self.language}/{self.number}-th"


def write(root: Path, bucket: Bucket) -> bool:
    """Write a bucket below ``root`` (the task's folder); return whether it was not there yet.

    Raises:
        UsageError: another bucket is there, or a word cannot be written.
    """
    folder = root / bucket.name
    with_labels = bucket.examples[0].label is not None
    content = _json(bucket.examples) if with_labels else _tsv(bucket.examples)
    path = folder / (CLASSES if with_labels else TAGS)
    mark = fingerprint(bucket.examples)
    if path.is_file():
        if path.read_bytes() == content.encode() and _ours(folder).get("fingerprint") == mark:
            return False
        raise UsageError(f"{path}: another bucket is there; remove it, or write to another folder")
    ours: dict[str, Any] = {"fingerprint": mark, "shots": bucket.shots, "bucket": bucket.number, **bucket.drawn}
    if not with_labels:
        ours |= {"ids": [e.id for e in bucket.examples], "texts": [e.text for e in bucket.examples]}
    # The mark comes last: without it the bucket would be taken for one that others wrote.
    atomic_write(path, content)
    write_json(folder / OURS, ours)
    return True


def find(root: Path, task: str, language: str, shots: int, number: int) -> Path:
    """Return the folder of one bucket.

    Args:
        root: holds the folder ``task``, or what would be in it.

    Raises:
        UsageError: it is not there.
    """
    names = (language, NAMES[language]) if language in NAMES else (language,)
    below = [f"{shots}-shots/{name}/{number}-th" for name in names]
    for base in (root / task, root):
        for name in below:
            if (base / name).is_dir():
                return base / name
    if not root.is_dir():
        raise UsageError(f"dataset.buckets.root={root}: is no folder")
    having = sorted({task for task, *_ in walk(root)})
    there = f"it holds buckets of {', '.join(having)}" if having else "it holds no bucket"
    raise UsageError(f"dataset.buckets.root={root}: no {' or '.join(below)} in it or in its folder {task}; {there}")


def walk(root: Path) -> Iterator[tuple[str, str, int, int, Path]]:
    """Yield (task, language, K, bucket id, folder) of every bucket below ``root``; the task's folder may be left out.

    ``task`` is the path to the folder that holds ``{K}-shots``, relative to ``root``; ``.`` for ``root`` itself.
    """
    keys = {name: key for key, name in NAMES.items()}
    found = []
    # Thousands of folders: those of buckets themselves are not looked into, as a glob of "**" would.
    for base, folders, _ in os.walk(root):
        k = re.fullmatch(r"([1-9]\d*)-shots", os.path.basename(base))
        if k is None or Path(base) == root:
            continue
        task = Path(base).parent.relative_to(root).as_posix()
        for name in folders:
            found += [
                (task, keys.get(name, name), int(k[1]), int(b[1]), Path(entry.path))
                for entry in os.scandir(os.path.join(base, name))
                if (b := re.fullmatch(r"(0|[1-9]\d*)-th", entry.name)) and entry.is_dir()
            ]
        folders.clear()
    yield from sorted(found)


def load(folder: Path, language: str, shots: int, number: int, allow_empty: bool = False) -> Bucket:
    """Read the bucket in a folder.

    Args:
        allow_empty: return a bucket without examples where the file holds none, as some published ones do.

    Raises:
        UsageError: it cannot be read, holds no example, or is not what its fingerprint says.
    """
    try:
        there = set(os.listdir(folder))
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read ({error.strerror})") from None
    path = next((folder / name for name in (CLASSES, TAGS) if name in there), None)
    if path is None:
        raise UsageError(f"{folder}: holds neither {CLASSES} nor {TAGS}")
    ours = _ours(folder) if OURS in there else {}
    content = read_regular(path, str(path))
    if path.name == CLASSES:
        examples = _from_json(content, language, str(path))
    else:
        examples = _from_tsv(content, language, str(path), f"{shots}-shots-{number}", ours)
    if not examples and not allow_empty:
        raise UsageError(f"{path}: no examples")
    if ours and fingerprint(examples) != ours["fingerprint"]:
        raise UsageError(f"{path}: is not what {OURS} beside it says; make the bucket again, or remove {OURS}")
    drawn = {key: value for key, value in ours.items() if key not in ("fingerprint", "ids", "texts")}
    return Bucket(language, shots, number, examples, drawn, str(path))


def _ours(folder: Path) -> dict[str, Any]:
    """Return what ``bucket.json`` says; empty where there is none."""
    path = folder / OURS
    if not path.exists():
        return {}
    text = read_regular(path, str(path))
    try:
        found = parse_json(parse_utf8(text), "the file")
    except BadRow as bad:
        raise UsageError(f"{path}: {bad}") from None
    if not isinstance(found, dict) or not isinstance(found.get("fingerprint"), str):
        raise UsageError(f"{path}: has no fingerprint; it is not a file that xclrun wrote")
    return found


def _json(examples: Sequence[Example]) -> str:
    found: dict[str, list[dict[str, Any]]] = {}
    for e in examples:
        text = " ".join(e.tokens) if e.text is None else e.text
        row: dict[str, Any] = {"uid": e.id, "text_a": text, "text_b": e.text_b, "label": e.label}
        if tuple(text.split()) != e.tokens:
            row["tokens"] = list(e.tokens)
        if e.tags is not None:
            row["tags"] = list(e.tags)
        found.setdefault(str(e.label), []).append(row)
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def _from_json(content: bytes, language: str, shown: str) -> tuple[Example, ...]:
    try:
        found = parse_json(parse_utf8(content), "the file")
        if not isinstance(found, dict):
            raise BadRow("is not an object label → list of examples")
        examples = []
        for label, rows in found.items():
            if not isinstance(rows, list):
                raise BadRow(f"label '{label}' has no list of examples")
            for i, row in enumerate(rows, 1):
                try:
                    examples.append(_example(row, label, language))
                    check_text(examples[-1])
                except BadRow as bad:
                    raise BadRow(f"label '{label}', example {i}: {bad}") from None
        _check_ids(examples)
    except BadRow as bad:
        raise UsageError(f"{shown}: {bad}") from None
    return tuple(examples)


def _example(row: Any, label: str, language: str) -> Example:
    if not isinstance(row, dict):
        raise BadRow("is not an object")
    for key in ("uid", "text_a", "label"):
        if key not in row:
            raise BadRow(f"'{key}' is missing; {did_you_mean(key, row)}")
    if not isinstance(row["label"], str | int) or str(row["label"]) != label:
        raise BadRow(f"its own label is {row['label']!r}")
    uid, text, second = row["uid"], row["text_a"], row.get("text_b")
    if not isinstance(uid, str) or not uid.strip():
        raise BadRow(f"'uid' must be a string that is not blank, not {uid!r}")
    if not isinstance(text, str) or not text.strip():
        raise BadRow(f"'text_a' must be a string that is not blank, not {text!r}")
    if second is not None and not isinstance(second, str):
        raise BadRow(f"'text_b' must be a string, not {second!r}")
    tokens, tags = strings_of(row, "tokens"), strings_of(row, "tags")
    words = tuple(text.split()) if tokens is None else tokens
    if not words or (tags is not None and len(tags) != len(words)):
        raise BadRow(f"{len(tags or ())} tags for {len(words)} words")
    return Example(uid, language, words, label, tags, None if text == " ".join(words) else text, second or None)


def _tsv(examples: Sequence[Example]) -> str:
    blocks = []
    for e in examples:
        assert e.tags is not None
        for text in (*e.tokens, *e.tags):
            if not text.strip() or set(text) & {"\t", "\n", "\r"}:
                raise UsageError(f"'{e.id}' in {e.language}: {TAGS} cannot hold {text!r}")
        blocks.append("".join(f"{word}\t{tag}\n" for word, tag in zip(e.tokens, e.tags, strict=True)))
    return "\n".join(blocks)


def _from_tsv(content: bytes, language: str, shown: str, default: str, ours: dict[str, Any]) -> tuple[Example, ...]:
    sentences: list[tuple[list[str], list[str]]] = [([], [])]
    for number, text in enumerate(_lines(content, shown), 1):
        word, tab, tag = text.partition("\t")
        if not text or text.isspace():
            sentences.append(([], []))
        elif not tab or "\t" in tag or not word.strip() or not tag.strip():
            raise UsageError(f"{shown}:{number}: {text!r} is not word TAB tag")
        else:
            try:
                check_word(word)
            except BadRow as bad:
                raise UsageError(f"{shown}:{number}: {bad}") from None
            sentences[-1][0].append(word)
            sentences[-1][1].append(tag)
    sentences = [sentence for sentence in sentences if sentence[0]]
    ids = ours.get("ids", [f"{default}-{i}" for i in range(1, len(sentences) + 1)])
    texts = ours.get("texts", [None] * len(sentences))
    if len(ids) != len(sentences) or len(texts) != len(sentences):
        raise UsageError(f"{shown}: {len(sentences)} sentences, but {OURS} beside it names {len(ids)}")
    return tuple(
        Example(id, language, tuple(words), None, tuple(tags), text)
        for id, text, (words, tags) in zip(ids, texts, sentences, strict=True)
    )


def _lines(content: bytes, shown: str) -> list[str]:
    """Return the lines of a file; \\n or \\r\\n ends one."""
    try:
        return [line.rstrip("\r") for line in content.decode().split("\n")]
    except UnicodeDecodeError as error:
        number, begin = content.count(b"\n", 0, error.start) + 1, content.rfind(b"\n", 0, error.start) + 1
        raise UsageError(f"{shown}:{number}: not UTF-8 (byte {error.start - begin + 1} of the line)") from None


def _check_ids(examples: Sequence[Example]) -> None:
    seen = set()
    for example in examples:
        if example.id in seen:
            raise BadRow(f"uid '{example.id}' is there twice")
        seen.add(example.id)
