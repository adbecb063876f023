"""Tables about words: what buckets share with the source, what they do to predictions, what [CLS] looks at.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021), Table 14, Fig. 4, Table 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from xclrun.analysis.attention import Change
from xclrun.analysis.fewshot import Outcome, Words
from xclrun.analysis.gains import ALL, ByLanguage
from xclrun.analysis.lexical import COUNTS, PRESENCE, improved_predictions, jaccard_matrix, lexical_overlap, presence
from xclrun.report.fewshot.tables import cell, shots_name, task_name
from xclrun.report.published import fsxlt
from xclrun.report.tables import Cell, Table


def overlap_table(
    title: str, dataset: str, overlap: Mapping[int, ByLanguage], jaccards: Mapping[int, ByLanguage]
) -> Table:
    """Return lexical overlap of all buckets with the source (FS Table 14), and between buckets.

    Args:
        overlap: K → language → share of the source's distinct words that are in the buckets too.
        jaccards: K → language → mean Jaccard index over pairs of buckets.
    """
    theirs = fsxlt.published_overlap(task_name(dataset))
    shots = [k for k in sorted(overlap) if k != ALL]
    header, body = ["language"], []
    for k in shots:
        header += [shots_name(k), *(["published"] if k in theirs else []), "Jaccard"]
    for language in sorted({c for k in shots for c in overlap[k]}):
        line: list[str] = []
        for k in shots:
            line.append(cell(overlap[k].get(language), 1000, 2))
            line += [cell(theirs[k].get(language), 1000, 2)] if k in theirs else []
            line.append(cell(jaccards.get(k, {}).get(language), 1, 3))
        body.append((language, *line))
    notes = (
        "in per mille: distinct words of the source's training split that stand in a bucket of the language and K too "
        "(all buckets together), over all distinct words of the source's training split; words as written",
        "Jaccard: |A ∩ B| / |A ∪ B| of the distinct words of two buckets, mean over all pairs of buckets",
        "published: FS Table 14, whose numbers are multiples of 1/29,606 (POS) and 1/33,717 (NER): its English words",
    )
    return Table(title, tuple(header), tuple(body), notes if theirs else notes[:2])


def jaccards(words: Mapping[tuple[str, int], Sequence[Words]]) -> Mapping[int, ByLanguage]:
    """Return K → language → mean Jaccard index over all pairs of buckets; languages with one bucket are left out."""
    found: dict[int, dict[str, float]] = {}
    for (language, k), them in words.items():
        if len(them) > 1:
            matrix = jaccard_matrix([one.bucket for one in them])
            found.setdefault(k, {})[language] = float(matrix[np.triu_indices(len(them), k=1)].mean())
    return found


def overlaps(words: Mapping[tuple[str, int], Sequence[Words]]) -> Mapping[int, ByLanguage]:
    """Return K → language → lexical overlap of all buckets of (language, K) with the source; NaN is left out."""
    found: dict[int, dict[str, float]] = {}
    for (language, k), them in words.items():
        share = lexical_overlap(them[0].source, frozenset().union(*(one.bucket for one in them)))
        if share == share:
            found.setdefault(k, {})[language] = share
    return found


def improvement(outcomes: Iterable[tuple[Outcome, Words]]) -> np.ndarray:
    """Return the counts of `improved_predictions` over runs (FS Fig. 4), shape (3, 4); tags alone have them."""
    total = np.zeros((len(PRESENCE), len(COUNTS)), dtype=int)
    for outcome, words in outcomes:
        text = [word for i, n in zip(outcome.ids, outcome.lengths, strict=True) for word in words.test[i][:n]]
        pairs = [(word, outcome.names[g] if g >= 0 else "?") for word, g in zip(text, outcome.gold, strict=True)]
        kinds: dict[tuple[str, str], int] = {}
        distinct = list(dict.fromkeys(pairs))
        kinds.update(zip(distinct, presence(distinct, words.pairs).tolist(), strict=True))
        where = np.array([kinds[pair] for pair in pairs], dtype=int)
        known = outcome.gold >= 0
        right = (outcome.before == outcome.gold) & known, (outcome.after == outcome.gold) & known
        total += improved_predictions(where, *right)
    return total


def improvement_table(title: str, counts: Mapping[tuple[str, int], np.ndarray]) -> Table:
    """Return improved and worsened word-label predictions by presence in the bucket (FS Fig. 4)."""
    rows = []
    for (language, k), table in sorted(counts.items()):
        all_improved = table[:, 2].sum()
        for name, (words, wrong, improved, worsened) in zip(PRESENCE, table.tolist(), strict=True):
            rows.append((
                language, shots_name(k), name, Cell(f"{words:,}", words), _share(improved, wrong),
                _share(worsened, words - wrong), _share(improved, all_improved), _share(words, table[:, 0].sum()),
            ))  # fmt: skip
    header = ("language", "K", "test word", "words", "improved", "worsened", "of all improved", "of all words")
    notes = (
        "words: test words over all buckets and seeds; improved: of those wrong zero-shot, the share that is right "
        "after adapting; worsened: of those right zero-shot, the share that is wrong after it; percent",
        "word with label: the bucket has the word, as written, with the test word's gold label",
    )
    return Table(title, header, tuple(rows), notes, left=3)


def attention_table(title: str, changes: Sequence[Change], most: int = 10) -> Table:
    """Return the words to which [CLS] attends most more, and most less, after adapting (FS Table 5)."""
    half = most // 2
    shown = list(changes) if len(changes) <= most else [*changes[:half], *changes[-half:]]
    rows = [
        (c.word, {True: "yes", False: "no", None: "?"}[c.in_bucket], str(c.count), cell(c.before, 100, 2),
         cell(c.after, 100, 2), cell(c.change, 100, 2))
        for c in shown
    ]  # fmt: skip
    note = "share of [CLS]'s attention in the last layer, mean over heads and occurrences in the test split; percent"
    return Table(title, ("word", "in bucket", "times", "zero-shot", "few-shot", "change"), tuple(rows), (note,))


def _share(part: float, whole: float) -> Cell:
    return cell(part / whole if whole else None, 100, 1)
