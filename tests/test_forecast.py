"""`xclrun plan`: what is needed after sharing, what it will take (against sums done by hand), for thousands of runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SIZES
from tests.questions import write_questions
from xclrun.cli import main
from xclrun.core.terminal import size
from xclrun.launch.forecast import Costs, Line, budget, forecast, forecast_table, makespan
from xclrun.launch.sweep import Sweep, announce
from xclrun.model.network import skeleton
from xclrun.plan import Run, notes
from xclrun.store.files import write_json


def test_unknown_before_anything_ran(make_run: Callable[..., Run]) -> None:
    result = forecast([make_run()])
    [line] = result.lines
    assert (line.strategy, line.runs, line.finished, line.asked, line.needed) == ("naive", 1, 0, 3, 3)
    assert line.seconds is None
    [naive] = [row for row in result.render().splitlines() if row.startswith("naive")]
    assert naive.split()[-3:-1] == ["unknown", size(line.bytes).split()[0]]
    assert "do one of these runs first" in result.render()
    cost = budget([make_run()], 4)
    assert (cost.runs, cost.trainings, cost.seconds, cost.wall, cost.bytes) == (1, 3, None, None, line.bytes)
    assert size(cost.bytes) in cost.render()
    assert "do one of these runs first" in cost.render()


def test_disk_is_known_from_the_shape_before_anything_ran(make_run: Callable[..., Run]) -> None:
    """H = 16, I = 32, one layer; the whole vocabulary, because the data's is unknown."""
    run = make_run("model.positions=64", "model.vocab_size=90")
    tags, labels = len(run.dataset.tags), len(run.dataset.labels)
    layer = 4 * (16 * 16 + 16) + 2 * 16 * 32 + 32 + 16 + 4 * 16
    encoder = (90 + 64 + 2) * 16 + 2 * 16 + layer + 16 * 17
    heads = labels * 17 + tags * 17 + 2 * tags + tags * tags
    result = forecast([run])
    assert result.total.bytes == 3 * 4 * (encoder + heads)
    assert result.bounded
    assert "at most" in result.render()
    # Two moment estimates for each parameter, also after the last hop.
    kept = make_run("model.positions=64", "model.vocab_size=90", "trainer.optimizer_state=kept")
    assert forecast([kept]).total.bytes == 3 * 12 * (encoder + heads)


def test_families_without_a_known_shape_are_counted_on_the_model(make_run: Callable[..., Run]) -> None:
    run = make_run("model.family=electra", "model.positions=64")
    model = skeleton(run.config.model, len(run.dataset.labels), len(run.dataset.tags))
    assert forecast([run]).total.bytes == 3 * 4 * sum(p.numel() for p in model.parameters())


def test_peak_memory_is_that_of_comparable_trainings_by_device(
    make_run: Callable[..., Run], finished: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished().store.root, tmp_path / "outputs" / "store")
    done, peaks = make_run(), []
    # Other tests train in the same store.
    own = {done.store.path(key) for stage in done.stages for key in stage.keys}
    for facts in list(done.store.root.rglob("stage.json")):
        if facts.parent not in own:
            shutil.rmtree(facts.parent)
    for number, stage in enumerate(done.stages[1:]):
        facts, gpu = done.store.facts(stage.train), f"{number:064x}"
        peaks.append(facts["training"]["peak_bytes"])
        facts["cost"]["device"] = "NVIDIA A100"
        facts["training"]["peak_bytes"] = 1000 + number % 2
        shutil.copytree(done.store.path(stage.train), done.store.path(gpu))
        write_json(done.store.path(gpu) / "stage.json", facts)
    assert min(peaks) > 10_000_000  # a process with PyTorch
    on = {device: forecast([make_run("seed=2", f"runtime.device={device}")]) for device in ("cpu", "cuda", "auto")}
    assert on["cpu"].memory == {"cpu": {"naive": max(peaks)}}
    assert on["cuda"].memory == {"NVIDIA A100": {"naive": 1001}}
    assert on["auto"].memory == on["cpu"].memory | on["cuda"].memory
    assert f"peak memory on cpu, measured: naive {size(max(peaks))}" in on["cpu"].render()
    # Memory of other strategies, models, batches and optimizers is unknown.
    monkeypatch.setitem(sys.modules, "bitsandbytes", sys)
    for other in ("model.hidden_layers=2", "trainer.batch_size=2", "trainer.optimizer=adam_8bit"):
        assert forecast([make_run("seed=2", other)]).memory == {}
    assert forecast([make_run("strategy=si")]).memory == {}


