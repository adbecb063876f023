from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from xclrun.analysis.aggregate import comparisons
from xclrun.analysis.record import RunRecord
from xclrun.core.names import slug
from xclrun.report.heatmaps import heatmap, heatmaps
from xclrun.report.parts import curves
from xclrun.report.style import FURTHER, MARKERS, axis_of, colour, marker, places, save

from .study import LANGUAGES, ORDERS, run, study

TASKS = ("boolq", "udpos", "wic", "fewrel", "yelp", "agnews", "sst2", "dbpedia")


def learning_curves(*records: Any) -> list[Figure]:
    return [draw() for draw in curves.learning_curve_pages(*records)]


def training_curves(*records: Any, last: int = 9) -> list[Figure]:
    return [draw() for draw in list(curves.training_curve_pages(*records))[-last:]]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def is_cut_off(figure: Figure) -> bool:
    """Say whether anything drawn reaches over the edge of the figure (by more than a hundredth of an inch)."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)  # what drawing would begin with
    drawn, (width, height) = figure.get_tightbbox(renderer), figure.get_size_inches()
    return min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) < -0.01


def legend_hides_something(figure: Figure) -> bool:
    """Say so of a figure that `is_cut_off` has laid out."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    legend = figure.legends[0].get_window_extent(renderer)
    titles = [figure._suptitle, figure._supxlabel]  # type: ignore[attr-defined]
    boxes = [title.get_window_extent(renderer) for title in titles]
    return any(legend.overlaps(box) for box in (*boxes, *(axes.get_tightbbox(renderer) for axes in figure.axes)))


def wide_study() -> list[RunRecord]:
    """Strategies over all orders, and some with long names that lack orders."""
    names = ("naive", "ewc_online", "kd_logit", "lang_spec_trans", "inc_joint", "agem", "lang_spec_task", "mbpa")
    records = study(names, ORDERS, (1,))
    records += [run("er", "h2l", seed, LANGUAGES, settings={"memory": m}) for m in (750, 6000) for seed in (1, 2)]
    records += [run(f"lang_spec_ft+lang_spec_ada_{kind}", "h2l", 1, LANGUAGES) for kind in "ft"]
    return records


