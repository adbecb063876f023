"""Compare the setup of a paper's experiments with ours, in the notes of tables with published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xclrun.analysis.record import RunRecord
from xclrun.core.task import BY_NAME

# Papers round the sizes of their data: sizes that differ by at most this share count as equal.
ROUNDED = 0.03
SPAN_F1 = {"span_micro": "micro F1 over labeled spans", "tag_macro": "macro F1 over tag strings"}
UNKNOWN = "unknown"
# If these items differ, values cannot be compared.
DECISIVE = ("dataset", "encoder", "training examples per key", "test examples per key", "metric")


@dataclass(frozen=True)
class Setup:
    """The setup of a paper's experiment; None stands for an unknown value.

    Attributes:
        dataset, encoder: names in ``conf/``.
        train, test: minimum and maximum number of examples of a key; (0, n): at most n.
        steps: length of training, as `_steps` writes it.
        seeds: the seeds, or their number.
        metrics: our name of a metric → the paper's name and definition.
        sizes: compare ``train``; False for few-shot tables, which have a column for each size.
    """

    paper: str
    dataset: str | None
    encoder: str
    train: tuple[int, int] | None = None
    test: tuple[int, int] | None = None
    steps: str | None = None
    seeds: tuple[int, ...] | int | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    sizes: bool = True


def setup_notes(paper: Setup, runs: Sequence[RunRecord], metrics: Iterable[str] = ()) -> list[str]:
    """Return notes on the items of the setup that differ or are unknown, on items that agree, and on comparability.

    Args:
        runs: the runs behind the table.
        metrics: names of the table's metrics.
    """
    ours_trained = _range(n for run in runs for n in _trained(run))
    ours_tested = _range(n for run in runs for n in run.sizes.get("test", {}).values())
    seeds = tuple(sorted({run.seed for run in runs}))
    expected = paper.seeds if isinstance(paper.seeds, int) else tuple(sorted(paper.seeds or ()))
    same_seeds = expected in (seeds, len(seeds))
    steps, dataset = _joined(map(_steps, runs)), _joined(run.dataset for run in runs)
    updates = _range(int(run.costs["updates"]) for run in runs if "updates" in run.costs)
    count = "" if updates is None else f" ({_sizes(updates)} updates per run, over all hops)"
    layers = {run: run.config.get("model", {}).get("layers") for run in runs}
    encoder = _joined(run.model if n is None else f"{run.model} ({n} layers)" for run, n in layers.items())
    # Name → (the paper's value, our value, whether they are equal).
    items: dict[str, tuple[str, str, bool]] = {
        "dataset": (paper.dataset or UNKNOWN, dataset, dataset == paper.dataset),
        "encoder": (paper.encoder, encoder, encoder == paper.encoder),
        "training examples per key": (_sizes(paper.train), _sizes(ours_trained), _close(paper.train, ours_trained)),
        "test examples per key": (_sizes(paper.test), _sizes(ours_tested), _close(paper.test, ours_tested)),
        "training": (paper.steps or UNKNOWN, f"{steps}{count}", steps == paper.steps),
        "seeds": (_seeds(paper.seeds), _seeds(seeds), same_seeds),
    }
    if not paper.sizes:
        del items["training examples per key"]
    if names := list(metrics):
        theirs = ", ".join(paper.metrics.get(name, UNKNOWN) for name in names)
        ours = ", ".join(_joined(_metric(name, run) for run in runs) for name in names)
        items["metric"] = (theirs, ours, theirs == ours)
    differ = [f"{name} {theirs} → {ours}" for name, (theirs, ours, same) in items.items() if not same]
    agree = [f"{name} {ours}" for name, (_, ours, same) in items.items() if same]
    notes = [f"setup ({paper.paper} → our runs): {'; '.join(differ)}"] if differ else []
    notes += [f"setup as in {paper.paper}: {'; '.join(agree)}"] if agree else []
    if any(name in DECISIVE and not same for name, (_, _, same) in items.items()):
        notes.append("the setups differ: compare ranks, not values")
    return notes


def _trained(run: RunRecord) -> list[int]:
    keys = {key for hop in range(1, run.hops + 1) for key in run.trains(hop)}
    return [n for key, n in run.sizes.get("train", {}).items() if key in keys]


def _steps(run: RunRecord) -> str:
    """Return the length of a run's training: ``10 epochs, batch 16``."""
    trainer = run.config.get("trainer", {})
    if "epochs" not in trainer:
        return UNKNOWN
    mixed = f"{trainer['mixture_steps']:,} mixture steps, " if trainer.get("mixture_steps") else ""
    size = "of all examples" if trainer.get("batch_size") is None else trainer["batch_size"]
    return f"{mixed}at most {trainer['epochs']} epoch{'s' if trainer['epochs'] > 1 else ''}, batch {size}"


def _metric(metric: str, run: RunRecord) -> str:
    title = BY_NAME[metric].title
    return f"{title} ({SPAN_F1.get(run.slot_f1, run.slot_f1)})" if BY_NAME[metric].span_f1 else title


def _joined(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _range(sizes: Iterable[int]) -> tuple[int, int] | None:
    sizes = list(sizes)
    return (min(sizes), max(sizes)) if sizes else None


def _sizes(sizes: tuple[int, int] | None) -> str:
    if sizes is None:
        return UNKNOWN
    low, high = sizes
    return f"{high:,}" if low == high else f"{low:,} to {high:,}" if low else f"at most {high:,}"


def _close(theirs: tuple[int, int] | None, ours: tuple[int, int] | None) -> bool:
    if theirs is None or ours is None:
        return False
    low_fits = theirs[0] == 0 or abs(ours[0] - theirs[0]) <= ROUNDED * theirs[0]
    return low_fits and abs(ours[1] - theirs[1]) <= ROUNDED * theirs[1]


def _seeds(seeds: tuple[int, ...] | int | None) -> str:
    if seeds is None:
        return UNKNOWN
    return f"{seeds} seeds" if isinstance(seeds, int) else ", ".join(map(str, seeds))
