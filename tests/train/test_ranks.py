"""Several ranks train one run: they equal one process with as many parts, and end together."""

from __future__ import annotations

import hmac
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

from tests.questions import write_questions
from xclrun.core.errors import RunError, UsageError
from xclrun.plan import Run
from xclrun.plan.checks import check_ranks
from xclrun.store import predictions
from xclrun.train import messages, others, ranks
from xclrun.train.ranks import Group, Ranks

from .conftest import StopAt, stopped
from .test_span import SPAN

Make = Callable[..., Run]

# Parts of 2 sentences, three in a batch: 22, 18 and 13 sentences leave smaller batches and parts. Dropout is on.
PARTS = ("trainer.batch_size=2", "trainer.gradient_accumulation=3")

# Starting a rank takes longer than a run: one worker of pytest-xdist executes these tests, with the same ranks.
same_ranks = pytest.mark.xdist_group("ranks")


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """End the ranks after the tests; other tests are in a process without ranks."""
    yield
    others.end_ranks()
    others._group = None


@pytest.fixture(scope="module", params=[2, 3])
def devices(request: pytest.FixtureRequest) -> int:
    """Return the number of ranks. Pytest orders tests by the parameters of a module's fixtures, so ranks start once."""
    return int(request.param)


def losses(run: Run) -> list[list[float]]:
    stages = run.directory.read_manifest()["stages"]
    return [[epoch["loss"] for epoch in stage["training"]["epochs"]] for stage in stages]


def counters(run: Run) -> list[dict[str, Any]]:
    names = ("step", "updates", "examples", "tokens", "beside_examples", "beside_tokens", "best_epoch")
    stages = run.directory.read_manifest()["stages"][1:]
    return [{name: stage["training"][name] for name in names} for stage in stages]


def equal(run: Run, alone: Run) -> None:
    """Check losses to 1e-5, the same counters, and predictions that differ only in rounding."""
    assert run.id == alone.id
    for several, one in zip(losses(run), losses(alone), strict=True):
        np.testing.assert_allclose(several, one, rtol=1e-5)
    assert counters(run) == counters(alone)
    for hop in range(len(run.stages)):
        several, one = (predictions.read(r.directory.predictions(hop)) for r in (run, alone))
        for column in one.column_names:
            if column.startswith("log2"):
                expected = one[column].to_numpy()
                np.testing.assert_allclose(several[column].to_numpy(), expected, rtol=1e-3, atol=1e-4)
            else:
                assert several[column].to_pylist() == one[column].to_pylist(), column


@pytest.fixture
def compare(make_run: Make, do: Make, finished: Make) -> Callable[..., None]:
    """Compare a run of several ranks with one process: ``compare(2, "strategy=er")``; ``data`` replaces the corpus."""

    def check(devices: int, *overrides: str, **data: Path) -> None:
        settings = (*PARTS, *overrides)
        alone = do(make_run(*settings, outputs="alone", **data)) if data else finished(*settings)
        several = do(make_run(*settings, f"runtime.devices={devices}", outputs=f"{devices}", **data))
        assert several.directory.read_manifest()["environment"]["ranks"] == str(devices)
        assert "ranks" not in alone.directory.read_manifest()["environment"]
        equal(several, alone)

    return check


@same_ranks
def test_two_ranks_equal_one_process(compare: Callable[..., None]) -> None:
    """DER++ has dropout, memory batches in parts, and outputs that all ranks gather."""
    # Two gradients are large enough to be summed in place.
    large = f"model.intermediate_size={ranks.LARGE // 16}"
    compare(2, "strategy=derpp", "order=[en,de]", "trainer.epochs=1", large)
    group = others._group
    assert group is not None
    assert group.folder is not None
    assert stat.S_IMODE(group.folder.stat().st_mode) == 0o700, "other users could command the ranks"
    if Path("/proc/net/tcp").exists():
        addresses = {address for pid in (os.getpid(), group.processes[0].pid) for address in listening(pid)}
        assert addresses == {"0100007F"}, "the ranks listen on an address other than 127.0.0.1"


def listening(pid: int) -> Iterator[str]:
    """Yield the addresses, in hexadecimal, on which a process accepts connections."""
    own = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for row in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, _, state, *rest = row.split()
            if state == "0A" and f"socket:[{rest[5]}]" in own:
                yield local.split(":")[0]


