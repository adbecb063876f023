"""The registry of parts: whatever is in it is shown, and a part is added, and taken away, in one place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from xclrun.analysis.fewshot.attention import COLUMNS
from xclrun.analysis.record import RunRecord
from xclrun.analysis.tuning import choose
from xclrun.report.codelength import codelength_sections
from xclrun.report.fewshot import few_shot_sections
from xclrun.report.part import Item, Needs, Plot, make_block, part
from xclrun.report.parts import PARTS
from xclrun.report.published import ll
from xclrun.report.section import Options
from xclrun.report.strategies import StrategySection
from xclrun.report.tables import Table
from xclrun.report.write import write_report
from xclrun.scores.base_scores import Predictions, Sentences

from . import (
    few_shot,
    test_captions,
    test_checkpoints,
    test_class_gradients,
    test_codelength,
    test_generalisation,
    test_lifelong,
    test_overlap,
    test_published_ranking,
    test_tasks,
)
from .study import ORDERS, run, section_of
from .test_inside_hops import with_points


def predictions(record: RunRecord) -> Predictions:
    """Twelve test sentences of each language, half of them right after every hop."""
    gold = np.arange(12) % 3
    predicted = np.where(np.arange(12)[:, None] % 2, gold[:, None], np.zeros((1, record.hops + 1), dtype=int))
    spans = (np.ones_like(predicted),) * 3
    return Predictions(
        ("a", "b", "c"), {k: Sentences(np.arange(12).astype(str), gold, predicted, spans) for k in record.languages}
    )


@pytest.mark.full
def test_every_part_shows_something_where_there_is_what_it_needs() -> None:
    """A new part has to be shown here too: the runs below must have what it needs."""
    orders = {order: tuple(k for k in ORDERS[order] if k in ("en", "de", "th")) for order in ("h2l", "l2h")}
    records = [run(name, order, 1, order_keys) for order, order_keys in orders.items() for name in ("naive", "er")]
    records = with_points(records)
    predicted: dict[str, Any] = {record.run_id: predictions(record) for record in records}
    strategies = section_of(records, options=Options(table="8"), predictions=lambda: predicted)

    buckets = few_shot.study(languages=("de", "hi"), shots=(1,), buckets=2, strategies=("naive", "fc"))
    behind = few_shot.given(buckets, 4)
    rows = [(hop, "de", word, 9, 0.1 + 0.1 * hop * (word == "gut")) for hop in (1, 2) for word in ("gut", "ein")]
    behind.attention[buckets[0].run_id] = pd.DataFrame(rows, columns=list(COLUMNS))  # type: ignore[index]
    sections = [strategies, *few_shot_sections(buckets, behind)]
    sections += few_shot_sections([few_shot.run("tr", 1, 0, source=source) for source in ("en", None)])
    # Each of these parts needs another kind of runs.
    sections += [section_of(test_checkpoints.RUNS), test_overlap.section(naive1=test_overlap.COUNTS)]
    sections += [test_class_gradients.section()]
    sections += [section_of([test_lifelong.statements(seed=1)])]
    standard, online = ll.STREAMS["standard"], test_lifelong.online
    sections += [section_of([online(name, seed, standard) for name in ("naive", "replay") for seed in (1, 2, 3)])]
    sections += [
        section_of(
            [
                online("naive", 1, keys, order="-".join(keys), run_id=str(k))
                for k, keys in enumerate(permutations(standard))
                if k < 20
            ]
        )
    ]
    sections += codelength_sections([test_codelength.coded([9.0, 8.0, 7.0], dataset="squad", model="bert")])
    grid = [run("er", "h2l", 1, orders["h2l"], settings={"memory": memory}) for memory in (1, 2)]
    sections += [section_of(grid[:1], options=Options(choice=choose(grid, ("strategy.memory",))))]
    sections += [section_of(test_published_ranking.records(orders=("order1",)))]
    sections += [section_of([test_generalisation.on_others(1)]), section_of([test_tasks.random_curriculum()])]
    all_blocks = [block for section in sections for block in section.blocks]

    assert PARTS.keys() - {block.part.name for block in all_blocks} == set()
    named: set[tuple[str, str, str]] = set()
    for section in sections:
        plots = [plot for block in section.blocks for plot in block.plots]
        assert len({plot.name for plot in plots}) == len(plots)
        assert all(plot.caption for plot in plots)
        # Only reports on sweeps of papers name the papers' figures.
        assert not [plot.caption for plot in plots if test_captions.mentions(plot.caption)]
        for plot in plots:
            kind = plot.name.removeprefix("few_shot_")
            figures = [mention for mention in test_captions.mentions(plot.paper) if mention[1] == "figure"]
            if figures:
                (*_, figure) = sorted(
                    (known_kind for known_kind in test_captions.FIGURES if kind.startswith(f"{known_kind}_")), key=len
                )
                assert all(test_captions.shows(figure, mention) for mention in figures), plot
                named |= {*figures}
    assert len(named) > 10
    assert all(table.title and table.rows for block in all_blocks for table in block.tables)
    assert not any("{" in block.title for block in all_blocks)


def test_a_part_is_added_in_one_place_and_what_it_showed_goes_with_it(tmp_path: Path, undrawn: None) -> None:
    records = [run("naive", "en-th", 1, ("en", "th"), metrics=("intent_accuracy",), curve=())]

    def made() -> tuple[str, str, set[str]]:
        write_report(records, tmp_path, "demo")
        files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
        return (tmp_path / "index.html").read_text(), (tmp_path / "summary.md").read_text(), files

    *_, before = made()
    new = {"figures/waves_mini_tiny.svg"}
    new |= {f"tables/mini_tiny_tides_of_tiny.{suffix}" for suffix in ("md", "csv", "tex")}

    @part(StrategySection, place=35, title="Water")
    def water(section: StrategySection) -> Iterator[Item]:
        yield "How it <moves>."
        yield Table(f"Tides of {section.comparison.model}", ("a",), (("1.23",),))
        yield Plot(section.file("waves"), "Waves of runs", Figure)
        yield Needs("more rain")

    try:
        page, summary, files = made()
    finally:
        del PARTS["water"]
    assert files - before == new
    assert before <= files
    heading, after = page.index('<h3 id="s0-water">Water</h3>'), page.index("Budgets</h3>")
    for text in ("How it &lt;moves&gt;.", "<figcaption>Waves of runs", "Tides of tiny</figcaption>", "1.23</th>"):
        assert heading < page.index(text) < after
    assert '<a href="#s0-water">Water</a>' in page
    assert "data missing for “Water”: more rain" in page
    assert "figures/waves_mini_tiny.svg" in summary
    assert "### Tides of tiny" in summary
    page, summary, files = made()
    assert files == before
    assert "Water" not in page + summary


def test_a_part_that_is_not_whole_is_refused() -> None:
    def enter(name: str, place: int) -> None:
        def make(section: StrategySection) -> Iterator[Item]:
            yield 5  # type: ignore[misc]

        make.__name__ = name
        part(StrategySection, place=place, title="x")(make)

    with pytest.raises(ValueError, match="part 'means' of StrategySection: 'means' has the same name"):
        enter("means", 5)
    with pytest.raises(ValueError, match="'means' has the same name or place 20"):
        enter("other", 20)
    enter("other", 5)
    with pytest.raises(TypeError, match="part 'other' yields int"):
        make_block(PARTS.pop("other"), object())


def test_a_file_that_enters_no_part_fails_at_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy

    from xclrun.report import parts

    (tmp_path / "forgotten_part.py").write_text("")
    monkeypatch.setattr(parts, "__path__", [str(tmp_path)])
    with pytest.raises(ImportError, match=r"forgotten_part registers no part"):
        runpy.run_path(str(Path(parts.__file__)), {"__path__": parts.__path__, "__name__": "xclrun.report.parts"})
