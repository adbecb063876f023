"""Words to which [CLS] attends more, and less, after adapting (FS Table 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xclrun.analysis.fewshot.attention import Change, attention_changes
from xclrun.report.fewshot.data import PANELS
from xclrun.report.fewshot.section import FewShotSection
from xclrun.report.part import Item, Needs, part
from xclrun.report.tables import Table, percent_cell

# A word that occurs less often says little of attention.
LEAST = 5
# Words of a table.
WORDS = 10


@part(FewShotSection, place=20, title="Attention of [CLS]", folded=True)
def fewshot_attention(section: FewShotSection) -> Iterator[Item]:
    """A table for each run that recorded a summary and adapted more than the heads."""
    yield "Words to which [CLS] attends more, and less, after adapting (FS Table 5); where heads alone adapt, to none."
    given, count = section.given, 0
    for run_id, label in dict(zip(section.scores["run_id"], section.scores["strategy"], strict=True)).items():
        if run_id not in given.attention or count == PANELS:
            continue
        run, words = section.records[run_id], given.words.get(run_id)
        language, bucket = run.languages[-1], None if words is None else words.bucket
        changes = attention_changes(given.attention[run_id], language, run.hops - 1, run.hops, LEAST, bucket)
        which = f"K = {run.config.get('shots')}, bucket {run.bucket}, {label}, seed {run.seed}"
        if any(word.change for word in changes):
            count += 1
            yield attention_table(f"[CLS] in {language}, {which}", changes)
    if not count:
        yield Needs("attention summaries of the runs (attention.parquet)")


def attention_table(title: str, changes: Sequence[Change]) -> Table:
    shown = changes if len(changes) <= WORDS else [*changes[: WORDS // 2], *changes[-(WORDS // 2) :]]
    rows = [
        (c.word, {True: "yes", False: "no", None: "?"}[c.in_bucket], str(c.count),
         *map(percent_cell, (c.before, c.after, c.change)))
        for c in shown
    ]  # fmt: skip
    note = "share of [CLS]'s attention in the last layer, mean over heads and occurrences in the test split; percent"
    return Table(title, ("word", "in bucket", "times", "zero-shot", "few-shot", "change"), tuple(rows), (note,))