SETTINGS = {
    "naive": (),
    "er": (),
    "derpp": (),
    "agem": ("dataset.replay.every_k=1",),
    "gem": ("dataset.replay.every_k=1",),
    "ewc_online": (),
    "si": (),
    "mas": (),
    "lwf": (),
    "kd_logit": (),
    "kd_rep": (),
    "er_ace": (),
    "agem_replay": ("strategy.replay_write=1", "strategy.replay_interval=12", "strategy.replay_number=4"),
    "mbpa": (
        "strategy.replay_write=1",
        "strategy.replay_interval=12",
        "strategy.replay_number=4",
        "strategy.neighbours=2",
        "strategy.adapt_steps=1",
        # Each sentence is adapted to; neither 2 nor 3 divides their number.
        "dataset.max_test=5",
    ),
    "merge": ("strategy.method=fisher",),
    "lang_spec_ada_t": (),
    "lang_spec_lora_t": (),
    "lang_spec_trans": (),
    "o_lora": (),
    "l2p": (),
    "multilingual": ("evaluate.every_examples=20",),
}


@same_ranks
@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize("strategy", SETTINGS)
def test_strategies_with_several_ranks_equal_one_process(
    strategy: str, devices: int, compare: Callable[..., None]
) -> None:
    compare(devices, f"strategy={strategy}", *SETTINGS[strategy])


@same_ranks
@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize(
    "overrides",
    [
        (
            *("experiment=fewshot", "order=list", "source=en", "language=de", "shots=1"),
            *("protocol.source_trainer.batch_size=4", "protocol.source_trainer.gradient_accumulation=3"),
        ),
        ("experiment=codelength", "order=[en,de]", "dataset.blocks=3", "evaluate.every_examples=4"),
        ("strategy=er", "strategy.expansion=lang_spec_task"),
        ("order=[en,de]", "dataset.blocks=3"),
        ("order=[en+de,es]",),
        ("strategy=fc", "order=[en,de]"),
        ("strategy=er", "trainer.packing=true", "trainer.group_by_length=true"),
    ],
    ids=["fewshot", "codelength", "expansion", "blocks", "mixture", "features", "packed"],
)
def test_settings_with_several_ranks_equal_one_process(
    overrides: tuple[str, ...], devices: int, compare: Callable[..., None]
) -> None:
    compare(devices, *overrides)


@same_ranks
@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize("strategy", ["er", "mbpa"])
def test_spans_with_several_ranks_equal_one_process(
    strategy: str, devices: int, compare: Callable[..., None], tmp_path: Path
) -> None:
    """Windows of one text may be in several parts."""
    data = write_questions(tmp_path / "questions", "en", "th", long=4)
    compare(devices, *SPAN, *PARTS, f"strategy={strategy}", *SETTINGS[strategy], data=data)


@pytest.mark.full
@pytest.mark.in_turn
def test_a_stopped_run_resumes_with_any_number_of_ranks(make_run: Make, do: Make) -> None:
    """Bit for bit with the same number; equal to rounding with another one."""
    settings = (*PARTS, "strategy=derpp")
    whole = do(make_run(*settings, "runtime.devices=2", outputs="whole"))
    run = stopped(make_run(*settings, "runtime.devices=2", outputs="same"), do, 3, 5)
    do(run)
    assert losses(run) == losses(whole)
    other = stopped(make_run(*settings, "runtime.devices=2", outputs="other"), do, 5)
    equal(do(make_run(*settings, outputs="other")), whole)
    assert other.directory.finished


class KillRank(StopAt):
    """Sends a signal to another rank after some steps."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__()
        self.number, self.step = number, step

    def stepped(self, progress: Any) -> None:
        self.taken += 1
        if self.taken == self.step:
            assert others._group is not None
            os.kill(others._group.processes[-1].pid, self.number)


@pytest.mark.full
@pytest.mark.in_turn
def test_a_killed_rank_ends_the_run_in_one_line(make_run: Make, do: Make) -> None:
    settings = (*PARTS, "strategy=er", "runtime.devices=3")
    whole = do(make_run(*settings, outputs="whole"))
    for step in (1, 4, 9):
        run, listener = make_run(*settings, outputs=f"killed-{step}"), KillRank(signal.SIGKILL, step)
        with pytest.raises(RunError, match=r"^rank 2 was killed by SIGKILL; re-run the same command"):
            do(run, listener, listener.stop)
        assert run.directory.read_manifest()["status"] == "failed"
        do(run)
        assert losses(run) == losses(whole)


# Rank 1 ends with exit code 3 as soon as it is connected; rank 0 then connects and sends an operation.
ENDS = """
import os
import torch.distributed as dist
from xclrun.core.errors import RunError
from xclrun.train.ranks import Group

