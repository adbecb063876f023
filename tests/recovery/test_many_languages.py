"""A stream over many languages in MASSIVE's layout: killed, continued, and told so that it can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .commands import predictions, small, wait_for, whole

# Of ten families and nine scripts.
LOCALES = (
    "af-ZA", "am-ET", "ar-SA", "az-AZ", "da-DK", "de-DE", "el-GR", "en-US", "es-ES", "fi-FI", "fr-FR", "he-IL", "hu-HU",
    "id-ID", "is-IS", "it-IT", "ja-JP", "jv-ID", "ka-GE", "ko-KR", "nb-NO", "nl-NL", "pl-PL", "ru-RU", "sw-KE", "zh-TW",
)  # fmt: skip
INTENTS = ("alarm_set", "play_music")


def write_massive(folder: Path) -> None:
    """Write a few made sentences of each locale, with a slot each."""
    folder.mkdir()
    for k, locale in enumerate(LOCALES):
        rows = []
        for number, split in enumerate(("train",) * 4 + ("dev",) * 2 + ("test",) * 2):
            intent, word = INTENTS[number % 2], f"w{(k + number) % 7}"
            rows.append(
                {"id": str(number), "locale": locale, "partition": split, "scenario": "made", "intent": intent,
                 "utt": f"{intent[:4]} {word}", "annot_utt": f"{intent[:4]} [thing : {word}]"}
            )  # fmt: skip
        (folder / f"{locale}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


@pytest.mark.full
def test_a_stream_over_26_languages_is_killed_goes_on_and_its_report_names_them_all(
    tmp_path: Path,
    start: Callable[..., Any],
    undisturbed: Callable[..., dict[str, str]],
    xclrun: Callable[..., tuple[int, str]],
) -> None:
    write_massive(tmp_path / "data")
    command = [
        text
        for text in small("dataset=massive", f"dataset.root={tmp_path / 'data'}", "order=random(1)")
        if not text.startswith(("dataset.languages", "dataset.max"))
    ]
    outputs = tmp_path / "outputs"
    arguments = (*command, "sweep_name=many", f"paths.outputs={outputs}", "-m")
    for hops in (4, 16):
        process = start(*arguments)
        wait_for(lambda: len([*outputs.glob("runs/*/predictions/*.parquet")]) >= hops, 300)  # noqa: B023
        assert process.poll() is None
        process.kill()
        process.wait()
    assert start(*arguments).wait(timeout=300) == 0
    assert whole(outputs, killed=True)
    assert predictions(outputs) == undisturbed((*command, "sweep_name=many"))
    code, output = xclrun("report", "many", "--outputs", str(outputs))
    assert code == 0, output
    page = (outputs / "reports" / "many" / "index.html").read_text(encoding="utf-8")
    for name in (*LOCALES, "Afro-Asiatic", "Han, traditional", "random(1)"):
        assert f">{name}<" in page, name
    (run,) = (path.name for path in outputs.glob("runs/*"))
    code, output = xclrun("show", run, "--outputs", str(outputs))
    assert code == 0
    rows = [line for line in output.splitlines() if re.search(r"^ *\d+ .*[▁-█]{26} +\d", line)]
    assert len(rows) == 2 * 27  # a matrix for each metric, and a row for each hop
    assert max(map(len, rows)) <= 80
