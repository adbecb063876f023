"""Strategies that differ from naive in their hops alone: what each trains on, and from where."""

from collections.abc import Callable

from tests.conftest import stored_scores
from xclrun.plan import Run

Make = Callable[..., Run]


def test_incremental_joint_training_sees_every_sentence_so_far_in_every_epoch(finished: Make) -> None:
    stages = finished("strategy=inc_joint").directory.read_manifest()["stages"][1:]
    assert [stage["training"]["examples"] for stage in stages] == [2 * 22, 2 * (22 + 18), 2 * (22 + 18 + 13)]
    learned = [["en"], ["de", "en"], ["de", "en", "es"]]
    assert [sorted(stage["training"]["epochs"][0]["dev"]) for stage in stages] == learned


def test_a_reference_model_does_not_depend_on_its_place(finished: Make, make_run: Make, do: Make) -> None:
    runs = finished("strategy=lang_spec_ft"), do(make_run("strategy=lang_spec_ft", "order=[de,es,en]"))
    found, other = (dict(zip([hop.name for hop in run.stream.hops], stored_scores(run), strict=True)) for run in runs)
    assert found == other
    assert len({str(value) for value in found.values()}) == 4


def test_multilingual_training_does_not_depend_on_the_order(finished: Make, make_run: Make, do: Make) -> None:
    runs = finished("strategy=multilingual"), do(make_run("strategy=multilingual", "order=[es,de,en]"))
    first = runs[0].directory.read_manifest()["stages"]
    assert stored_scores(runs[0]) == stored_scores(runs[1])
    assert first[1]["training"]["examples"] == 2 * (22 + 18 + 13)
    assert len(first) == 2