store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
if not os.fork():
    other = dist.TCPStore("127.0.0.1", store.port, 2, is_master=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("connection/0", other), rank=1, world_size=2)
    os._exit(3)
try:
    group = Group(0, 2, store, local=0, on_machine=2, minutes=0.1, cuda=False)
    while True:
        group.sum([1.0])
except RunError as error:
    print(error)
os._exit(0)
"""


# Rank 1 waits for the next operation while rank 0 gives up, and connects again.
AGAIN = """
import os
import torch.distributed as dist
from xclrun.train.others import follow
from xclrun.train.ranks import Group

store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
if not (child := os.fork()):
    other = dist.TCPStore("127.0.0.1", store.port, 2, is_master=False)
    follow(Group(1, 2, other, local=1, on_machine=2, minutes=1, cuda=False, launched=True))
group = Group(0, 2, store, local=0, on_machine=2, minutes=1, cuda=False, launched=True)
for _ in range(2):
    group.failed = True
    group.abandon()
    group.reconnect()
group.close()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


# Another process connects in place of rank 1: it knows the addresses, but not the secret.
INTRUDER = """
import os, sys
import torch
import torch.distributed as dist
from xclrun.core.errors import RunError
from xclrun.train.ranks import Group

path = sys.argv[1]
if not os.fork():
    store = dist.PrefixStore("connection/0", dist.FileStore(path, -1))
    dist.init_process_group("gloo", store=store, rank=1, world_size=2)
    guess = torch.zeros(2, 32, dtype=torch.uint8)
    dist.all_to_all_single(torch.zeros_like(guess), guess)
    os._exit(0)
try:
    Group(0, 2, dist.FileStore(path, -1), local=0, on_machine=2, minutes=0.2, cuda=False)
except RunError as error:
    print(error)
os._exit(0)
"""


@pytest.mark.parametrize("answer", ["right", "guessed", "reflected"])
def test_a_rank_proves_that_it_knows_the_secret(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side of the connection is replaced by a function."""
    monkeypatch.setattr(Group, "_connect", lambda self: None)
    group, store = Group(0, 2, HashStore(), local=0, on_machine=2, minutes=1, cuda=False), HashStore()

    def exchange(received: torch.Tensor, sent: torch.Tensor) -> None:
        right = hmac.digest(store.get("secret"), b"1 to 0", "sha256")
        answers = {"right": right, "guessed": bytes(32), "reflected": sent[1].numpy().tobytes()}
        received[0] = sent[0]
        received[1] = torch.frombuffer(bytearray(answers[answer]), dtype=torch.uint8)

    monkeypatch.setattr("torch.distributed.all_to_all_single", exchange)
    if answer == "right":
        group._authenticate(store)
        return
    with pytest.raises(RunError, match="a process that is not rank 1 connected in its place"):
        group._authenticate(store)
    assert group.failed


def test_a_waiting_rank_seldom_looks_for_the_next_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 50th look finds it."""
    monkeypatch.setattr(Group, "_connect", lambda self: None)
    monkeypatch.setattr(Group, "agree", lambda self, value: value)
    group = Group(1, 2, HashStore(), local=1, on_machine=2, minutes=1, cuda=False)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 50:
            group.store.set("operation/0/1", messages.encode(("reset", ())))

    monkeypatch.setattr("xclrun.train.ranks.time.sleep", pause)
    assert group.receive() == ("reset", ())
    assert len(pauses) == 50
    assert sum(pauses) > 4


@pytest.mark.full
def test_another_process_that_connects_first_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTRUDER, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "a process that is not rank 1 connected in its place" in done.stdout


@pytest.mark.full
def test_a_launched_rank_that_waits_for_an_operation_connects_again() -> None:
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "0\n"


@pytest.mark.full
def test_a_rank_that_ends_while_others_connect_is_noticed() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=300, check=True)
    assert "one of the 2 ranks ended" in done.stdout


@pytest.mark.full
@pytest.mark.in_turn
def test_a_hanging_rank_is_detected(make_run: Make, do: Make) -> None:
    run = make_run(*PARTS, "runtime.devices=2", "runtime.rank_timeout=0.1")
    listener = KillRank(signal.SIGSTOP, 2)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"runtime.rank_timeout=0\.1 minutes"):
        do(run, listener, listener.stop)
    assert time.monotonic() - began < 120


