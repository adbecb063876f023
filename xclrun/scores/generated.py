"""Statistics of generated texts, of each sentence and cell. docs/metrics.md, "Base scores".

The functions read columns of prediction rows (`xclrun.core.task.TEXT_TO_TEXT`), each of shape (S, cells):

| column | value |
|---|---|
| ``generated`` | the generated text; null if no text was generated |
| ``ended`` | whether the model ended the text itself, before the length limit |
| ``log2_reference`` | log2 p(first reference and its end); null if it is longer than the model's positions |
| ``reference_bytes`` | UTF-8 bytes of the first reference |
| ``references`` | correct texts |
| ``choices``, ``choice_log2`` | text and log2 p of each choice; null without choices |
| ``right_choice`` | index of the correct choice; null without choices |

Rows without the value that a metric needs leave all its sums.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from xclrun.core.corpus_scores import BLEU_SUMS, CHARACTERS, CHRF_SUMS, chrf
from xclrun.core.errors import require
from xclrun.core.languages import Language, language_of
from xclrun.scores import answers

Columns = Mapping[str, np.ndarray]
# sacrebleu's tokenizers of BLEU by language; other languages have `OTHER_TOKENIZER`.
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "km": "char", "lo": "char", "my": "char", "th": "char"}
OTHER_TOKENIZER = "13a"
# Regions of Chinese, which some keys write in lower case (``zh-tw``); other last parts may be languages (``zh-en``).
_CHINESE_REGIONS = ("cn", "hk", "mo", "sg", "tw")
# Scripts that are written without spaces: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


def statistics(metric: str, columns: Columns, key: str, reader: str = "") -> np.ndarray:
    """Return the statistics of a metric, shape (S, cells, k).

    Args:
        key: language or key of the texts.
        reader: ``dataset.reader`` (see `xclrun.scores.answers.rule_of`).

    Raises:
        UsageError, ValueError: a column or a package is missing.
    """
    functions: dict[str, Callable[[], np.ndarray]] = {
        "reference_bits": lambda: reference_bits(columns),
        "bits_per_byte": lambda: reference_bits(columns),
        "text_exact": lambda: exact(columns),
        "text_answer_exact": lambda: answer_exact(columns, answers.rule_of(key, reader)),
        "chrf": lambda: chrf_counts(columns),
        "bleu": lambda: bleu_counts(columns, key),
        "rouge_l": lambda: rouge_l(columns),
        "ended": lambda: ended(columns),
        "text_choice": lambda: choice(columns),
        "text_choice_bytes": lambda: choice(columns, per_byte=True),
    }
    try:
        return functions[metric]()
    except KeyError as missing:
        raise ValueError(f"the predictions have no column {missing}") from None


def language_written(key: str) -> Language | None:
    """Return the language in which the texts of a key are written: the second of ``en-de`` and of ``PART-de``.

    >>> [language_written(key).code for key in ("de", "en-de", "zh-TW", "news-th")]
    ['de', 'de', 'zh', 'th']
    """
    first, _, last = key.rpartition("-")
    if first and last.islower() and not (first == "zh" and last in _CHINESE_REGIONS):
        return language_of(last) or language_of(key)
    return language_of(key)


def tokenizer_of(key: str) -> str:
    """Return the name of sacrebleu's tokenizer for the texts of a key."""
    language = language_written(key)
    return TOKENIZERS.get("" if language is None else language.code, OTHER_TOKENIZER)


def reference_bits(columns: Columns) -> np.ndarray:
    """Return the bits of the first reference with its end, and its bytes."""
    log2 = columns["log2_reference"]
    known = ~np.isnan(log2)
    return np.stack([np.where(known, -log2, 0), np.where(known, columns["reference_bytes"], 0)], axis=-1)


def ended(columns: Columns) -> np.ndarray:
    return _mean(columns["ended"])


def choice(columns: Columns, per_byte: bool = False) -> np.ndarray:
    """Return 1 if the correct choice is the most probable one, 1/k in a k-way tie, and 1 for the choice.

    Args:
        per_byte: compare log p per UTF-8 byte, as lm-eval's ``acc_bytes``; the empty text counts as one byte.
    """

    def hit(log2: Any, texts: Any, right: float) -> list[float]:
        # A choice that is longer than the model's positions has no log-probability.
        if log2 is None or texts is None or right != right or any(value is None or value != value for value in log2):
            return [0, 0]
        values = np.asarray(log2, float)
        if per_byte:
            values = values / [max(1, len(text.encode())) for text in texts]
        best = values == values.max()
        return [float(best[int(right)]) / best.sum(), 1]

    return _each(hit, 2, columns["choice_log2"], columns["choices"], columns["right_choice"])


def exact(columns: Columns) -> np.ndarray:
    """Return 1 if the text equals a reference after NFC, with white space collapsed, and 1 for the text."""

    def equal(text: str, references: Sequence[str]) -> list[float]:
        return [float(_collapsed(text) in map(_collapsed, references)), 1]

    return _texts(equal, 2, columns)


def answer_exact(columns: Columns, rule: str) -> np.ndarray:
    """As `exact`, by a rule for answers to questions (`xclrun.scores.answers.rule_of`)."""
    return _texts(lambda text, references: [answers.best(answers.exact, text, references, rule), 1], 2, columns)


