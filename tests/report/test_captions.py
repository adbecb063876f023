"""Numbers of the papers' figures and tables, wherever they are named, against what the papers show under them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from xclrun.config.files import captions, published, sweep_files
from xclrun.report import parts

DOCS = Path(__file__).parents[2] / "docs"
# Figure of a report, as its file name begins → what the caption of a paper's figure must say for it to be the same.
FIGURES = {
    "class_gradients": "gradients for each class",
    "confusions": "confusion matrices",
    "curves": "learning curves",
    "distances": "zero-shot transfer against the number of languages seen",
    "gains_by_language": "gain in F1 over zero-shot",
    "histograms": "histograms of dev accuracy",
    "improved": "improvement of word-label predictions by presence",
    "improved_words": "softmax-normalised Jaccard index",
    "key_curves": "test accuracy of each task while training",
    "keys": ("forgetting", "random curriculum"),
    "learning_curves": "score of each language after each hop",
    "one_hop": "one-hop against multi-hop",
    "overlap": "gradient overlap",
    "p_values": "p-values of all pairs",
    "size": "against number of training examples",
    "trade_offs": ("FP against T", "the four panels of figure 4"),
    "zero_shot": "English dev against",
}
MENTION = re.compile(r"\b(CCL|FS|LL|GLI|ED)(?:'s| paper,)? (Fig|Table)s?\.? (\d+(?:(?:, | and |–| to )\d+)*)")


def mentions(text: str) -> list[tuple[str, str, str]]:
    """Return (paper, kind, number) of each figure and table that a text names."""
    references = []
    for paper, kind, numbers in MENTION.findall(text):
        for first, last in re.findall(r"(\d+)(?:(?:–| to )(\d+))?", numbers):
            each = range(int(first), int(last or first) + 1)
            references += [(paper.lower(), {"Fig": "figure", "Table": "table"}[kind], str(number)) for number in each]
    return references


def shows(figure: str, reference: tuple[str, str, str]) -> bool:
    """Whether the paper's figure is what a figure of the report shows."""
    phrases = FIGURES[figure]
    return any(phrase in captions()[reference] for phrase in ([phrases] if isinstance(phrases, str) else phrases))


def test_mentions_are_found() -> None:
    text = "CCL Figs. 4 and 6; FS Tables 2, 11–13; GLI paper, Fig. 4: x; ED's Table 2 (LL Fig. 1); LL §5, AULTC 3"
    assert mentions(text) == [
        ("ccl", "figure", "4"), ("ccl", "figure", "6"), ("fs", "table", "2"), ("fs", "table", "11"),
        ("fs", "table", "12"), ("fs", "table", "13"), ("gli", "figure", "4"), ("ed", "table", "2"),
        ("ll", "figure", "1"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(published()))
def test_a_name_s_number_is_that_of_the_paper(name: str) -> None:
    entry, parsed = published()[name], re.match(r"([a-z]+)_(fig|table)(\d+)", name)
    if parsed is None:
        # A stream, or a number of the text.
        assert set(mentions(entry.shows)) <= captions().keys()
        return
    paper, kind, number = parsed.groups()
    reference = (paper, {"fig": "figure", "table": "table"}[kind], number)
    assert mentions(entry.shows)[0] == reference
    assert "no result" not in captions()[reference]
    if kind == "fig" and name != "gli_fig3":
        assert shows(entry.figure, reference)


def test_figures_of_the_papers_that_show_results_have_a_sweep() -> None:
    """Those without: an example of statements, definitions, and figures that other figures' sweeps redraw."""
    named = {tuple(re.match(r"([a-z]+)_fig(\d+)", name).groups()) for name in published() if "_fig" in name}  # type: ignore[union-attr]
    numbered = {(paper, number) for (paper, kind, number), caption in captions().items() if kind == "figure"
                and "no result" not in caption}  # fmt: skip
    assert numbered - named == {("ll", "3"), ("ll", "4")}
    assert named <= numbered


def test_numbers_in_the_code_and_the_docs_exist_in_the_papers() -> None:
    files = [*Path(parts.__file__).parent.glob("*.py"), *sweep_files().values(), *DOCS.glob("*.md")]
    references = [(path.name, mention) for path in files for mention in mentions(path.read_text(encoding="utf-8"))]
    assert len(references) > 40
    wrong = [
        (name, reference)
        for name, reference in references
        if reference not in captions() or "no result" in captions()[reference]
    ]
    assert wrong == []
