"""Commands of Slurm: states of jobs, limits, submission, requeue, and cancelling thousands of jobs at once.

Silence is not a state of a job: a command that is not installed, fails or times out raises `Silent`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.core.errors import RunError, UsageError
from xclrun.core.terminal import brief, if_slow, note

if TYPE_CHECKING:
    from submitit import SlurmExecutor

TIMEOUT = 20.0  # seconds
PATIENCE = 3.0  # seconds without an answer after which a line says so
DEFAULT_MAX_ARRAY = 1001  # Slurm's default of MaxArraySize
AT_ONCE = 500  # jobs per command: arguments are limited to 128 KiB on Linux
# Seconds before each new attempt of a submission that failed for a passing reason.
DELAYS = (1.0, 2.0, 5.0, 10.0, 20.0)
# Seconds before each look at cancelled jobs.
CANCEL_LOOKS = (0.0, 0.5, 2.0)
# Characters of a line from Slurm or a log.
LINE = 240

# Final states (https://slurm.schedmd.com/job_state_codes.html).
ENDED = frozenset(
    ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
)
# State → what happened, and what to do.
MEANINGS = {
    "": "Slurm does not answer",
    "UNKNOWN": "no longer known to Slurm",
    "OUT_OF_MEMORY": "OUT_OF_MEMORY: exceeded its memory limit; increase hydra.launcher.mem",
    "TIMEOUT": "TIMEOUT: reached its time limit; increase hydra.launcher.time",
    "NODE_FAIL": "NODE_FAIL: its node failed",
    "BOOT_FAIL": "BOOT_FAIL: its node did not start",
}
# Errors of sbatch that a new attempt can avoid.
PASSING = re.compile(
    r"timed out|unable to contact slurm controller|temporarily unable|resource temporarily unavailable|"
    r"connection (refused|reset|failure)|communication|zero bytes were transmitted|not responding|standby mode|"
    r"transport endpoint|try again",
    re.IGNORECASE,
)
# Lines in which sbatch announces that it retries.
RETRYING = re.compile(r"retrying|sleeping|not responding", re.IGNORECASE)


class Silent(RunError):
    """Slurm does not answer.

    Attributes:
        reason: the last error of its command.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"Slurm does not answer ({reason})")
        self.reason = reason


class Rejected(UsageError):
    """Slurm rejected a submission."""


def ask(*command: str) -> str:
    """Return the output of a command of Slurm; raise `Silent` if it is not installed, fails or times out."""
    waiting = f"xclrun: waiting for Slurm: {command[0]} has not answered for {PATIENCE:.0f} s; is slurmctld running?"
    try:
        with if_slow(waiting, seconds=PATIENCE):
            done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
    except OSError:
        raise Silent(f"{command[0]} is not installed on this machine") from None
    except subprocess.TimeoutExpired:
        raise Silent(f"{command[0]} took longer than {TIMEOUT:.0f} s") from None
    if done.returncode:
        raise Silent(verdict(done.stderr.decode(errors="replace")) or f"{command[0]} failed")
    return done.stdout.decode(errors="replace")


def verdict(errors: str) -> str:
    """Return the last line of a command's errors, which is its verdict, and the reasons before it in parentheses.

    >>> verdict("sbatch: error: invalid partition: x\\nsbatch: error: Batch job submission failed: Invalid partition")
    'Invalid partition (invalid partition: x)'
    """
    lines = [brief(re.sub(r"^\w+: (error: )?", "", line), LINE) for line in errors.splitlines() if line.strip()]
    reasons = dict.fromkeys(line for line in lines[:-1] if not RETRYING.search(line))
    last = lines[-1].removeprefix("Batch job submission failed: ") if lines else ""
    return f"{last} ({'; '.join(reasons)})" if reasons else last


