"""Estimates from stored trainings: which of them count for which run, on which device. Nothing is trained."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xclrun.config.schema import Device
from xclrun.launch.forecast import Costs, scaled, total
from xclrun.launch.forecast import Line as Forecast

GPU, OTHER = "NVIDIA H100", "NVIDIA A100"


def trained(
    seconds: float, model: str = "m", strategy: str = "er", device: str = "cpu", epochs: int = 2, **more: Any
) -> dict[str, Any]:
    """Return the facts of a training of 10 sentences and 20 steps."""
    cost = {"model": model, "strategy": strategy, "examples": 10, "device": device, **more.pop("cost", {})}
    training = {"seconds": seconds, "step": 20, "epochs": [None] * epochs, **more}
    return {"kind": "train", "cost": cost, "training": training}


class Store:
    """Stored trainings, given by their facts; None: unreadable."""

    def __init__(self, folder: Path, facts: list[dict[str, Any] | None]) -> None:
        self.folder = folder
        self.by_key = {str(key): value for key, value in enumerate(facts)}

    def all_keys(self) -> list[str]:
        return [*self.by_key]

    def path(self, key: str) -> Path:
        return self.folder / key

    def facts(self, key: str) -> dict[str, Any]:
        if (value := self.by_key[key]) is None:
            raise OSError("damaged")
        return value


def costs(folder: Path, *facts: dict[str, Any] | None) -> Costs:
    store: Any = Store(folder, list(facts))
    for key in store.by_key:
        (folder / key).mkdir()
        (folder / key / "weights.safetensors").write_bytes(bytes(100 + int(key)))
    return Costs(store)


def training(
    strategy: str = "er",
    model: str = "m",
    device: Device = Device.auto,
    mixed: bool = False,
    steps: int | None = None,
    examples: int = 40,
) -> Any:
    """Return a hop of 40 sentences, 3 epochs, batches of 16."""
    trainer = SimpleNamespace(mixture_steps=steps, batch=lambda number: 16)
    return (
        SimpleNamespace(
            stages=[None, SimpleNamespace(hop=SimpleNamespace(mixed=mixed))],
            costs=[None, {"model": model, "strategy": strategy, "examples": examples, "steps": steps or 9}],
            config=SimpleNamespace(runtime=SimpleNamespace(device=device)),
            trainer=lambda hop: trainer,
            epochs=lambda hop: 3,
        ),
        1,
    )


def test_seconds_are_those_of_a_sentence_times_sentences_and_epochs(tmp_path: Path) -> None:
    # 4 s for 10 sentences in 2 epochs: 0.2 s each; 40 sentences in 3 epochs take 24 s.
    assert costs(tmp_path, trained(4)).seconds(training()) == pytest.approx(24)


@pytest.mark.parametrize(
    ("strategy", "seconds"), [("er", 2 * 6), ("naive", 4 * 6), ("mas", 3 * 6)], ids=["same", "single", "any"]
)
def test_the_median_of_the_same_strategy_counts_before_that_of_the_model(
    strategy: str, seconds: float, tmp_path: Path
) -> None:
    found = costs(
        tmp_path,
        *(trained(seconds) for seconds in (1, 2, 9)),
        trained(4, strategy="naive"),
        trained(1000, model="other"),
        trained(1000, model="other", strategy="mas"),
        None,
        {**trained(1000), "kind": "evaluation"},
        {"kind": "train", "cost": {}},
    )
    # The median of 1, 2, 4, 9 s is 3 s.
    assert found.seconds(training(strategy)) == pytest.approx(seconds)
    assert found.unmeasured([training(strategy)]) == (("mas",) if strategy == "mas" else ())
    assert found.seconds(training(model="unknown")) is None
    assert found.unmeasured([training(model="unknown")]) == ()
    assert found.devices([training(model="unknown"), training()]) == ("cpu",)


def test_mixtures_with_their_own_number_of_steps_count_by_steps(tmp_path: Path) -> None:
    mixture = trained(10, cost={"steps": 20})
    found = costs(tmp_path, mixture)
    # 0.5 s a step: 30 steps of a mixture; and of a hop without a comparable one, 3 epochs of ceil(40 / 16) = 3 batches.
    assert found.seconds(training(mixed=True, steps=30)) == pytest.approx(15)
    assert found.seconds(training()) == pytest.approx(4.5)
    # They do so where sentences have a rate, too: the median of 0.2 and 0.5 s a step.
    both = costs(tmp_path / "b", mixture, trained(4))
    assert both.seconds(training(mixed=True, steps=30)) == pytest.approx(0.35 * 30)
    # Of a mixture without `mixture_steps` the sentences count, where there is a rate.
    assert found.seconds(training(mixed=True)) == pytest.approx(0.5 * 9)
    assert both.seconds(training(mixed=True)) == pytest.approx(24)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()


@pytest.mark.parametrize(
    ("allowed", "stored", "device"),
    [
        # The device with most trainings, whatever the strategy;
        (Device.auto, {"cpu": 1, GPU: 2}, GPU),
        (Device.auto, {"cpu": 3, GPU: 2}, "cpu"),
        # of as many, a GPU before a CPU, and by name among GPUs;
        (Device.auto, {"cpu": 2, GPU: 2}, GPU),
        (Device.auto, {OTHER: 1, GPU: 1}, GPU),
        # never one that the run may not use.
        (Device.cpu, {"cpu": 1, GPU: 5}, "cpu"),
        (Device.cuda, {"cpu": 5, GPU: 1}, GPU),
        (Device.cpu, {GPU: 5}, None),
        (Device.cuda, {"cpu": 5}, None),
        (Device.auto, {}, None),
    ],
)
def test_a_run_is_estimated_on_one_device_that_it_may_use(
    allowed: Device, stored: dict[str, int], device: str | None, tmp_path: Path
) -> None:
    seconds = {"cpu": 10.0, GPU: 1.0, OTHER: 2.0}
    facts = [
        trained(seconds[name], device=name, strategy="naive" if k else "er")
        for name, n in stored.items()
        for k in range(n)
    ]
    found = costs(tmp_path, *facts)
    asked = training(device=allowed)
    assert found.device(asked[0], "m") == device
    assert found.devices([asked]) == ((device,) if device else ())
    assert found.seconds(asked) == (None if device is None else pytest.approx(6 * seconds[device]))


def test_a_training_that_names_no_device_was_on_a_cpu(tmp_path: Path) -> None:
    """As versions before devices were compared stored it."""
    facts = trained(4)
    del facts["cost"]["device"]
    found = costs(tmp_path, facts)
    assert found.seconds(training(device=Device.cpu)) == pytest.approx(24)
    assert found.devices([training()]) == ("cpu",)


def test_sizes_are_medians_of_the_same_model_and_strategy(tmp_path: Path) -> None:
    found = costs(tmp_path, trained(1), trained(1), trained(1), trained(1, strategy="naive"))
    assert found.bytes(training()) == 101
    assert found.bytes(training("naive")) == 103


@pytest.mark.parametrize("peaks", [(1, 7, 0), (7, 1, 0)])
def test_peak_memory_is_the_largest_of_the_same_strategy_on_each_device(peaks: tuple[int, ...], tmp_path: Path) -> None:
    found = costs(
        tmp_path,
        *(trained(1, peak_bytes=peak) for peak in peaks),
        trained(1, peak_bytes=9, device=GPU),
        trained(1, peak_bytes=90, strategy="naive"),
        trained(1, peak_bytes=900, model="other"),
        trained(1, strategy="mas"),
    )
    assert found.memory([training(), training()]) == {"cpu": {"er": 7}, GPU: {"er": 9}}
    assert found.memory([training(device=Device.cuda)]) == {GPU: {"er": 9}}
    assert found.memory([training("mas")]) == {}


def test_an_unknown_term_makes_a_sum_unknown() -> None:
    assert total([1.0, 2.0]) == 3.0
    assert total([1.0, None]) is None
    assert total([]) == 0
    line = Forecast("er", 1, 0, 4, 3, None, 10)
    assert scaled(line, 5, finished=1) == Forecast("er", 5, 1, 20, 15, None, 50)


def test_a_training_without_seconds_is_left_out_and_one_without_an_epoch_counts_as_one(tmp_path: Path) -> None:
    found = costs(tmp_path, {**trained(1), "training": {}}, trained(4, epochs=0))
    assert found.seconds(training()) == pytest.approx(4 / 10 * 120)
