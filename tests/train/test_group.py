"""What ranks say to each other: the ranks are threads of this process, which meet where they would communicate."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import some
from xclrun.core.errors import RunError, UsageError
from xclrun.train import others, ranks
from xclrun.train.ranks import END, ENDED, Group, Ranks, SharedStop
from xclrun.train.stop import StopFlag, Stopped


class Store:
    """A key-value store whose readers wait for a key."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.limits: list[timedelta] = []

    def set(self, key: str, value: str | bytes) -> None:
        with self.changed:
            self.values[key] = value.encode() if isinstance(value, str) else value
            self.changed.notify_all()

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def wait(self, keys: Sequence[str], limit: timedelta = timedelta(seconds=20)) -> None:
        self.limits.append(limit)
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), min(limit.total_seconds(), 20)):
                raise RuntimeError(f"timeout: {keys}")

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self.values[key]


class Prefixed:
    def __init__(self, prefix: str, store: Store) -> None:
        self.prefix, self.store = prefix, store

    def set(self, key: str, value: str | bytes) -> None:
        self.store.set(f"{self.prefix}/{key}", value)

    def get(self, key: str) -> bytes:
        return self.store.get(f"{self.prefix}/{key}")


class Meeting:
    """`torch.distributed` among threads: each operation waits for all ranks, which must ask for the same one."""

    ReduceOp = torch.distributed.ReduceOp
    PrefixStore = Prefixed

    def __init__(self, size: int) -> None:
        self.size, self.here = size, threading.local()
        self.met = threading.Condition()
        # What each rank gave, one entry for each operation; and the ranks that are gone.
        self.given: list[list[Any]] = [[] for _ in range(size)]
        self.gone: set[int] = set()
        self.limits: list[timedelta] = []
        self.reduced: list[list[tuple[torch.dtype, int]]] = [[] for _ in range(size)]

    def init_process_group(self, backend: str, store: Any, rank: int, world_size: int, timeout: timedelta) -> None:
        assert world_size == self.size
        self.here.rank, self.here.connected = rank, True
        self.gone.discard(rank)
        self.limits.append(timeout)

    def is_initialized(self) -> bool:
        return getattr(self.here, "connected", False)

    def destroy_process_group(self) -> None:
        """The other ranks find the connection closed."""
        self.here.connected = False
        with self.met:
            self.gone.add(self.here.rank)
            self.met.notify_all()

    def exchange(self, value: Any) -> list[Any]:
        mine = self.given[self.here.rank]
        with self.met:
            mine.append(value)
            number = len(mine)
            self.met.notify_all()

            def missing() -> list[int]:
                return [rank for rank, given in enumerate(self.given) if len(given) < number]

            self.met.wait_for(lambda: not missing() or self.gone & {*missing()}, 20)
            if missing():
                raise RuntimeError("Connection closed by peer")
            return [given[number - 1] for given in self.given]

    def all_reduce(self, tensor: torch.Tensor, op: Any = None, async_op: bool = False) -> Any:
        assert tensor.is_contiguous(), "torch.distributed refuses other layouts"
        found = self.exchange(tensor.clone())
        assert len({(t.dtype, t.shape) for t in found}) == 1
        self.reduced[self.here.rank].append((tensor.dtype, tensor.numel()))
        total = torch.stack(found)
        tensor.copy_(total.amax(0) if op == self.ReduceOp.MAX else total.sum(0))
        return SimpleNamespace(wait=lambda: None)

    def all_gather(self, parts: list[torch.Tensor], tensor: torch.Tensor) -> None:
        for part, found in zip(parts, self.exchange(tensor.clone()), strict=True):
            part.copy_(found)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        tensor.copy_(self.exchange(tensor.clone())[source])

    def all_to_all_single(self, received: torch.Tensor, sent: torch.Tensor) -> None:
        received.copy_(torch.stack([rows[self.here.rank] for rows in self.exchange(sent.clone())]))


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Run a function on each rank of a group; return what each returned or raised."""

    def run(work: Callable[[Group], Any], size: int = 3, store: Store | None = None, **options: Any) -> list[Any]:
        meeting, store, results = Meeting(size), store or Store(), [None] * size
        run.meeting, run.store = meeting, store  # type: ignore[attr-defined]
        monkeypatch.setattr(ranks, "dist", meeting)

        def be(rank: int) -> None:
            try:
                given = {"minutes": 7.0, "cuda": False, "launched": True, **options}
                results[rank] = work(Group(rank, size, store, local=rank, on_machine=size, **given))
            except BaseException as error:
                results[rank] = error

        threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results

    return run


def values(results: Sequence[Any]) -> Sequence[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


# --- Reductions.

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
# Of each parameter: its dtype and shape, and the gradient's value on each of three ranks (None: it has none).
GRADIENTS: dict[str, list[tuple[torch.dtype, tuple[int, ...], tuple[float | None, ...]]]] = {
    "all ranks": [(F32, (2, 3), (1, 2, 4))],
    "none has one": [(F32, (2,), (None, None, None)), (F32, (3,), (1, 1, 1))],
    "some have one": [(F32, (2,), (None, 5, None)), (F32, (1,), (None, None, 8)), (F32, (4,), (1, None, 2))],
    "large and small": [(F32, (4, 5), (1, 2, 3)), (F32, (7,), (1, None, 3)), (F32, (30,), (None, 1, 1))],
    "many buckets": [(F32, (n,), (n, 2 * n, None)) for n in (5, 6, 7, 3, 1, 8)],
    "dtypes": [(F32, (2,), (1, 2, 3)), (BF16, (3,), (1, 2, 3)), (F64, (2,), (4, None, 4)), (F32, (1,), (1, 1, 1))],
    "zero dimensions": [(F32, (), (1, 2, 3)), (BF16, (25,), (None, 1, 2))],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_summed_over_ranks(
    name: str, together: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one process would add them up; a parameter without a gradient on any rank keeps none."""
    monkeypatch.setattr(ranks, "LARGE", 16)
    monkeypatch.setattr(ranks, "BUCKET", 12)
    wanted = [None if set(v) == {None} else float(sum(x or 0 for x in v)) for _, _, v in GRADIENTS[name]]

    def work(group: Group) -> list[Any]:
        parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for dtype, shape, _ in GRADIENTS[name]]
        for parameter, (dtype, shape, given) in zip(parameters, GRADIENTS[name], strict=True):
            if (value := given[group.rank]) is not None:
                # Each entry differs, and one layout is not contiguous.
                grad = torch.full(shape, value, dtype=dtype) + torch.arange(parameter.numel(), dtype=dtype).view(shape)
                parameter.grad = grad.t().contiguous().t() if grad.dim() == 2 and group.rank == 1 else grad
        frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        group.sum_gradients([*parameters, frozen])
        assert frozen.grad is None
        return [p.grad for p in parameters]

    for grads in some(values(together(work))):
        for grad, total, (dtype, shape, given) in zip(grads, wanted, GRADIENTS[name], strict=True):
            if total is None:
                assert grad is None
                continue
            times = sum(value is not None for value in given)
            expected = total + times * torch.arange(grad.numel(), dtype=dtype).view(shape)
            assert (grad.dtype, grad.shape) == (dtype, shape)
            assert torch.equal(grad, expected)


