"""Create questions from sentences with slots: a small dataset in SQuAD's format, to test question answering.

    python -m benchmarks.questions FOLDER dataset=mtop dataset.root=DIR [dataset.languages=[en,de] …]
    xclrun dataset=questions dataset.root=FOLDER order=[en,de]

Each question asks for a slot whose name occurs once in the sentence: ``date time ?`` about ``remind me on Monday`` has
the answer ``on Monday``. Questions are names of slots, so they are English in every language. Limits such as
``dataset.max_train`` count sentences, not questions. The licence of the sentences applies to the questions.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xclrun.compose.jobs import compose_command
from xclrun.data.example import Example
from xclrun.data.load import load_dataset
from xclrun.scores.spans import spans


def places(example: Example) -> list[tuple[int, int]]:
    """Return the start and end position of each word in the text; the end is exclusive.

    Raises:
        ValueError: a word is not in the text.
    """
    text, at, result = example.whole, 0, []
    for word in example.tokens:
        at = text.index(word, at)
        result.append((at, at + len(word)))
        at += len(word)
    return result


def asked(example: Example) -> Iterator[tuple[str, str, int]]:
    """Yield (question, answer, start position of the answer) for each slot whose name occurs once in the sentence."""
    slots = spans(example.tags or ())
    often = Counter(name for name, _, _ in slots)
    for name, first, last in slots:
        if often[name] == 1:
            offsets = places(example)
            begin, end = offsets[first][0], offsets[last][1]
            yield f"{name.removeprefix('SL:').replace('_', ' ').lower()} ?", example.whole[begin:end], begin


def squad(examples: Sequence[Example]) -> dict[str, Any]:
    """Return the questions about these sentences in SQuAD's format."""
    paragraphs = []
    for example in examples:
        questions = [
            {"id": f"{example.id}/{i}", "question": question, "answers": [{"text": answer, "answer_start": start}]}
            for i, (question, answer, start) in enumerate(asked(example))
        ]
        if questions:
            paragraphs.append({"context": example.whole, "qas": questions})
    return {"version": "1.1", "data": [{"title": "slots", "paragraphs": paragraphs}]}


def main(folder: str, *overrides: str) -> None:
    """Write ``LANGUAGE/SPLIT.json`` for each language and split of a dataset."""
    [job] = compose_command(list(overrides))
    dataset = load_dataset(job.config.dataset)
    for (language, split), examples in dataset.splits.items():
        path = Path(folder, language, f"{split}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        result = squad(examples)
        path.write_text(json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8")
        number = sum(len(p["qas"]) for p in result["data"][0]["paragraphs"])
        print(f"{path}: {number} questions about {len(examples)} sentences")


if __name__ == "__main__":
    main(*sys.argv[1:])
