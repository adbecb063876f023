"""Language-specific fine-tuning: every language alone, from the untrained model."""

from collections.abc import Callable

from xclrun.run import Run


def test_a_language_s_scores_do_not_depend_on_its_place(
    finished: Callable[..., Run], make_run: Callable[..., Run], do: Callable[..., Run]
) -> None:
    runs = finished("strategy=lang_spec_ft"), do(make_run("strategy=lang_spec_ft", "order=[de,es,en]"))
    found, other = ({s["name"]: s["scores"] for s in run.directory.read_manifest()["stages"]} for run in runs)
    assert found == other
    assert len({str(value) for value in found.values()}) == 4