def test_what_readers_left_out_is_told_with_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_questions(tmp_path, "en", silent=7)
    assert main(["plan", "dataset=questions", f"dataset.root={root}", "order=[en]", "seed=1,2"]) == 0
    output = "note: 4 questions without an answer in the text: skipped (en/train: 2, en/dev: 1, en/test: 1)"
    assert output in capsys.readouterr().out.splitlines()


def test_a_plan_of_long_names_and_numbers_fits_80_columns() -> None:
    short = Line("naive", 3600, 1800, 10800, 5000, None, None)
    long = replace(short, strategy="joint_replay+lang_spec_lora_f", seconds=12 * 3600 + 59 * 60, bytes=123_456_789_012)
    head, _, naive, joint, expansion = forecast_table([short, long]).splitlines()
    assert {len(line) for line in (head, naive, joint)} == {80}
    assert (joint.split()[0], expansion) == ("joint_replay", "+lang_spec_lora_f")
    assert joint.endswith("12 h 59 min  123.46 GB")
    # Closer together than where there is room.
    assert "runs  finished  hop trainings" in head
    assert "runs   finished   hop trainings" in forecast_table([short])


def test_known_from_earlier_stages(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    done = do(make_run())
    [line] = forecast([done]).lines
    assert (line.finished, line.needed, line.seconds, line.bytes) == (1, 0, 0, 0)

    other = make_run("seed=2")
    [line] = forecast([other]).lines
    assert line.needed == 3
    trainings = [stage["training"] for stage in done.directory.read_manifest()["stages"][1:]]
    rates = sorted(t["seconds"] / t["examples"] for t in trainings)
    # Each sentence of the three languages, twice over, at the middle rate of the three trainings.
    assert line.seconds == pytest.approx(rates[1] * 2 * (22 + 18 + 13), rel=1e-6)
    # Of a mixture, its steps at the middle pace: of questions a batch holds windows, whose number no plan knows.
    paces = sorted(t["seconds"] / t["step"] for t in trainings)
    [mixed] = forecast([make_run("order=[en+de,es]", "trainer.mixture_steps=7")]).lines
    assert mixed.seconds == pytest.approx(paces[1] * 7 + rates[1] * 2 * 13, rel=1e-6)
    # Where steps are not given, as many as passes: of questions, over all their windows.
    [passes] = forecast([make_run("order=[en+de,es]")]).lines
    assert passes.seconds == pytest.approx(rates[1] * 2 * (22 + 18 + 13), rel=1e-6)
    weights = (done.store.path(done.stages[1].train) / "weights.safetensors").stat().st_size
    assert line.bytes == 3 * weights


def test_what_an_estimate_is_made_from(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    done = do(make_run())
    assert forecast([make_run("model.hidden_layers=2")]).lines[0].seconds is None
    # What does not change the time of a sentence does not matter.
    assert forecast([make_run("trainer.lr=1e-4", "trainer.epochs=4")]).lines[0].seconds is not None
    # A strategy that was never trained is taken to be as quick as others; once it was, it has a rate of its own.
    er = make_run("strategy=er", "seed=2")
    costs = Costs(done.store)
    assert {(strategy, device) for _, strategy, device in costs.rates} == {("naive", "cpu")}
    assert forecast([er]).lines[0].seconds == costs.of_run(er) is not None
    # A strategy without a measured run can be slower than others, so the estimate says so.
    warning = "note: no training with er has been timed: the time is estimated from other strategies"
    for estimate in (forecast([er, done]), budget([er, done], 1)):
        assert estimate.unmeasured == ("er",)
        assert warning in estimate.render()
    do(make_run("strategy=er", "seed=3"))
    assert forecast([er]).unmeasured == budget([er], 1).unmeasured == ()
    assert "timed" not in forecast([er]).render() + budget([er], 1).render()
    costs = Costs(done.store)
    [(model, _, _), _] = costs.rates
    assert {strategy for _, strategy, _ in costs.rates} == {"naive", "er"}
    costs.rates[model, "er", "cpu"] = [7.0]
    assert costs.seconds((er, 2)) == pytest.approx(7.0 * 2 * 18)


def test_times_of_different_devices_are_never_mixed(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    done = do(make_run())
    for number, stage in enumerate(done.stages[1:] * 2):
        facts, gpu = done.store.facts(stage.train), f"{number:064x}"
        facts["cost"]["device"] = "NVIDIA A100"
        facts["training"]["seconds"] /= 100
        shutil.copytree(done.store.path(stage.train), done.store.path(gpu))
        write_json(done.store.path(gpu) / "stage.json", facts)
    on = {device: make_run("seed=2", f"runtime.device={device}") for device in ("cpu", "cuda", "auto")}
    cpu, cuda, auto = (forecast([run]) for run in on.values())
    assert cuda.lines[0].seconds == pytest.approx(cpu.lines[0].seconds / 100)
    # Six trainings on the GPU and three on the CPU.
    assert auto.lines[0].seconds == cuda.lines[0].seconds
    assert (cpu.devices, cuda.devices, auto.devices) == (("cpu",), ("NVIDIA A100",), ("NVIDIA A100",))
    # Disk is the same on any device.
    assert cpu.lines[0].bytes == cuda.lines[0].bytes
    hours = {name: budget([run], 2) for name, run in on.items()}
    assert hours["cpu"].seconds == pytest.approx(cpu.lines[0].seconds)
    assert hours["cuda"].seconds == pytest.approx(cuda.lines[0].seconds)
    assert "CPU-hours" in hours["cpu"].render()
    assert hours["cpu"].to_json()["devices"] == ("cpu",)
    [line] = [line for line in hours["auto"].render().splitlines() if line.startswith("GPU-hours")]
    assert line.endswith("on NVIDIA A100")


def test_a_gpu_s_time_is_unknown_where_only_a_cpu_trained(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    do(make_run())
    assert forecast([make_run("seed=2", "runtime.device=cuda")]).lines[0].seconds is None
    assert forecast([make_run("seed=2", "runtime.device=auto")]).lines[0].seconds is not None


def test_sharing_is_counted_once(make_run: Callable[..., Run]) -> None:
    runs = [make_run(f"strategy={s}") for s in ("naive", "er", "lang_spec_ft")]
    runs.append(make_run("strategy=er", "strategy.memory=0"))
    result = forecast(runs)
    assert [(line.strategy, line.asked, line.needed) for line in result.lines] == [
        ("naive", 3, 3),
        ("er", 6, 2),
        ("lang_spec_ft", 3, 2),
    ]
    assert (result.total.runs, result.total.asked, result.total.needed) == (4, 12, 7)


def test_after_the_weights_are_gone(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    import shutil

    run = do(make_run())
    for stage in run.stages[1:]:
        shutil.rmtree(run.store.path(stage.train))
    assert forecast([run]).total.needed == 0
    result = forecast([run, make_run("strategy=er")])
    # er's evaluation of hop 1 is naive's, but its hop 2 starts from those weights.
    assert [line.needed for line in result.lines] == [0, 3]


@pytest.mark.full
def test_thousands_of_runs(tmp_path: Path) -> None:
    overrides = [
        "strategy=naive,er,inc_joint,lang_spec_ft,multilingual",
        "order=order1,order2,order3,order4,order5,order6",
        "seed=range(0,6)",
        "bucket=range(0,10)",
        "dataset.max_train=10",
        f"paths.outputs={tmp_path}",
    ]
    command = [sys.executable, "-c", "import sys; from xclrun.cli import main; sys.exit(main())", "plan", *overrides]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["runs"]) == 5 * 6 * 6 * 10
    assert len({run["run_id"] for run in result["runs"]}) == len(result["runs"])
    assert 0 < result["total"]["needed"] < result["total"]["asked"]
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_strategy_of_which_its_settings_leave_nothing_is_said(make_run: Callable[..., Run]) -> None:
    nothing = {
        "er": ("strategy.memory=0", "strategy.every_k=9"),
        "ewc": ("strategy.penalty=0",),
        "derpp": ("strategy.alpha=0", "strategy.beta=0"),
        "model_average": ("strategy.weight=1",),
        "agem": ("order=[en]",),
    }
    output = ": with these settings and this order, both strategies train and evaluate every hop identically"
    for name, arguments in nothing.items():
        assert notes([make_run(f"strategy={name}", *arguments)]) == [f"strategy={name} equals strategy=naive{output}"]
    both = make_run("strategy=er", "strategy.expansion=lang_spec_task", "strategy.memory=0")
    assert notes([both]) == [f"strategy=er+lang_spec_task equals strategy=lang_spec_task{output}"]
    # Trained as naive is, but on other data, or served otherwise.
    for name in ("naive", "full", "lang_spec_ft", "multilingual", "inc_joint", "zero_shot"):
        assert notes([make_run(f"strategy={name}")]) == []
    assert notes([make_run("strategy=mbpa", "strategy.replay_number=0")]) == []


def test_what_settings_do_not_do_is_said_before_anything_runs(
    make_run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    seldom = ("strategy.every_k=9", "strategy.memory=53")
    output = (
        "does not use its memory in 1 of the 2 hops after the first: strategy.every_k=9 exceeds their 8 steps. "
        "Set dataset.replay.every_k, its default, to 8 or less; with 9, the memory is used in 1 of 18 steps"
    )
    room = "; strategy.memory=53 has room for all 53 sentences"
    for name in ("er", "agem", "kd_logit"):
        assert notes([make_run(f"strategy={name}", *seldom)]) == [f"strategy={name} {output}{room}."]
    assert notes([make_run("strategy=er", "strategy.every_k=9", "strategy.memory=52")]) == [f"strategy=er {output}."]
    quiet = [("strategy.every_k=8",), ("trainer.epochs=3", *seldom)]
    assert [notes([make_run("strategy=er", *arguments)]) for arguments in quiet] == [[], []]

    never = make_run("strategy=er", "strategy.every_k=20")
    assert notes([never]) == [
        "strategy=er never uses its memory: strategy.every_k=20 exceeds the 8 to 10 steps per hop, so er equals "
        "naive. Set dataset.replay.every_k, its default, to 8 or less."
    ]
    extra = make_run("strategy=er", "strategy.every_k=20", "strategy.expansion=lang_spec_task")
    assert "er equals lang_spec_task" in notes([extra])[0]
    result = forecast([never, make_run("strategy=er", "strategy.every_k=20", "seed=2")])
    assert result.render().splitlines()[-1] == f"note: {notes([never])[0]}"
    assert result.to_json()["notes"] == notes([never])
    announce(Sweep("x", "xclrun", result.runs), unfinished=2)
    assert capsys.readouterr().err.count(f"  note: {notes([never])[0]}\n") == 1


def test_the_task_that_labels_alone_are_learnt_by_is_told(
    make_run: Callable[..., Run], changed_corpus: Callable[..., Path]
) -> None:
    def untag(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            del row["tags"]

    data = changed_corpus({(language, split): untag for language in SIZES for split in ("train", "dev", "test")})
    [output] = notes([make_run(data=data)])
    assert output.startswith("dataset.task=intent_slots: jsonl has no tags")
    assert "dataset.task=sequence_class" in output
    assert notes([make_run("dataset.task=sequence_class", data=data)]) == []


FEW = ("experiment=fewshot", "order=list", "language=de", "shots=1")
# One of few-shot transfer without a source, and what else it asks for.
ALONE = (*FEW, "source=none")
NO_POINTS = "no effect without evaluate.every_examples or evaluate.every_share"


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("arguments", "without", "output"),
    [
        (
            ("dataset.task=sequence_class", "evaluate.slot_f1=tag_macro"),
            1,
            "has no effect",
        ),
        (("evaluate.slot_f1=tag_macro",), 0, None),
        (("evaluate.point_splits=test",), 0, NO_POINTS),
        (("evaluate.every_examples=5", "evaluate.point_splits=test"), 1, None),
        ((*ALONE, "dataset.max_train=3"), 5, "has no effect"),
        (("shots=1", "dataset.max_train=3"), 1, "has no effect"),
        ((*FEW, "source=en", "dataset.max_train=3"), 5, None),
        (("dataset.subset_seed=1",), 0, "no effect without a limit such as dataset.max_train"),
        (("dataset.repeat_to=30", "dataset.subset_seed=1"), 1, "no effect without a limit"),
        (("dataset.max_eval=3", "dataset.subset_seed=1"), 1, None),
        (("dataset.max_dev=3", "dataset.subset_seed=1"), 1, None),
        (("dataset.max_dev=3", "dataset.max_test=3", "dataset.max_eval=2"), 2, "has no effect with dataset.max_dev"),
        ((*ALONE, "dataset.subset_seed=1"), 5, None),
        (("dataset.blocks=2", "order=[en]", "dataset.subset_seed=1"), 2, None),
        (
            (*ALONE, "dataset.buckets.counts=sentences"),
            5,
            "only dataset.buckets.sampler=minimum uses it",
        ),
        ((*ALONE, "dataset.buckets.sampler=minimum", "dataset.buckets.counts=sentences"), 6, None),
    ],
)
def test_a_setting_that_does_nothing_is_told(
    arguments: tuple[str, ...], without: int, output: str | None, make_run: Callable[..., Run]
) -> None:
    quiet = ("trainer.patience=null",)
    run, bare = make_run(*quiet, *arguments), make_run(*quiet, *arguments[:without])
    assert notes([bare]) == []
    assert run.id != bare.id
    assert len(notes([run])) == (output is not None)
    if output is not None:
        key = arguments[-1].partition("=")[0]
        assert notes([run])[0].startswith(key)
        assert output in notes([run])[0]
        # Of evaluation everything is in the keys of what it evaluates, whatever comes of it.
        assert run.stages == bare.stages or key.startswith("evaluate.")


def test_a_patience_that_no_hop_is_long_enough_for_is_told(make_run: Callable[..., Run]) -> None:
    output = "trainer.patience=3 has no effect with trainer.epochs=3; lower it to allow early stopping"
    assert notes([make_run("trainer.patience=3", "trainer.epochs=3")]) == [output]
    assert notes([make_run("trainer.patience=3", "trainer.epochs=4")]) == []
    source = notes([make_run(*FEW, "trainer.patience=null", "protocol.source_trainer.patience=99")])
    assert source[0].startswith("protocol.source_trainer.patience=99 has no effect with protocol.source_trainer.")


def test_an_order_by_size_that_sizes_do_not_decide_is_named(make_run: Callable[..., Run]) -> None:
    [note] = notes([make_run("order=h2l", "dataset.max_train=13")])
    assert note.startswith("order=h2l: some languages have equally many training sentences (dataset.max_train=13)")
    assert "the dataset's order: de,en,es;" in note
    assert "order: es,en,de;" in notes([make_run("order=l2h", "dataset.max_train=13")])[0]
    assert notes([make_run("order=h2l")]) == notes([make_run("order=[en,de,es]", "dataset.max_train=13")]) == []
    # Of buckets it is not the limit that makes them equal.
    equals, _ = notes([make_run("order=h2l", "shots=1", "dataset.max_train=13")])
    assert equals.startswith("order=h2l: some languages have equally many training sentences and ")


# The budget.


@pytest.mark.parametrize(
    ("jobs", "width", "end"), [([3, 1, 1, 2], 2, 4), ([3, 1, 1, 2], 1, 7), ([3, 1, 1, 2], 9, 3), ([], 2, 0)]
)
def test_makespan(jobs: list[float], width: int, end: float) -> None:
    assert makespan(jobs, width) == end


def test_the_budget_by_hand(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    done = do(make_run("seed=9"))
    trainings = [stage["training"] for stage in done.directory.read_manifest()["stages"][1:]]
    rate = sorted(t["seconds"] / t["examples"] for t in trainings)[1]
    en, de, es = (2 * rate * size for size in (22, 18, 13))
    # naive and er share English; their other hops are their own.
    runs = [make_run(), make_run("strategy=er"), done]
    result = budget(runs, 2)
    assert (result.runs, result.trainings) == (2, 5)
    assert result.seconds == pytest.approx(en + 2 * (de + es))
    assert result.wall == pytest.approx(en + de + es)
    assert budget(runs, 1).wall == pytest.approx(result.seconds)
    weights = (done.store.path(done.stages[1].train) / "weights.safetensors").stat().st_size
    assert result.bytes == 5 * weights
    assert budget([done], 2).to_json() == {
        "runs": 0, "trainings": 0, "width": 2, "seconds": 0.0, "wall": 0.0, "bytes": 0, "devices": (), "unmeasured": (),
    }  # fmt: skip


@pytest.mark.full
def test_the_budget_as_a_command(
    tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    arguments = ["plan", "--budget", "--json", "strategy=naive,er", "--outputs", str(tmp_path)]
    assert main([*arguments, "--width", "3"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["runs"], output["trainings"], output["width"], output["wall"]) == (2, 11, 3, None)
    for typed, width in ((["hydra.launcher.n=2"], 2), (["hydra/launcher=slurm"], 8), ([], 1)):
        assert main([*arguments, *typed]) == 0
        assert json.loads(capsys.readouterr().out)["width"] == width
    assert main([*arguments, "--width", "0"]) == 2
    assert capsys.readouterr().err == "xclrun: --width 0: must be a number of jobs of at least 1\n"


def test_a_plan_names_the_hops_that_runs_share_and_what_they_depend_on(make_run: Callable[..., Run]) -> None:
    """Hop 1 of er is naive's, whatever its settings; hop 2 depends on them."""
    orders = [make_run("strategy=er", f"order=[{order}]") for order in ("en,de", "en,de,es")]
    runs = [make_run("strategy=naive"), make_run("strategy=er", "strategy.every_k=7"), *orders]
    shared = forecast(runs).to_json()["shared"]
    first, second = (next(one for one in shared if one["train"] == orders[0].stages[hop].train) for hop in (1, 2))
    assert (set(first["runs"]), first["strategy"]) == ({run.id for run in runs}, {})
    assert second["runs"] == [run.id for run in orders]
    assert second["strategy"] == orders[0].strategy().described()
