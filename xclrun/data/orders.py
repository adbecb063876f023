"""Orders that are worked out from the languages or their data: at random, by family, by typology, by similarity.

An order by size or as a list is resolved by `xclrun.core.stream.resolve_order`. All are known when a run is planned,
and the languages that came of it are part of the run's id. Of languages that stand equal, the one with more training
sentences comes first, then the key that comes first in the alphabet.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path

from xclrun.config.schema import MEASURES, OrderConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.identity import derive
from xclrun.core.languages import key_of, known_languages, language_of
from xclrun.data.example import Dataset

Ranking = tuple[int, str]


@dataclass(frozen=True)
class Known:
    """What is known of a key's language, from the table or the user's file; ``branch`` goes with ``family``."""

    family: str = ""
    branch: str = ""
    features: Mapping[str, str] | None = None


def compute_order(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return all languages of a dataset in the order that ``order.by`` says."""
    return _WAYS[str(order.by)](order, dataset)


def name_of(order: OrderConfig) -> str:
    """Return what an order that is worked out is called: as it can be typed, ``random(1)`` or ``typology(de-DE)``."""
    given: dict[str, list[str | None]] = {
        "random": [str(order.seed)],
        "typology": [order.start],
        "similarity": ["greedy", None if order.measure == "vocabulary" else order.measure, order.start],
    }
    words = ",".join(word for word in given.get(str(order.by), []) if word)
    return f"{order.by}({words})" if words else str(order.by)


