"""Exact match and F1 of answers, following the official scripts. docs/metrics.md, "Base scores".

SQuAD (Rajpurkar et al. 2016, ``evaluate-v1.1.py``) converts answers to lower case and removes ASCII punctuation, the
articles "a", "an" and "the", and extra white space. F1 is computed over bags of words. MLQA (Lewis et al. 2020,
``mlqa_evaluation_v1.py``) removes Unicode punctuation and the articles of the language; each Chinese character is a
word. Both scripts take the maximum over gold answers. If the predicted and the gold answer are empty after
normalization, F1 is 0 and EM is 1. For a question without an answer, the empty answer is correct, as in SQuAD's
``evaluate-v2.0.py``.
"""

from __future__ import annotations

import re
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

ENGLISH_ARTICLES = r"\b(a|an|the)\b"
# Language → articles that MLQA's script removes after punctuation.
MLQA_ARTICLES = {
    "ar": r"\sال^|ال",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "en": ENGLISH_ARTICLES,
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "hi": None,
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "zh": None,
}
# Name of SQuAD's rule, which normalizes all other languages, and English outside MLQA.
SQUAD = "squad"
# Name of MLQA's reader. A part of a composite dataset with MLQA data usually has the same name.
MLQA = "mlqa"

_ASCII = dict.fromkeys(map(ord, string.punctuation))
_CHINESE = re.compile(r"[\u4e00-\u9fa5]")


def rule_of(key: str, reader: str = "") -> str:
    """Return the name of the rule that normalizes a key's answers: a language of MLQA, or `SQUAD`.

    Args:
        key: a language, or ``PART-LANGUAGE`` in a composite dataset. English has MLQA's rule only in MLQA.
        reader: ``dataset.reader``; empty for a composite dataset.
    """
    part, _, language = key.rpartition("-")
    if language not in MLQA_ARTICLES or (language == "en" and MLQA not in (part, reader)):
        return SQUAD
    return language


@lru_cache(maxsize=1 << 16)
def words(text: str, rule: str = SQUAD) -> tuple[str, ...]:
    """Normalize an answer and split it into words."""
    text = text.lower()
    if rule == SQUAD:
        return tuple(re.sub(ENGLISH_ARTICLES, " ", text.translate(_ASCII)).split())
    text, articles = text.translate(_punctuation()), MLQA_ARTICLES[rule]
    if articles is not None:
        text = re.sub(articles, " ", text)
    if rule == "zh":
        text = _CHINESE.sub(r" \g<0> ", text)
    return tuple(text.split())


def exact(predicted: Sequence[str], gold: Sequence[str]) -> float:
    return float(tuple(predicted) == tuple(gold))


def f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Return F1 over two bags of words; 0 without a common word, even if both are empty."""
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0


# (words of a predicted answer, words of a gold answer) → similarity from 0 to 1.
Score = Callable[[Sequence[str], Sequence[str]], float]


def best(score: Score, predicted: str, gold: Sequence[str], rule: str) -> float:
    """Return the maximum score of an answer over the gold answers; if there are none, an empty answer scores 1."""
    candidate = words(predicted, rule)
    if not gold:
        return float(not candidate)
    return max(score(candidate, words(answer, rule)) for answer in gold)


@cache
def _punctuation() -> dict[int, None]:
    every = (c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith("P"))
    return {**dict.fromkeys(every), **_ASCII}
