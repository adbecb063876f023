"""Orders that are computed from the languages or their data: random, by family, by typology, by similarity.

`xclrun.core.stream.resolve_order` resolves the other orders: by size, and explicit lists. The computed sequence is part
of the run ID. Ties are broken by the number of training sentences (descending), then by key.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path

from xclrun.config.schema import MEASURES, OrderConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.files import read_bytes
from xclrun.core.identity import derive
from xclrun.core.languages import key_of, known_languages, language_of
from xclrun.data.example import Dataset


@dataclass(frozen=True)
class LanguageFacts:
    """Family, branch and features of a language, from the package's table or the user's file (``order.features``)."""

    family: str = ""
    branch: str = ""
    features: Mapping[str, str] | None = None


def compute_order(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return all languages of a dataset in the order of ``order.by``."""
    return _WAYS[str(order.by)](order, dataset)


def name_of(order: OrderConfig) -> str:
    """Return the name of a computed order in the syntax of overrides: ``random(1)`` or ``typology(de-DE)``."""
    arguments: dict[str, list[str | None]] = {
        "random": [str(order.seed)],
        "typology": [order.start],
        "similarity": ["greedy", None if order.measure == "vocabulary" else order.measure, order.start],
    }
    words = ",".join(word for word in arguments.get(str(order.by), []) if word)
    return f"{order.by}({words})" if words else str(order.by)


