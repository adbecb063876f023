"""The other ranks of a run: how they start, and how they repeat rank 0's operations (see `xclrun.train.ranks`).

If ``runtime.devices`` is set, rank 0 starts the other ranks on its machine. Alternatively, torchrun, Slurm or another
launcher starts all ranks and sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from xclrun.config.schema import Device
from xclrun.core.errors import RunError, UsageError
from xclrun.core.output import protect
from xclrun.core.plugins import one_line
from xclrun.core.ranks import Place, launched, launched_here, place
from xclrun.core.terminal import if_slow, many
from xclrun.plan import Run, thaw
from xclrun.store.rundir import RunDirectory
from xclrun.train.precision import set_threads
from xclrun.train.progress import Listener
from xclrun.train.ranks import ALONE, ENDED, IDLE, LOOPBACK, OPERATIONS, START, Group, Ranks, ended
from xclrun.train.stop import SIGNALS, StopFlag, Stopped
from xclrun.train.workbench import Workbench

# Exit code of a rank whose import of the main script would execute a run.
UNGUARDED = 76
# The group of this process: it serves all runs with the same number of ranks.
_group: Group | None = None


def ranks_of(run: Run) -> Ranks:
    """Return the ranks for a run; start them if necessary.

    Raises:
        UsageError: the machine has too few GPUs, or a worker process cannot use the ranks that a launcher started.
        RunError: the other ranks did not start, or ended.
    """
    global _group
    runtime = run.config.runtime
    if launched() > 1:
        if _group is None or _group.process != os.getpid():
            raise UsageError(
                f"a launcher started {launched()} ranks, which worker processes cannot use; use hydra.launcher.n=1, or "
                "start no ranks"
            )
        if _group.closed:
            raise RunError(ENDED.format(_group.size))
        if _group.failed:
            _group.reconnect()
        return _group
    if runtime.devices == 1:
        return ALONE
    cuda = runtime.device is not Device.cpu
    if _group is not None and _group.process == os.getpid() and not _group.closed:
        settings = (_group.size, _group.minutes, _group.cuda, _group.failed)
        if settings == (runtime.devices, runtime.rank_timeout, cuda, False):
            return _group
        _group.close()
    gpus = torch.cuda.device_count() if cuda else 0
    if 0 < gpus < runtime.devices:
        raise UsageError(f"runtime.devices={runtime.devices}: number of visible GPUs is {gpus}; lower runtime.devices")
    _group = _started(runtime.devices, runtime.rank_timeout, cuda)
    return _group


def end_unguarded() -> None:
    """End this process if it is a new rank that is importing a main script, which must not execute a run."""
    # A spawned process imports the main script as `__mp_main__`, and then replaces `__main__` with it.
    if sys.modules.get("__mp_main__") not in (None, sys.modules["__main__"]):
        raise SystemExit(UNGUARDED)


def end_ranks() -> None:
    """End the other ranks of a process that will end without calling `atexit` functions."""
    if _group is not None:
        _group.close()


def _started(size: int, minutes: float, cuda: bool) -> Group:
    """Start the other ranks on this machine."""
    from torch.multiprocessing.spawn import start_processes

    try:
        # Only this user can read the folder. A `TCPStore` would accept connections and commands from every process.
        folder = Path(tempfile.mkdtemp(prefix="xclrun-ranks-"))
    except OSError as error:
        raise UsageError(f"runtime.devices={size}: {error}; set TMPDIR to a writable folder") from error
    _use_loopback()
    store = _file_store(folder)
    # If rank 0 dies, the other ranks would print a C++ stack as a warning. PyTorch reads the variable when it is
    # imported, so this process is unaffected.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    processes: Sequence[Any] = ()
    try:
        processes = start_processes(
            _local_rank, (size, folder, minutes, cuda), size - 1, join=False, daemon=True, start_method="spawn"
        ).processes
        waited = 0.0
        while not store.check([f"started/{rank}" for rank in range(1, size)]):
            if waited > START or not all(process.is_alive() for process in processes):
                reason = ended(processes) or "the other ranks did not start"
                if processes[0].exitcode == UNGUARDED:
                    raise UsageError(
                        f"runtime.devices={size}: every process imports the main script, which must not execute runs "
                        'then; call checks and runs under if __name__ == "__main__":'
                    )
                raise RunError(f"runtime.devices={size}: {reason}; re-run the same command")
            waited += 0.1
            processes[0].join(0.1)
        place: dict[str, Any] = {"local": 0, "on_machine": size, "processes": processes, "folder": folder}
        group = Group(0, size, store, minutes=minutes, cuda=cuda, **place)
    except BaseException:
        for process in processes:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    atexit.register(group.close)
    return group


def _file_store(folder: Path) -> Any:
    return dist.FileStore(str(folder / "store"), -1)  # type: ignore[attr-defined]


def _use_loopback() -> None:
    """Have gloo and NCCL connect ranks on this machine over the loopback interface, which is not on the network."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = names[0] if names else "lo"


