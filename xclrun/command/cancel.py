"""``xclrun cancel``: cancel the Slurm jobs of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.command.common import Unreadable, chosen_sweeps, outputs_parser


def main(arguments: Sequence[str]) -> int:
    """Cancel queued and running jobs; return the exit code."""
    parser = outputs_parser(
        "cancel", "End the Slurm jobs of a sweep. Running jobs save a checkpoint first; re-run the command to resume."
    )
    parser.add_sweep()
    args = parser.parse_args(arguments)

    from xclrun.core.errors import RunError
    from xclrun.core.terminal import many
    from xclrun.launch.cluster.files import submissions
    from xclrun.launch.cluster.slurm import cancel, states

    unreadable = Unreadable()
    names = [sweep["name"] for sweep in chosen_sweeps(args.outputs, args.sweep, unreadable)]
    submitted = [job for name in names for s in submissions(args.outputs, name, unreadable) for job, _ in s.jobs()]
    jobs = [job.id for job in submitted if job.on_cluster]
    state_of = states(jobs)
    if any(state.state == "" for state in state_of.values()):
        raise RunError("Slurm does not answer; no job was cancelled; try again later")
    live = [job for job in jobs if state_of[job].live]
    cancel(live)
    print(f"{many(len(live), 'job')} of {', '.join(names)} cancelled")
    return unreadable.code
