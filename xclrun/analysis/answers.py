"""How like two answers are: exact match and F1 over words, as the official scripts have it, question by question.

SQuAD (Rajpurkar et al. 2016, ``evaluate-v1.1.py``): answers are compared in lower case, without ASCII punctuation, the
articles a, an, the, and extra white space; F1 is that of their bags of words. MLQA (Lewis et al. 2020,
``mlqa_evaluation_v1.py``): the same without any Unicode punctuation, with the articles of the language, and with
Chinese characters as their own words. Of several gold answers the best counts. Both scripts give F1 = 0 to two
answers that normalise to nothing, and EM = 1. Neither scores questions without an answer: for these the empty answer is
right, as in SQuAD's ``evaluate-v2.0.py``.

docs/metrics.md, "Base scores", says which rule a key has: `rule_of`.
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
# Language → what MLQA's script takes out as articles, after punctuation; None: it has none.
MLQA_ARTICLES = {
    "ar": r"\sال^|ال",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "en": ENGLISH_ARTICLES,
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "hi": None,
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "zh": None,
}
# The rule of all other keys, and of English outside MLQA.
SQUAD = "squad"
# Reader of MLQA, and the usual name of a part with its data.
MLQA = "mlqa"

_ASCII = dict.fromkeys(map(ord, string.punctuation))
_CHINESE = re.compile(r"[\u4e00-\u9fa5]")


def rule_of(key: str, reader: str = "") -> str:
    """Return the rule that normalises a key's answers: a language of MLQA, or `SQUAD`.

    A key of a composite dataset, ``PART-LANGUAGE``, has the rule of its language. Only MLQA's English has MLQA's rule.

    Args:
        reader: of the dataset (``dataset.reader``); empty for a composite dataset.
    """
    part, _, language = key.rpartition("-")
    if language not in MLQA_ARTICLES or (language == "en" and MLQA not in (part, reader)):
        return SQUAD
    return language


@lru_cache(maxsize=1 << 16)
def words(text: str, rule: str = SQUAD) -> tuple[str, ...]:
    """Return the words of an answer as they are compared, in order."""
    text = text.lower()
    if rule == SQUAD:
        return tuple(re.sub(ENGLISH_ARTICLES, " ", text.translate(_ASCII)).split())
    text, articles = text.translate(_punctuation()), MLQA_ARTICLES[rule]
    if articles is not None:
        text = re.sub(articles, " ", text)
    if rule == "zh":
        text = _CHINESE.sub(lambda found: f" {found[0]} ", text)
    return tuple(text.split())


def exact(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Return 1 where two answers, as words, are equal, else 0."""
    return float(tuple(predicted) == tuple(gold))


def f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Return F1 over two bags of words: 0 without a common word, even where both bags are empty."""
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold)) if common else 0.0


# Words of a predicted and of a gold answer → how alike they are, from 0 to 1.
Score = Callable[[Sequence[str], Sequence[str]], float]


def best(score: Score, predicted: str, gold: Sequence[str], rule: str) -> float:
    """Return the score of an answer against the nearest gold answer; without any, the empty answer scores 1."""
    given = words(predicted, rule)
    if not gold:
        return float(not given)
    return max(score(given, words(answer, rule)) for answer in gold)


@cache
def _punctuation() -> dict[int, None]:
    every = (c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith("P"))
    return {**dict.fromkeys(every), **_ASCII}
