"""Metrics of generated texts: known answers, and equality to sacrebleu and rouge-score."""

from __future__ import annotations

import io
import random
import sys
import unicodedata
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import some
from xclrun.core.errors import UsageError
from xclrun.core.task import (
    BLEU,
    BY_NAME,
    CHRF,
    ENDED,
    ON_REQUEST,
    REFERENCE_BITS,
    ROUGE_L,
    TEXT_ANSWER_EXACT,
    TEXT_CHOICE,
    TEXT_CHOICE_BYTES,
    TEXT_EXACT,
    Metric,
    MetricsOfKeys,
    select_metrics,
    task_of,
)
from xclrun.scores import generated
from xclrun.scores.base_scores import Sentences, of_hops, of_split, with_metrics
from xclrun.scores.generated import lcs_f1, tokenizer_of, words
from xclrun.testing import check_metric

# Language → words of its sentences, for random texts.
SCRIPTS = {
    "en": ["the", "cat", "sat", "on", "a", "mat", ",", "and", "Tom's", "dog", "ran", "to", "$", "3.50", "houses", "."],
    "ru": ["кот", "сидит", "на", "большом", "коврике", "и", "собака", ",", "бежит", "домой", "."],
    "hi": ["भारत", "एक", "बड़ा", "देश", "है", "और", "यहाँ", "कई", "भाषाएँ", "हैं", "।"],
    "ar": ["القط", "جلس", "على", "السجادة", "،", "والكلب", "ركض", "إلى", "البيت", "."],
    "zh": ["我们", "在", "家", "吃饭", "。", "他", "去", "GPU", "商店", "，"],
    "th": ["แมว", "นอน", "บน", "เสื่อ", "และ", "สุนัข", "วิ่ง"],
}


def column(values: Sequence[Any]) -> np.ndarray:
    array = np.empty((len(values), 1), object)
    array[:, 0] = values
    return array


def sentences(key: str = "en", reader: str = "", **columns: Any) -> Sentences:
    """Return one cell of predictions from values of rows."""
    arrays = {
        name: column(values) if name in ("generated", "references", "choice_log2", "choices")
        # As `values_of` reads them.
        else np.array([[np.nan if value is None else float(value)] for value in values])
        for name, values in columns.items()
    }  # fmt: skip
    n = len(next(iter(arrays.values())))
    ids = np.array([f"test-{i}" for i in range(n)])
    return Sentences(ids, np.full(n, -1), np.full((n, 1), -1), columns=arrays, key=key, reader=reader)


def score(metric: Metric, key: str = "en", reader: str = "", **columns: Any) -> float:
    [value] = sentences(key, reader, **columns).scores(metric)
    return float(value)


def written(metric: Metric, texts: Sequence[str | None], references: Sequence[Sequence[str]], key: str = "en") -> float:
    return score(metric, key, generated=texts, references=[list(each) for each in references])


def random_texts(language: str, n: int, references: int, seed: int = 0) -> tuple[list[str], list[list[str]]]:
    draw = random.Random(f"{language}/{seed}")
    separator = "" if language in ("zh", "th") else " "

    def text() -> str:
        return separator.join(draw.choices(SCRIPTS[language], k=draw.randint(0, 12)))

    return [text() for _ in range(n)], [[text() for _ in range(references)] for _ in range(n)]


@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize("references", [1, 3])
def test_chrf_equals_sacrebleu(language: str, references: int) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    texts, of = random_texts(language, 20, references)
    expected = sacrebleu.corpus_chrf(texts, [list(each) for each in zip(*of, strict=True)]).score
    assert 100 * written(CHRF, texts, of, language) == pytest.approx(expected, abs=1e-12)
    assert expected > 1


@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize("references", [1, 3])
def test_bleu_equals_sacrebleu(language: str, references: int) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    texts, of = random_texts(language, 20, references)
    streams = [list(each) for each in zip(*of, strict=True)]
    expected = sacrebleu.corpus_bleu(texts, streams, tokenize=tokenizer_of(language)).score
    assert 100 * written(BLEU, texts, of, language) == pytest.approx(expected, abs=1e-12)
    assert expected > 0.1


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("", ""), ("", "a"), ("a", ""), ("a", "a"), ("a b c d", "a b c d"), ("a b c d", "d c b a"),
        ("x y", "a b c d e"),
        ("a b c d e f", "a b"), ("Hi there.", "hi there!"), (" a  b ", "a b"),
    ],
)  # fmt: skip
def test_edge_cases_of_chrf_and_bleu_equal_sacrebleu(text: str, reference: str) -> None:
    """Short texts, without common n-grams, empty: sacrebleu's floors."""
    sacrebleu = pytest.importorskip("sacrebleu")
    for metric, corpus in ((CHRF, sacrebleu.corpus_chrf), (BLEU, sacrebleu.corpus_bleu)):
        assert 100 * written(metric, [text], [[reference]]) == pytest.approx(
            corpus([text], [[reference]]).score, abs=1e-12
        )


