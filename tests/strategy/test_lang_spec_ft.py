"""Language-specific fine-tuning: every language alone, from the untrained model."""

from collections.abc import Callable

import pytest

from xclrun.core.stream import independent
from xclrun.run import Run
from xclrun.strategy.lang_spec_ft import LangSpecFT
from xclrun.strategy.shared.expansion import ExpandableSettings


def test_the_stream_starts_anew_for_every_language() -> None:
    strategy = LangSpecFT(ExpandableSettings("lang_spec_ft"))
    stream = strategy.stream(("de", "en"))
    assert stream == independent(("de", "en"))
    assert [(hop.train, hop.parent) for hop in stream.hops[1:]] == [(("de",), 0), (("en",), 0)]


@pytest.mark.parametrize("order", ["order=[es,en,de]", "order=[de,es,en]"])
def test_a_language_s_scores_do_not_depend_on_its_place(
    order: str, make_run: Callable[..., Run], do: Callable[..., Run]
) -> None:
    def scores(run: Run) -> dict[str, object]:
        stages = do(run).directory.read_manifest()["stages"]
        return {stage["name"]: stage["scores"] for stage in stages}

    found = scores(make_run("strategy=lang_spec_ft", outputs="a"))
    assert found == scores(make_run("strategy=lang_spec_ft", order, outputs="b"))
    assert len({str(value) for value in found.values()}) == 4
