"""Statements: any dataset of classes or tags as one binary task, whether a statement about a text is true.

Lifelong language learning by degree of belief (LL, section 4): the input is a context c, the example's text, and a
statement x about it; the model gives P(true | x, c). So many tasks become one, ``statement_truth``, whose label set is
known beforehand, and no task id is given. True statements hold the example's own label or tags, false ones a wrong
label, or tags that are partly wrong. `kinds` says how a kind of task is worded, ``dataset.statements`` how statements
are made.

**Ids.** A statement of an example is ``EXAMPLE#k``: k = 0 is true, k = 1, 2, … are false. Where the dataset's own label
says what a statement is (``truth: label``), the example has one statement, ``EXAMPLE#0`` if it is true and
``EXAMPLE#1`` if it is false. What scores of statements need is in the prediction rows: the id, ``gold`` and
``predicted`` (0 false, 1 true, as in `STATEMENT_TRUTH.classes`), and ``log2_gold``, from which P(true) follows.
`xclrun.core.task.statement_of` takes an id apart. A choice among an example's statements is one only where a true and
a false one are there: a random subset of statements (``max_train``) may have cut some off; ``dataset.stratified`` keeps
them together.

**Draws.** A statement is a function of (``dataset.subset_seed``, key, split, example id, k), and of the label set of
its part: never of what was drawn before it. So all runs see the same ones, and a subset has those of the whole.
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

# What represents a context that is hidden (``dataset.statements.context=hidden``).
HIDDEN = ("_",)

FALSE, TRUE = STATEMENT_TRUTH.classes


@cache
def kinds() -> Mapping[str, StatementKind]:
    """Return the kinds of statements that the package knows, by name."""
    content = yaml.safe_load(Path(__file__).with_name("statements.yaml").read_text(encoding="utf-8"))
    return {name: StatementKind(**{**of, "truth": Truth(of.get("truth", "made"))}) for name, of in content.items()}


def stated(cfg: DatasetConfig, part: Part) -> Part:
    """Return a part whose examples are statements about those of another.

    Args:
        cfg: the dataset: how statements are made, its seed of subsets, and the kind that the part asks for.
        part: examples with labels or tags.
    """
    settings, own = cfg.statements, cfg.parts[part.name].statements if part.name else None
    name, known = own or settings.kind, {**kinds(), **settings.kinds}
    asked = own is not None or (part.name and settings.kind is None)
    key = f"dataset.parts.{part.name}.statements" if asked else "dataset.statements.kind"
    if name not in known:
        what = f"{key} must be given" if name is None else f"{key}={name}: unknown"
        raise UsageError(f"{what}; {did_you_mean(str(name), known)}")
    maker = _Maker(f"{key}={name}", known[name], settings, part)
    splits = {
        (language, split): tuple(maker.statements(examples, split, (cfg.subset_seed, language, split)))
        for (language, split), examples in part.splits.items()
    }
    return replace(part, splits=splits, task=STATEMENT_TRUTH)


def fields_of(key: str, template: str) -> frozenset[str]:
    """Return the fields of a template such as ``The topic is {label}.``; they are plain names."""
    try:
        runs = list(Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"{key}: the template {template!r} cannot be read ({error})") from None
    fields = [(name, bool(spec or conversion)) for _, name, spec, conversion in runs if name is not None]
    if not template.strip() or any(more or not name.isidentifier() for name, more in fields):
        raise UsageError(f"{key}: the template {template!r} must be text with fields such as {{label}}")
    return frozenset(name for name, _ in fields)


class Draw:
    """Numbers that look random, each a function of what it is drawn for (blake2b of a text)."""

    def __init__(self, *position: object) -> None:
        self.position = position

    def number(self, *purpose: object) -> int:
        """Return a whole number of 64 bits."""
        text = "\0".join(map(str, (*self.position, *purpose)))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

    def below(self, n: int, *purpose: object) -> int:
        """Return a whole number from 0 to n − 1."""
        return self.number(*purpose) % n

    def ranked(self, names: Sequence[Any], *purpose: object) -> list[Any]:
        """Return the names in an order that is drawn."""
        return sorted(names, key=lambda name: self.number(*purpose, name))

    def weighted(self, weights: Mapping[str, int], *purpose: object) -> str:
        """Return a name, each as often as its weight says."""
        ends = list(accumulate(weights.values()))
        return list(weights)[bisect_right(ends, self.below(ends[-1], *purpose))]


# What a statement says of an example: (k, the fields of its template), k = 0 for the true one.
Claims = Iterator[tuple[int, dict[str, str]]]


class _Maker:
    """Makes the statements of one part."""

    def __init__(self, key: str, kind: StatementKind, settings: StatementsConfig, part: Part) -> None:
        self.key, self.kind, self.settings, self.part = key, kind, settings, part
        self.claims: Callable[[Example, str, Draw], Claims]
        self.templates = kind.templates or []
        fields = frozenset().union(*(fields_of(key, template) for template in self.templates))
        # What statements add to what is said of the example anyway, and what of it each of them must hold.
        added: set[str] = set()
        if kind.truth is Truth.label:
            self.claims, about = self._own, "label"
        elif "label" in fields:
            self.claims, about, added = self._labels, "label", {"label"}
        elif "tags" not in fields:
            raise UsageError(f"{key}: a template must hold {{label}} or {{tags}}, unless truth is label")
        elif settings.tagging is Tagging.word:
            self.claims, about, added = self._word, "tags", {"word", "tag"}
            self.templates = kind.words or []
        else:
            self.claims, about, added = self._corrupted, "tags", {"tags"}
        if (part.task.label if about == "label" else part.task.tag) is None:
            raise UsageError(f"{key}: is about {about}, and examples of {part.task.name} have none")
        if not self.templates:
            raise UsageError(f"{key}: no template of statements about {'words' if 'word' in added else 'examples'}")
        self._check_fields(added)
        self.labels = {split: self._labels_of(split) for split in ("train", "dev", "test")}
        self.tags = Counter(tag for e in self._examples("train") for tag in e.tags or ())
        if kind.tags is not None and len(set(map(self._named, kind.tags))) < 2:
            raise UsageError(f"{key}: tags={kind.tags}: needs two at least")
        if kind.wrong_from not in ("train", "split"):
            raise UsageError(f"{key}: wrong_from={kind.wrong_from}: train or split")
        # Wrong tags are those of training, whatever ``wrong_from`` says of labels.
        of = {*map(self._named, self.tags)} if about == "tags" else set(self.labels["train"])
        if len(of) < 2 and added and (about == "tags" or kind.wrong_from == "train"):
            raise UsageError(f"{key}: nothing false can be said: training has {len(of)} {about.removesuffix('s')}")

    def statements(self, examples: Sequence[Example], split: str, seed: tuple[int, str, str]) -> Iterator[Example]:
        """Yield the statements about some examples of one split, in their order, the true one of each first."""
        for example in examples:
            values = _said(example)
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

    # The four ways to say something true and something false.

    def _own(self, example: Example, split: str, draw: Draw) -> Claims:
        """The example's label says whether its statement is true."""
        if example.label not in (FALSE, TRUE):
            raise UsageError(f"{self.key}: example '{example.id}' has the label '{example.label}', not false or true")
        yield int(example.label == FALSE), {}

    def _labels(self, example: Example, split: str, draw: Draw) -> Claims:
        """The label; then wrong ones, each once."""
        right = self._named(str(example.label))
        yield 0, {"label": right}
        others = [name for name in self.labels[split if self.kind.wrong_from == "split" else "train"] if name != right]
        for k, wrong in enumerate(draw.ranked(others, "label")[: self.settings.wrong], 1):
            yield k, {"label": wrong}

    def _corrupted(self, example: Example, split: str, draw: Draw) -> Claims:
        """The tags; then such of which some are wrong."""
        tags = example.tags or ()
        yield 0, {"tags": self._line(tags)}
        if self.settings.corrupt is Corruption.one:
            wrong = self._one_wrong(tags, draw)
        else:
            wrong = (self._half_drawn(tags, draw, k) for k in range(1, self.settings.wrong + 1))
        for k, found in enumerate(wrong, 1):
            yield k, {"tags": self._line(found)}

    def _half_drawn(self, tags: Sequence[str], draw: Draw, k: int) -> list[str]:
        """Draw ⌊n/2⌋ of n tags again (one of one), uniformly from all; again, where that says what it said before."""
        drawn_from = self.kind.tags or sorted(self.tags)
        places = draw.ranked(range(len(tags)), k, "places")[: max(1, len(tags) // 2)]
        attempt = 0
        while True:
            found = list(tags)
            for place in places:
                found[place] = drawn_from[draw.below(len(drawn_from), k, "tag", attempt, place)]
            if self._line(found) != self._line(tags):
                return found
            attempt += 1

    def _one_wrong(self, tags: Sequence[str], draw: Draw) -> Iterator[list[str]]:
        """Draw one tag again, another one, each as often as training has it; no two that say the same."""
        said = [{tag} for tag in tags]
        for k in range(1, self.settings.wrong + 1):
            place = draw.below(len(tags), k, "place")
            if not (others := self._others(said[place])):
                left = [at for at, tags_there in enumerate(said) if self._others(tags_there)]
                if not left:
                    return
                place = left[draw.below(len(left), k, "place left")]
                others = self._others(said[place])
            wrong = draw.weighted(others, k, "tag")
            said[place].add(wrong)
            yield [*tags[:place], wrong, *tags[place + 1 :]]

    def _word(self, example: Example, split: str, draw: Draw) -> Claims:
        """The tag of one word; then one that the word has nowhere in the sentence, as often as training has it."""
        tags = example.tags or ()
        place = draw.below(len(tags), "word")
        word = example.tokens[place]
        yield 0, {"word": word, "tag": self._named(tags[place])}
        right = {tag for other, tag in zip(example.tokens, tags, strict=True) if other.casefold() == word.casefold()}
        if others := self._others(right):
            yield 1, {"word": word, "tag": self._named(draw.weighted(others, "tag"))}

    # What they need.

    def _others(self, right: set[str]) -> dict[str, int]:
        """Return the tags of training, and how often they are there, that are not called as those given are."""
        called = set(map(self._named, right))
        return {tag: n for tag, n in sorted(self.tags.items()) if self._named(tag) not in called}

    def _named(self, name: str) -> str:
        return (self.kind.names or {}).get(name, name)

    def _line(self, tags: Sequence[str]) -> str:
        return " ".join(map(self._named, tags))

    def _examples(self, split: str) -> Iterator[Example]:
        return (e for (_, of), examples in self.part.splits.items() if of == split for e in examples)

    def _labels_of(self, split: str) -> list[str]:
        return sorted({self._named(e.label) for e in self._examples(split) if e.label is not None})

    def _check_fields(self, added: set[str]) -> None:
        """Check templates against the first example, and that every statement holds what can be wrong."""
        first = next((e for examples in self.part.splits.values() for e in examples), None)
        known = added | (_said(first).keys() if first is not None else set())
        for template in [*self.templates, *([self.kind.context] if self.kind.context is not None else [])]:
            if missing := sorted(fields_of(self.key, template) - known):
                raise UsageError(
                    f"{self.key}: the examples of dataset.reader={self.part.cfg.reader} have no '{missing[0]}'; "
                    f"{did_you_mean(missing[0], known)}"
                )
        for template in self.templates:
            for name in added - {"word"} - fields_of(self.key, template):
                raise UsageError(f"{self.key}: the template {template!r} lacks {{{name}}}")
        for name, called in (self.kind.names or {}).items() if added else ():
            if not called.strip():
                raise UsageError(f"{self.key}: names: '{name}' is called nothing")


def _said(example: Example) -> dict[str, str]:
    """Return what templates may hold of an example, but for its label and tags."""
    found = {"text": example.text or " ".join(example.tokens), **(example.facts or {})}
    return found if example.text_b is None else {**found, "text_b": example.text_b}
