"""``xclrun data audit``: check a dataset before training on it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.command.common import Parser
from xclrun.core.errors import UsageError
from xclrun.core.terminal import as_note, many

if TYPE_CHECKING:
    from xclrun.report.tables import Table


def main(arguments: Sequence[str]) -> int:
    """Print the audit of a command's dataset; return the exit code."""
    parser = Parser(
        prog="xclrun data audit",
        description="Audit the dataset of `xclrun OVERRIDES`: sizes, label coverage per language and split, sentences "
        "shared by splits, translations shared by splits (examples with the same ID), and subwords and truncation with "
        "the model's tokenizer.",
        usage="xclrun data audit KEY=VALUE … [--json]",
    )
    parser.add_overrides(", such as dataset=mtop")
    parser.add_json()
    args = parser.parse_with_overrides(arguments)

    from xclrun.compose.jobs import compose_command
    from xclrun.config.checks import check
    from xclrun.data.audit import coverage, overlaps, pieces
    from xclrun.data.load import load_dataset
    from xclrun.data.notes import count_notes, note_lines
    from xclrun.model.vocabulary import load_tokenizer

    jobs = compose_command(args.overrides)
    if len(jobs) > 1:
        raise UsageError("data audit: one dataset at a time; set each key to a single value")
    config = jobs[0].config
    check(config)
    dataset = load_dataset(config.dataset, config.bucket, config.shots)
    # An audit creates no outputs folder.
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(config.model, dataset, Path(folder))
    facts = {
        "dataset": dataset.name,
        "model": config.model.name,
        "questions": all(target.task.answers for target in dataset.targets),
        "labels": sum(len(target.labels) for target in dataset.targets),
        "tags": sum(len(target.tags) for target in dataset.targets),
        "notes": count_notes(dataset),
        "coverage": [asdict(row) for row in coverage(dataset)],
        "overlaps": [asdict(row) for row in overlaps(dataset)],
        "pieces": [asdict(row) for row in pieces(dataset, tokenizer, config.model)],
    }
    if args.json:
        print(json.dumps(facts, indent=1, ensure_ascii=False))
        return 0
    named = "answers in texts" if facts["questions"] else f"{facts['labels']} labels, {facts['tags']} tags"
    print(f"{dataset.name}: {many(len(dataset.languages), 'language')}, {named}\n")
    print("\n".join(table.text(80) for table in _tables(facts, config.model.max_length)))
    for text in note_lines([dataset]):
        print(as_note(text, sys.stdout))
    return 0


def _tables(facts: dict[str, Any], max_length: int) -> list[Table]:
    from xclrun.core.quantity import SHARE
    from xclrun.report.tables import Table

    subwords = facts["pieces"]
    windows_of = {(r["language"], r["split"]): r["windows"] for r in subwords}
    if facts["questions"]:
        sizes = Table(
            "Sizes",
            ("language", "split", "questions", "texts", "words of texts", "windows"),
            tuple(
                (r["language"], r["split"], *(f"{n:,}" for n in (r["sentences"], r["texts"], r["words"], windows)))
                for r in facts["coverage"]
                for windows in [windows_of.get((r["language"], r["split"]), 0)]
            ),
            ("words of texts: words in the texts of all questions",
             f"windows: model inputs of at most {max_length} subwords; they are the examples that training counts"),
            left=2,
        )  # fmt: skip
    else:
        sizes = _labelled(facts)
    shared = Table(
        "Questions that splits share" if facts["questions"] else "Sentences that splits share",
        ("splits", "language", "kind", "shared", "of"),
        tuple(
            (f"{r['one']} / {r['other']}", r["language"], r["kind"], str(r["sentences"]), str(r["of"]))
            for r in facts["overlaps"]
        ) or (("none", "", "", "", ""),),
        ("same sentence: equal words, ignoring case",
         *(["same text: questions about a text that also has questions in the first split"] if facts["questions"]
           else []),
         "translation: the same ID in the first split of another language (meaningful only if equal IDs mean "
         "translations; line numbers do not)"),
        left=3,
    )  # fmt: skip
    # Texts of questions are split into windows, so only questions are truncated.
    cut = "cut questions" if facts["questions"] else f"truncated at {max_length}"
    lost = ("split_answers", "long_answers") if any(r["split_answers"] or r["long_answers"] for r in subwords) else ()
    words = Table(
        f"Subwords with {facts['model']}",
        ("language", "split", "subwords per word", "unknown words %", "longest", cut,
         *(name.replace("_", " ") for name in lost)),
        tuple(
            (r["language"], r["split"], f"{r['fertility']:.2f}", SHARE.shown(r["unknown"]), str(r["longest"]),
             str(r["truncated"]), *(str(r[name]) for name in lost))
            for r in subwords
        ),
        (*(["cut questions: windows whose question is truncated to model.windows.question subwords"]
           if facts["questions"] else []),
         *(["split answers: gold answers that no window contains completely",
            "long answers: gold answers longer than model.windows.answer, which are never predicted"] if lost else [])),
        left=2,
    )  # fmt: skip
    return [sizes, shared, words]


def _labelled(facts: dict[str, Any]) -> Table:
    """Return the sizes of a labelled dataset, and its coverage of labels and tags."""
    from xclrun.report.tables import Table

    return Table(
        "Sizes and labels",
        ("language", "split", "sentences", "words", "labels", "tags", "rarest", "unseen", "others only"),
        tuple(
            (r["language"], r["split"], f"{r['sentences']:,}", f"{r['words']:,}", f"{r['labels']} of {r['of_labels']}",
             f"{r['tags']} of {r['of_tags']}", str(r["rarest"]), str(r["unseen"]), str(r["not_in_own_train"]))
            for r in facts["coverage"]
        ),
        ("rarest: sentences with the rarest label of the split",
         "unseen: sentences with a label or tag that no training split contains; they are scored as wrong",
         "others only: sentences with a label or tag that only training splits of other languages contain"),
        left=2,
    )  # fmt: skip
