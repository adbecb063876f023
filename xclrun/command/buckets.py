"""``xclrun buckets make|check|show``: few-shot training sets as files, and what they hold."""

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
    """Make, check or show buckets; return the exit code: 1 where a check finds something."""
    parser = Parser(
        prog="xclrun buckets",
        description="Few-shot training sets as dataset.buckets describes them, for every language of the dataset. "
        "make writes them in the published layout; check proves their properties (counts, minimality, disjointness, "
        "no duplicates, no overlap with dev and test) and names what breaks which, with exit code 1; show tells what "
        "they hold.",
        usage="xclrun buckets make KEY=VALUE … shots=1,2,4 bucket=range(0,40) --to DIR\n"
        "       xclrun buckets check|show KEY=VALUE … shots=… bucket=… [--json]\n"
        "       xclrun buckets check|show [KEY=VALUE …] --from DIR [--json]",
    )
    parser.add_argument("what", choices=["make", "check", "show"], help="what to do")
    parser.add_overrides(", such as dataset=mtop")
    parser.add_argument("--to", type=Path, metavar="DIR", help="make: where to write")
    parser.add_argument("--from", type=Path, metavar="DIR", dest="folder", help="files in the published layout")
    parser.add_argument(
        "--counts",
        choices=[c.value for c in BucketCounts],
        default="words",
        help="what K of Minimum-Including counts, for files that do not say (default: %(default)s)",
    )
    parser.add_argument("--sentences", action="store_true", help="show: every sentence too")
    parser.add_json()
    args = parser.parse_with_overrides(arguments)
    if args.what == "make":
        return _make(args)
    groups = _from_files(args) if args.folder is not None else _drawn(args)
    return (_check if args.what == "check" else _show)(args, groups)


# Buckets of one task, and the dataset that they are held against, if any.
Group = tuple[str, "list[Bucket]", "Dataset | None"]


def _configs(overrides: Sequence[str], what: str) -> list[Config]:
    """Return the configs of a command's jobs, which have the dataset in common."""
    from xclrun.compose.jobs import compose_command
    from xclrun.config.checks import check

    configs = [job.config for job in compose_command(overrides)]
    for config in configs:
        check(config)
    if any(config.dataset != configs[0].dataset for config in configs):
        raise UsageError(f"buckets {what}: one dataset at a time; what may have several values are shots and bucket")
    return configs


def _drawn(args: argparse.Namespace) -> list[Group]:
    """Return the buckets that a command describes."""
    from xclrun.data.buckets.draw import bucket_of
    from xclrun.data.load import read_whole

    configs = _configs(args.overrides, args.what)
    if configs[0].shots is None:
        raise UsageError(f"buckets {args.what}: shots=K is needed, as in shots=1,2,4 bucket=range(0,40)")
    wanted = dict.fromkeys((config.shots or 0, config.bucket or 0) for config in configs)
    dataset = configs[0].dataset
    whole = read_whole(dataset)
    drawn = [bucket_of(dataset, whole, language, *which) for language in whole.languages for which in sorted(wanted)]
    return [(dataset.name, drawn, whole)]


def _from_files(args: argparse.Namespace) -> list[Group]:
    """Return the buckets in a folder, by task; held against the dataset of the overrides, where there are any."""
    from xclrun.data.buckets.layout import load, walk
    from xclrun.data.load import read_whole

    if not args.folder.is_dir():
        raise UsageError(f"--from {args.folder}: there is no such folder")
    there = list(walk(args.folder))
    if not there:
        raise UsageError(f"--from {args.folder}: no bucket is in it; looked for [TASK/]K-shots/LANGUAGE/b-th")
    whole = None
    if args.overrides:
        configs = _configs(args.overrides, args.what)
        whole = read_whole(configs[0].dataset)
        wanted = {(c.shots, c.bucket) for c in configs}
        there = [
            (task, language, shots, number, folder)
            for task, language, shots, number, folder in there
            if task in (".", whole.name) and language in whole.languages
            if any(k in (None, shots) and b in (None, number) for k, b in wanted)
        ]
        if not there:
            raise UsageError(
                f"--from {args.folder}: no bucket that was asked for, in a folder {whole.name}, of a language of the "
                f"dataset: {', '.join(whole.languages)}"
            )
    groups: dict[str, list[Bucket]] = {}
    for task, language, shots, number, folder in there:
        groups.setdefault(args.folder.resolve().name if task == "." else task, []).append(
            load(folder, language, shots, number, allow_empty=True)
        )
    return [(task, buckets, whole) for task, buckets in groups.items()]


def _make(args: argparse.Namespace) -> int:
    from xclrun.data.buckets.layout import write

    if args.to is None:
        raise UsageError("buckets make: --to DIR is needed, where to write")
    if args.folder is not None:
        raise UsageError("buckets make: --from is for check and show; files are used with dataset.buckets.root=DIR")
    [(task, buckets, _)] = _drawn(args)
    new = sum([write(args.to / task, bucket) for bucket in buckets])
    if args.json:
        print(json.dumps({"folder": str(args.to / task), "written": new, "unchanged": len(buckets) - new}, indent=1))
        return 0
    print(_sizes(task, buckets, None).text(80))
    print(f"{args.to / task}: {new} written, {len(buckets) - new} were there already")
    print(f"to use them: dataset.buckets.sampler=files dataset.buckets.root={args.to}")
    return 0


