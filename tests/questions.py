"""A small set of questions in SQuAD's layout, in our own words, in scripts that tokenizers treat in their own ways."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

# Words of a text, by question word; "🙂" and what is not ASCII stands before most answers.
WORDS = {
    "en": {"who": ["Anna 🙂", "old Bob"], "what": ["a red ball", "two cats"], "where": ["New York", "Rome"]},
    "th": {"who": ["สมชาย", "มาลี"], "what": ["แมวสองตัว", "ลูกบอล"], "where": ["เชียงใหม่", "กรุงเทพ"]},
    "ar": {"who": ["ليلى", "سامي"], "what": ["كتاب قديم", "قطتان"], "where": ["القاهرة", "دمشق"]},
    "zh": {"who": ["小明", "老王"], "what": ["两只猫", "红球"], "where": ["北京", "上海"]},
}
TEXTS = {
    "en": "🙂 Today {who} bought {what} in {where}.",
    "th": "🙂 วันนี้{who}ซื้อ{what}ที่{where}",
    "ar": "🙂 اشترى {who} {what} في {where}.",
    "zh": "🙂今天{who}在{where}买了{what}。",
}
SIZES = {"train": 14, "dev": 5, "test": 7}


def questions(language: str, split: str, size: int, long: int = 0, silent: int = 0) -> dict[str, Any]:
    """Return a file's content, the same each time.

    Args:
        long: every ``long``-th text is repeated and needs several windows; 0: none.
        silent: every ``silent``-th question has no answer; 0: none.
    """
    generator = random.Random(f"{language}/{split}")
    paragraphs = []
    for i in range(size):
        values = {name: generator.choice(words) for name, words in WORDS[language].items()}
        text, name = TEXTS[language].format(**values), generator.choice(sorted(values))
        answers = [{"text": values[name], "answer_start": text.index(values[name])}]
        if long and i % long == 0:
            before = f"{text} " * 6
            text, answers[0]["answer_start"] = before + text, answers[0]["answer_start"] + len(before)
        answers = [] if silent and i % silent == 0 else answers
        question = {"id": f"{language}-{split}-{i}", "question": f"{name} ?", "answers": answers}
        paragraphs.append({"context": text, "qas": [question]})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


def write_questions(root: Path, *languages: str, **options: int) -> Path:
    """Write ``LANGUAGE/SPLIT.json`` under a folder; return it."""
    for language in languages:
        for split, size in SIZES.items():
            path = root / language / f"{split}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(
                json.dumps(questions(language, split, size, **options), ensure_ascii=False), encoding="utf-8"
            )
    return root