def test_a_corpus_of_empty_texts_has_a_bleu_of_0_and_one_that_was_not_generated_has_none() -> None:
    pytest.importorskip("sacrebleu")
    for metric in (BLEU, CHRF):
        assert written(metric, ["", ""], [[""], [""]]) == 0
        assert np.isnan(written(metric, [None, None], [["a"], ["b"]]))
        # Rows without a text leave the sums.
        assert written(metric, ["a b c d", None], [["a b c d"], ["e f g h"]]) == pytest.approx(1)
    for metric in (TEXT_EXACT, ROUGE_L):
        assert np.isnan(written(metric, [None], [["a"]]))


def test_chrf_of_a_corpus_is_not_the_mean_of_its_sentences() -> None:
    """Two sentences of 2 and 12 characters: by hand, the unigram precision of the corpus is 12/14, of the first 0."""
    texts, of = ["ab", "cdefghijklmn"], [["xy"], ["cdefghijklmn"]]
    each = [written(CHRF, [text], [references]) for text, references in zip(texts, of, strict=True)]
    assert each == [0, 1]
    # Orders 1 to 6: 12/14, 11/12, 10/10, 9/9, 8/8, 7/7, for precision and recall.
    assert written(CHRF, texts, of) == pytest.approx((12 / 14 + 11 / 12 + 4) / 6)


def test_bleu_has_the_tokenizer_of_the_language_that_is_written() -> None:
    keys = ("de", "zh-TW", "zh-tw", "en-zh", "zh-en", "th", "news-lo", "ja", "km", "my", "pt-br", "yelp", "cmn_Hans")
    assert [tokenizer_of(key) for key in keys] == [
        "13a", "zh", "zh", "zh", "13a", "char", "char", "ja-mecab", "char", "char", "13a", "13a", "zh",
    ]  # fmt: skip
    pytest.importorskip("sacrebleu")
    # Without Chinese tokens, a sentence without spaces is one word.
    assert written(BLEU, ["我们在家吃饭"], [["我们在家吃鱼"]], "zh") > 0.5
    assert written(BLEU, ["我们在家吃饭"], [["我们在家吃鱼"]], "en") == 0


def test_missing_packages_are_one_line(monkeypatch: pytest.MonkeyPatch, forget_plugins: Any) -> None:
    generated._bleu.cache_clear()
    sacrebleu = pytest.importorskip("sacrebleu")

    def without_mecab(*_: Any, **__: Any) -> None:
        raise RuntimeError("\nPlease install ...\n")

    with monkeypatch.context() as patch:
        patch.setattr(sacrebleu, "BLEU", without_mecab)
        with pytest.raises(ValueError, match=r"^BLEU's tokenizer ja-mecab .* pip install 'sacrebleu\[ja\]'$"):
            written(BLEU, ["猫"], [["猫"]], "ja")
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    for call in (lambda: select_metrics(["bleu"]), lambda: written(BLEU, ["a"], [["a"]])):
        with pytest.raises(UsageError, match=r"bleu: package 'sacrebleu' is not installed; .*\[text\]"):
            call()


def test_metrics_on_request_are_registered_for_texts_alone(forget_plugins: Any) -> None:
    pytest.importorskip("sacrebleu")
    select_metrics(["bleu", "rouge_l"])
    assert {BY_NAME[name].tasks for name in ("bleu", "rouge_l")} == {("text_to_text",)}
    assert {metric.name for metric in ON_REQUEST} == {"label_bits", "bleu", "rouge_l"}
    assert BY_NAME["bleu"].definition.endswith(f"sacrebleu {version('sacrebleu')}")


def test_rouge_l_equals_rouge_score_on_ascii_texts() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    # It imports absl, whose handler closes its stream, pytest's, when a library configures logging.
    pytest.importorskip("absl.logging").get_absl_handler().python_handler.setStream(io.StringIO())
    texts, of = random_texts("en", 50, 2)
    texts, of = [*texts, "Don't", "A_b-c 12a", ""], [*of, ["don t"], ["a b c 12A"], [""]]
    for text, references in some(zip(texts, of, strict=True)):
        expected = [scorer.score(reference, text)["rougeL"].fmeasure for reference in references]
        assert [lcs_f1(words(text), words(r)) for r in references] == pytest.approx(expected, abs=1e-12)
        assert written(ROUGE_L, [text], [references]) == pytest.approx(max(expected), abs=1e-6)


