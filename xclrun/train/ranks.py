"""Ranks: the processes that train one run together (data parallelism), each on its own device.

A batch consists of micro-batches (``trainer.gradient_accumulation``). With W ranks, rank r computes the micro-batches
r, r + W, … The gradients of all micro-batches are summed before the strategy edits them, so every rank takes the same
optimiser step. If a batch is a single micro-batch, every rank computes it. Dev and test splits are sorted by length,
and rank r predicts the sentences r, r + W, …

Rank 0 executes the run: only it writes to the store and the run directory, holds leases and reports progress. Every
other rank has its own workbench, on which it repeats rank 0's operations (`repeated`), and reads the same store.

`xclrun.train.others` starts the other ranks, or joins those that a launcher started. NCCL transfers gradients on GPUs;
gloo transfers all other data (`torch.distributed`). Operations are sent through the store that the ranks share.

Messages contain no code (`xclrun.train.messages`). Ranks that rank 0 starts share a `FileStore` in a folder that only
this user can read, and connect over the loopback interface. Every connection starts with a proof that the other side
can read the store, so other processes on the machine cannot take the place of a rank.

After a failed operation, the ranks can be in different states. Ranks that rank 0 started are then killed, and the next
run starts new ones. Ranks that a launcher started disconnect, and connect again for the next run.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xclrun.config.schema import Device
from xclrun.core.errors import RunError
from xclrun.core.version import code_version
from xclrun.train import messages
from xclrun.train.stop import StopFlag, Stopped, how_ended

if TYPE_CHECKING:
    from xclrun.plan import Run

# Gradients of at least `LARGE` entries are summed in place; smaller ones are copied into buckets of `BUCKET` entries.
BUCKET, LARGE = 2**22, 2**17
# How long the other ranks wait for rank 0's next operation: long, because rank 0 itself may be waiting for another
# process. They end if rank 0 or the launcher's store ends; every wait inside an operation has the run's limit.
IDLE = timedelta(days=30)
# Time limits in seconds, for the other ranks to start, to end, and, after a lost connection, to have an exit code.
START, END, CODE = 300.0, 10.0, 1.0
# Maximum seconds between two looks at the store of ranks on this machine.
PAUSE = 0.1
# Bytes of a proof (SHA-256), and the address of connections within this machine.
PROOF, LOOPBACK = 32, "127.0.0.1"
ENDED = "one of the {} ranks ended during an earlier run; re-run the same command to resume"

Value = TypeVar("Value")
Method = TypeVar("Method", bound=Callable[..., Any])


class Ranks:
    """The ranks of a run, seen from one of them. This class is a single rank, `Group` several.

    Attributes:
        rank: number of this process, from 0.
        size: W, the number of ranks.
        local: index of this process's GPU.
        on_machine: number of ranks on this machine.
        minutes: time limit for communication.
        repeating: whether all ranks are executing an operation.
        failed: whether an operation has failed; if so, the ranks are possibly in different states.
    """

    rank, size, local, on_machine, minutes = 0, 1, 0, 1, 30.0
    repeating = failed = False

    @property
    def several(self) -> bool:
        return self.size > 1

    def micro_batches(self, count: int) -> range:
        """Return the indices of this rank's micro-batches, in a batch of ``count`` micro-batches."""
        return range(self.rank, count, self.size) if count > 1 else range(count)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum gradients over ranks in place; a parameter's gradient stays None if no rank has one."""

    def sum(self, values: Sequence[float]) -> Sequence[float]:
        """Return each value summed over ranks."""
        return values

    def gather(self, value: Value, device: torch.device | str = "cpu") -> list[Value]:
        """Return the values of all ranks in order, with tensors on ``device``."""
        return [value]

    def agree(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        return value

    def begin(self, run: Run) -> None:
        """Have the other ranks load a run, and check that they have rank 0's data and versions."""

    @contextlib.contextmanager
    def repeat(self, name: str, arguments: Sequence[Any]) -> Iterator[None]:
        """Have the other ranks execute an operation of the workbench while the block executes it on rank 0."""
        yield

    def abandon(self) -> None:
        """Disconnect from the other ranks after a failed operation; they notice that the connection is closed."""

    def close(self) -> None:
        """End the other ranks."""


ALONE = Ranks()


class Group(Ranks):
    """Several ranks, connected by `torch.distributed`.

    Args:
        store: key-value store that all ranks share. Whoever can write to it controls the ranks.
        cuda: whether runs may use GPUs.
        launched: whether a launcher started all ranks.
        processes: the other ranks, if this process started them.
        folder: folder of the store, if this process created it.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Any,
        *,
        local: int,
        on_machine: int,
        minutes: float,
        cuda: bool = True,
        launched: bool = False,
        processes: Sequence[Any] = (),
        folder: Path | None = None,
    ) -> None:
        self.rank, self.size, self.store, self.minutes, self.cuda = rank, size, store, minutes, cuda
        self.on_machine, self.launched, self.processes, self.process = on_machine, launched, processes, os.getpid()
        self.closed, self.folder = False, folder
        # Number of this connection, increased by `reconnect`, and of its operations.
        self.connection = self.operations = 0
        gpus = torch.cuda.device_count() if cuda and torch.cuda.is_available() else 0
        # If a launcher makes only one GPU visible to each rank, its index is 0.
        self.local = local % gpus if launched and gpus else local
        self.backend = "cpu:gloo,cuda:nccl" if self.local < gpus else "gloo"
        self._connect()

    def _connect(self) -> None:
        store, limit = dist.PrefixStore(f"connection/{self.connection}", self.store), timedelta(minutes=self.minutes)  # type: ignore[attr-defined]
        with self._explained():
            dist.init_process_group(self.backend, store=store, rank=self.rank, world_size=self.size, timeout=limit)
            self._authenticate(store)
        self.failed, self.operations = False, 0

    def _authenticate(self, store: Any) -> None:
        """Check that each connection leads to the rank that it belongs to; the store holds a secret for this.

        Raises:
            RunError: another process has connected in place of a rank.
        """
        if not self.rank:
            store.set("secret", secrets.token_hex(32))
        secret, ranks = store.get("secret"), range(self.size)
        sent, expected, received = (
            b"".join(_proof(secret, self.rank, other) for other in ranks),
            [_proof(secret, other, self.rank) for other in ranks],
            torch.zeros(self.size, PROOF, dtype=torch.uint8),
        )
        dist.all_to_all_single(received, torch.frombuffer(bytearray(sent), dtype=torch.uint8).view(self.size, PROOF))
        for rank, (proof, answer) in enumerate(zip(expected, received, strict=True)):
            if not hmac.compare_digest(proof, answer.numpy().tobytes()):
                self.failed = True
                raise RunError(
                    f"a process that is not rank {rank} connected in its place; re-run the same command, and look for "
                    "unknown processes on this machine if this happens again"
                )

    def disconnect(self) -> None:
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def reconnect(self) -> None:
        """Connect launched ranks again after `abandon`; called by all ranks.

        Raises:
            RunError: another rank ended.
        """
        ready = [f"ready/{self.connection}/{rank}" for rank in range(1, self.size)]
        try:
            if self.rank:
                self.store.set(ready[self.rank - 1], "")
            else:
                self.store.set(f"next/{self.connection}", "again")
                self.store.wait(ready, timedelta(seconds=START))
        except RuntimeError as error:
            self.closed = True
            raise RunError(ENDED.format(self.size)) from error
        self.connection += 1
        self._connect()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert a communication error into a one-line error."""
        try:
            yield
        except RuntimeError as error:
            self.failed = True
            reason, key = "", f"error/{self.connection}"
            with contextlib.suppress(RuntimeError):
                reason = self.store.get(key).decode() if self.store.check([key]) else ""
            if not (reason := reason or ended(self.processes)):
                limit = f"{'' if self.launched else 'runtime.rank_timeout='}{self.minutes:g} minutes"
                reason = f"one of the {self.size} ranks ended, or did not respond within {limit}"
            raise RunError(f"{reason}; re-run the same command to resume") from error

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        trained = [p for p in parameters if p.requires_grad]
        present = torch.tensor([p.grad is not None for p in trained], dtype=torch.uint8)
        buckets: list[list[Tensor]] = []
        large, room = [], 0
        with self._explained(), torch.no_grad():
            dist.all_reduce(present, dist.ReduceOp.MAX)
            for parameter in (p for p, on_some_rank in zip(trained, present.tolist(), strict=True) if on_some_rank):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                if parameter.numel() >= LARGE:
                    parameter.grad = parameter.grad.contiguous()
                    large.append(parameter.grad)
                    continue
                if not buckets or parameter.numel() > room or parameter.grad.dtype != buckets[-1][0].dtype:
                    buckets.append([])
                    room = BUCKET
                buckets[-1].append(parameter.grad)
                room -= parameter.numel()
            sums = [torch.cat([g.flatten() for g in bucket]) for bucket in buckets]
            for work in [dist.all_reduce(total, async_op=True) for total in (*large, *sums)]:
                work.wait()
            for bucket, total in zip(buckets, sums, strict=True):
                pieces = total.split([g.numel() for g in bucket])
                torch._foreach_copy_(bucket, [piece.view_as(g) for piece, g in zip(pieces, bucket, strict=True)])

    def sum(self, values: Sequence[float]) -> Sequence[float]:
        total = torch.tensor(values, dtype=torch.float64)
        with self._explained():
            dist.all_reduce(total)
        result: list[float] = total.tolist()
        return result

    def gather(self, value: Value, device: torch.device | str = "cpu") -> list[Value]:
        content = torch.frombuffer(bytearray(messages.encode(value)), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with self._explained():
            dist.all_gather(lengths, torch.tensor([len(content)]))
            padded = nn.functional.pad(content, (0, int(max(lengths)) - len(content)))
            parts = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(parts, padded)
        contents = [part[: int(length)].numpy().tobytes() for length, part in zip(lengths, parts, strict=True)]
        return [messages.decode(content, device) for content in contents]

    def agree(self, value: int) -> int:
        first = torch.tensor([value])
        with self._explained():
            dist.broadcast(first, 0)
        return int(first)

    def begin(self, run: Run) -> None:
        with self.repeat("begin", (str(run.directory.path),)):
            self.compare(run)

    def compare(self, run: Run) -> None:
        facts = self.gather(self._facts(run))
        gpus = [each.pop("GPU", "") for each in facts]
        first, *later = facts
        for rank, other in enumerate(later, 1):
            for name, value in other.items():
                if value != first[name]:
                    raise RunError(
                        f"rank {rank} has {name} {value}, but rank 0 has {first[name]}; use the same on all ranks"
                    )
        for rank, gpu in enumerate(gpus):
            # NCCL does not connect two ranks on the same GPU.
            if gpu and (same := gpus.index(gpu)) < rank:
                raise RunError(f"ranks {same} and {rank} use the same GPU; start one rank per GPU")

    def _facts(self, run: Run) -> dict[str, str]:
        """Return the values that must be equal on all ranks, and the identifier of the rank's GPU, if it uses one."""
        cuda = run.config.runtime.device is not Device.cpu and torch.cuda.is_available()
        return {
            "GPU": str(torch.cuda.get_device_properties(self.local).uuid) if cuda else "",
            "xclrun": code_version(),
            "Python": platform.python_version(),
            **{library: version(library) for library in ("torch", "transformers", "numpy")},
            "device": torch.cuda.get_device_name(self.local) if cuda else platform.machine(),
            "data and settings of run": run.id,
        }

    @contextlib.contextmanager
    def repeat(self, name: str, arguments: Sequence[Any]) -> Iterator[None]:
        if self.rank or self.repeating:
            yield
            return
        self._send((name, arguments))
        self.repeating = True
        try:
            yield
        except BaseException as error:
            # After `Stopped` all ranks are at the same point, unless a second signal stopped rank 0 at once.
            self.failed |= not isinstance(error, Stopped) or error.at_once
            raise
        finally:
            self.repeating = False

    def _announce(self, operation: tuple[str, Sequence[Any]] | None = None) -> None:
        """Send an operation to the other ranks, which wait for it; None ends them."""
        content = messages.encode(operation)
        self.operations += 1
        self.store.set(f"operation/{self.connection}/{self.operations}", content)

    def _send(self, operation: tuple[str, Sequence[Any]] | None) -> None:
        with self._explained():
            self._announce(operation)
        # Wait until the other ranks have ended the previous operation.
        self.agree(self.operations)

    def receive(self) -> tuple[str, Sequence[Any]] | None:
        """Return rank 0's next operation; None: rank 0 ends."""
        self.operations += 1
        key = f"operation/{self.connection}/{self.operations}"
        with self._explained():
            pause = 0.001
            # A `FileStore` would look for the key every 10 ms, which takes a fifth of a core on a slow machine.
            while not self.launched and not self.store.check([key]):
                time.sleep(pause)
                pause = min(2 * pause, PAUSE)
            self.store.wait([key], IDLE)
            content = self.store.get(key)
        # This fails if rank 0 has disconnected after an error (`abandon`).
        self.agree(self.operations)
        operation: tuple[str, Sequence[Any]] | None = messages.decode(content)
        return operation

    def abandon(self) -> None:
        # The other ranks then find that the connection is closed.
        with contextlib.suppress(RuntimeError):
            self._announce()
        self.disconnect()
        if not self.launched:
            self.close()

    def close(self) -> None:
        if self.process != os.getpid() or self.closed:
            return
        self.closed = True
        for process in self.processes if self.failed else ():
            process.kill()
        with contextlib.suppress(RunError, RuntimeError):
            if self.launched and self.failed:
                self.store.set(f"next/{self.connection}", "end")
            elif not self.failed:
                self._send(None)
        self.disconnect()
        for process in self.processes:
            process.join(END)
            if process.is_alive():
                process.kill()
                process.join()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _proof(secret: bytes, sender: int, receiver: int) -> bytes:
    """Return the proof that a rank sends to another one over a new connection."""
    return hmac.digest(secret, f"{sender} to {receiver}".encode(), "sha256")


def ended(processes: Sequence[Any]) -> str:
    """Return how other ranks that this process started ended; empty if none ended with an exit code or a signal."""
    until, endings = time.monotonic() + CODE, []
    for rank, process in enumerate(processes, 1):
        process.join(max(0.0, until - time.monotonic()))
        # A rank that only lost its connection ends with exit code 0.
        if process.exitcode:
            endings.append(f"rank {rank} {how_ended(process.exitcode)}")
    return ", ".join(endings)


class SharedStop(StopFlag):
    """Rank 0's stop flag, which all ranks check at the same points of an operation."""

    def __init__(self, flag: StopFlag, ranks: Ranks) -> None:
        self.flag, self.ranks = flag, ranks

    def received(self) -> int | None:
        return self.flag.received()

    def check(self) -> None:
        if not self.ranks.rank and not self.ranks.repeating:
            self.flag.check()
        elif number := self.ranks.agree(self.flag.received() or 0):
            raise Stopped(number)


# The methods of the workbench that rank 0 may have the other ranks execute.
OPERATIONS: dict[str, Callable[..., Any]] = {}


def repeated(method: Method) -> Method:
    """Decorate a method of the workbench so that all ranks execute it."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        with self.ranks.repeat(method.__name__, arguments):
            return method(self, *arguments)

    OPERATIONS[method.__name__] = call
    return call  # type: ignore[return-value]
