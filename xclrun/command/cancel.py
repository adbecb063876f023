"""``xclrun cancel``: cancel the Slurm jobs of a sweep."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from xclrun.command.common import Unreadable, chosen_sweeps, outputs_parser


def main(arguments: Sequence[str]) -> int:
    """Cancel queued and running jobs; return the exit code."""
    parser = outputs_parser(
        "cancel", "End the Slurm jobs of a sweep. Running jobs save a checkpoint first; re-run the command to resume."
    )
    parser.add_sweep()
    args = parser.parse_args(arguments)

    from xclrun.core.errors import RunError, XclrunError
    from xclrun.core.terminal import many, note
    from xclrun.launch.cluster import slurm
    from xclrun.launch.cluster.files import submitting
    from xclrun.launch.cluster.lookup import find_jobs, user_name

    unreadable = Unreadable()
    names = [sweep["name"] for sweep in chosen_sweeps(args.outputs, args.sweep, unreadable)]
    with submitting(args.outputs):
        jobs = find_jobs(args.outputs, unreadable)
        submitted = {job.id: job for s in jobs.submissions if s.sweep in names for job, _ in s.jobs() if job.on_cluster}
        states = jobs.states(submitted.values())
        silent = [state for state in states.values() if state.state == ""]
        if jobs.silence and (submitted or jobs.undecided):
            raise RunError(f"Slurm does not answer ({jobs.silence}); no job was cancelled; try again later")
        live = {job: submitted[job] for job, state in states.items() if state.live}
        # Before the jobs end, because a job that has not started leaves no trace in Slurm.
        for job in live.values():
            with contextlib.suppress(XclrunError):
                job.files.add_event("cancelled")
        errors = slurm.cancel(list(live))
        left = slurm.still_running(list(live)) if live else set()
    print(f"{many(len(live) - len(left), 'job')} of {', '.join(names)} cancelled")
    for error in errors:
        note(f"scancel: {error}")
    for state in silent:
        note(str(state))
    if left:
        owners = ", ".join(sorted({user_name(live[job].user) for job in left}))
        raise RunError(f"{many(len(left), 'job')} not cancelled ({owners}): {errors[0] if errors else 'still queued'}")
    return int(bool(unreadable.code or silent))