def at_random(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return a random permutation of the languages, drawn by ``order.seed``.

    Each language's rank depends only on its key and the seed, so removing a language does not change the rest.
    """
    return tuple(sorted(dataset.languages, key=lambda key: (derive(int(order.seed or 0), "order", key), key)))


def by_family(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Group the languages by family, and in each family by branch; groups with most languages come first."""
    facts = _facts(order, dataset)
    if lacking := [key for key, entry in facts.items() if not entry.family]:
        raise _unknown(order, "family", lacking)
    families = Counter(entry.family for entry in facts.values())
    branches = Counter((entry.family, entry.branch) for entry in facts.values())

    def place(key: str) -> tuple[object, ...]:
        family, branch = facts[key].family, facts[key].branch
        return -families[family], family, -branches[family, branch], branch, *_rank(dataset, key)

    return tuple(sorted(facts, key=place))


def by_typology(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return the first language, then the others by increasing typological distance from it.

    The distance is the share of differing features among the features that both languages have. If several languages
    have the same distance, languages of the first language's branch precede other languages of its family.
    """
    first = _start(order, dataset)
    return (first, *_nearest(first, dataset, _typological_distance(order, dataset)))


def by_similarity(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return a greedy chain: each language is followed by the most similar remaining language.

    With ``order.measure=vocabulary``, similarity is the Jaccard index of the sets of character trigrams of the training
    words, in lower case and with a space on both sides. With ``order.measure=typology``, the most similar language has
    the smallest distance of `by_typology`.
    """
    typology = order.measure == "typology"
    distance = _typological_distance(order, dataset) if typology else _vocabulary_distance(dataset)
    chained = [_start(order, dataset)]
    while len(chained) < len(dataset.languages):
        chained.append(_nearest(chained[-1], dataset, distance, chained)[0])
    return tuple(chained)


_WAYS: dict[str, Callable[[OrderConfig, Dataset], tuple[str, ...]]] = {
    "random": at_random, "family": by_family, "typology": by_typology, "similarity": by_similarity
}  # fmt: skip


def notes(order: OrderConfig, dataset: Dataset) -> list[str]:
    """Return a note on languages without known features, which get the feature values that their branch shares."""
    compared = order.by == "typology" or (order.by == "similarity" and order.measure == "typology")
    # Do not read the user's file, which may have been removed when a run is resumed.
    if not compared or order.features is not None:
        return []
    without = [key for key, facts in _facts(order, dataset).items() if not facts.features]
    if not without:
        return []
    return [
        f"order={order.name}: no known features for {', '.join(without)}; using the feature values shared by all "
        "languages of their branch"
    ]


def _rank(dataset: Dataset, key: str) -> tuple[int, str]:
    return -dataset.sizes()[key], key


def _start(order: OrderConfig, dataset: Dataset) -> str:
    """Return ``order.start``, or the language with most training sentences; in a tie, English."""
    if order.start is not None:
        if order.start not in dataset.languages:
            # A misspelled option in parentheses was parsed as the start language: suggest options too.
            words = ("greedy", *MEASURES) if order.by == "similarity" else ()
            options = ", ".join(f"'{word}'" for word in words)
            what = "not a language of the dataset"
            if words:
                what = f"neither a language of the dataset nor one of the options {options}"
            hint = did_you_mean(order.start, (*words, *dataset.languages))
            raise UsageError(f"order={order.by}: '{order.start}' is {what}; {hint}")
        return order.start

    def place(key: str) -> tuple[int, bool, str]:
        language = language_of(key)
        return _rank(dataset, key)[0], language is None or language.code != "en", key

    return min(dataset.languages, key=place)


def complete_order(order: OrderConfig, dataset: Dataset) -> OrderConfig:
    """Return a copy of ``order`` in which ``start`` is replaced by the matching dataset key and ``name`` is set."""
    if order.start is not None:
        order = replace(order, start=key_of(order.start, dataset.languages, "order.start"))
    return replace(order, name=order.name or name_of(order))


def _nearest(
    start: str, dataset: Dataset, distance: Callable[[str, str], tuple[object, ...]], without: Sequence[str] = ()
) -> list[str]:
    rest = [key for key in dataset.languages if key != start and key not in without]
    return sorted(rest, key=lambda key: (*distance(start, key), *_rank(dataset, key)))


def _vocabulary_distance(dataset: Dataset) -> Callable[[str, str], tuple[object, ...]]:
    """Return a distance function of two languages: 1 − the Jaccard index of the trigrams of their training words."""
    trigrams = {}
    for key in dataset.languages:
        words = {word.lower() for e in dataset.split(key, "train") for word in chain(e.tokens, e.tokens_b)}
        trigrams[key] = {f" {word} "[i : i + 3] for word in words for i in range(len(word))}

    def distance(first: str, second: str) -> tuple[Fraction]:
        union, both = trigrams[first] | trigrams[second], trigrams[first] & trigrams[second]
        return (1 - Fraction(len(both), max(1, len(union))),)

    return distance


def _typological_distance(order: OrderConfig, dataset: Dataset) -> Callable[[str, str], tuple[object, ...]]:
    """Return a distance function of two languages: (share of differing features, relatedness).

    Relatedness is −2 for the same branch, −1 for the same family, else 0.
    """
    facts = _completed(_facts(order, dataset), order.features is None)
    if lacking := [key for key, entry in facts.items() if not entry.features]:
        raise _unknown(order, "features", lacking)

    def compare(key: str, other: str) -> tuple[Fraction, int]:
        a, b = facts[key], facts[other]
        first, second = a.features or {}, b.features or {}
        both = [name for name in first if name in second]
        differing = sum(first[name] != second[name] for name in both)
        # Languages without a common feature have the largest distance.
        distance = Fraction(differing, len(both)) if both else Fraction(1)
        related = a.family == b.family != "" and (2 if a.branch == b.branch else 1)
        return distance, -int(related)

    return compare


def _completed(facts: Mapping[str, LanguageFacts], with_table: bool) -> dict[str, LanguageFacts]:
    """Fill in unknown features of a language with the feature values that all languages of its branch share.

    The branch includes the languages in ``facts`` and, if ``with_table``, the languages in the package's table.
    """
    values: dict[tuple[str, str], dict[str, set[str]]] = {}
    table = known_languages().values() if with_table else ()
    for entry in (*facts.values(), *table):
        for name, value in (entry.features or {}).items() if entry.family else ():
            values.setdefault((entry.family, entry.branch), {}).setdefault(name, set()).add(value)
    names = {name for entry in facts.values() for name in entry.features or {}}

    def filled(entry: LanguageFacts) -> LanguageFacts:
        agreed = {k: next(iter(v)) for k, v in values.get((entry.family, entry.branch), {}).items() if len(v) == 1}
        return replace(entry, features={k: v for k, v in agreed.items() if k in names} | dict(entry.features or {}))

    return {key: filled(entry) for key, entry in facts.items()}


def _facts(order: OrderConfig, dataset: Dataset) -> dict[str, LanguageFacts]:
    """Return key → family, branch and features of its language, from the package's table or from ``order.features``."""
    # Features of two sources cannot be compared, so a user's file replaces the features of the table.
    rows, facts = {} if order.features is None else _rows(order.features), {}
    for key in dataset.languages:
        language = language_of(key)
        features = language.features if language is not None and order.features is None else None
        usual = LanguageFacts() if language is None else LanguageFacts(language.family, language.branch, features)
        names = [key] if key in rows else [name for name in rows if _same(key, name)]
        if len(names) > 1:
            raise UsageError(
                f"order.features={order.features}: '{key}' could be {' or '.join(names)}; add a row for '{key}'"
            )
        row = rows[names[0]] if names else usual
        facts[key] = row if row.family else replace(usual, features=row.features)
    return facts


def _same(key: str, name: str) -> bool:
    """Whether a key and a name in a file denote the same language, and the same script if the name has one."""
    first, second = language_of(key), language_of(name)
    if first is None or second is None:
        return False
    return first.code == second.code and (not second.written or first.script == second.script)


# Markers of missing values.
_EMPTY = frozenset({"nan", "na", "n/a", "null", "none", "?", "-", "--"})


def _rows(path: str) -> dict[str, LanguageFacts]:
    subject = f"order.features={path}"
    try:
        text = read_bytes(Path(path).expanduser()).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        columns = [column.strip() for column in reader.fieldnames or ()]
        reader.fieldnames = columns
        rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{subject}: cannot be read ({error})") from None
    if repeated := [column for column, count in Counter(columns).items() if count > 1]:
        raise UsageError(f"{path}:1: column '{repeated[0]}' is repeated")
    facts: dict[str, LanguageFacts] = {}
    for number, row in enumerate(rows, start=2):
        name = (row.pop("language", None) or "").strip()
        if not name or None in row or None in row.values() or not row:
            raise UsageError(
                f"{path}:{number}: each row must have a language and exactly one cell per column (columns: language, "
                "features, optionally family and branch); leave cells of unknown features empty"
            )
        if name in facts:
            raise UsageError(f"{path}:{number}: '{name}' is repeated")
        values = {column: value.strip() for column, value in row.items()}
        for column, value in values.items():
            if value.casefold() in _EMPTY:
                raise UsageError(f"{path}:{number}: '{value}' is not a value of '{column}'; leave unknown cells empty")
        family, branch = values.pop("family", ""), values.pop("branch", "")
        facts[name] = LanguageFacts(family, branch, {column: value for column, value in values.items() if value})
    if not facts:
        raise UsageError(f"{subject}: has no rows; its first line must name the columns: language, then features")
    return facts


def _unknown(order: OrderConfig, fact: str, keys: Sequence[str]) -> UsageError:
    listed = ", ".join(keys[:8]) + (f", … ({len(keys)} in all)" if len(keys) > 8 else "")
    return UsageError(
        f"order={order.name}: unknown {fact} of {listed}; set order.features=FILE.csv "
        "(columns: language, family, branch, and features), or remove languages with dataset.languages=[…]"
    )
