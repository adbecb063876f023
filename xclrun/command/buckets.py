"""``xclrun data buckets make|check|show``: draw, check and show few-shot training sets."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.command.common import Parser
from xclrun.config.schema import BucketCounts
from xclrun.core.errors import UsageError

if TYPE_CHECKING:
    from xclrun.config.schema import Config
    from xclrun.data.buckets.check import Violation
    from xclrun.data.buckets.layout import Bucket
    from xclrun.data.example import Dataset
    from xclrun.report.tables import Table


def main(arguments: Sequence[str]) -> int:
    """Make, check or show buckets; return the exit code: 1 if a check fails."""
    parser = Parser(
        prog="xclrun data buckets",
        description="Few-shot training sets (buckets) for every language of the dataset, drawn as dataset.buckets "
        "specifies. make writes them in the published layout. check verifies their properties (counts, "
        "minimality, disjointness, no duplicates, no overlap with dev and test), lists violations, and exits with code "
        "1 if there are any. show prints their contents.",
        usage="xclrun data buckets make KEY=VALUE … shots=1,2 bucket=range(0,9) --to DIR\n"
        "       xclrun data buckets check|show KEY=VALUE … shots=… bucket=… [--json]\n"
        "       xclrun data buckets check|show [KEY=VALUE …] --from DIR [--json]",
    )
    parser.add_argument("action", choices=["make", "check", "show"], help="the action")
    parser.add_overrides(", such as dataset=mtop")
    parser.add_argument("--to", type=Path, metavar="DIR", help="make: where to write")
    parser.add_argument("--from", type=Path, metavar="DIR", dest="folder", help="files in the published layout")
    parser.add_argument(
        "--counts",
        choices=[c.value for c in BucketCounts],
        default="words",
        help="whether K counts words or sentences with each tag, in Minimum-Including files that do not record it "
        "(default: %(default)s)",
    )
    parser.add_argument("--sentences", action="store_true", help="show: also print every sentence")
    parser.add_json()
    args = parser.parse_with_overrides(arguments)
    if args.action == "make":
        return _make(args)
    groups = _from_files(args) if args.folder is not None else _drawn(args)
    return (_check if args.action == "check" else _show)(args, groups)


# Task, its buckets, and the dataset to check them against, if any.
Group = tuple[str, "list[Bucket]", "Dataset | None"]


def _configs(overrides: Sequence[str], action: str) -> list[Config]:
    """Return the configs of a command's jobs, which share one dataset."""
    from xclrun.compose.jobs import compose_command
    from xclrun.config.checks import check

    configs = [job.config for job in compose_command(overrides)]
    for config in configs:
        check(config)
    if any(config.dataset != configs[0].dataset for config in configs):
        raise UsageError(f"buckets {action}: one dataset at a time; only shots and bucket may have several values")
    return configs


def _drawn(args: argparse.Namespace) -> list[Group]:
    """Draw the buckets of a command."""
    from xclrun.data.buckets.draw import bucket_of
    from xclrun.data.load import read_whole

    configs = _configs(args.overrides, args.action)
    if configs[0].shots is None:
        raise UsageError(f"buckets {args.action}: needs shots=K, as in shots=1,2,4 bucket=range(0,40)")
    draws = sorted({(config.shots or 0, config.bucket or 0) for config in configs})
    dataset = configs[0].dataset
    whole = read_whole(dataset)
    drawn = [bucket_of(dataset, whole, language, *which) for language in whole.languages for which in draws]
    return [(dataset.name, drawn, whole)]


def _from_files(args: argparse.Namespace) -> list[Group]:
    """Read the buckets in a folder, by task; overrides select a dataset, shots and buckets."""
    from xclrun.data.buckets.layout import load, walk
    from xclrun.data.load import read_whole

    if not args.folder.is_dir():
        raise UsageError(f"--from {args.folder}: folder not found")
    places, whole = list(walk(args.folder)), None
    if not places:
        raise UsageError(f"--from {args.folder}: contains no buckets; expected [TASK/]K-shots/LANGUAGE/b-th")
    if args.overrides:
        configs = _configs(args.overrides, args.action)
        whole = read_whole(configs[0].dataset)
        draws = {(config.shots, config.bucket) for config in configs}
        places = [
            (task, language, shots, number, folder)
            for task, language, shots, number, folder in places
            if task in (".", whole.name) and language in whole.languages
            if any(k in (None, shots) and b in (None, number) for k, b in draws)
        ]
        if not places:
            raise UsageError(
                f"--from {args.folder}: contains none of the requested buckets of dataset {whole.name} "
                f"({', '.join(whole.languages)})"
            )
    groups: dict[str, list[Bucket]] = {}
    for task, language, shots, number, folder in places:
        bucket = load(folder, language, shots, number, allow_empty=True)
        groups.setdefault(args.folder.resolve().name if task == "." else task, []).append(bucket)
    return [(task, buckets, whole) for task, buckets in groups.items()]


def _make(args: argparse.Namespace) -> int:
    from xclrun.data.buckets.layout import write
    from xclrun.store.files import check_target

    if args.to is None:
        raise UsageError("buckets make: needs --to DIR, the folder to write to")
    if args.folder is not None:
        raise UsageError("buckets make: --from is only for check and show; to read files, set dataset.buckets.root=DIR")
    check_target(args.to, "choose another folder with --to DIR")
    [(task, buckets, _)] = _drawn(args)
    folder = args.to / task
    new = sum([write(folder, bucket) for bucket in buckets])
    if args.json:
        _print_json({"folder": str(folder), "written": new, "unchanged": len(buckets) - new})
        return 0
    print(_sizes(task, buckets).text(80))
    print(f"{folder}: {new} written, {len(buckets) - new} unchanged")
    print(f"Use them with dataset.buckets.sampler=files dataset.buckets.root={args.to}")
    return 0


