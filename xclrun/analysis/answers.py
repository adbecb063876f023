"""How like two answers are: exact match and F1 over words, as the official scripts have it, question by question.

SQuAD (Rajpurkar et al. 2016, ``evaluate-v1.1.py``): answers are compared in lower case, without ASCII punctuation, the
articles a, an, the, and extra white space; F1 is that of their bags of words. MLQA (Lewis et al. 2020,
``mlqa_evaluation_v1.py``): the same without any Unicode punctuation, with the articles of the language, and with
Chinese characters as words of their own. Of several gold answers the best counts; of a question without an answer, the
empty answer is right.

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

# Language → what MLQA's script takes out as articles, after punctuation; None: it has none.
MLQA_ARTICLES = {
    "ar": r"\sال^|ال",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "hi": None,
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "zh": None,
}
# The rule of all other keys.
SQUAD = "squad"

_SQUAD_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII = dict.fromkeys(map(ord, string.punctuation))
_CHINESE = re.compile(r"[\u4e00-\u9fa5]")


def rule_of(key: str) -> str:
    """Return the rule that normalises a key's answers: a language of MLQA's other than English, or `SQUAD`.

    A key of a composite dataset, ``PART-LANGUAGE``, has its language's.
    """
    language = key.rpartition("-")[2]
    return language if language in MLQA_ARTICLES else SQUAD


@lru_cache(maxsize=1 << 16)
def words(text: str, rule: str = SQUAD) -> tuple[str, ...]:
    """Return the words of an answer as they are compared, in order."""
    text = text.lower()
    if rule == SQUAD:
        return tuple(_SQUAD_ARTICLES.sub(" ", text.translate(_ASCII)).split())
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
    """Return F1 over two bags of words; where one of them is empty, 1 if both are, else 0."""
    if not predicted or not gold:
        return float(not predicted and not gold)
    common = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * common / (len(predicted) + len(gold))


# Words of a predicted and of a gold answer → how alike they are, from 0 to 1.
Score = Callable[[Sequence[str], Sequence[str]], float]


def best(score: Score, predicted: str, gold: Sequence[str], rule: str) -> float:
    """Return the score of an answer against the gold answer that is nearest; without any, the empty one is right.

    Gold answers of which nothing is left (an article alone) count only where there is no other.
    """
    found = [normal for answer in gold if (normal := words(answer, rule))] or [()]
    return max(score(words(predicted, rule), normal) for normal in found)


@cache
def _punctuation() -> dict[int, None]:
    every = (c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith("P"))
    return {**dict.fromkeys(every), **_ASCII}
