"""Drop without source training (FS Table 4)."""

from __future__ import annotations

from collections.abc import Iterator

from xclrun.analysis.fewshot.scores import FULL, NO_SOURCE, groups, over_buckets
from xclrun.core.task import short_name
from xclrun.report.fewshot.names import cell, method_name, shots_name, task_name
from xclrun.report.fewshot.section import FewShotSection
from xclrun.report.part import Item, part
from xclrun.report.published import fsxlt
from xclrun.report.published.setup import setup_notes
from xclrun.report.tables import Table


@part(FewShotSection, place=15, title="Without source training")
def fewshot_sources(section: FewShotSection) -> Iterator[Item]:
    """Where runs with English as the source and runs without a source have the same language, K and strategy."""
    scores = section.scores[section.scores["shots"] > 0]
    for (metric, strategy), group in groups(scores, ["metric", "strategy"]):
        rows_of = over_buckets(group).to_dict("records")
        means: dict[tuple[str, str, int], float] = {
            (r["source"], r["language"], r["shots"]): r["mean"] for r in rows_of
        }
        drops = {
            (c, k): one - means[fsxlt.SOURCE, c, k]
            for (source, c, k), one in means.items()
            if source == NO_SOURCE and k > 0 and (fsxlt.SOURCE, c, k) in means
        }
        if drops:
            published = fsxlt.drops(task_name(section.dataset)) if method_name(strategy) == FULL else {}
            shots = sorted({k for _, k in drops})
            with_published = [k for k in shots if any((c, k) in published for c, _ in drops)]
            rows = []
            for language in sorted({c for c, _ in drops}):
                row: list[str] = [language]
                for k in shots:
                    row += [cell(drops.get((language, k)), 100, 2)]
                    row += [cell(published.get((language, k)), 100, 2)] if k in with_published else []
                rows.append(tuple(row))
            header = (
                "language",
                *(n for k in shots for n in (shots_name(k), *(["published"] * (k in with_published)))),
            )
            notes = ["mean score over buckets without source training minus mean score after English, in points"]
            if with_published:
                behind = [section.records[run_id] for run_id in dict.fromkeys(group["run_id"])]
                setup = setup_notes(fsxlt.setup(task_name(section.dataset)), behind, [metric])
                notes += ["published: FS Table 4, over 40 buckets", *setup]
            for (task, language, k), subtracted in fsxlt.MISPRINTS.items() if with_published else ():
                if task == task_name(section.dataset) and (language, k) in drops:
                    notes.append(f"{language}, K = {k}: Table 4 subtracts the score of K = {subtracted} (a misprint)")
            title = f"{short_name(metric)}: drop without source training, {strategy} (FS Table 4)"
            yield Table(title, header, tuple(rows), tuple(notes))