def _check(args: argparse.Namespace, groups: Sequence[Group]) -> int:
    from xclrun.data.buckets.check import violations

    checked = [(task, buckets, violations(buckets, whole, args.counts)) for task, buckets, whole in groups]
    broken = [(task, violation) for task, _, of_task in checked for violation in of_task]
    if args.json:
        _print_json(
            [
                {"task": task, "buckets": len(buckets), "violations": list(map(asdict, of_task))}
                for task, buckets, of_task in checked
            ]
        )
        return int(bool(broken))
    for group in checked:
        print(_sizes(*group).text(80))
    for task, violation in broken:
        print(f"{task}/{violation.line()}")
    total = sum(len(buckets) for _, buckets, _ in groups)
    against = "" if all(whole is not None for *_, whole in groups) else " (overlap with dev and test: not checked)"
    if not broken:
        print(f"{total} buckets have all required properties{against}.")
        return 0
    which = len({(task, _key(violation)) for task, violation in broken})
    print(f"{len(broken)} violations in {which} of {total} buckets{against}.")
    return 1


def _key(violation: Violation) -> tuple[str, int, int]:
    return violation.language, violation.shots, violation.bucket


def _show(args: argparse.Namespace, groups: Sequence[Group]) -> int:
    from xclrun.data.example import fingerprint

    if args.json:
        fields = ("id", "label", "tokens", "tags", "text", "text_b")
        _print_json(
            [
                {
                    "task": task,
                    "language": bucket.language,
                    "shots": bucket.shots,
                    "bucket": bucket.number,
                    "fingerprint": fingerprint(bucket.examples),
                    "drawn": bucket.drawn,
                    "names": _names(bucket),
                    "examples": [{name: getattr(e, name) for name in fields} for e in bucket.examples],
                }
                for task, buckets, _ in groups
                for bucket in buckets
            ]
        )
        return 0
    for task, buckets, _ in groups:
        print(_contents(task, buckets).text(80))
        for bucket in buckets if args.sentences else ():
            print(f"{task}/{bucket.name}")
            for e in bucket.examples:
                words = [f"{w}/{t}" for w, t in zip(e.tokens, e.tags, strict=True)] if e.tags else list(e.tokens)
                pair = "" if e.text_b is None else f" ‖ {e.text_b}"
                print(f"  {e.id}  {e.label or ''}  {' '.join(words)}{pair}".rstrip())
            print()
    return 0


def _print_json(facts: object) -> None:
    print(json.dumps(facts, indent=1, ensure_ascii=False))


def _names(bucket: Bucket) -> dict[str, int]:
    """Return class → number of examples of a bucket, or tag → number of words."""
    names = [e.label for e in bucket.examples if e.label is not None]
    tags = [tag for e in bucket.examples for tag in e.tags or ()]
    return dict(sorted(Counter(map(str, names or tags)).items()))


def _contents(task: str, buckets: Sequence[Bucket]) -> Table:
    from xclrun.data.example import fingerprint
    from xclrun.report.tables import Table

    rows = []
    for bucket in buckets:
        names = _names(bucket)
        words = sum(len(e.tokens) for e in bucket.examples)
        counts = f"{len(names)}, {min(names.values())}–{max(names.values())} times" if names else "none"
        rows.append((bucket.name, str(len(bucket.examples)), str(words), counts, fingerprint(bucket.examples)[:12]))
    return Table(
        f"Buckets of {task}",
        ("bucket", "sentences", "words", "classes or tags", "fingerprint"),
        tuple(rows),
        ("classes or tags: number of different ones, and how often the rarest and the most frequent occur",),
    )


def _sizes(task: str, buckets: Sequence[Bucket], broken: Sequence[Violation] | None = None) -> Table:
    """Return sizes by language and K; ``broken`` adds the number of buckets with violations."""
    from xclrun.report.tables import Table

    groups: dict[tuple[str, int], list[Bucket]] = {}
    for bucket in buckets:
        groups.setdefault((bucket.language, bucket.shots), []).append(bucket)
    rows = []
    # Each bucket counts once.
    failed = Counter((language, shots) for language, shots, _ in {*map(_key, broken or ())})
    for (language, shots), group in groups.items():
        sizes = [len(b.examples) for b in group]
        words = statistics.mean(sum(len(e.tokens) for e in b.examples) for b in group)
        row = [language, str(shots), str(len(group)), f"{min(sizes)}–{max(sizes)}", f"{statistics.mean(sizes):.1f}"]
        rows.append((*row, f"{words:.0f}", *([] if broken is None else [str(failed[language, shots])])))
    header = ("language", "K", "buckets", "sentences", "mean", "words", *([] if broken is None else ["broken"]))
    notes = ("sentences: smallest to largest bucket; mean: sentences per bucket; words: mean number per bucket",)
    broken_note = "broken: buckets with a violation"
    return Table(f"Buckets of {task}", header, tuple(rows), notes if broken is None else (*notes, broken_note))
