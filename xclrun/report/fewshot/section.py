"""The section of a report about the few-shot runs of one dataset and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xclrun.analysis.attention import attention_changes
from xclrun.analysis.fewshot import groups, numbered, over_buckets, rows
from xclrun.analysis.record import RunRecord
from xclrun.report.fewshot import figures, tables, words
from xclrun.report.fewshot.topic import Behind, Topic
from xclrun.report.published import fsxlt
from xclrun.report.sections import Options, Part
from xclrun.report.tables import Table

if TYPE_CHECKING:
    import pandas as pd

DEFINITIONS = {
    "K": "shots: how often a bucket holds each label; K = 0 is zero-shot, the score on the target before adapting",
    "gain": "few-shot score minus zero-shot score on the target's test split, in points",
    "bucket": "one fixed few-shot training set of a language and K; means and ± are over buckets",
}

TABLE_3 = (
    "The paper's Table 3 from its other tables as printed. NER is met to the printed digit by gains averaged over K "
    "and overlap at K = 2; POS is off by 0.01 at K = 1 (overlap) and at K = 2 or averaged gains (features). Table 14 "
    "lacks Bulgarian POS, so that language is not among the pairs of overlap."
)

# A word that occurs less often says little of attention.
LEAST = 5


@dataclass(frozen=True)
class FewShotSection:
    """The few-shot runs of one dataset and model: what `xclrun.report.sections.Shown` asks for."""

    dataset: str
    model: str
    parts: list[Part]
    notes: list[str]
    terminal: list[Table]

    @property
    def title(self) -> str:
        return f"{self.dataset} · {self.model} · few-shot"

    @property
    def where(self) -> str:
        return f"few_shot_{self.dataset}_{self.model}"

    @property
    def findings(self) -> list[str]:
        """None: what was tested stands in the tables, and under them what was not."""
        return []

    @property
    def lead(self) -> list[Table]:
        return []

    @property
    def definitions(self) -> dict[str, str]:
        return DEFINITIONS

    @property
    def legend(self) -> str:
        return "percent, mean ± standard deviation over buckets"


def make_few_shot_section(
    scores: pd.DataFrame, runs: Mapping[str, RunRecord], behind: Behind, options: Options
) -> FewShotSection:
    """Return the section of one dataset and model.

    Args:
        scores: their rows of `xclrun.analysis.fewshot.few_shot_scores`.
        runs: by run id.
        behind: predictions and words.
        options: how the report is made.
    """
    dataset, model = str(scores["dataset"].iloc[0]), str(scores["model"].iloc[0])
    missing: list[str] = []

    def lacks(what: str, needed: str) -> None:
        missing.append(f"{what}: n/a: needs {needed}")

    parts: list[Part] = []
    terminal: list[Table] = []
    for (source,), of_source in groups(scores, ["source"]):
        topics = [
            Topic(dataset, model, str(metric), str(source), own, runs, behind, lacks, options)
            for (metric,), own in groups(of_source, ["metric"])
        ]
        for topic in topics:
            made = topic.parts()
            terminal += made[0].tables
            parts += made
        parts.append(topics[0].lexical())
    table = options.few_shot_table
    if table == "3" or tables.task_name(dataset) in fsxlt.TABLES:
        parts.append(Part("FS paper, Table 3", tables.table_3(), text=TABLE_3, folded=table != "3"))
    parts.append(_attention(scores, runs, behind))
    if not parts[-1].tables:
        lacks("attention of [CLS] (FS Table 5)", "attention summaries of the runs (attention.parquet)")
    shown = {label.partition("(")[0] for label in scores["strategy"]}
    names = [
        f"{label}: {told}" for label, told in numbered(runs[i] for i in scores["run_id"]).items() if label in shown
    ]
    notes = dict.fromkeys([*names, *behind.reasons, *_uneven(over_buckets(scores)), *missing])
    return FewShotSection(dataset, model, [p for p in parts if p.tables or p.figures], list(notes), terminal)


def _attention(scores: pd.DataFrame, runs: Mapping[str, RunRecord], behind: Behind) -> Part:
    """Return the words whose attention changed most, for each run that kept a summary (FS Table 5).

    Runs that adapt heads alone have none that changed.
    """
    text = "Words to which [CLS] attends more, and less, after adapting (FS Table 5); where heads alone adapt, to none."
    part = Part("Attention of [CLS]", text=text, folded=True)
    named = dict(zip(scores["run_id"], scores["strategy"], strict=True))
    for run in (runs[i] for i in named if i in behind.attention):
        own, language = behind.words.get(run.run_id), run.languages[-1]
        bucket = None if own is None else own.bucket
        found = attention_changes(behind.attention[run.run_id], language, run.hops - 1, run.hops, LEAST, bucket)
        which = f"K = {run.config.get('shots')}, bucket {run.bucket}, {named[run.run_id]}, seed {run.seed}"
        if any(word.change for word in found):
            part.tables.append(words.attention_table(f"[CLS] in {language}, {which}", found))
        if len(part.tables) == figures.PANELS:
            break
    return part


def _uneven(means: pd.DataFrame) -> list[str]:
    """Name the rows whose means are over fewer buckets than others have."""
    few = means[means["shots"] != 0]
    most = int(few["buckets"].max())
    less = few[few["buckets"] < most]
    told = [f"{r.language} {tables.shots_name(r.shots)} {r.strategy}: {r.buckets}" for r in rows(less)]
    shown = "; ".join(told[:8]) + (f"; and {len(told) - 8} more" if len(told) > 8 else "")
    return [f"means over fewer buckets than the {most} of others: {shown}"] if told else []