def at_random(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return the languages in an order drawn by ``order.seed``: each possible one is as likely.

    Each language has a rank that its key and the seed give, so that of fewer languages the rest stand as before.
    """
    return tuple(sorted(dataset.languages, key=lambda key: (derive(int(order.seed or 0), "order", key), key)))


def by_family(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return the languages family by family, and in each branch by branch; those with most languages first."""
    known = _known(order, dataset)
    if lacking := [key for key, of in known.items() if not of.family]:
        raise _unknown(order, "family", lacking)
    families = Counter(of.family for of in known.values())
    branches = Counter((of.family, of.branch) for of in known.values())

    def place(key: str) -> tuple[object, ...]:
        of = known[key]
        within = of.family, of.branch
        return -families[of.family], of.family, -branches[within], of.branch, *_ranking(dataset)(key)

    return tuple(sorted(known, key=place))


def by_typology(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return the languages by typological distance from the first, the nearest first.

    The distance is the share of features in which two languages differ, of those known of both; of languages that are
    as near, one of the same branch, or else family, as the first comes first.
    """
    first, unlike = _start(order, dataset), _unlike(order, dataset)
    return (first, *_nearest(first, dataset, unlike))


def by_similarity(order: OrderConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return a greedy chain: after each language the most similar one of those that are left.

    ``order.measure=vocabulary``: the Jaccard index of the distinct trigrams of characters in the words of the training
    sentences, lower case, with a blank before and after each word. ``typology``: see `by_typology`.
    """
    unlike = _unlike(order, dataset) if order.measure == "typology" else _unlike_words(dataset)
    chained = [_start(order, dataset)]
    while len(chained) < len(dataset.languages):
        chained.append(_nearest(chained[-1], dataset, unlike, chained)[0])
    return tuple(chained)


_WAYS: dict[str, Callable[[OrderConfig, Dataset], tuple[str, ...]]] = {
    "random": at_random, "family": by_family, "typology": by_typology, "similarity": by_similarity
}  # fmt: skip


def notes(order: OrderConfig, dataset: Dataset) -> list[str]:
    """Return what a person should know of an order: of which languages the branch's features represent their own."""
    compared = order.by == "typology" or (order.by == "similarity" and order.measure == "typology")
    # A file of the user's own need not be there any more when a run is taken up again.
    if not compared or order.features is not None:
        return []
    known = _known(order, dataset)
    without = [key for key, of in known.items() if not of.features]
    if not without:
        return []
    return [
        f"order={order.name}: no features of {', '.join(without)} are known; those on which the known languages of "
        "their branch agree stand for them"
    ]


def _ranking(dataset: Dataset) -> Callable[[str], Ranking]:
    sizes = dataset.sizes()
    return lambda key: (-sizes[key], key)


def _start(order: OrderConfig, dataset: Dataset) -> str:
    """Return the first language: as given, else that with most training sentences; of equals English, if there."""
    if order.start is not None:
        if order.start not in dataset.languages:
            # A word in parentheses that is nothing else is taken for the first language.
            words = ("greedy", *MEASURES) if order.by == "similarity" else ()
            nor = f", nor {', '.join(words)}" if words else ""
            meant = did_you_mean(order.start, (*words, *dataset.languages))
            raise UsageError(
                f"order={order.by}: '{order.start}' is no language of the dataset, to start with{nor}; {meant}"
            )
        return order.start
    rank = _ranking(dataset)

    def place(key: str) -> tuple[int, bool, str]:
        language = language_of(key)
        return rank(key)[0], language is None or language.code != "en", key

    return min(dataset.languages, key=place)


def complete_order(order: OrderConfig, dataset: Dataset) -> OrderConfig:
    """Return an order's settings with the key that ``order.start`` means, and the name that says all of them."""
    if order.start is not None:
        order = replace(order, start=key_of(order.start, dataset.languages, "order.start"))
    return replace(order, name=order.name or name_of(order))


def _nearest(
    of: str, dataset: Dataset, unlike: Callable[[str, str], tuple[object, ...]], without: Sequence[str] = ()
) -> list[str]:
    left = [key for key in dataset.languages if key != of and key not in without]
    return sorted(left, key=lambda key: (*unlike(of, key), *_ranking(dataset)(key)))


def _unlike_words(dataset: Dataset) -> Callable[[str, str], tuple[object, ...]]:
    """Return how unlike the training words of two languages are: 1 − the Jaccard index of their trigrams."""
    found = {key: _trigrams(dataset, key) for key in dataset.languages}

    def unlike(one: str, other: str) -> tuple[Fraction]:
        together, both = found[one] | found[other], found[one] & found[other]
        return (1 - Fraction(len(both), max(1, len(together))),)

    return unlike


def _trigrams(dataset: Dataset, key: str) -> set[str]:
    """Return the distinct trigrams of characters in the words of a language's training sentences."""
    examples = dataset.split(key, "train")
    words = {word.lower() for e in examples for word in chain(e.tokens, e.tokens_b)}
    return {f" {word} "[i : i + 3] for word in words for i in range(len(word))}


def _unlike(order: OrderConfig, dataset: Dataset) -> Callable[[str, str], tuple[object, ...]]:
    """Return how unlike two languages are: the share of features in which they differ, then how little related."""
    known = _completed(_known(order, dataset), order.features is None)
    if lacking := [key for key, of in known.items() if not of.features]:
        raise _unknown(order, "features", lacking)

    def unlike(one: str, other: str) -> tuple[Fraction, int]:
        a, b = known[one], known[other]
        first, second = a.features or {}, b.features or {}
        both = [name for name in first if name in second]
        differing = sum(first[name] != second[name] for name in both)
        # Nothing in common that is known: as far as can be.
        distance = Fraction(differing, len(both)) if both else Fraction(1)
        related = a.family == b.family != "" and (2 if a.branch == b.branch else 1)
        return distance, -int(related)

    return unlike


def _completed(known: Mapping[str, Known], of_table: bool) -> dict[str, Known]:
    """Fill in the features that are not known of a language with those on which its branch agrees.

    The branch is that of the languages in ``known``, and where their features are the table's, of all in the table.
    """
    values: dict[tuple[str, str], dict[str, set[str]]] = {}
    table = [Known(of.family, of.branch, of.features) for of in known_languages().values()] if of_table else []
    for of in (*known.values(), *table):
        for name, value in (of.features or {}).items() if of.family else ():
            values.setdefault((of.family, of.branch), {}).setdefault(name, set()).add(value)
    names = {name for of in known.values() for name in of.features or {}}

    def filled(of: Known) -> Known:
        agreed = {k: next(iter(v)) for k, v in values.get((of.family, of.branch), {}).items() if len(v) == 1}
        return replace(of, features={k: v for k, v in agreed.items() if k in names} | dict(of.features or {}))

    return {key: filled(of) for key, of in known.items()}


def _known(order: OrderConfig, dataset: Dataset) -> dict[str, Known]:
    """Return key → what is known of its language: the table, and where ``order.features`` has a row, that."""
    languages = {key: language_of(key) for key in dataset.languages}
    if order.features is None:
        return {key: (of and Known(of.family, of.branch, of.features)) or Known() for key, of in languages.items()}
    # Features of two sources are not to be compared: the table's count for no language then.
    rows, found = _rows(order.features), {}
    for key, of in languages.items():
        usual = Known() if of is None else Known(of.family, of.branch)
        names = [key] if key in rows else [name for name in rows if _same(key, name)]
        if len(names) > 1:
            raise UsageError(f"order.features={order.features}: '{key}' could be {' or '.join(names)}; give it a row")
        own = rows[names[0]] if names else usual
        found[key] = own if own.family else replace(usual, features=own.features)
    return found


def _same(key: str, name: str) -> bool:
    """Whether a key and a name in a file are of the same language, and of the same script where the name has one."""
    one, other = language_of(key), language_of(name)
    return bool(one and other and one.code == other.code and (not other.written or one.script == other.script))


# What other programs write into a cell without a value.
_NOT_KNOWN = frozenset({"nan", "na", "n/a", "null", "none", "?", "-", "--"})


def _rows(path: str) -> dict[str, Known]:
    """Return language → what the user's file says of it."""
    given = f"order.features={path}"
    try:
        with Path(path).expanduser().open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            rows = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{given}: cannot be read ({error})") from None
    if twice := [column for column, count in Counter(columns).items() if count > 1]:
        raise UsageError(f"{path}:1: column '{twice[0]}' is there twice")
    found: dict[str, Known] = {}
    for number, row in enumerate(rows, start=2):
        name = (row.pop("language", None) or "").strip()
        if not name or None in row or None in row.values() or not row:
            raise UsageError(
                f"{path}:{number}: a row has a value in each column: language, then features (and family, branch)"
            )
        if name in found:
            raise UsageError(f"{path}:{number}: '{name}' is there twice")
        values = {column: value.strip() for column, value in row.items()}
        for column, value in values.items():
            if value.casefold() in _NOT_KNOWN:
                raise UsageError(f"{path}:{number}: '{value}' is no value of '{column}'; leave empty what is not known")
        family, branch = values.pop("family", ""), values.pop("branch", "")
        found[name] = Known(family, branch, {column: value for column, value in values.items() if value})
    if not found:
        raise UsageError(f"{given}: has no rows; its first line names columns: language, then features")
    return found


def _unknown(order: OrderConfig, what: str, keys: Sequence[str]) -> UsageError:
    shown = ", ".join(keys[:8]) + (f", … ({len(keys)} in all)" if len(keys) > 8 else "")
    return UsageError(
        f"order={order.name}: no {what} of {shown} known; order.features=FILE.csv gives it "
        "(columns: language, family, branch, and features), dataset.languages=[…] leaves languages out"
    )
