"""Multilingual training: one hop on everything, whatever the order."""

from collections.abc import Callable

from xclrun.run import Run


def test_the_order_changes_nothing(
    finished: Callable[..., Run], make_run: Callable[..., Run], do: Callable[..., Run]
) -> None:
    runs = finished("strategy=multilingual"), do(make_run("strategy=multilingual", "order=[es,de,en]"))
    first, second = (run.directory.read_manifest()["stages"] for run in runs)
    assert [stage["scores"] for stage in first] == [stage["scores"] for stage in second]
    assert first[1]["training"]["examples"] == 2 * (22 + 18 + 13)
    assert len(first) == 2
