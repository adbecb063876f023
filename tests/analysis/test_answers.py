"""How like answers are: held against the library's copy of SQuAD's script, and against MLQA's by hand."""

import random

import numpy as np
import pytest
from transformers.data.metrics.squad_metrics import get_raw_scores
from transformers.data.processors.squad import SquadExample

from xclrun.analysis.answers import best, exact, f1, rule_of, words
from xclrun.analysis.base_scores import Counts, of_split
from xclrun.core.task import ANSWER_F1, EXACT_MATCH

CASES = [
    ("the Eiffel Tower", ["Eiffel tower", "a tower"]),
    ("in 1889!", ["1889"]),
    ("The", ["a", "the"]),
    ("", []),
    ("Paris", []),
    ("", ["Paris"]),
    ("the", ["Paris"]),
    ("a b b c", ["b c c", "c"]),
    ("“quoted” – dash", ["quoted dash"]),
    ("an-other  one\n", ["another one"]),
    ("theory of a man", ["theory of man"]),
]


def theirs(predicted: str, gold: list[str]) -> tuple[float, float]:
    answers = [{"text": text, "answer_start": 0} for text in gold]
    example = SquadExample("q", "?", "text", None, None, "", answers)
    match, overlap = get_raw_scores([example], {"q": predicted})
    return match["q"], overlap["q"]


@pytest.mark.parametrize(("predicted", "gold"), CASES)
def test_scores_are_those_of_squad_s_script(predicted: str, gold: list[str]) -> None:
    found = tuple(best(score, predicted, gold, "squad") for score in (exact, f1))
    assert found == pytest.approx(theirs(predicted, gold))


def test_scores_are_those_of_squad_s_script_on_random_answers() -> None:
    generator = random.Random(7)
    parts = ["the", "a", "An", "cat", "dog.", "-", "'s", "ÉTÉ", "été", "ß", "1,000", "1000", "  ", "的", "🙂"]

    def text() -> str:
        return " ".join(generator.choices(parts, k=generator.randint(0, 6)))

    for _ in range(300):
        predicted, gold = text(), [text() for _ in range(generator.randint(0, 3))]
        found = tuple(best(score, predicted, gold, "squad") for score in (exact, f1))
        assert found == pytest.approx(theirs(predicted, gold)), (predicted, gold)


@pytest.mark.parametrize(
    ("rule", "text", "wanted"),
    [
        ("de", "Der Turm, die „Dame“ – den", ("turm", "dame")),
        ("es", "¿El río, y los Andes?", ("río", "y", "andes")),
        ("vi", "những ngôi nhà của tôi", ("ngôi", "nhà", "tôi")),
        ("ar", "في القاهرة، البيت", ("في", "قاهرة", "بيت")),
        ("hi", "दिल्ली में।", ("दिल्ली", "में")),
        ("zh", "在2008年，北京 Olympics。", ("在", "2008", "年", "北", "京", "olympics")),
        ("squad", "der Turm „x“, the end", ("der", "turm", "„x“", "end")),
    ],
)
def test_each_language_of_mlqa_has_its_articles_and_words(rule: str, text: str, wanted: tuple[str, ...]) -> None:
    assert words(text, rule) == wanted


def test_a_key_s_rule_is_that_of_its_language() -> None:
    assert [rule_of(key) for key in ("de", "mlqa-de", "en", "mlqa-en", "th", "squad", "zh")] == [
        "de", "de", "squad", "squad", "squad", "squad", "zh"
    ]  # fmt: skip


def rows(answers: list[str]) -> dict[str, list]:
    n = len(answers)
    none = {name: [None] * n for name in ("gold", "predicted", "gold_tags", "predicted_tags")}
    gold = [["das Haus", "ein rotes Haus"], ["Rom"], []]
    zeros = {name: [0] * n for name in ("tp", "fp", "fn")}
    return {
        **none, **zeros, "language": ["de"] * n, "example_id": list("abc"), "answer": answers, "gold_answers": gold
    }  # fmt: skip


def test_scores_of_a_split_are_means_over_questions() -> None:
    found = of_split(rows(["rotes haus", "in Rom", "da"]), (ANSWER_F1, EXACT_MATCH))
    assert found == pytest.approx({"answer_f1": (1 + 2 / 3 + 0) / 3, "exact_match": 1 / 3})


def test_a_resample_of_questions_is_a_mean_of_their_fractions() -> None:
    counts = Counts(np.array([[1.0], [2 / 3], [0.0]], np.float32))
    drawn = np.array([[2, 1, 0], [0, 0, 3], [0, 3, 0]], np.float32)
    assert counts.resampled(drawn)[:, 0] == pytest.approx([(2 + 2 / 3) / 3, 0, 2 / 3])
    assert counts.jackknife()[:, 0] == pytest.approx([1 / 3, 1 / 2, 5 / 6])