def rouge_l(columns: Columns) -> np.ndarray:
    """Return the best ROUGE-L F1 (Lin 2004) of a text over its references, and 1 for the text."""

    def best(text: str, references: Sequence[str]) -> list[float]:
        return [max(lcs_f1(words(text), words(reference)) for reference in references), 1]

    return _texts(best, 2, columns)


def chrf_counts(columns: Columns) -> np.ndarray:
    """Return the statistics of `xclrun.core.corpus_scores.chrf`; the reference with the best chrF counts."""

    def counts(text: str, references: Sequence[str]) -> list[float]:
        generated = _ngrams(text)
        found = []
        for reference in dict.fromkeys(references):
            row: list[float] = []
            for ours, theirs in zip(generated, _ngrams(reference), strict=True):
                common = sum(min(n, theirs[ngram]) for ngram, n in ours.items() if ngram in theirs)
                # As in sacrebleu, n-grams that are longer than the reference do not count.
                row += [ours.total() if theirs else 0, theirs.total(), common]
            found.append([*row, 1])
        return found[0] if len(found) == 1 else found[int(np.argmax(chrf(np.array(found))))]

    return _texts(counts, CHRF_SUMS, columns)


def bleu_counts(columns: Columns, key: str) -> np.ndarray:
    """Return the statistics of `xclrun.core.corpus_scores.bleu`, counted by sacrebleu.

    Raises:
        UsageError: sacrebleu is not installed.
        ValueError: the tokenizer of the key's language is not installed.
    """
    scorer = _bleu(tokenizer_of(key))

    def counts(text: str, references: Sequence[str]) -> list[float]:
        score = scorer.sentence_score(text, references)
        return [score.sys_len, score.ref_len, *score.counts, *score.totals, 1]

    return _texts(counts, BLEU_SUMS, columns)


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text for ROUGE-L, in lower case; characters of scripts without spaces are words.

    Words are runs of letters, marks and digits, so that words in Indic scripts stay whole. On ASCII texts, the result
    equals that of the package rouge-score without stemming. Invisible format characters are removed.
    """
    return _words(text)


@lru_cache(maxsize=1 << 14)
def _words(text: str) -> tuple[str, ...]:
    found: list[str] = []
    within = False
    for character in unicodedata.normalize("NFC", text).lower():
        category = unicodedata.category(character)
        if category == "Cf":
            continue
        if category[0] not in "LMN":
            within = False
        elif _UNSPACED.match(character):
            found.append(character)
            within = False
        elif within:
            found[-1] += character
        else:
            found.append(character)
            within = True
    return tuple(found)


def lcs_f1(first: Sequence[str], second: Sequence[str]) -> float:
    """Return F1 of the longest common subsequence of two sequences of words; 0 without words.

    The length is computed for all prefixes of ``first`` at once, as bits of an integer (Hyyrö 2004).
    """
    if not first or not second:
        return 0.0
    positions: dict[str, int] = {}
    for i, word in enumerate(first):
        positions[word] = positions.get(word, 0) | 1 << i
    every = (1 << len(first)) - 1
    rest = every
    for word in second:
        matched = rest & positions.get(word, 0)
        rest = ((rest + matched) | (rest - matched)) & every
    common = len(first) - rest.bit_count()
    return 2 * common / (len(first) + len(second))


@cache
def _bleu(tokenizer: str) -> Any:
    require("sacrebleu", "the metric bleu", "text")
    from sacrebleu import BLEU

    try:
        # Counts do not depend on effective_order, without which sacrebleu warns of scores of single sentences.
        return BLEU(tokenize=tokenizer, effective_order=True)
    except RuntimeError:
        raise ValueError(f"BLEU's tokenizer {tokenizer} needs more packages; run pip install 'sacrebleu[ja]'") from None


@lru_cache(maxsize=1 << 14)
def _ngrams(text: str) -> tuple[Counter[str], ...]:
    """Return the character n-grams of each order, without white space."""
    text = "".join(text.split())
    return tuple(Counter(text[i : i + n] for i in range(len(text) - n + 1)) for n in range(1, CHARACTERS + 1))


def _collapsed(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _mean(values: np.ndarray) -> np.ndarray:
    known = ~np.isnan(values)
    return np.stack([np.where(known, values, 0), known], axis=-1)


def _texts(function: Callable[[str, Sequence[str]], Sequence[float]], k: int, columns: Columns) -> np.ndarray:
    """Return the statistics of (generated text, references), shape (S, cells, k); zeros where one is missing."""

    def known(text: Any, references: Any) -> Sequence[float]:
        return [0] * k if text is None or not references else function(text, references)

    return _each(known, k, columns["generated"], columns["references"])


def _each(function: Callable[..., Sequence[float]], k: int, *columns: np.ndarray) -> np.ndarray:
    """Apply a function to the values of each row and cell; the result has the shape (S, cells, k)."""
    values = [function(*row) for row in zip(*(column.ravel() for column in columns), strict=True)]
    return np.array(values, float).reshape(*columns[0].shape, k)
