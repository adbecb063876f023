"""The score matrix on a terminal: it fits, shows every score, and marks the language just learned."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from xclrun.core.stream import independent, joint, sequence
from xclrun.core.task import CLASS_ACCURACY, INTENT_ACCURACY, SLOT_F1, MetricsOfKeys
from xclrun.launch.console import Console
from xclrun.launch.matrix import MARK, MatrixRows, brief

SIX = ("en", "de", "fr", "es", "hi", "th")
METRICS = (INTENT_ACCURACY, SLOT_F1)


def scores_of(languages: tuple[str, ...], hop: int) -> dict[str, dict[str, float]]:
    """Scores that are all different, perfect ones among them."""
    values = ((0.5 * j + 1) / (len(languages) + 2) + 0.0101 * hop for j in range(len(languages)))
    return {
        language: {"intent_accuracy": 1.0 if j == 0 else min(1.0, value), "slot_f1": value / 7}
        for j, (language, value) in enumerate(zip(languages, values, strict=True))
    }


def told(capsys: pytest.CaptureFixture[str], stream: Any, columns: int, patch: pytest.MonkeyPatch) -> list[str]:
    """What a console says of a whole run, line by line."""
    patch.setenv("COLUMNS", str(columns))
    label = "lang_spec_ft+lang_spec_ada_f · order1 · seed 12"
    run: Any = SimpleNamespace(
        id="mini-lang_spec_ft+lang_spec_ada_f-order1-s12-4d06d52c0d07", label=label, stream=stream,
        dataset=SimpleNamespace(metrics=MetricsOfKeys(METRICS)),
    )  # fmt: skip
    console = Console([run.id])
    console.run_started(run)
    for hop in stream.hops:
        console.hop_ended(run, hop, scores_of(stream.languages, hop.index), shared=hop.index == 2)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    "languages", [SIX, tuple(f"l{k}" for k in range(10)), tuple(f"l{k}" for k in range(24)), ("sentiment140", "agnews")]
)
def test_the_matrix_fits_a_terminal_and_shows_every_score(
    languages: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = sequence(languages)
    for columns in (80, 60):
        lines = told(capsys, stream, columns, monkeypatch)
        assert max(map(len, lines)) <= columns
        text = "\n".join(lines)
        assert "…" not in text
        display = re.findall(r"(?<![\w.])100(?![\w.])|\d+\.\d(?! s\b)", text)
        for hop in stream.hops:
            for values in scores_of(languages, hop.index).values():
                for value in values.values():
                    assert ("100" if value == 1 else f"{100 * value:.1f}") in display
        assert len(display) == len(stream.hops) * len(languages) * 2
        assert "intent accuracy" in text
        assert text.count("shared") == 1


def test_six_languages_and_two_metrics_take_a_line_for_each_hop(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = told(capsys, sequence(SIX), 80, monkeypatch)
    rows = [line for line in lines if re.match(r" +\d ", line)]
    assert [line.split()[:2] for line in rows] == [["0", "before"], *([str(k + 1), name] for k, name in enumerate(SIX))]
    head = next(line for line in lines if "key " in line and line.split()[0] == "hop")
    assert head.split() == ["hop", "key", *SIX]
    # One mark a row: at the end of its language's column.
    ends = {name: head.index(name) + len(name) for name in SIX}
    assert MARK not in rows[0]
    for name, row in zip(SIX, rows[1:], strict=True):
        assert row.count(MARK) == 1
        cell = row[row.index(MARK) :].split()[0]
        assert row.index(cell) + len(cell) == ends[name]
    assert any(MARK in line and "the language just learned" in line for line in lines)


LONG = ("time", "contact", "information", "leisure", "recipes")
# Scores of each length, in another order in each row, and each text at the end of a row.
LENGTHS, NOTES = (0.0, 0.893, 1.0, 0.3), ("", "3.2 s", "shared", "cached", "12 min", "59.9 s")


def rows_of(columns: int, metrics: Any) -> tuple[list[str], list[list[str]]]:
    """The header, and the lines of each hop, of a run over keys with long names."""
    rows, hops = MatrixRows(LONG, metrics, ("before", *LONG), columns, False), []
    for hop, key in enumerate(("before", *LONG)):
        entry = {
            name: {metric.name: LENGTHS[(hop + j + k) % 4] for k, metric in enumerate(metrics)}
            for j, name in enumerate(LONG)
        }
        hops.append(rows.row(hop, key, entry, key if hop else None, NOTES[hop]).splitlines())
    return rows.head().splitlines(), hops


@pytest.mark.parametrize("metrics", [(CLASS_ACCURACY,), METRICS], ids=["one metric", "two metrics"])
def test_long_names_stand_above_their_scores(metrics: Any) -> None:
    head, hops = rows_of(80, metrics)
    assert head[-1].split() == ["hop", "key", *LONG]
    columns = [head[-1].index(f" {name}") + len(name) + 1 for name in LONG]
    ends = set()
    for hop, [line] in enumerate(hops):
        cells = list(re.finditer(r"\S+", line))[2:7]
        assert [cell.end() for cell in cells] == columns
        assert [cell[0].startswith(MARK) for cell in cells] == [name == LONG[hop - 1] and hop > 0 for name in LONG]
        assert line[columns[-1] :].strip() == NOTES[hop]
        ends.add(len(line) if NOTES[hop] else columns[-1] + 7)
    assert ends == {columns[-1] + 7}


@pytest.mark.parametrize("metrics", [(CLASS_ACCURACY,), METRICS], ids=["one metric", "two metrics"])
def test_names_and_scores_that_wrap_keep_their_columns_over_all_hops(metrics: Any) -> None:
    head, hops = rows_of(60, metrics)
    assert head[-1].split() == ["hop", "key", "scores"]
    # Where the names begin and the scores end, of each line of a hop.
    layouts, ends = [], set()
    for hop, lines in enumerate(hops):
        pairs = [list(re.finditer(r"([a-z]+) +(›?[\d.]+)(?= |$)", line[15:])) for line in lines]
        layouts.append([[(pair.start(1), pair.end(2)) for pair in line] for line in pairs])
        assert [pair[1] for line in pairs for pair in line] == [*LONG] * len(metrics)
        rest = lines[0][15 + layouts[-1][0][-1][1] :]
        assert rest.strip() == NOTES[hop]
        ends.add(len(rest) if rest else 7)
    assert all(layout == layouts[0] for layout in layouts)
    begins = [[begin for begin, _ in line] for line in layouts[0]]
    assert all(line == begins[0][: len(line)] for line in begins), "lines below are not indented differently"
    assert ends == {7}
    assert len(head[-1]) == 15 + layouts[0][0][0][1], "the header ends above the first scores"


@pytest.mark.parametrize("languages", [SIX[:2], LONG, tuple(f"l{k}-XX" for k in range(51))])
@pytest.mark.parametrize("columns", [40, 80])
def test_the_legend_of_one_metric_is_its_title(languages: tuple[str, ...], columns: int) -> None:
    legend = " ".join(MatrixRows(languages, (CLASS_ACCURACY,), SIX, columns, False).legend.split())
    assert re.match(r"test: class accuracy[,;] ", legend)


MANY = tuple(f"l{k}-XX" for k in range(51))


def test_of_51_languages_each_has_a_block_and_a_hop_takes_a_line_for_each_metric(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = told(capsys, sequence(MANY), 80, monkeypatch)
    assert max(map(len, lines)) <= 80
    assert len(lines) < 2 * len(MANY) + 20
    told_of = " ".join(lines)
    assert all(name in told_of for name in MANY)  # none is cut where a line ends
    rows = [line for line in lines if re.match(r" *\d+ (l\d|before)", line)]
    assert len(rows) == 52
    for hop, row in enumerate(rows):
        scores = [entry["intent_accuracy"] for entry in scores_of(MANY, hop).values()]
        blocks = "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * value))] for value in scores)
        assert f" {blocks} " in row
        mean, *local = row.split(blocks)[1].split()
        assert mean == f"{100 * sum(scores) / 51:.1f}"
        if hop:
            assert local[0] == MARK + ("100" if scores[hop - 1] == 1 else f"{100 * scores[hop - 1]:.1f}")
    head = next(line for line in lines if line.startswith("hop key"))
    # The ruler's tens end over their columns.
    begins = rows[0].index("█")
    assert all(head[begins + k - 2 : begins + k] == str(k) for k in (10, 20, 30, 40, 50))


def test_blocks_that_do_not_fit_go_on_below_and_a_score_that_is_not_there_is_a_dot() -> None:
    rows = MatrixRows(MANY, METRICS[:1], MANY, 60, False)
    scores = {name: {} if k == 50 else {"intent_accuracy": k / 50} for k, name in enumerate(MANY)}
    first, second = rows.row(3, "l2-XX", scores, "l2-XX", "1.2 s").splitlines()
    assert max(len(first), len(second)) <= 60
    blocks = "".join(re.findall("[▁-█·]", first + second))
    assert (len(blocks), blocks[0], blocks[-2:]) == (51, "▁", "█·")
    assert first.split()[-4:] == ["49.0", f"{MARK}4.0", "1.2", "s"]


def test_the_mark_is_that_of_the_stream(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def marks(stream: Any) -> list[int]:
        lines = told(capsys, stream, 80, monkeypatch)
        return [line.count(MARK) for line in lines if re.match(r" +\d ", line)]

    assert marks(sequence(SIX, cumulative=True)) == marks(independent(SIX)) == [0, 1, 1, 1, 1, 1, 1]
    assert marks(joint(SIX)) == [0, 0]  # all are learnt at once


def test_a_terminal_has_the_mark_in_reverse_and_a_log_has_no_escape_codes() -> None:
    plain, styled = (MatrixRows(SIX, METRICS, SIX, 80, styled) for styled in (False, True))
    entry = scores_of(SIX, 1)
    assert "\x1b" not in plain.head() + plain.row(1, "en", entry, "en", "")
    assert re.search(r"\x1b\[7m›100\|\d+\.\d\x1b\[0m", styled.row(1, "en", entry, "en", ""))
    assert re.sub(r"\x1b\[\d*m", "", styled.row(1, "en", entry, "en", "")) == plain.row(1, "en", entry, "en", "")


def test_a_blank_stands_before_the_mark_where_there_is_room() -> None:
    for languages, metrics in ((SIX[:2], METRICS), (SIX, METRICS[:1])):
        row = MatrixRows(languages, metrics, SIX, 80, False).row(2, "de", scores_of(languages, 1), "de", "shared")
        assert f" {MARK}" in row


def test_durations_at_the_end_of_a_row_are_short() -> None:
    seconds = {0.04: "0.0 s", 59.9: "59.9 s", 60: "1 min", 3569: "59 min", 3580: "1.0 h", 360000: "100.0 h"}
    assert {s: brief(s) for s in seconds} == seconds