def test_small_gradients_go_together_up_to_the_size_of_a_bucket(
    together: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "LARGE", 16)
    monkeypatch.setattr(ranks, "BUCKET", 12)

    def work(group: Group) -> None:
        sizes = [(5, F32), (6, F32), (2, F32), (16, F32), (10, F32), (1, F32), (3, BF16)]
        parameters = [nn.Parameter(torch.zeros(n, dtype=dtype)) for n, dtype in sizes]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        # Frozen since the last step.
        frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        frozen.grad = torch.ones(4)
        group.sum_gradients([frozen, *parameters])

    values(together(work, size=2))
    # First which parameters have a gradient, then the large one in place, then the buckets.
    reduced = together.meeting.reduced[0]  # type: ignore[attr-defined]
    assert reduced == [(torch.uint8, 7), (F32, 16), (F32, 11), (F32, 12), (F32, 1), (BF16, 3)]


def test_numbers_are_summed_in_double_precision(together: Callable[..., list[Any]]) -> None:
    found = values(together(lambda group: group.sum([1 + 2.0**-40, group.rank, 2.0**53])))
    assert found == [[3 + 3 * 2.0**-40, 3.0, 3 * 2.0**53]] * 3
    assert all(type(value) is float for value in found[0])


def test_values_of_any_length_are_gathered_in_the_order_of_ranks(together: Callable[..., list[Any]]) -> None:
    def work(group: Group) -> Any:
        return group.gather({"rank": group.rank, "t": torch.arange(100 * group.rank), "s": "é" * group.rank})

    for found in some(values(together(work))):
        assert [value["rank"] for value in found] == [0, 1, 2]
        assert [value["t"].tolist() for value in found] == [[*range(100 * rank)] for rank in range(3)]
        assert [value["s"] for value in found] == ["", "é", "éé"]