@pytest.mark.full
@pytest.mark.in_turn
def test_ranks_with_other_versions_are_refused(make_run: Make, do: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xclrun.train.ranks.version", lambda library: "0.1")
    with pytest.raises(RunError, match=r"has torch 2\S*, but rank 0 has 0\.1"):
        do(make_run(*PARTS, "runtime.devices=2"))


@pytest.mark.full
@pytest.mark.in_turn
def test_ranks_with_other_data_are_refused(make_run: Make, do: Make, corpus: Any, tmp_path: Any) -> None:
    import shutil

    data = shutil.copytree(corpus, tmp_path / "changing")
    run = make_run(*PARTS, "runtime.devices=2", data=data)
    file = data / "de" / "dev.jsonl"
    file.write_text(file.read_text().replace('"alarm"', '"weather"'))
    with pytest.raises(RunError, match=r"rank 1: .*the data has changed"):
        do(run)


def torchrun(outputs: Path, corpus: Path, *arguments: str) -> tuple[int, str]:
    """Run a sweep with two ranks; return the exit code and the output."""
    from tests.conftest import SMALL

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *arguments]
    settings = (*SMALL, *PARTS, f"dataset.root={corpus}", "order=[en,de]", f"paths.outputs={outputs}")
    for _ in range(3):
        done = subprocess.run([*command, *settings], capture_output=True, text=True, timeout=300, check=False)
        # Rarely, PyTorch's threads abort rank 0 while it exits, after it has said that all runs are finished.
        _, finished, end = done.stderr.partition("1 of 1 runs finished")
        if not finished or "terminate called without an active exception" not in end:
            break
    return done.returncode, done.stderr


@pytest.mark.full
@pytest.mark.in_turn
def test_workers_end_their_ranks(corpus: Path, tmp_path: Path) -> None:
    """Two workers with two ranks each finish their runs; ranks that lose their connection print a warning."""
    from tests.conftest import SMALL

    settings = (*SMALL, *PARTS, f"dataset.root={corpus}", "order=[en,de]", "trainer.epochs=1", "seed=1,2")
    devices = ("runtime.devices=2", "hydra.launcher.n=2", f"paths.outputs={tmp_path}")
    command = [sys.executable, "-m", "xclrun", *settings, *devices, "-m"]
    warning = os.environ | {"TORCH_CPP_LOG_LEVEL": "WARNING"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=warning)
    assert done.returncode == 0, done.stderr
    assert "TCPStore" not in done.stderr, "a rank lost its connection"
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/manifest.json")]
    assert [manifest["environment"]["ranks"] for manifest in manifests] == ["2", "2"]
    assert len({manifest["pid"] for manifest in manifests}) == 2


@pytest.mark.full
@pytest.mark.in_turn
def test_torchrun(make_run: Make, do: Make, corpus: Path, tmp_path: Path) -> None:
    code, output = torchrun(tmp_path / "outputs", corpus, "-m", "xclrun")
    assert code == 0, output
    alone = do(make_run(*PARTS, "order=[en,de]", outputs="alone"))
    equal(make_run(*PARTS, "order=[en,de]", outputs="outputs"), alone)


@pytest.mark.full
@pytest.mark.in_turn
def test_the_next_run_of_torchrun_continues_after_a_failed_one(
    make_run: Make, do: Make, corpus: Path, tmp_path: Path
) -> None:
    code, output = torchrun(tmp_path / "outputs", corpus, "-m", "xclrun", "trainer.lr=1e30,1e-3", "-m")
    assert code == 1
    settings = (*PARTS, "order=[en,de]")
    first, second = (make_run(*settings, f"trainer.lr={lr}", outputs="outputs") for lr in ("1e30", "1e-3"))
    assert "the loss is nan" in str(first.directory.error)
    assert f"failed: {first.id}; re-run" in output
    equal(second, do(make_run(*settings, "trainer.lr=1e-3", outputs="alone")))


def test_micro_batches_of_a_rank() -> None:
    group = Ranks()
    group.rank, group.size = 1, 3
    assert list(group.micro_batches(7)) == [1, 4]
    assert list(group.micro_batches(2)) == [1]
    assert list(group.micro_batches(1)) == [0]
    group.rank = 2
    assert list(group.micro_batches(2)) == []


