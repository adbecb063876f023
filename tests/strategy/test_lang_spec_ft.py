"""Language-specific fine-tuning: every language alone, from the untrained model."""

from collections.abc import Callable

from xclrun.core.stream import independent
from xclrun.run import Run
from xclrun.strategy.lang_spec_ft import LangSpecFT
from xclrun.strategy.shared.expansion import ExpandableSettings


def test_the_stream_starts_anew_for_every_language() -> None:
    strategy = LangSpecFT(ExpandableSettings("lang_spec_ft"))
    stream = strategy.stream(("de", "en"))
    assert stream == independent(("de", "en"))
    assert [(hop.train, hop.parent) for hop in stream.hops[1:]] == [(("de",), 0), (("en",), 0)]


def test_a_language_s_scores_do_not_depend_on_its_place(
    finished: Callable[..., Run], make_run: Callable[..., Run], do: Callable[..., Run]
) -> None:
    runs = finished("strategy=lang_spec_ft"), do(make_run("strategy=lang_spec_ft", "order=[de,es,en]"))
    found, other = ({s["name"]: s["scores"] for s in run.directory.read_manifest()["stages"]} for run in runs)
    assert found == other
    assert len({str(value) for value in found.values()}) == 4
