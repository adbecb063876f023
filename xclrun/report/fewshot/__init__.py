"""Few-shot runs: a section for each dataset and model, and the data of its parts."""

from xclrun.report.fewshot.section import FewShotSection, few_shot_sections

__all__ = ["FewShotSection", "few_shot_sections"]