def ended_by(do: Callable[[], Any]) -> BaseProcess:
    """Start a process that calls a function and ends."""
    process = get_context("fork").Process(target=do, daemon=True)
    process.start()
    return process


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (partial(signal.raise_signal, signal.SIGKILL), r"^rank 2 was killed by SIGKILL; re-run the same command"),
        (partial(os._exit, 3), r"^rank 2 ended with exit code 3; re-run the same command"),
        # Both ranks only lost their connection.
        (
            partial(os._exit, 0),
            r"^one of the 3 ranks ended, or did not respond within runtime\.rank_timeout=1 minutes; ",
        ),
        (partial(time.sleep, 60), r"^one of the 3 ranks ended, or did not respond within "),
    ],
)
def test_how_a_rank_ended_is_reported(do: Callable[[], Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "_connect", lambda self: None)
    monkeypatch.setattr(ranks, "CODE", 0.3)
    processes = [ended_by(partial(os._exit, 0)), ended_by(do)]
    processes[0].join()
    try:
        group = Group(0, 3, HashStore(), local=0, on_machine=3, minutes=1, cuda=False, processes=processes)
        with pytest.raises(RunError, match=message), group._explained():
            raise RuntimeError("Connection closed by peer")
        group.store.set("error/0", "rank 1: ValueError: no weights")
        with (
            pytest.raises(RunError, match=r"^rank 1: ValueError: no weights; re-run the same command"),
            group._explained(),
        ):
            raise RuntimeError("Connection closed by peer")
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize(("typed", "expected"), [(None, "ERROR"), ("INFO", "INFO")])
def test_ranks_print_no_warnings_unless_the_user_requests_them(
    typed: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If rank 0 is killed, PyTorch warns with a C++ stack."""
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "")
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")
    if typed is not None:
        monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", typed)
    seen: list[str | None] = []

    def start(*arguments: Any, **options: Any) -> None:
        seen.append(os.environ.get("TORCH_CPP_LOG_LEVEL"))
        raise Enough

    # `torch.multiprocessing.spawn` is a function too, which hides the module.
    monkeypatch.setattr(import_module("torch.multiprocessing.spawn"), "start_processes", start)
    with pytest.raises(Enough):
        others._started(2, 1.0, cuda=False)
    assert seen == [expected]


class Enough(Exception):
    pass


def test_a_cpu_run_uses_no_gpu_for_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is replaced by functions that return what it returns on a machine with two GPUs."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", pytest.fail)
    monkeypatch.setattr(Group, "_connect", lambda self: None)
    backends = [Group(1, 2, None, local=1, on_machine=2, minutes=1, cuda=c).backend for c in (False, True)]
    assert backends == ["gloo", "cpu:gloo,cuda:nccl"]


def test_an_unexpected_error_while_ranks_start_is_reported(
    make_run: Make, do: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Run) -> Ranks:
        raise OverflowError("too many ranks")

    monkeypatch.setattr("xclrun.train.execute.ranks_of", fail)
    listener = Failures()
    with pytest.raises(OverflowError):
        do(make_run(*PARTS, "runtime.devices=2"), listener, listener.stop)
    assert listener.errors == ["too many ranks"]


class Failures(StopAt):
    """Collects the errors of failed runs."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def run_failed(self, run: Run, error: BaseException) -> None:
        self.errors.append(str(error))


def test_a_launcher_s_limit_cannot_be_set(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher's processes are connected before the limit is known."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"^runtime\.rank_timeout=2: .* 30 minutes; omit it$"):
        check_ranks(make_run(*PARTS, "runtime.rank_timeout=2").config, 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("runtime.rank_timeout=1e300",), r"must be at least 0\.1 and at most 43,200 minutes$"),
        (("runtime.rank_timeout=1e-9",), r"must be at least 0\.1 and at most 43,200 minutes$"),
        ((), r"^runtime\.devices=2 trainer\.gradient_accumulation=1: .* use trainer\.gradient_accumulation=2"),
        ((*PARTS, "trainer.cuda_graphs=true"), r"^runtime\.devices=2 trainer\.cuda_graphs=true"),
    ],
)
def test_settings_that_need_one_device(overrides: tuple[str, ...], message: str, make_run: Make) -> None:
    with pytest.raises(UsageError, match=message):
        make_run("runtime.devices=2", *overrides)