def _check(args: argparse.Namespace, groups: Sequence[Group]) -> int:
    from xclrun.data.buckets.check import violations

    broken_of = {task: violations(buckets, whole, args.counts) for task, buckets, whole in groups}
    number = sum(map(len, broken_of.values()))
    if args.json:
        facts = [
            {"task": task, "buckets": len(buckets), "violations": [asdict(v) for v in broken_of[task]]}
            for task, buckets, _ in groups
        ]
        print(json.dumps(facts, indent=1, ensure_ascii=False))
        return int(number > 0)
    for task, buckets, _ in groups:
        print(_sizes(task, buckets, broken_of[task]).text(80))
    for task, broken in broken_of.items():
        print("\n".join(f"{task}/{v.line()}" for v in broken), end="\n" * bool(broken))
    total = sum(len(buckets) for _, buckets, _ in groups)
    against = "" if all(whole is not None for *_, whole in groups) else " (overlap with dev and test: not checked)"
    if not number:
        print(f"{total} buckets have all properties{against}.")
        return 0
    which = len({(task, v.language, v.shots, v.bucket) for task, broken in broken_of.items() for v in broken})
    print(f"{number} violations in {which} of {total} buckets{against}.")
    return 1


def _show(args: argparse.Namespace, groups: Sequence[Group]) -> int:
    from xclrun.data.example import fingerprint

    facts = [
        {
            "task": task,
            "language": b.language,
            "shots": b.shots,
            "bucket": b.number,
            "fingerprint": fingerprint(b.examples),
            "drawn": b.drawn,
            "names": _names(b),
            "examples": [
                {"id": e.id, "label": e.label, "tokens": e.tokens, "tags": e.tags, "text": e.text, "text_b": e.text_b}
                for e in b.examples
            ],
        }
        for task, buckets, _ in groups
        for b in buckets
    ]
    if args.json:
        print(json.dumps(facts, indent=1, ensure_ascii=False))
        return 0
    for (task, buckets, _), table in zip(groups, (_contents(t, b) for t, b, _ in groups), strict=True):
        print(table.text(80))
        for b in buckets if args.sentences else ():
            print(f"{task}/{b.name}")
            for e in b.examples:
                words = [f"{w}/{t}" for w, t in zip(e.tokens, e.tags, strict=True)] if e.tags else list(e.tokens)
                pair = "" if e.text_b is None else f" ‖ {e.text_b}"
                print(f"  {e.id}  {e.label or ''}  {' '.join(words)}{pair}".rstrip())
            print()
    return 0


def _names(bucket: Bucket) -> dict[str, int]:
    """Return how often each class, or each tag, is in a bucket."""
    names = [e.label for e in bucket.examples if e.label is not None]
    tags = [tag for e in bucket.examples for tag in e.tags or ()]
    return dict(sorted(Counter(map(str, names or tags)).items()))


def _contents(task: str, buckets: Sequence[Bucket]) -> Table:
    from xclrun.data.example import fingerprint
    from xclrun.report.tables import Table

    rows = []
    for b in buckets:
        names = _names(b)
        words = sum(len(e.tokens) for e in b.examples)
        held = f"{len(names)}, {min(names.values())}–{max(names.values())} times" if names else "none"
        rows.append((b.name, str(len(b.examples)), str(words), held, fingerprint(b.examples)[:12]))
    return Table(
        f"Buckets of {task}",
        ("bucket", "sentences", "words", "classes or tags", "fingerprint"),
        tuple(rows),
        ("classes or tags: how many there are, and how often the rarest and the commonest one is there",),
    )


def _sizes(task: str, buckets: Sequence[Bucket], broken: Sequence[Violation] | None) -> Table:
    from xclrun.report.tables import Table

    groups: dict[tuple[str, int], list[Bucket]] = {}
    for bucket in buckets:
        groups.setdefault((bucket.language, bucket.shots), []).append(bucket)
    lacking = {(v.language, v.shots, v.bucket) for v in broken or ()}
    rows = []
    for (language, shots), group in groups.items():
        sizes = [len(b.examples) for b in group]
        words = statistics.mean(sum(len(e.tokens) for e in b.examples) for b in group)
        row = [language, str(shots), str(len(group)), f"{min(sizes)}–{max(sizes)}", f"{statistics.mean(sizes):.1f}"]
        row.append(f"{words:.0f}")
        if broken is not None:
            row.append(str(sum((language, shots, b.number) in lacking for b in group)))
        rows.append(tuple(row))
    header = ("language", "K", "buckets", "sentences", "mean", "words")
    return Table(
        f"Buckets of {task}",
        header if broken is None else (*header, "broken"),
        tuple(rows),
        ("sentences, mean: of a bucket; words: mean of a bucket",)
        + (() if broken is None else ("broken: buckets that lack a property",)),
    )
