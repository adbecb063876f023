"""What figures draw is what tables say, read back from the artists; and LaTeX tables are well formed."""

from __future__ import annotations

import dataclasses
import re
from functools import cache

import numpy as np
import pytest

from tests.conftest import some
from xclrun.analysis import formulas
from xclrun.analysis.aggregate import comparisons, summarise
from xclrun.report.heatmaps import heatmaps
from xclrun.report.inference import p_text
from xclrun.report.latex import latex
from xclrun.report.parts import trade_offs
from xclrun.report.parts.significance import exploratory
from xclrun.report.strategies import StrategySection
from xclrun.report.summary import Summary
from xclrun.report.tables import Cell, Table

from .study import LANGUAGES, ORDERS, drawn, pairs_of, run, section_of, study


@cache
def made() -> StrategySection:
    records = study(("naive", "er", "lang_spec_ft"), ORDERS, (1, 2))
    for memory in (750, 60):
        for order, languages in ORDERS.items():
            for seed in (1, 2):
                base = run("er", order, seed, languages, settings={"memory": memory})
                # Scores fall faster with a smaller memory.
                retention = np.linspace(1, 0.9 + memory / 10000, len(languages) + 1)[:, None]
                scores = {metric: R * retention for metric, R in base.scores.items()}
                records.append(dataclasses.replace(base, scores=scores))
    return section_of(records)


def column(table: Table, name: str) -> dict[str, str]:
    return {row[0]: row[table.header.index(name)] for row in table.rows}