@dataclass(frozen=True)
class JobState:
    """State of a job in Slurm.

    Attributes:
        id: ``<job>``, or ``<job>_<index>`` in an array.
        state: Slurm's name of the state; ``UNKNOWN`` for an unknown job; empty if Slurm does not answer.
        reason: why it is pending, or how it ended.
        node: the nodes of the job.
        name: name of the job.
        script: path of its script.
    """

    id: str
    state: str = ""
    reason: str = ""
    node: str = ""
    name: str = ""
    script: str = ""

    @property
    def live(self) -> bool:
        """Whether it may still run."""
        return self.state not in ENDED and self.state not in ("", "UNKNOWN")

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node and self.state in ENDED else ""
        reason = f" ({_readable(self.reason)})" if self.reason else ""
        return f"Slurm job {self.id}{where}: {MEANINGS.get(self.state, self.state)}{reason}"


def _readable(reason: str) -> str:
    """Return a reason of Slurm; exit codes of ``sacct`` (``code:signal``) in words."""
    if match := re.fullmatch(r"(\d+):(\d+)", reason):
        code, number = int(match[1]), int(match[2])
        if number in set(signal.Signals):
            return f"killed by {signal.Signals(number).name}"
        return reason if number else f"exit code {code}"
    return brief(reason, LINE)


def queue(users: Collection[int]) -> dict[str, JobState]:
    """Return the jobs of users that ``squeue`` knows, including those that ended minutes ago; raise `Silent`."""
    names = ",".join(map(str, sorted(users)))
    text = ask("squeue", "--noheader", "--all", "--array", "--states=all", f"--user={names}", "-o", "%i|%T|%r|%N|%j|%o")
    return _rows(text)


def states(ids: Iterable[str], known: Mapping[str, JobState] | None = None) -> dict[str, JobState]:
    """Return the states of jobs from ``squeue``, or for jobs that ended minutes ago from ``sacct``.

    Args:
        known: the answer of `queue`; default: ask for this user's jobs.
    """
    jobs, silence = set(ids), ""
    if not jobs:
        return {}
    if known is None:
        try:
            known = queue([os.getuid()])
        except Silent as silent:
            silence = silent.reason
    by_id = _by_id(jobs, known or {})
    missing = jobs - set(by_id)
    for numbers in _chunks(sorted({job.partition("_")[0] for job in missing})):
        try:
            accounts = ask("sacct", "-n", "-X", "-P", "-o", "JobID,State,ExitCode,NodeList", "-j", ",".join(numbers))
        except Silent:
            # Without accounting, further calls would fail too.
            break
        by_id |= _by_id(missing, _rows(accounts))
    return {job: by_id.get(job, JobState(job, "", silence) if silence else JobState(job, "UNKNOWN")) for job in jobs}


def _chunks(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    return (jobs[start : start + AT_ONCE] for start in range(0, len(jobs), AT_ONCE))


def _rows(text: str) -> dict[str, JobState]:
    """Return ID → state from rows ``<job>|<state>|<reason>|<nodes>|<name>|<script>``, of which the last may be missing.

    An array that was cancelled before any job started is one row: its number, or its number with indices in brackets.
    """
    rows: dict[str, JobState] = {}
    for row_text in text.splitlines():
        job, state, reason, node, name, script = [*row_text.split("|", 5), "", "", "", "", ""][:6]
        if not job or not state:
            continue
        # sacct adds the user who cancelled a job: "CANCELLED by 0".
        reason = reason if reason not in ("None", "0:0") else ""
        row = JobState(job, state.split()[0], reason, node if node != "None assigned" else "", name, script)
        array, _, index = job.partition("_")
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", index.strip("[]").partition("%")[0]):
            for i in range(int(first), int(last or first) + 1):
                rows.setdefault(f"{array}_{i}", replace(row, id=f"{array}_{i}"))
        if not index:
            rows[array] = row
    return rows


def _by_id(jobs: Iterable[str], rows: Mapping[str, JobState]) -> dict[str, JobState]:
    row_of = {job: rows.get(job) or rows.get(job.partition("_")[0]) for job in jobs}
    return {job: replace(row, id=job) for job, row in row_of.items() if row}


def minutes_of(limit: object) -> int | None:
    """Return a time limit in minutes, rounded up; None if it has none of Slurm's formats.

    The formats are minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
    days-hours:minutes:seconds.

    >>> minutes_of(90), minutes_of("1:30:00"), minutes_of("2-12"), minutes_of("0:30"), minutes_of("1h")
    (90, 90, 3600, 1, None)
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(limit).strip())
    if match is None or isinstance(limit, bool):
        return None
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is None and match[4] is None:
        hours, minutes, seconds = 0, first, second
    else:
        hours, minutes, seconds = first, second, third
    return days * 1440 + hours * 60 + minutes + (seconds + 59) // 60


def max_array() -> int:
    """Return the maximum number of jobs in an array: indices are below MaxArraySize."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", _config(), re.MULTILINE)
    # 0 disables arrays; jobs are then submitted one by one.
    return max(1, int(match[1])) if match else DEFAULT_MAX_ARRAY


