"""How like answers are: held against the library's copy of SQuAD's script, and against MLQA's by hand."""

import random

import pytest
from transformers.data.metrics.squad_metrics import get_raw_scores
from transformers.data.processors.squad import SquadExample

from tests.conftest import some
from xclrun.core.task import ANSWER_F1, EXACT_MATCH
from xclrun.scores.answers import best, exact, f1, rule_of, words
from xclrun.scores.base_scores import of_split


def scores(predicted: str, gold: list[str], rule: str = "squad") -> tuple[float, float]:
    exact_match, overlap = (best(score, predicted, gold, rule) for score in (exact, f1))
    return exact_match, overlap


@pytest.mark.parametrize(
    ("predicted", "gold", "wanted"),
    [
        ("the Eiffel Tower", ["Eiffel tower", "a tower"], (1, 1)),
        ("in 1889!", ["1889"], (0, 2 / 3)),
        ("a b b c", ["b c c", "c"], (0, 2 / 3)),
        ("“quoted” – dash", ["quoted dash"], (0, 2 / 5)),
        ("an-other  one\n", ["another one"], (1, 1)),
        ("theory of a man", ["theory of man"], (1, 1)),
        ("", ["Paris"], (0, 0)),
        ("the", ["Paris"], (0, 0)),
        # Answers that normalise to nothing match exactly and share no word; version 2.0 drops such gold answers.
        ("The", ["a", "the"], (1, 0)),
        ("", ["the", "Paris"], (1, 0)),
        ("...", ["the"], (1, 0)),
        # Questions without an answer: version 2.0.
        ("", [], (1, 1)),
        ("the", [], (1, 1)),
        ("Paris", [], (0, 0)),
    ],
)
def test_scores_are_those_of_squad_s_script_1_1(predicted: str, gold: list[str], wanted: tuple[float, float]) -> None:
    assert scores(predicted, gold) == pytest.approx(wanted)


def test_scores_are_those_of_squad_s_script_on_random_answers() -> None:
    """The library has version 2.0, which agrees where every gold answer keeps a word."""
    generator = random.Random(7)
    parts = ["the", "a", "An", "cat", "dog.", "-", "'s", "ÉTÉ", "été", "ß", "1,000", "1000", "  ", "的", "🙂"]

    def text() -> str:
        return " ".join(generator.choices(parts, k=generator.randint(0, 6)))

    compared = 0
    for _ in range(300):
        predicted, gold = text(), [text() for _ in range(generator.randint(0, 3))]
        if () not in [words(answer) for answer in gold]:
            compared += 1
            assert scores(predicted, gold) == pytest.approx(of_library(predicted, gold)), (predicted, gold)
    assert compared > 100


def of_library(predicted: str, gold: list[str]) -> tuple[float, float]:
    answers = [{"text": text, "answer_start": 0} for text in gold]
    example = SquadExample("q", "?", "text", None, None, "", answers)
    exact_match, overlap = get_raw_scores([example], {"q": predicted})
    return exact_match["q"], overlap["q"]


@pytest.mark.parametrize(
    ("rule", "text", "wanted"),
    [
        ("de", "Der Turm, die „Dame“ – den", ("turm", "dame")),
        ("es", "¿El río, y los Andes?", ("río", "y", "andes")),
        ("vi", "những ngôi nhà của tôi", ("ngôi", "nhà", "tôi")),
        ("ar", "في القاهرة، البيت", ("في", "قاهرة", "بيت")),
        ("hi", "दिल्ली में।", ("दिल्ली", "में")),
        ("zh", "在2008年，北京 Olympics。", ("在", "2008", "年", "北", "京", "olympics")),
        ("en", "The “tower” – a café’s end", ("tower", "cafés", "end")),
        ("squad", "der Turm „x“, the end", ("der", "turm", "„x“", "end")),
    ],
)
def test_each_language_of_mlqa_has_its_articles_and_words(rule: str, text: str, wanted: tuple[str, ...]) -> None:
    assert words(text, rule) == wanted


def test_a_key_has_the_rule_of_its_language_and_english_that_of_mlqa_only_in_mlqa() -> None:
    rules = {
        "de": [("de", ""), ("mlqa-de", ""), ("de", "mlqa")],
        "zh": [("zh", "")],
        "en": [("en", "mlqa"), ("mlqa-en", "")],
        "squad": [("en", ""), ("xquad-en", ""), ("th", ""), ("squad", ""), ("en", "xquad"), ("squad", "mlqa")],
    }
    for rule, keys in some(rules.items()):
        assert {rule_of(*key) for key in keys} == {rule}, keys


def test_answers_of_mlqa_that_normalise_to_nothing_share_no_word() -> None:
    assert scores("der", ["die"], "de") == (1, 0)
    assert scores("“”", ["the"], "en") == (1, 0)


def rows(answers: list[str]) -> dict[str, list]:
    n = len(answers)
    none = {name: [None] * n for name in ("gold", "predicted", "gold_tags", "predicted_tags")}
    gold = [["das Haus", "ein rotes Haus"], ["Rom"], []]
    zeros = {name: [0] * n for name in ("tp", "fp", "fn")}
    return {
        **none, **zeros, "language": ["de"] * n, "example_id": list("abc"), "answer": answers, "gold_answers": gold
    }  # fmt: skip


def test_scores_of_a_split_are_means_over_questions() -> None:
    result = of_split(rows(["rotes haus", "in Rom", "da"]), (ANSWER_F1, EXACT_MATCH))
    assert result == pytest.approx({"answer_f1": (1 + 2 / 3 + 0) / 3, "exact_match": 1 / 3})


@pytest.mark.parametrize(("reader", "wanted"), [("mlqa", 1), ("xquad", 0)])
def test_english_questions_are_scored_by_the_script_of_their_dataset(reader: str, wanted: float) -> None:
    columns = rows(["“Haus”"])
    columns |= {"language": ["en"], "gold_answers": [["Haus"]], "example_id": ["a"]}
    assert of_split(columns, (EXACT_MATCH,), reader=reader) == {"exact_match": wanted}
