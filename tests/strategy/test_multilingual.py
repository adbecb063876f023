"""Multilingual training: one hop on everything, whatever the order."""

from collections.abc import Callable

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import joint
from xclrun.run import Run
from xclrun.strategy.multilingual import Multilingual


def test_the_stream_is_one_hop_on_the_union() -> None:
    stream = Multilingual(StrategyConfig("multilingual")).stream(("es", "de"))
    assert stream == joint(("es", "de"))
    assert [(hop.train, hop.parent) for hop in stream.hops[1:]] == [(("de", "es"), 0)]


def test_the_order_changes_nothing(
    finished: Callable[..., Run], make_run: Callable[..., Run], do: Callable[..., Run]
) -> None:
    runs = finished("strategy=multilingual"), do(make_run("strategy=multilingual", "order=[es,de,en]"))
    first, second = (run.directory.read_manifest()["stages"] for run in runs)
    assert [stage["scores"] for stage in first] == [stage["scores"] for stage in second]
    assert first[1]["training"]["examples"] == 2 * (22 + 18 + 13)
    assert len(first) == 2
