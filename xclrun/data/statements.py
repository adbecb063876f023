"""Statements: convert any dataset with classes or tags to true/false statement verification.

Lifelong language learning by degree of belief (LL, section 4): the input is a context c, the example's text, and a
statement x about it; the model computes P(true | x, c). This unifies many tasks as ``statement_truth``, with a fixed
label set and without task IDs. True statements contain the example's label or tags, false statements a wrong label, or
partly wrong tags. `kinds` contains the templates of each kind, and ``dataset.statements`` the settings.

**Ids.** The statements of an example are ``EXAMPLE#k``: k = 0 is true, k = 1, 2, … are false. With ``truth: label``,
each example has one statement, and the example's label says whether it is true. Its id is ``EXAMPLE#0`` if the label is
true, ``EXAMPLE#1`` if it is false. `xclrun.core.task.statement_of` parses an id. A random subset (``max_train``) may
contain only some statements of an example; ``dataset.stratified`` keeps them together.

**Random draws.** A statement depends only on (``dataset.subset_seed``, key, split, example id, k) and the label set of
its part. All runs therefore use the same statements, also in subsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from xclrun.config.schema import Context, Corruption, DatasetConfig, StatementKind, StatementsConfig, Tagging, Truth
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.task import STATEMENT_TRUTH
from xclrun.data.example import Example
from xclrun.data.parts import Part

# The text of a hidden context (``dataset.statements.context=hidden``).
HIDDEN = ("_",)

FALSE, TRUE = STATEMENT_TRUTH.classes


@cache
def kinds() -> Mapping[str, StatementKind]:
    """Return the built-in kinds of statements by name."""
    content = yaml.safe_load(Path(__file__).with_name("statements.yaml").read_text(encoding="utf-8"))
    return {
        name: StatementKind(**{**kind, "truth": Truth(kind.get("truth", "made"))}) for name, kind in content.items()
    }


def stated(cfg: DatasetConfig, part: Part) -> Part:
    """Return the part with its examples converted to statements about their labels or tags."""
    settings, part_kind = cfg.statements, cfg.parts[part.name].statements if part.name else None
    name, available = part_kind or settings.kind, {**kinds(), **settings.kinds}
    in_part = part_kind is not None or (part.name and settings.kind is None)
    key = f"dataset.parts.{part.name}.statements" if in_part else "dataset.statements.kind"
    if name not in available:
        problem = f"{key} must be given" if name is None else f"{key}={name}: unknown"
        raise UsageError(f"{problem}; {did_you_mean(str(name), available)}")
    maker = _Maker(f"{key}={name}", available[name], settings, part)
    splits = {
        (language, split): tuple(maker.statements(examples, split, (cfg.subset_seed, language, split)))
        for (language, split), examples in part.splits.items()
    }
    return replace(part, splits=splits, task=STATEMENT_TRUTH)


def fields_of(key: str, template: str) -> frozenset[str]:
    """Return the names of the fields in a template: ``label`` in ``The topic is {label}.``"""
    try:
        runs = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"{key}: the template {template!r} cannot be read ({error})") from None
    fields = [(name, bool(spec or conversion)) for _, name, spec, conversion in runs if name is not None]
    if not template.strip() or any(more or not name.isidentifier() for name, more in fields):
        raise UsageError(f"{key}: the template {template!r} must be text with fields such as {{label}}")
    return frozenset(name for name, _ in fields)


class Draw:
    """Pseudorandom numbers. Each is a hash (blake2b) of its position in the data and its purpose."""

    def __init__(self, *position: object) -> None:
        self.position = position

    def number(self, *purpose: object) -> int:
        text = "\0".join(map(str, (*self.position, *purpose)))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

    def below(self, n: int, *purpose: object) -> int:
        return self.number(*purpose) % n

    def ranked(self, names: Sequence[Any], *purpose: object) -> list[Any]:
        """Return the names in a random order."""
        return sorted(names, key=lambda name: self.number(*purpose, name))

    def weighted(self, weights: Mapping[str, int], *purpose: object) -> str:
        """Return a name with a probability proportional to its weight."""
        ends = list(accumulate(weights.values()))
        return list(weights)[bisect_right(ends, self.below(ends[-1], *purpose))]


# (k, fields of the template) of each statement about an example; k = 0 for the true statement.
Claims = Iterator[tuple[int, dict[str, str]]]


class _Maker:
    """Generates the statements of one part."""

    def __init__(self, key: str, kind: StatementKind, settings: StatementsConfig, part: Part) -> None:
        self.key, self.kind, self.settings, self.part = key, kind, settings, part
        self.claims: Callable[[Example, str, Draw], Claims]
        self.templates = kind.templates or []
        fields = frozenset().union(*(fields_of(key, template) for template in self.templates))
        # Fields that a claim adds to the template. Every template must contain them; only ``{word}`` is optional.
        added: set[str] = set()
        if kind.truth is Truth.label:
            self.claims, about = self._from_label, "label"
        elif "label" in fields:
            self.claims, about, added = self._labels, "label", {"label"}
        elif "tags" not in fields:
            raise UsageError(f"{key}: a template must contain {{label}} or {{tags}}, unless truth is label")
        elif settings.tagging is Tagging.word:
            self.claims, about, added = self._word, "tags", {"word", "tag"}
            self.templates = kind.words or []
        else:
            self.claims, about, added = self._corrupted, "tags", {"tags"}
        if (part.task.label if about == "label" else part.task.tag) is None:
            raise UsageError(f"{key}: needs {about}, but {part.task.name} has none; choose another kind")
        if not self.templates:
            raise UsageError(f"{key}: no template of statements about {'words' if 'word' in added else 'examples'}")
        self._check_fields(added)
        self.labels = {
            split: sorted({self._named(e.label) for e in self._examples(split) if e.label is not None})
            for split in ("train", "dev", "test")
        }
        self.tags = Counter(tag for e in self._examples("train") for tag in e.tags or ())
        if kind.tags is not None and len(set(map(self._named, kind.tags))) < 2:
            raise UsageError(f"{key}: tags={kind.tags}: must contain at least two different tags")
        if kind.wrong_from not in ("train", "split"):
            raise UsageError(f"{key}: wrong_from={kind.wrong_from}: must be train or split")
        # Wrong tags always come from training; ``wrong_from`` applies to labels.
        names = {*map(self._named, self.tags)} if about == "tags" else set(self.labels["train"])
        if len(names) < 2 and added and (about == "tags" or kind.wrong_from == "train"):
            raise UsageError(f"{key}: no false statements: training has only {len(names)} {about.removesuffix('s')}")

    def statements(self, examples: Sequence[Example], split: str, seed: tuple[int, str, str]) -> Iterator[Example]:
        """Yield the statements about the examples of one split; a true statement precedes its false statements."""
        for example in examples:
            values = _fields(example)
            tokens, text = self._context(example, values)
            for k, claim in self.claims(example, split, Draw(*seed, example.id)):
                template = self.templates[Draw(*seed, example.id, k).below(len(self.templates), "template")]
                statement = self._filled(template, example, values | claim)
                yield Example(
                    f"{example.id}#{k}", example.language, tokens, FALSE if k else TRUE, None, text, statement
                )

    def _context(self, example: Example, values: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
        if self.settings.context is Context.hidden:
            return HIDDEN, None
        if self.kind.context is not None:
            return tuple(self._filled(self.kind.context, example, values).split()), None
        if example.text_b is None:
            return example.tokens, example.text
        return (*example.tokens, *example.tokens_b), None

    def _filled(self, template: str, example: Example, values: Mapping[str, str]) -> str:
        try:
            return template.format_map(values)
        except KeyError as missing:
            raise UsageError(f"{self.key}: example '{example.id}' has no {missing}") from None

    # The four ways to generate true and false statements.

    def _from_label(self, example: Example, split: str, draw: Draw) -> Claims:
        """One statement, whose truth is the example's label."""
        if example.label not in (FALSE, TRUE):
            raise UsageError(f"{self.key}: example '{example.id}' has the label '{example.label}', not false or true")
        yield int(example.label == FALSE), {}

    def _labels(self, example: Example, split: str, draw: Draw) -> Claims:
        """The label, then distinct wrong labels."""
        right = self._named(str(example.label))
        yield 0, {"label": right}
        labels = self.labels[split if self.kind.wrong_from == "split" else "train"]
        for k, wrong in enumerate(
            draw.ranked([name for name in labels if name != right], "label")[: self.settings.wrong], 1
        ):
            yield k, {"label": wrong}

    def _corrupted(self, example: Example, split: str, draw: Draw) -> Claims:
        """The tags, then partly wrong tags."""
        tags = example.tags or ()
        yield 0, {"tags": self._line(tags)}
        if self.settings.corrupt is Corruption.one:
            wrong = self._one_wrong(tags, draw)
        else:
            wrong = (self._half_drawn(tags, draw, k) for k in range(1, self.settings.wrong + 1))
        for k, corrupted in enumerate(wrong, 1):
            yield k, {"tags": self._line(corrupted)}

    def _half_drawn(self, tags: Sequence[str], draw: Draw, k: int) -> list[str]:
        """Redraw ⌊n/2⌋ (at least 1) of n tags uniformly; repeat until the statement differs from the true statement."""
        drawn_from = self.kind.tags or sorted(self.tags)
        places = draw.ranked(range(len(tags)), k, "places")[: max(1, len(tags) // 2)]
        attempt = 0
        while True:
            redrawn = list(tags)
            for place in places:
                redrawn[place] = drawn_from[draw.below(len(drawn_from), k, "tag", attempt, place)]
            if self._line(redrawn) != self._line(tags):
                return redrawn
            attempt += 1

    def _one_wrong(self, tags: Sequence[str], draw: Draw) -> Iterator[list[str]]:
        """Replace one tag by another, drawn by training frequency; all statements are different."""
        used = [{tag} for tag in tags]
        for k in range(1, self.settings.wrong + 1):
            place = draw.below(len(tags), k, "place")
            if not (candidates := self._other_tags(used[place])):
                places = [at for at, tags_used in enumerate(used) if self._other_tags(tags_used)]
                if not places:
                    return
                place = places[draw.below(len(places), k, "place left")]
                candidates = self._other_tags(used[place])
            wrong = draw.weighted(candidates, k, "tag")
            used[place].add(wrong)
            yield [*tags[:place], wrong, *tags[place + 1 :]]

    def _word(self, example: Example, split: str, draw: Draw) -> Claims:
        """The tag of one word, then a tag that the word never has in this sentence, drawn by training frequency."""
        tags = example.tags or ()
        place = draw.below(len(tags), "word")
        word = example.tokens[place]
        yield 0, {"word": word, "tag": self._named(tags[place])}
        right = {tag for other, tag in zip(example.tokens, tags, strict=True) if other.casefold() == word.casefold()}
        if candidates := self._other_tags(right):
            yield 1, {"word": word, "tag": self._named(draw.weighted(candidates, "tag"))}

    def _other_tags(self, right: set[str]) -> dict[str, int]:
        """Return training tag → frequency, for the tags whose names differ from the names of the tags in ``right``."""
        called = set(map(self._named, right))
        return {tag: n for tag, n in sorted(self.tags.items()) if self._named(tag) not in called}

    def _named(self, name: str) -> str:
        return (self.kind.names or {}).get(name, name)

    def _line(self, tags: Sequence[str]) -> str:
        return " ".join(map(self._named, tags))

    def _examples(self, split: str) -> Iterator[Example]:
        return (e for (_, name), examples in self.part.splits.items() if name == split for e in examples)

    def _check_fields(self, added: set[str]) -> None:
        """Check that the first example has all fields of the templates, and that templates contain ``added``."""
        first = next((e for examples in self.part.splits.values() for e in examples), None)
        available = added | (_fields(first).keys() if first is not None else set())
        for template in [*self.templates, *([self.kind.context] if self.kind.context is not None else [])]:
            if missing := sorted(fields_of(self.key, template) - available):
                raise UsageError(
                    f"{self.key}: the examples of dataset.reader={self.part.cfg.reader} have no '{missing[0]}'; "
                    f"{did_you_mean(missing[0], available)}"
                )
        for template in self.templates:
            for name in added - {"word"} - fields_of(self.key, template):
                raise UsageError(f"{self.key}: the template {template!r} lacks {{{name}}}")
        for name, called in (self.kind.names or {}).items() if added else ():
            if not called.strip():
                raise UsageError(f"{self.key}: names: the name of '{name}' is blank")


def _fields(example: Example) -> dict[str, str]:
    """Return the fields of templates that an example defines, without its label and tags."""
    fields = {"text": example.text or " ".join(example.tokens), **(example.facts or {})}
    return fields if example.text_b is None else {**fields, "text_b": example.text_b}