def test_ranks_agree_on_the_value_of_rank_0(together: Callable[..., list[Any]]) -> None:
    assert values(together(lambda group: group.agree(40 + group.rank))) == [40, 40, 40]


def test_a_single_rank_answers_without_others() -> None:
    alone = Ranks()
    assert (alone.sum([1.5]), alone.gather("x"), alone.agree(3), alone.several) == ([1.5], ["x"], 3, False)


# --- Equal ranks.

FACTS = ["xclrun", "Python", "torch", "transformers", "numpy", "device", "data and settings of run"]


def facts_of(run_id: str) -> dict[str, str]:
    run: Any = SimpleNamespace(id=run_id, config=SimpleNamespace(runtime=SimpleNamespace(device=ranks.Device.cpu)))
    return Group._facts(SimpleNamespace(local=0), run)  # type: ignore[arg-type]


@pytest.mark.parametrize("different", [None, *FACTS])
def test_ranks_compare_what_can_change_results(
    different: str | None, together: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*facts_of("r")] == ["GPU", *FACTS]
    assert facts_of("r")["GPU"] == ""
    assert facts_of("r")["data and settings of run"] == "r"
    monkeypatch.setattr(
        Group, "_facts", lambda self, run: {name: f"{name == different and self.rank == 2}" for name in FACTS}
    )
    found = together(lambda group: group.compare(SimpleNamespace()))  # type: ignore[arg-type]
    if different is None:
        assert found == [None] * 3
        return
    # All ranks see it, so that none waits for another.
    assert {str(error) for error in found} == {
        f"rank 2 has {different} True, but rank 0 has False; use the same on all ranks"
    }


