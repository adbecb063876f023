"""What a report says about few-shot runs: a section for each dataset and model.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021).
"""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.analysis.fewshot import few_shot_scores, groups
from xclrun.analysis.record import RunRecord
from xclrun.report.fewshot.section import FewShotSection, make_few_shot_section
from xclrun.report.fewshot.topic import Behind
from xclrun.report.sections import Options

__all__ = ["Behind", "FewShotSection", "few_shot_sections"]


def few_shot_sections(
    records: Sequence[RunRecord], behind: Behind | None = None, options: Options | None = None
) -> list[FewShotSection]:
    """Return a section for each dataset and model of the finished few-shot runs.

    Args:
        records: any; other runs are left out.
        behind: predictions and words.
        options: how the report is made; of them the baseline, ``unpaired`` and the paper's table that the sweep makes
            (``3`` is recomputed beside ours) concern these runs.
    """
    scores, runs = few_shot_scores(records), {record.run_id: record for record in records}
    return [
        make_few_shot_section(own, runs, behind or Behind(), options or Options())
        for _, own in (groups(scores, ["dataset", "model"]) if not scores.empty else ())
    ]