def names_of_rows_overlap(figure: Figure) -> bool:
    """Say so of a figure that `is_cut_off` has laid out."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [axes.yaxis.label.get_window_extent(renderer) for axes in figure.axes if axes.get_ylabel()]
    return any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])


def figures() -> Iterator[tuple[str, Figure]]:
    yield "one language", heatmap(run("naive", "en", 1, ("en",)), "slot_f1")
    yield "joint", heatmap(run("multilingual", "h2l", 1, LANGUAGES), "intent_accuracy")
    yield "alone", heatmap(run("lang_spec_ft", "h2l", 1, LANGUAGES), "intent_accuracy")
    long = run("lang_spec_ada_f", "-".join(TASKS), 12, TASKS, bucket=39)
    yield "tasks with long names", heatmap(long, "intent_accuracy")
    for name, records in {
        "one": [run("naive", "en", 1, ("en",))],
        "tasks": [long],
        "wide": wide_study(),
    }.items():
        comparison = comparisons(records)[0]
        for k, figure in enumerate(learning_curves(comparison, "intent_accuracy")):
            yield f"learning curves {name} {k}", figure
        for quantity in ("loss", "intent_accuracy") if name != "wide" else ("loss",):
            for k, figure in enumerate(training_curves(comparison, quantity, last=1)):
                yield f"training curves {name} {quantity} {k}", figure


@pytest.mark.full
def test_nothing_is_cut_off_or_lies_under_the_legend() -> None:
    drawn = 0
    for name, figure in figures():
        assert not is_cut_off(figure), name
        assert not names_of_rows_overlap(figure), name
        if figure.legends:
            assert not legend_hides_something(figure), name
        drawn += 1
    assert drawn == 4 + 2 * 3 + 3  # learning curves of the wide study fill two pages


def test_a_heat_map_shows_every_cell_and_outlines_the_language_just_learnt() -> None:
    record = run("naive", "l2h", 3, LANGUAGES[::-1])
    figure = heatmap(record, "slot_f1")
    labels = texts(figure)
    for score in record.scores["slot_f1"].ravel():
        assert f"{100 * score:.1f}" in labels
    for label in ("0 (before)", "1 th", "6 en", "evaluated on", "after hop", "slot F1 (%)"):
        assert label in labels
    assert " ".join("\n".join(labels).split()).count("Score matrix: naive, l2h, seed 3 (slots)") == 1
    frames = {(p.get_x(), p.get_y()) for p in figure.axes[0].patches if isinstance(p, Rectangle)}
    np.testing.assert_allclose(sorted(frames), [(j - 0.46, j + 0.54) for j in range(6)])


def test_streams_that_are_no_sequence_are_named_so() -> None:
    alone, joint = (
        heatmap(run(name, "h2l", 1, LANGUAGES), "intent_accuracy") for name in ("lang_spec_ft", "multilingual")
    )
    assert "3 fr only" in texts(alone)
    assert "1 (all)" in texts(joint)
    assert not joint.axes[0].patches


def test_unmeasured_cells_are_dashes() -> None:
    record = run("naive", "en-th", 1, ("en", "th"))
    holed = record.scores["intent_accuracy"].copy()
    holed[2] = np.nan
    data = record.to_json()
    data["scores"]["intent_accuracy"] = np.where(np.isnan(holed), None, holed).tolist()
    assert texts(heatmap(RunRecord.from_json(data), "intent_accuracy")).count("–") == 2


def test_a_metric_without_scores_is_refused() -> None:
    with pytest.raises(ValueError, match="has no scores for slot_f1; it has intent_accuracy"):
        heatmap(run("naive", "h2l", 1, LANGUAGES, metrics=("intent_accuracy",)), "slot_f1")


def test_learning_curves_are_means_over_seeds() -> None:
    records = study(("naive",), ("h2l",), (1, 2, 3))
    (figure,) = learning_curves(comparisons(records)[0], "intent_accuracy")
    mean = 100 * np.mean([record.scores["intent_accuracy"] for record in records], axis=0)
    for j, (before, after) in enumerate(zip(*[iter(figure.axes[0].lines)] * 2, strict=True)):
        np.testing.assert_allclose(before.get_ydata(), mean[: j + 2, j])  # dashed: up to its own hop
        np.testing.assert_allclose(after.get_ydata(), mean[j + 1 :, j])
        assert (before.get_linestyle(), after.get_linestyle()) == ("--", "-")
        assert after.get_xdata()[0] == j + 1
        assert (before.get_marker(), after.get_markevery()) == ("None", [0])  # a marker at its own hop alone
        assert after.get_marker() in MARKERS
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", *LANGUAGES]


def test_learning_curves_are_over_the_runs_of_the_tables() -> None:
    """A seed that one strategy lacks enters no curve, as it enters no score matrix and no mean; the title says so."""
    records = [*study(("naive",), ("h2l",), (1, 2)), *study(("er",), ("h2l",), (1,))]
    (figure,) = learning_curves(comparisons(records)[0], "intent_accuracy")
    shared = 100 * records[0].scores["intent_accuracy"]
    np.testing.assert_allclose(figure.axes[0].lines[1].get_ydata(), shared[1:, 0])
    remark = "mean over the runs that all strategies have finished"
    assert remark in " ".join(" ".join(texts(figure)).split())
    (whole,) = learning_curves(comparisons(records[:2])[0], "intent_accuracy")
    assert remark not in " ".join(" ".join(texts(whole)).split())


def test_a_language_has_the_same_colour_in_every_order() -> None:
    (figure,) = learning_curves(comparisons(study(("naive",), ("h2l", "l2h"), (1,)))[0], "intent_accuracy")
    first, second = (axes.lines for axes in figure.axes)
    assert first[0].get_color() == second[5 * 2].get_color()  # en: first in h2l, last in l2h


def test_what_was_not_run_is_said_in_its_panel() -> None:
    records = [*study(("naive",), seeds=(1,)), run("er", "l2h", 1, LANGUAGES[::-1])]
    (figure,) = learning_curves(comparisons(records)[0], "intent_accuracy")
    assert texts(figure).count("not run") == 1


def test_strategies_without_a_sequence_have_no_learning_curve() -> None:
    assert learning_curves(comparisons(study(("lang_spec_ft", "multilingual")))[0], "intent_accuracy") == []


def test_training_curves_lay_hops_one_after_the_other() -> None:
    points = [
        {"hop": hop, "epoch": epoch, "step": steps * epoch, "loss": loss / epoch, "dev": {}}
        for hop, steps, loss in ((1, 100, 2.0), (2, 50, 1.0))
        for epoch in (1, 2)
    ]
    slow = [point | {"step": 150 * point["epoch"]} for point in points[:2]] + points[2:]
    records = [run("naive", "en-th", seed, ("en", "th"), curve=tuple(c)) for seed, c in ((1, points), (2, slow))]
    (figure,) = training_curves(comparisons(records)[0], "loss")
    drawn = [np.array(line.get_data()) for line in figure.axes[0].lines if len(line.get_xdata()) == 5]
    gap = [np.nan, np.nan]
    seed_1 = [(100, 2), (200, 1), gap, (350, 1), (400, 0.5)]  # hop 2 begins at 300, where the longest hop 1 ended
    seed_2 = [(150, 2), (300, 1), gap, (350, 1), (400, 0.5)]
    np.testing.assert_array_equal(drawn, [np.transpose(seed_1), np.transpose(seed_2)])


def test_training_curves_of_many_runs_are_their_median_and_nine_tenths() -> None:
    """Of 41 runs the k-th has loss k in hop 1; one has gone twice as far by the end of its only epoch there."""
    losses = [float(k) for k in range(41)]
    points = [
        [{"hop": hop, "epoch": 1, "step": 100, "loss": loss / hop, "dev": {}} for hop in (1, 2)] for loss in losses
    ]
    points[3][0]["step"] = 200
    records = [run("naive", "en-th", k, ("en", "th"), curve=tuple(run_points)) for k, run_points in enumerate(points)]
    (figure,) = training_curves(comparisons(records)[0], "loss")
    axes = figure.axes[0]
    (line,) = axes.lines
    gap = [np.nan, np.nan]
    np.testing.assert_array_equal(np.array(line.get_xydata()), [[200, 20], gap, [300, 10], gap])
    bands = [path.vertices for path in axes.collections[0].get_paths()]
    assert [(band[:, 1].min(), band[:, 1].max()) for band in bands] == [(2, 38), (1, 19)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["median of runs", "central 90 % of runs"]


def test_dev_curves_are_of_the_language_being_learnt() -> None:
    record = run("naive", "en-th", 1, ("en", "th"))
    (figure,) = training_curves(comparisons([record])[0], "slot_f1")
    (values,) = (line.get_ydata() for line in figure.axes[0].lines if len(line.get_xdata()) > 2)
    expected = [100 * point["dev"][("en", "th")[point["hop"] - 1]]["slot_f1"] for point in record.curve]
    np.testing.assert_allclose(values[~np.isnan(values)], expected)


@pytest.mark.parametrize("curve", [(), ({"hop": 1, "epoch": 1, "step": 1, "loss": None, "dev": None},)])
def test_runs_without_a_curve_give_no_figure(curve: tuple[dict[str, object], ...]) -> None:
    comparison = comparisons([run("naive", "h2l", 1, LANGUAGES, curve=curve)])[0]
    assert training_curves(comparison, "loss") == training_curves(comparison, "intent_accuracy") == []


def test_sixteen_colours_and_many_more_lines_can_be_told_apart() -> None:
    assert len({colour(k) for k in range(16)}) == 16
    assert len({(colour(k), marker(k)) for k in range(128)}) == 128
    # Two light blues, and two bluish greens.
    assert marker(6) != marker(14)
    assert marker(3) != marker(10)


def test_a_strategy_has_its_colour_whoever_is_drawn_beside_it() -> None:
    assert places(["er", "agem"], every=["naive", "agem", "er"]) == {"er": 2, "agem": 1}


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([], (0, 100)),
        ([np.nan], (0, 100)),
        ([3.0, 11.0], (0, 15)),
        ([[81.0, 84.0], [np.nan, 93.5]], (80, 95)),
        ([50.0, 50.0], (45, 55)),
        ([99.0, 100.0], (90, 100)),
        ([0.0, 0.5], (0, 10)),
        ([0.0, 100.0], (0, 100)),
    ],
)
def test_axes_follow_the_data_and_hold_all_of_them(values: Any, ends: tuple[float, float]) -> None:
    assert axis_of(values) == ends


def test_curves_and_heat_maps_share_one_scale_that_follows_the_data() -> None:
    records = study(("naive", "er"), ("h2l",), (1,))
    for record in records:
        record.scores["intent_accuracy"] = 0.6 + 0.2 * record.scores["intent_accuracy"]
    (figure,) = learning_curves(comparisons(records)[0], "intent_accuracy")
    for axes in figure.axes:
        assert axes.get_ylim() == (55, 80)
        for line in axes.lines:
            assert (line.get_ydata() >= 55).all()
            assert (line.get_ydata() <= 80).all()
    matrices = heatmaps({record.strategy: [record] for record in records}, "intent_accuracy", "both")
    assert {image.get_clim() for axes in matrices.axes[:2] for image in axes.images} == {(55, 80)}
    assert figure.get_size_inches()[0] < 8  # two strategies in one order are small


def test_saved_figures_are_the_same_bytes_for_the_same_figure(tmp_path: Path) -> None:
    record = run("naive", "en-th", 1, ("en", "th"))
    first, second = (
        save(heatmap(record, "intent_accuracy"), tmp_path / folder, "a b/c", FURTHER) for folder in ("1", "2")
    )
    assert [path.name for path in first] == [f"{slug('a b/c')}.{suffix}" for suffix in ("svg", "pdf", "png")]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[2].read_bytes().startswith(b"\x89PNG")
    assert first[1].read_bytes().startswith(b"%PDF")
    assert b"</svg>" in first[0].read_bytes()
    assert [path.suffix for path in save(heatmap(record, "intent_accuracy"), tmp_path / "3", "a")] == [".svg"]


@pytest.mark.full
def test_drawing_a_figure_leaves_pyplot_alone() -> None:
    """pyplot would keep every figure in memory, and open windows."""
    code = (
        "import sys; from tests.report.study import run, LANGUAGES; from xclrun.report.heatmaps import heatmap;"
        "assert 'matplotlib' not in sys.modules; heatmap(run('naive', 'h2l', 1, LANGUAGES), 'intent_accuracy');"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_of_many_orders_the_first_have_panels() -> None:
    """Of 14 orders of one strategy twelve are drawn, and the titles say so."""
    orders = list(permutations(("en", "de", "fr", "th")))[:14]
    runs = [run("naive", "-".join(order), 1, order, metrics=("intent_accuracy",)) for order in orders]
    (comparison,) = comparisons(runs)
    for (figure,) in (learning_curves(comparison, "intent_accuracy"), training_curves(comparison, "loss")):
        assert len([axes for axes in figure.axes if axes.get_visible()]) == 12
        assert "12 of 14 orders" in " ".join(figure._suptitle.get_text().split())  # type: ignore[attr-defined]
