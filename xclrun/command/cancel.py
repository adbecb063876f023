"""``xclrun cancel``: end the jobs of a sweep on the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.command.common import Unreadable, chosen_sweeps, parser


def main(arguments: Sequence[str]) -> int:
    """Cancel what is queued or runs; return the exit code."""
    options = parser(
        "cancel", "End the Slurm jobs of a sweep. What runs saves a checkpoint first; the same command goes on."
    )
    options.add_argument("sweep", nargs="?", help="name of a sweep, or `all` (default: the one that was started last)")
    given = options.parse_args(arguments)

    from xclrun.core.errors import RunError
    from xclrun.core.terminal import many
    from xclrun.launch.cluster.files import submissions
    from xclrun.launch.cluster.slurm import cancel, states

    unreadable = Unreadable()
    names = [sweep["name"] for sweep in chosen_sweeps(given.outputs, given.sweep, unreadable)]
    given_away = [job for name in names for s in submissions(given.outputs, name, unreadable) for job, _ in s.jobs()]
    jobs = [job.id for job in given_away if job.on_cluster]
    state_of = states(jobs)
    if any(state.state == "" for state in state_of.values()):
        raise RunError("Slurm does not answer; nothing is cancelled")
    live = [job for job in jobs if state_of[job].live]
    cancel(live)
    print(f"{many(len(live), 'job')} of {', '.join(names)} cancelled")
    return unreadable.code