@pytest.mark.parametrize(
    ("gpus", "message"),
    [(["a", "b", "c"], None), (["", "", ""], None), (["a", "b", "b"], "ranks 1 and 2 use the same GPU")],
)
def test_two_ranks_on_one_gpu_are_refused(
    gpus: list[str], message: str | None, together: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks see it before NCCL connects them, which would fail."""
    monkeypatch.setattr(Group, "_facts", lambda self, run: {"torch": "2", "GPU": gpus[self.rank]})
    found = together(lambda group: group.compare(SimpleNamespace()))  # type: ignore[arg-type]
    assert {str(error or "").partition(";")[0] for error in found} == {message or ""}


def test_a_rank_names_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"GPU-{device}"))
    run: Any = SimpleNamespace(id="r", config=SimpleNamespace(runtime=SimpleNamespace(device=ranks.Device.auto)))
    assert Group._facts(SimpleNamespace(local=3), run)["GPU"] == "GPU-3"  # type: ignore[arg-type]


# --- Operations, failures and new connections.


def test_operations_reach_all_ranks_in_order_until_rank_0_ends(together: Callable[..., list[Any]]) -> None:
    def work(group: Group) -> list[Any]:
        if group.rank:
            return [group.receive() for _ in range(3)]
        with group.repeat("first", [1, "two"]):
            assert group.repeating
            # What the operation itself repeats is not announced again.
            with group.repeat("inner", []):
                assert group.repeating
        assert not group.repeating
        with group.repeat("second", []):
            pass
        group.close()
        group.close()
        return []

    assert values(together(work))[1:] == [[("first", [1, "two"]), ("second", []), None]] * 2
    assert [key for key in together.store.values if key.startswith("operation")] == [  # type: ignore[attr-defined]
        *(f"operation/0/{number}" for number in (1, 2, 3))
    ]


def test_an_error_of_another_rank_is_what_rank_0_reports(
    together: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(bench: Any, *arguments: Any) -> None:
        raise RunError(f"no {arguments[0]}")

    monkeypatch.setitem(others.OPERATIONS, "load", refuse)

    def work(group: Group) -> Any:
        if group.rank:
            followed = others._followed(group)
            group.disconnect()
            return followed
        with group.repeat("load", ["weights"]):
            group.agree(0)
        return None

    first, second = together(work, size=2)
    assert second is False
    assert isinstance(first, RunError)
    assert str(first) == "rank 1: no weights; re-run the same command to resume"


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (None, False),
        (ValueError("x"), True),
        (KeyboardInterrupt(), True),
        (Stopped(15), False),
        (Stopped(15, at_once=True), True),
    ],
    ids=repr,
)
def test_an_operation_that_ends_with_an_error_leaves_ranks_in_different_states(
    error: BaseException | None, failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a stop, at which all ranks are at the same point."""
    group = alone(monkeypatch)
    monkeypatch.setattr(group, "agree", lambda value: value)
    with contextlib.suppress(BaseException), group.repeat("train", []):
        if error:
            raise error
    assert (group.failed, group.repeating) == (failed, False)


def alone(monkeypatch: pytest.MonkeyPatch, rank: int = 0, **options: Any) -> Group:
    """Return a group that is connected to no other rank."""
    monkeypatch.setattr(Group, "_connect", lambda self: None)
    return Group(rank, 3, Store(), local=rank, on_machine=3, **{"minutes": 7.0, "cuda": False, **options})


def test_each_connection_counts_its_operations_from_the_start(together: Callable[..., list[Any]]) -> None:
    """Keys of an earlier connection are not those of the next one, nor is its failure."""

    def work(group: Group) -> Any:
        if group.rank:
            group.receive()
        else:
            with group.repeat("first", []):
                pass
        group.failed = True
        assert (group.connection, group.operations) == (0, 1)
        group.reconnect()
        assert (group.connection, group.operations, group.failed) == (1, 0, False)
        if group.rank:
            return group.receive()
        with group.repeat("second", []):
            pass
        return None

    assert values(together(work))[1:] == [("second", [])] * 2
    store: Store = together.store  # type: ignore[attr-defined]
    assert {"operation/0/1", "operation/1/1", "next/0", "ready/0/1", "ready/0/2"} <= store.values.keys()
    assert store.values["next/0"] == b"again"
    # Another secret for each connection.
    assert store.values["connection/0/secret"] != store.values["connection/1/secret"]
    assert together.meeting.limits == [timedelta(minutes=7)] * 6  # type: ignore[attr-defined]


def test_a_rank_that_does_not_connect_again_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "START", 0.0)
    group = alone(monkeypatch, launched=True)
    group.store.set("ready/0/1", "")
    with pytest.raises(RunError) as raised:
        group.reconnect()
    assert str(raised.value) == ENDED.format(3)
    assert (group.closed, group.connection) == (True, 0)