def test_words_of_rouge_l_are_those_of_the_script() -> None:
    """rouge-score, which knows ASCII letters alone, gives 0 for identical texts in Hindi."""
    assert words("भारत बड़ा है।") == tuple(unicodedata.normalize("NFC", word) for word in ("भारत", "बड़ा", "है"))
    assert words("我们ABC去") == ("我", "们", "abc", "去")
    assert words("แมว") == ("แ", "ม", "ว")
    assert words("Straße, naïve ½") == ("straße", "naïve", "½")
    # A zero-width non-joiner is inside of a word.
    assert words("می\u200cروم") == ("میروم",)
    assert words("e\u0301t\u00e9") == ("été",)
    for text in ("भारत एक देश है", "我们在家", "猫が寝る"):
        assert written(ROUGE_L, [text], [["x", text]]) == 1


def test_rouge_l_by_hand() -> None:
    """The longest common subsequence of "a b c d" and "b x d" is "b d": F1 = 2 · 2 / (4 + 3); the mean with 1."""
    assert written(ROUGE_L, ["a b c d", "A!"], [["b x d"], ["c", "a"]]) == pytest.approx((4 / 7 + 1) / 2)


def test_exact_match_ignores_normalization_and_white_space_alone() -> None:
    pairs = [
        ("caf\u00e9", ["cafe\u0301"], 1), (" a \n b ", ["a b"], 1), ("", [""], 1), ("", ["a"], 0), ("A", ["a"], 0),
        ("a.", ["a"], 0), ("b", ["a", "b"], 1), ("ﬁ", ["fi"], 0),
    ]  # fmt: skip
    for text, references, expected in pairs:
        assert written(TEXT_EXACT, [text], [references]) == expected, text
    assert written(TEXT_EXACT, [text for text, _, _ in pairs], [of for _, of, _ in pairs]) == pytest.approx(4 / 8)


def test_answers_to_questions_match_by_the_rules_of_question_answering() -> None:
    """German articles, only in MLQA's rule; English articles of the reader mlqa too; the case everywhere."""

    def answers(text: str, reference: str, key: str, reader: str = "") -> float:
        return score(TEXT_ANSWER_EXACT, key, reader, generated=[text], references=[[reference]])

    assert answers("das Haus!", "haus", "de") == 1
    assert answers("das Haus", "haus", "fi") == 0
    assert answers("The house", "a house", "en") == 1
    assert answers("“House”", "house", "en") == 0
    assert answers("“House”", "house", "en", "mlqa") == 1
    assert answers("", "", "en") == 1


def test_bits_are_those_of_all_references_over_their_bytes() -> None:
    """(8 + 4) bits over (3 + 1) bytes; a row without a log-probability leaves both sums."""
    bits = score(REFERENCE_BITS, log2_reference=[-8, None, -4], reference_bytes=[3, 100, 1])
    assert bits == pytest.approx(3)
    assert not REFERENCE_BITS.higher_is_better
    assert REFERENCE_BITS.quantity.shown(bits) == "3.000"
    # Only empty references, or none with a log-probability.
    assert np.isnan(score(REFERENCE_BITS, log2_reference=[-2], reference_bytes=[0]))
    assert np.isnan(score(REFERENCE_BITS, log2_reference=[None], reference_bytes=[5]))


def test_choices_are_compared_by_log_probability_or_per_byte_and_ties_share_a_hit() -> None:
    columns = {
        "choice_log2": [[-6.0, -4.0], [-2.0, -2.0, -3.0], None, [-1.0, -9.0], [-5.0, -1.0, -1.0], [-1.0, np.nan]],
        "choices": [["sechs 6", "zw"], ["ab", "cd", "é"], None, ["x", "nine lives"], ["a", "b", "c"], ["a", "b"]],
        "right_choice": [0, 1, None, 0, 0, 0],
    }
    # A miss, half a hit, no choices, a hit, a miss, a choice without probability.
    assert score(TEXT_CHOICE, **columns) == pytest.approx((0 + 1 / 2 + 1 + 0) / 4)
    # Per byte: −6/7 > −2; −1 = −1 > −3/2; −1 < −9/10; a miss.
    assert score(TEXT_CHOICE_BYTES, **columns) == pytest.approx((1 + 1 / 2 + 0 + 0) / 4)
    # No division by the bytes of an empty choice.
    assert score(TEXT_CHOICE_BYTES, choice_log2=[[-1.0, -3.0]], choices=[["", "ab"]], right_choice=[0]) == 1
    assert np.isnan(score(TEXT_CHOICE, choice_log2=[None], choices=[None], right_choice=[None]))