def _local_rank(index: int, size: int, folder: Path, minutes: float, cuda: bool) -> None:
    _ignore_signals()
    protect()
    threading.Thread(target=_end_with_rank_0, args=(folder,), daemon=True).start()
    rank, store = index + 1, _file_store(folder)
    store.set(f"started/{rank}", "")
    follow(Group(rank, size, store, local=rank, on_machine=size, minutes=minutes, cuda=cuda))


def _end_with_rank_0(folder: Path) -> None:
    """End this process if rank 0 is killed, and remove the store."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def join_launched() -> None:
    """Connect the ranks that torchrun or another launcher started; only rank 0 returns.

    Raises:
        UsageError: a variable of the launcher is missing or wrong.
        RunError: the other ranks cannot be reached.
    """
    global _group
    if _group is not None:
        return
    here = place()
    if here.rank:
        _ignore_signals()
    others = f"rank 0 at {here.address}:{here.port}" if here.rank else f"{many(here.size - 1, 'other rank')}"
    with if_slow(f"xclrun: rank {here.rank} of {here.size} is waiting for {others} …", important=True):
        store = _launched_store(here)
        _group = Group(
            here.rank,
            here.size,
            store,
            local=here.local,
            on_machine=launched_here(),
            minutes=Ranks.minutes,
            launched=True,
        )
    if here.rank:
        follow(_group)
    atexit.register(_group.close)


def _launched_store(here: Place) -> Any:
    """Return the store of the ranks that a launcher started, which rank 0 hosts if the launcher does not."""
    # torchrun's agent already hosts the store.
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    hosts, address = here.rank == 0 and not by_agent, here.address
    options: dict[str, Any] = {}
    try:
        if here.together:
            _use_loopback()
            if not by_agent:
                address = LOOPBACK
                if hosts:
                    # Without its own socket, the store would listen on all addresses.
                    options = {"master_listen_fd": socket.create_server((LOOPBACK, here.port)).detach()}
        store = dist.TCPStore(address, here.port, here.size, is_master=hosts, **options)  # type: ignore[attr-defined]
    except (RuntimeError, OSError) as error:
        variables = f"MASTER_ADDR={here.address} MASTER_PORT={here.port}"
        reason = "cannot listen" if isinstance(error, OSError) else "not all ranks connected"
        raise RunError(
            f"rank {here.rank} of {here.size}: {reason} at {variables} ({one_line(error)[:200]}); check these "
            "variables, and start all ranks with one launcher"
        ) from error
    prefix = f"xclrun/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _ignore_signals() -> None:
    # Rank 0 handles signals; the other ranks end with it.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def follow(group: Group) -> NoReturn:
    """Execute rank 0's operations until it ends, then end this process."""
    code = 1
    with contextlib.suppress(BaseException):
        while not _followed(group):
            group.disconnect()
            if not _continues(group):
                break
            group.reconnect()
        code = 0
    # End immediately: the other ranks notice that the connections are closed.
    os._exit(code)


def _followed(group: Group) -> bool:
    """Execute rank 0's operations; return False if an operation failed."""
    bench: Workbench | None = None
    try:
        while True:
            if (operation := group.receive()) is None:
                return True
            name, arguments = operation
            with contextlib.suppress(Stopped):
                if name == "begin":
                    run = thaw(RunDirectory(Path(arguments[0])))
                    set_threads(run.config.runtime.threads, group.on_machine)
                    group.compare(run)
                    bench = Workbench(run, Listener(), StopFlag(), group)
                else:
                    OPERATIONS[name](bench, *arguments)
    except BaseException as error:
        if not group.failed:
            with contextlib.suppress(RuntimeError):
                group.store.set(f"error/{group.connection}", f"rank {group.rank}: {one_line(error)}")
        if not isinstance(error, RunError):
            # Only this rank failed, and the other ranks wait for it. End this process; the other ranks notice this
            # at once.
            os._exit(1)
        return False


def _continues(group: Group) -> bool:
    """Wait until rank 0 connects again or ends; return whether it connects."""
    if not group.launched:
        return False
    key = f"next/{group.connection}"
    # If rank 0 dies meanwhile, the launcher ends this process, or the store does not answer.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    group.store.wait([key], IDLE)
    _ignore_signals()
    return bool(group.store.get(key) == b"again")