def hides_other_users() -> bool:
    """Whether Slurm shows a user only the user's own jobs (``PrivateData=jobs``)."""
    match = re.search(r"^PrivateData\s*=\s*(.*)$", _config(), re.MULTILINE)
    return os.getuid() != 0 and match is not None and bool({"jobs", "all"} & set(match[1].strip().split(",")))


def _config() -> str:
    try:
        return ask("scontrol", "show", "config")
    except Silent:
        return ""


def session_free(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of an interactive Slurm session, which would change new jobs.

    ``SLURM_CONF`` locates Slurm. Outside a session, ``SBATCH_*`` are defaults that the user has chosen.
    """
    session = ["SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", *(["SBATCH_"] if "SLURM_JOB_ID" in environment else [])]
    return {key: text for key, text in environment.items() if key == "SLURM_CONF" or not key.startswith(tuple(session))}


def submit(executor: SlurmExecutor, jobs: int, name: str) -> str:
    """Submit an array of jobs with Submitit; return its number. Passing errors are retried.

    Args:
        executor: Submitit's executor, whose command is that of the jobs (`Slurm._executor`).
        jobs: number of jobs.
        name: a name that no other job has. After an error, Slurm may have accepted the jobs nevertheless; they are
            then found by this name.

    Raises:
        Rejected: Slurm rejected the jobs.
        Silent: Slurm did not answer; the jobs may have been submitted.
    """
    known = True  # whether no job of this name exists
    for attempt, delay in enumerate((*DELAYS, None), 1):
        problem = "squeue does not answer"
        if known:
            number, problem = _sbatch(executor, jobs)
            if number:
                return number
            if not PASSING.search(problem):
                raise Rejected(problem)
        if delay is None:
            raise Silent(problem)
        note(f"sbatch: {problem}; attempt {attempt + 1} of {len(DELAYS) + 1} in {delay:g} s")
        time.sleep(delay)
        try:
            if number := number_of(name):
                return number
            known = True
        except Silent:
            known = False
    raise AssertionError


def number_of(name: str) -> str:
    """Return the number of the job or array with a name, or an empty text; raise `Silent`."""
    rows = _rows(ask("squeue", "--noheader", "--all", "--states=all", f"--name={name}", "-o", "%F|%T|%r|%N|%j"))
    return next((job.partition("_")[0] for job, row in rows.items() if row.name == name), "")


def _sbatch(executor: SlurmExecutor, jobs: int) -> tuple[str, str]:
    """Have Submitit call ``sbatch``, and print its retries; return the number of the array, or the error."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    waiting = f"xclrun: waiting for Slurm: sbatch has not answered for {PATIENCE:.0f} s; is slurmctld running?"
    try:
        # Submitit prints the errors of sbatch itself too.
        with if_slow(waiting, seconds=PATIENCE), _session_left(), contextlib.redirect_stderr(io.StringIO()):
            submitted = executor.submit_array([print] * jobs)
        return submitted[0].job_id.partition("_")[0], ""
    except FailedSubmissionError as error:
        # The jobs may exist; they are looked up by their name (`PASSING`).
        return "", f"no job number; try again ({brief(str(error), LINE)})"
    except FailedJobError as error:
        for text in str(error).splitlines():
            if RETRYING.search(text):
                note(brief(text, LINE))
        return "", verdict(str(error)) or "sbatch failed without a message"
    except OSError as error:
        raise UsageError(f"cannot run sbatch ({error.strerror}); use a login node of the cluster") from error
    finally:
        # The jobs do not read the pickles of these functions (`job.main`).
        for pickle in executor.folder.glob("*.pkl"):
            pickle.unlink(missing_ok=True)


@contextlib.contextmanager
def _session_left() -> Iterator[None]:
    """Leave an interactive Slurm session for the block: Submitit hands this process's environment to ``sbatch``."""
    before = dict(os.environ)
    left = before.keys() - session_free(before).keys()
    for name in left:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update({name: before[name] for name in left})


def cancel(jobs: Sequence[str]) -> list[str]:
    """Cancel jobs; return the distinct errors of ``scancel``."""
    errors: dict[str, None] = {}
    for chunk in _chunks(jobs):
        try:
            done = subprocess.run(["scancel", *chunk], capture_output=True, timeout=TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            errors[f"scancel: {type(error).__name__}"] = None
            continue
        for problem in done.stderr.decode(errors="replace").splitlines():
            # Without the number of the job: thousands of jobs have the same error.
            text = re.sub(r"^.* job id [\d_]+: ", "", problem.removeprefix("scancel: error: "))
            errors[brief(text, LINE)] = None
        if done.returncode and not done.stderr.strip():
            errors[f"scancel failed with exit code {done.returncode}"] = None
    return list(errors)


def still_running(jobs: Sequence[str]) -> set[str]:
    """Return the jobs that are still queued or running, some seconds after `cancel`; a job that ends is not running."""
    left = set(jobs)
    for seconds in CANCEL_LOOKS:
        time.sleep(seconds)
        numbers = sorted({job.partition("_")[0] for job in left})
        with contextlib.suppress(Silent):
            rows: dict[str, JobState] = {}
            for chunk in _chunks(numbers):
                rows |= _rows(ask("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%i|%T|%r", "-j", ",".join(chunk)))
            known = _by_id(left, rows)
            left = {job for job in left if job in known and known[job].live and known[job].state != "COMPLETING"}
        if not left:
            break
    return left


def requeue(job: str) -> str:
    """Return a job to the queue, which ends its current attempt; return an error, or an empty text."""
    try:
        ask("scontrol", "requeue", job)
    except Silent as silent:
        return str(silent)
    return ""


def last_line(log: Path) -> str:
    """Return the last line of a job's log that says something about its end."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    boilerplate = re.compile(
        r"Exited with exit code|Terminating StepId|forcing job termination|Waiting up to|got SIG|task launch|First task"
    )
    return next((brief(line, LINE) for line in reversed(lines) if line.strip() and not boilerplate.search(line)), "")


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun would set, for a task of a job with several tasks.

    >>> slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
    >>> slurm |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "rack[1-2]gpu[07,09-11],cpu3"}
    >>> found = rank_variables(slurm)
    >>> found["MASTER_ADDR"], found["RANK"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]
    ('rack1gpu07', '3', '1', '2')
    """
    # The first node: of each list in brackets, the first number.
    nodes = re.sub(r"\[(\w+)[^]]*\]", r"\1", environment.get("SLURM_JOB_NODELIST", ""))
    size, job = int(environment["SLURM_NTASKS"]), environment["SLURM_JOB_ID"]
    return {
        "MASTER_ADDR": nodes.partition(",")[0] or os.uname().nodename,
        # The same port in all tasks of a job; jobs on one node need different ports.
        "MASTER_PORT": str(20000 + int(hashlib.sha256(job.encode()).hexdigest(), 16) % 40000),
        "WORLD_SIZE": str(size),
        "RANK": environment.get("SLURM_PROCID", "0"),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(size // int(environment.get("SLURM_JOB_NUM_NODES", "1"))),
    }


def this_job() -> str | None:
    """Return the ID of the job of this process, or None."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID")