def test_ended_texts_are_a_share_of_the_generated_ones() -> None:
    assert score(ENDED, ended=[True, False, None, True]) == pytest.approx(2 / 3)


def test_a_resample_has_the_corpus_score_of_its_sentences() -> None:
    """The bootstrap draws sentences and sums their statistics: as if sacrebleu had scored the drawn sentences."""
    sacrebleu = pytest.importorskip("sacrebleu")
    texts, of = random_texts("en", 12, 1)
    drawn = np.random.default_rng(7).multinomial(12, np.full(12, 1 / 12), size=5)
    both = sentences(generated=texts, references=of)
    for metric, corpus in ((BLEU, sacrebleu.corpus_bleu), (CHRF, sacrebleu.corpus_chrf)):
        found = both.counts(metric).resampled(drawn)
        for counts, value in some(zip(drawn, found[:, 0], strict=True)):
            rows = np.repeat(np.arange(12), counts)
            expected = corpus([texts[i] for i in rows], [[of[i][0] for i in rows]]).score
            assert 100 * value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [BLEU, ROUGE_L, TEXT_ANSWER_EXACT], ids=lambda metric: metric.name)
def test_metrics_that_no_task_names_pass_the_contract(metric: Metric) -> None:
    pytest.importorskip("sacrebleu")
    check_metric(metric)


def test_prediction_rows_are_scored_by_their_language() -> None:
    """The columns of the task, from the rows of a file to scores: Chinese and German texts have other tokenizers."""
    import pyarrow as pa

    pytest.importorskip("sacrebleu")
    rows = {
        "split": ["test"] * 2, "language": ["zh", "en-zh"], "example_id": ["1", "1"], "gold": [None] * 2,
        "predicted": [None] * 2, "tp": [0] * 2, "fp": [0] * 2, "fn": [0] * 2, "generated": ["我们在家吃饭"] * 2,
        "references": [["我们在家吃鱼"]] * 2, "ended": [True, None],
    }  # fmt: skip
    types = {"gold": pa.int16(), "predicted": pa.int16(), "ended": pa.bool_()}
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in rows.items()})
    by_key = with_metrics(of_hops([table, table]), MetricsOfKeys())
    for key, ended in (("zh", 1), ("en-zh", np.nan)):
        of = by_key[key]
        assert of.scores(BLEU) == pytest.approx([0.7598, 0.7598], abs=1e-4)
        assert of.scores(ENDED) == pytest.approx([ended, ended], nan_ok=True)
    one = {name: values[:1] for name, values in rows.items()}
    assert of_split(one, (BLEU,))["bleu"] == pytest.approx(0.7598, abs=1e-4)


def test_texts_are_a_task_whose_bits_alone_select_epochs() -> None:
    task = task_of("text_to_text")
    assert task.metrics(tagged=False) == (REFERENCE_BITS,)
    assert task.measured(tagged=False)[1:] == task.beside
    with pytest.raises(ValueError, match="no column 'generated'"):
        sentences(ended=[1]).scores(TEXT_EXACT)


@pytest.mark.shared
@pytest.mark.parametrize("language", ["ar", "de", "en", "fi", "hi", "th", "tr", "zh"])
def test_scores_of_parallel_sentences_equal_sacrebleu(language: str, shared_data: Path) -> None:
    """200 sentences of Parallel UD; the texts lack every fourth character, or are sentences of their neighbors."""
    sacrebleu = pytest.importorskip("sacrebleu")
    content = (shared_data / "pud" / f"{language}-test.conllu").read_text(encoding="utf-8")
    of = [line.removeprefix("# text = ") for line in content.splitlines() if line.startswith("# text = ")][:200]
    texts = [
        of[i - 1] if i % 10 == 0 else "".join(c for n, c in enumerate(text) if (n + i) % 12 > 2)
        for i, text in enumerate(of)
    ]
    pairs = [[text] for text in of]
    assert len(of) == 200
    bleu = sacrebleu.corpus_bleu(texts, [of], tokenize=tokenizer_of(language)).score
    assert 100 * written(BLEU, texts, pairs, language) == pytest.approx(bleu, abs=1e-12)
    assert 100 * written(CHRF, texts, pairs, language) == pytest.approx(
        sacrebleu.corpus_chrf(texts, [of]).score, abs=1e-12
    )
    assert 0.1 < bleu < 99