@pytest.mark.parametrize(
    ("launched", "gpus", "local", "device", "backend"),
    [
        # A launcher may show each rank one GPU alone, or the GPUs of the machine.
        (True, 1, 3, 0, "cpu:gloo,cuda:nccl"),
        (True, 4, 3, 3, "cpu:gloo,cuda:nccl"),
        (True, 0, 3, 3, "gloo"),
        (False, 4, 3, 3, "cpu:gloo,cuda:nccl"),
        # NCCL needs a GPU for each rank.
        (False, 2, 2, 2, "gloo"),
        (False, 0, 1, 1, "gloo"),
    ],
)
def test_each_rank_has_its_gpu(
    launched: bool, gpus: int, local: int, device: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    group = alone(monkeypatch, rank=local, launched=launched, cuda=True)
    assert (group.local, group.backend) == (device, backend)
    # A run on the CPU needs none.
    assert alone(monkeypatch, rank=local, launched=launched).backend == "gloo"


@pytest.mark.parametrize("launched", [True, False])
def test_ranks_of_a_launcher_stay_for_the_next_run_after_a_failure(
    launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, told = alone(monkeypatch, launched=launched), list[str]()
    monkeypatch.setattr(group, "disconnect", lambda: told.append("disconnected"))
    group.failed = True
    group.abandon()
    assert told[0] == "disconnected"
    assert group.closed is not launched
    # Who waits for an operation sees that the connection is gone.
    assert "operation/0/1" in group.store.values


@pytest.mark.parametrize(
    ("launched", "limit"), [(True, "within 7 minutes"), (False, "within runtime.rank_timeout=7 minutes")]
)
def test_a_limit_that_can_be_changed_is_named(launched: bool, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = alone(monkeypatch, launched=launched)
    with pytest.raises(RunError, match=limit), group._explained():
        raise RuntimeError("Timed out")
    assert group.failed


@pytest.mark.parametrize("launched", [True, False])
@pytest.mark.parametrize("failed", [True, False])
def test_the_other_ranks_end_with_the_group(
    launched: bool, failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    process = SimpleNamespace(
        kill=lambda: told.append("kill"), join=lambda *_: told.append("join"), is_alive=lambda: False
    )
    folder = tmp_path / "store"
    folder.mkdir()
    group = alone(monkeypatch, launched=launched, processes=() if launched else (process,), folder=folder)
    monkeypatch.setattr(group, "agree", lambda value: value)
    group.failed = failed
    group.close()
    ended = {(True, True): {"next/0": b"end"}, (False, True): {}}.get((launched, failed), {"operation/0/1"})
    assert {*group.store.values} == {*ended}
    assert group.store.values.get("next/0") in (None, b"end")
    assert told == ([] if launched else ["kill", "join"] if failed else ["join"])
    assert (group.closed, folder.exists()) == (True, False)
    told.clear()
    group.close()
    assert told == []


def test_a_rank_that_does_not_end_is_killed_and_a_forked_process_ends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    process = SimpleNamespace(kill=lambda: told.append("kill"), join=lambda *s: told.append(s), is_alive=lambda: True)
    group = alone(monkeypatch, processes=(process,))
    monkeypatch.setattr(group, "agree", lambda value: value)
    group.process = -1
    group.close()
    assert (told, group.closed) == ([], False)
    group.process = os.getpid()
    group.close()
    assert told == [(END,), "kill", ()]


@pytest.mark.parametrize(("answer", "again"), [("again", True), ("end", False)])
def test_launched_ranks_wait_for_what_rank_0_does_next(
    answer: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "_ignore_signals", lambda: None)
    monkeypatch.setattr(others.signal, "signal", lambda *_: None)
    group = alone(monkeypatch, rank=1, launched=True)
    group.store.set("next/0", answer)
    assert others._continues(group) is again
    # Ranks that this process started end.
    assert others._continues(alone(monkeypatch, rank=1)) is False


# --- Which group serves a run.


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return (ranks, minutes, CUDA) of each group that is started."""
    calls: list[tuple[Any, ...]] = []

    def start(*given: Any) -> Any:
        calls.append(given)
        size, minutes, cuda = given
        closed: list[bool] = []
        group = SimpleNamespace(size=size, minutes=minutes, cuda=cuda, failed=False, closed=False, process=os.getpid())
        group.close = lambda: closed.append(True)
        group.ended = closed
        return group

    monkeypatch.setattr(others, "_started", start)
    monkeypatch.setattr(others, "_group", None)
    monkeypatch.setattr(others, "launched", lambda: 1)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    return calls


def asks(devices: int = 2, rank_timeout: float = 30.0, device: str = "cpu") -> Any:
    runtime = SimpleNamespace(devices=devices, rank_timeout=rank_timeout, device=ranks.Device(device))
    return SimpleNamespace(config=SimpleNamespace(runtime=runtime))


@pytest.mark.parametrize(
    ("change", "kept"),
    [({}, True), ({"devices": 3}, False), ({"rank_timeout": 5.0}, False), ({"device": "auto"}, False)],
    ids=str,
)
def test_a_group_serves_all_runs_with_its_settings(
    change: dict[str, Any], kept: bool, started: list[tuple[Any, ...]]
) -> None:
    first: Any = others.ranks_of(asks())
    assert others.ranks_of(asks(devices=1)) is ranks.ALONE
    assert (others.ranks_of(asks(**change)) is first) is kept
    assert len(started) == (1 if kept else 2)
    # The other one has ended.
    assert first.ended == [True] * (not kept)


@pytest.mark.parametrize(("fact", "value"), [("failed", True), ("closed", True), ("process", -1)])
def test_a_group_that_failed_or_belongs_to_another_process_serves_none(
    fact: str, value: Any, started: list[tuple[Any, ...]]
) -> None:
    first: Any = others.ranks_of(asks())
    setattr(first, fact, value)
    assert others.ranks_of(asks()) is not first
    assert len(started) == 2
    assert first.ended == [True] * (fact == "failed")


def test_ranks_of_a_launcher_serve_the_next_run_after_a_failure(
    started: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "launched", lambda: 2)
    with pytest.raises(UsageError, match="worker processes cannot use"):
        others.ranks_of(asks(devices=1))
    told: list[str] = []
    group = SimpleNamespace(size=2, failed=False, closed=False, process=os.getpid(), reconnect=lambda: told.append("r"))
    monkeypatch.setattr(others, "_group", group)
    assert others.ranks_of(asks(devices=1)) is group
    assert told == []
    group.failed = True
    assert others.ranks_of(asks(devices=1)) is group
    assert told == ["r"]
    group.closed = True
    with pytest.raises(RunError, match="one of the 2 ranks ended"):
        others.ranks_of(asks(devices=1))
    group.process = -1
    with pytest.raises(UsageError, match="worker processes cannot use"):
        others.ranks_of(asks(devices=1))


def test_more_ranks_than_gpus_are_refused(started: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(UsageError, match="number of visible GPUs is 1"):
        others.ranks_of(asks(device="auto"))
    others.ranks_of(asks(device="cpu"))
    assert started == [(2, 30.0, False)]


# --- Signals.


def test_all_ranks_stop_at_the_same_point_of_an_operation(together: Callable[..., list[Any]]) -> None:
    """Rank 0 has received the signal; inside an operation it tells the others, elsewhere it stops alone."""

    def work(group: Group) -> Any:
        flag = StopFlag()
        flag.received = lambda: 15 if group.rank == 0 else None  # type: ignore[method-assign]
        group.repeating = group.rank == 0
        with pytest.raises(Stopped) as raised:
            SharedStop(flag, group).check()
        return raised.value.number

    assert values(together(work)) == [15, 15, 15]

    def calm(group: Group) -> Any:
        flag = StopFlag()
        flag.received = lambda: None if group.rank == 0 else 15  # type: ignore[method-assign]
        group.repeating = True
        return SharedStop(flag, group).check()

    assert values(together(calm)) == [None] * 3, "what another rank received does not count"


def test_outside_of_operations_rank_0_stops_alone() -> None:
    flag, told = StopFlag(), list[str]()
    flag.check = lambda: told.append("checked")  # type: ignore[method-assign]
    SharedStop(flag, Ranks()).check()
    assert told == ["checked"]
