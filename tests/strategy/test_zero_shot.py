"""Zero-shot transfer: one hop on the first language, tested on all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xclrun.analysis.aggregate import summarise
from xclrun.analysis.records import record
from xclrun.launch.status import run_status
from xclrun.plan import Run
from xclrun.report.heatmaps import hop_names

Make = Callable[..., Run]


def test_only_the_first_language_is_learnt_and_all_are_tested(make_run: Make, do: Make) -> None:
    run = do(make_run("strategy=zero_shot", "order=[de,en,es]", "evaluate.every_share=0.5"))
    found = record(run.directory)
    assert (found.stream, found.hops, found.languages, found.path) == ("zero_shot", 1, ("de", "en", "es"), ("de",))
    assert [hop.train for hop in run.stream.hops] == [(), ("de",)]
    scores = found.scores["intent_accuracy"]
    assert scores.shape == (2, 3)
    assert not np.isnan(scores).any()
    assert {language for point in found.points for language in point["dev"]} == {"de", "en", "es"}
    # The epochs are chosen by the source alone.
    assert {language for epoch in found.curve for language in epoch["dev"]} == {"de"}
    assert hop_names(found) == ["0 (before)", "1 de"]
    assert run_status(run.directory).hops == 1
    frame = summarise([found]).query("metric == 'intent_accuracy' and order == 'mean' and language == ''")
    frame = frame.set_index("measure")
    assert frame["value"]["FP"] == np.mean(scores[-1])
    assert frame["status"]["F"] == "n/a: needs a sequence of hops"


def test_runs_from_two_sources_are_two_measurements(make_run: Make, do: Make) -> None:
    runs = [do(make_run("strategy=zero_shot", f"order={order}")) for order in ("[de,en,es]", "[en,de,es]")]
    records = [record(run.directory) for run in runs]
    frame = summarise(records).query("order == 'mean' and language == '' and measure == 'FP'")
    assert frame["n"].tolist() == [2, 2]  # of intents and of slots
