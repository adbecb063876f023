"""Incremental joint training: the data of all languages so far, from the model of the hop before."""

from collections.abc import Callable

from xclrun.run import Run


def test_every_sentence_so_far_is_seen_in_every_epoch(finished: Callable[..., Run]) -> None:
    stages = finished("strategy=inc_joint").directory.read_manifest()["stages"][1:]
    assert [stage["training"]["examples"] for stage in stages] == [2 * 22, 2 * (22 + 18), 2 * (22 + 18 + 13)]
    assert [sorted(stage["training"]["epochs"][0]["dev"]) for stage in stages] == [
        ["en"],
        ["de", "en"],
        ["de", "en", "es"],
    ]