def printed(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"


def test_trade_offs_draw_every_row_of_the_table() -> None:
    summary = made().summary
    table, figure = summary.main(["slot_f1"]), trade_offs.trade_off_figure(summary, "slot_f1")
    panels = (("FP ↑", "F ↓"), ("FP ↑", "T ↑"), ("T ↑", "F ↓"), ("T0 ↑", "F ↓"))
    for axes, (up, across) in some(zip(figure.axes, panels, strict=True)):
        points = {line.get_gid().split(":")[1]: line.get_xydata()[0] for line in axes.lines if line.get_gid()}
        cells = {k: v for k, v in column(table, up).items() if k != "lang_spec_ft"}
        assert points.keys() == cells.keys()
        for label, (x, y) in some(points.items()):
            assert printed(-x if across == "F ↓" else x) == column(table, across)[label].split(" ±")[0]
            assert printed(y) == cells[label].split(" ±")[0]
        # Bars are the standard deviations that the table has after ±.
        bars = [collection.get_segments()[0] for collection in axes.collections]
        upright = [abs(b[1][1] - b[0][1]) / 2 for b in bars if b[0][0] == pytest.approx(b[1][0])]
        assert [printed(v) for v in upright] == [text.split("± ")[1] for text in cells.values()]


def test_replay_by_memory_draws_the_table() -> None:
    summary = made().summary
    table, figure = summary.main(["intent_accuracy"]), trade_offs.memory_figure(summary, "intent_accuracy")
    for axes, name in zip(figure.axes, ("F ↓", "T ↑", "T0 ↑", "FP ↑"), strict=True):
        line, naive = axes.lines
        assert line.get_xdata().tolist() == [60, 750]
        cells = column(table, name)
        rows = [cells[f"er(memory={size})"] for size in (60, 750)]
        assert [printed(v) for v in line.get_ydata()] == [text.split(" ±")[0] for text in rows]
        assert printed(naive.get_ydata()[0]) == cells["naive"].split(" ±")[0]


@pytest.mark.full
def test_p_values_are_those_of_the_tables_of_pairs() -> None:
    section = made()
    figure = drawn(section, exploratory, "p_values_mini_tiny_intent")
    for axes, name in zip(figure.axes, ("F", "T", "T0", "FP"), strict=True):
        rows = pairs_of(section.inference, "intent_accuracy", name)
        texts = {text.get_position(): text.get_text() for text in axes.texts}
        labels = [label.get_text() for label in axes.get_xticklabels()]
        checked = 0
        for (a, b), row in rows.items():
            i, j = labels.index(a), labels.index(b)
            for (x, y), test in (((j, i), "Tukey, blocks"), ((i, j), "Tukey, orders (CCL)")):  # above, below
                cell = row[test]
                expected = "< 0.001" if texts[x, y] == "<.001" else texts[x, y] if x == y else _whole(texts[x, y])
                assert expected == cell
                checked += 1
        assert checked == len(labels) * (len(labels) - 1)


def _whole(text: str) -> str:
    return text if text in ("–", "1.000") else f"0{text}"


def test_critical_differences_draw_the_ranks() -> None:
    section = made()
    figure = drawn(section, exploratory, "critical_mini_tiny_slots")
    for axes, name in zip(figure.axes, ("F", "T", "T0", "FP"), strict=True):
        ranks = section.inference.tests["slot_f1", name].ranks
        stems = sorted(line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 3)
        np.testing.assert_allclose(stems, sorted(ranks.ranks))
        labels = [text.get_text() for text in axes.texts]
        assert {f"{k} ({r:.2f})" for k, r in zip(ranks.strategies, ranks.ranks, strict=True)} <= set(labels)
        assert f"p {p_text(ranks.p, sign=True)}" in axes.get_title(loc="left")


def test_distances_and_boxes_hold_what_the_metrics_give() -> None:
    summary, references = made().summary, made().shared.references
    by_distance, boxes = (
        trade_offs.distance_figure(summary, "intent_accuracy"),
        trade_offs.one_hop_figure(summary, references, "intent_accuracy"),
    )
    runs = summary.comparison.strategies["naive"]
    expected = 100 * np.mean([formulas.generalisation_by_distance(r.scores["intent_accuracy"]) for r in runs], axis=0)
    np.testing.assert_allclose(by_distance.axes[1].lines[0].get_ydata(), expected)
    seen = 100 * np.mean([formulas.generalisation_by_seen(r.scores["intent_accuracy"]) for r in runs], axis=0)
    np.testing.assert_allclose(by_distance.axes[0].lines[0].get_ydata(), seen)
    # The first order once more changes nothing: each order counts the same.
    again = [dataclasses.replace(r, seed=r.seed + 10, run_id=f"{r.run_id}-2") for r in runs if r.order == runs[0].order]
    (more,) = comparisons([*runs, *again])
    larger = trade_offs.distance_figure(Summary(summarise(more.runs), more), "intent_accuracy")
    assert len(again) > 0
    np.testing.assert_allclose(larger.axes[1].lines[0].get_ydata(), expected)
    dots = [line for line in boxes.axes[0].lines if line.get_marker() == "."]
    k = len(dots) // 2
    single, many = dots[0].get_ydata(), dots[k].get_ydata()
    np.testing.assert_allclose(many, [100 * formulas.forgetting(r.scores["intent_accuracy"]) for r in runs])
    np.testing.assert_allclose(single, [100 * formulas.forgetting(r.scores["intent_accuracy"][:3, :2]) for r in runs])
    # One panel for each measure; T0 and FP of the first two hops are those of a stream of two languages.
    assert [axes.get_ylabel() for axes in boxes.axes] == ["F (points)", "T (points)", "T0 (points)", "FP (%)"]
    for axes, measured in zip(boxes.axes[2:], (formulas.zero_shot_transfer, lambda R: R[-1].mean()), strict=True):
        dots = [line.get_ydata() for line in axes.lines if line.get_marker() == "."]
        for values, size in ((dots[0], 2), (dots[k], None)):
            cut = slice(None if size is None else size + 1), slice(size)
            np.testing.assert_allclose(values, [100 * measured(r.scores["intent_accuracy"][cut]) for r in runs])
    # Of forgetting the mean over runs is the table's.
    assert printed(float(np.mean(many))) == column(summary.main(["intent_accuracy"]), "F ↓")["naive"].split(" ±")[0]


def test_a_grid_of_score_matrices_over_many_strategies_shows_every_cell() -> None:
    names = ("naive", "er", "ewc_online", "kd_logit", "kd_rep", "agem", "inc_joint", "lang_spec_trans", "mbpa", "ewc")
    chosen = {name: [run(name, "h2l", seed, LANGUAGES) for seed in (1, 2)] for name in names}
    figure = heatmaps(chosen, "intent_accuracy", "ten strategies")
    panels = [axes for axes in figure.axes if axes.images and axes.get_visible() and axes.get_title()]
    assert len(panels) == 10
    for axes, (name, runs) in zip(panels, chosen.items(), strict=True):
        assert axes.get_title() == f"{name} (2 runs)"
        mean = 100 * np.mean([r.scores["intent_accuracy"] for r in runs], axis=0)
        np.testing.assert_allclose(axes.images[0].get_array(), mean)
        assert [text.get_text() for text in axes.texts] == [f"{v:.1f}" for v in mean.ravel()]


def test_the_name_of_a_narrow_panel_is_cut_and_not_left_out() -> None:
    single = [run("naive", "de", 1, ("de",))]
    figure = heatmaps(
        {"growing(languages=de)": single, "a b c d e f g h i j": single}, "intent_accuracy", "one language"
    )
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["growing(langu… (1 run)", "a b c d e f g… (1 run)"]


PLAIN = re.compile(r"[\x20-\x7e]*")


def well_formed(tex: str) -> int:
    """Check a LaTeX table's structure as a compiler would meet it; return its number of rows."""
    whole = [line for line in tex.splitlines() if not line.startswith("%")]
    assert (whole[0], whole[-1]) == ("\\begin{threeparttable}", "\\end{threeparttable}")
    assert re.fullmatch(r"\\caption\{.+\}", whole[2])
    assert re.fullmatch(r"\\label\{tab:[a-z0-9-]+\}", whole[3])
    end = len(whole) - whole[::-1].index("\\end{tabular}")
    notes = whole[end:-1]
    for line in (whole[2], *notes):
        assert PLAIN.fullmatch(line), line
    if notes:
        assert (notes[0], notes[-1]) == ("\\begin{tablenotes}\\footnotesize\\raggedright", "\\end{tablenotes}")
        assert all(note.startswith("\\item") for note in notes[1:-1])
    grids = "\n".join(whole[4:end]).split("\n\n\\medskip\n")
    (rows,) = {well_formed_grid(grid.split("\n")) for grid in grids}
    return rows


def well_formed_grid(lines: list[str]) -> int:
    columns = re.fullmatch(r"\\begin\{tabular\}\{([lr]+)\}", lines[0])
    assert columns, lines[0]
    assert (lines[1], lines[3], lines[-2], lines[-1]) == ("\\toprule", "\\midrule", "\\bottomrule", "\\end{tabular}")
    rows = [line for line in (lines[2], *lines[4:-2]) if line != "\\midrule"]
    for row in rows:
        assert PLAIN.fullmatch(row), row  # nothing that needs a special input encoding
        assert row.endswith(" \\\\")
        assert not row.startswith("[")  # it would be an option of the \\ before it
        cells = re.split(r"(?<!\\)&", row.removesuffix(" \\\\"))
        assert len(cells) == len(columns[1]), row
        for cell in cells:
            bare = re.sub(r"\\([%&$#_{}]|[a-zA-Z]+(\{\})?)", "", cell)
            assert bare.count("{") == bare.count("}")
            assert bare.count("$") % 2 == 0
            outside = re.sub(r"\$[^$]*\$", "", bare)
            assert not re.search(r"[%#_^~\\]", outside), cell
    return len(rows)


def test_latex_tables_are_well_formed() -> None:
    summary, inference = made().summary, made().inference
    tables = [summary.main(["intent_accuracy", "slot_f1"]), summary.orders("slot_f1"),
              summary.languages("intent_accuracy", "T"), inference.anovas()]  # fmt: skip
    for table in tables:
        assert well_formed(latex(table)) == len(table.rows) + 1
    odd = Table(
        "odd", ("a_b", "100 % ≠ ∞"), (("[x] & {y}", Cell("−1 ~ ^ \\ ± 2 ≥ η²", best=True, mark="**")), ("#$", "→ Δ·ρ"))
    )
    assert well_formed(latex(odd)) == 3
    assert "$\\neq$" in latex(odd)


def test_latex_tables_that_do_not_fit_continue_in_a_second_grid_or_on_the_next_page() -> None:
    def table(columns: int, rows: int, name: str = "er") -> str:
        cells = tuple(f"{k}.25 ± 1.00" for k in range(columns))
        return latex(Table("t", ("strategy", *(f"F {k}" for k in range(columns))), ((name, *cells),) * rows))

    assert [table(4, 2).count("\\begin{tabular}"), table(9, 2).count("\\begin{tabular}")] == [1, 2]
    assert table(9, 2).count("\nstrategy & ") == 2
    assert [table(3, 2).splitlines()[0].count("table*"), table(9, 2).splitlines()[0].count("table*")] == [0, 2]
    assert (table(4, 45).count("longtable}"), table(4, 46).count("\\begin{longtable}")) == (0, 1)
    # Long names are wrapped.
    long = table(9, 2, f"er({', '.join(f'dataset.key{k}=value' for k in range(12))})")
    assert re.search(r"\\begin\{tabular\}\{p\{\d+pt\}r+\}", long)
    assert "{\\raggedright er(\\allowbreak{}dataset." in long


def test_code_in_notes_is_set_as_code_in_latex() -> None:
    table = Table("t", ("a",), (("1",),), notes=("set `trainer.max_length=8` or “less”",))
    assert r"set \texttt{trainer.max\_length=8} or ``less''" in latex(table)
