"""Computed orders: known answers, and run IDs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xclrun.compose.jobs import Composed, compose_command
from xclrun.compose.overrides import rewritten
from xclrun.config.schema import OrderConfig
from xclrun.core.errors import UsageError
from xclrun.data.orders import complete_order, compute_order, notes
from xclrun.plan import Run, plan_run


class Words:
    """A dataset with copies of one training sentence in each language."""

    def __init__(self, words: dict[str, str], sizes: dict[str, int] | None = None) -> None:
        self.words, self._sizes = words, sizes or {}
        self.languages = tuple(words)

    def sizes(self) -> dict[str, int]:
        return {key: self._sizes.get(key, 1) for key in self.words}

    def split(self, key: str, split: str) -> list[Any]:
        assert split == "train"  # nothing else may decide
        return [SimpleNamespace(tokens=self.words[key].split(), tokens_b=[])] * self.sizes()[key]


def order_of(dataset: Any, **settings: Any) -> tuple[str, ...]:
    return compute_order(complete_order(OrderConfig(**settings), dataset), dataset)


def keys(*names: str, **sizes: int) -> Any:
    return Words(dict.fromkeys(names, "w"), sizes)


def test_a_random_order_is_drawn_by_its_seed_alone_and_each_is_as_likely() -> None:
    result = Counter(order_of(keys("a", "b", "c"), by="random", seed=seed) for seed in range(1200))
    assert set(result) == set(itertools.permutations("abc"))
    assert all(150 < count < 250 for count in result.values())  # 200 expected, standard deviation 13
    # As it was given first: what a seed draws stays.
    assert order_of(keys("en", "de", "fr", "es", "hi", "th"), by="random", seed=1) == (
        "de",
        "hi",
        "th",
        "fr",
        "es",
        "en",
    )
    for seed in range(20):
        whole = order_of(keys(*"edcba", a=9), by="random", seed=seed)
        assert whole == order_of(keys(*"abcde"), by="random", seed=seed)
        # What is left out does not move the others.
        assert order_of(keys(*"abde"), by="random", seed=seed) == tuple(key for key in whole if key != "c")


def test_families_come_by_the_number_of_their_languages_and_in_them_branches() -> None:
    dataset = keys("ta-IN", "hi-IN", "sv-SE", "fr-FR", "de-DE", "te_gold", "ja-JP", "deu_Latn", "it", it=5, fr=2)
    # Indo-European 6 (Germanic 3, Romance 2, Indo-Aryan 1), Dravidian 2, Japonic 1; in a branch by size, then key.
    expected = ("de-DE", "deu_Latn", "sv-SE", "it", "fr-FR", "hi-IN", "ta-IN", "te_gold", "ja-JP")
    assert order_of(dataset, by="family") == expected
    with pytest.raises(UsageError, match=r"^order=family: .*yelp, squad; set order.features=FILE"):
        order_of(keys("en", "yelp", "squad"), by="family")


def test_typology_begins_with_the_nearest_by_the_features_of_the_table() -> None:
    # Of English SVO, prepositions, no order of genitives, adjective, demonstrative and numeral first: Bulgarian has all
    # six, Russian and Polish five, French four, Hindi and Turkish three, Welsh and Thai two; relatives come first.
    dataset = keys("tr", "th-TH", "hi", "fr", "ru", "pl", "cy", "bg", "en")
    result = order_of(dataset, by="typology")
    assert result == ("en", "bg", "pl", "ru", "fr", "hi", "tr", "cy", "th-TH")
    assert order_of(dataset, by="typology", start="tha")[:3] == ("th-TH", "cy", "fr")


def test_of_languages_as_near_relatives_come_first_those_of_the_branch_before_the_family() -> None:
    # Three of six features each; five of six each.
    assert order_of(keys("en", "ja", "ur"), by="typology") == ("en", "ur", "ja")
    assert order_of(keys("en", "pl", "sv"), by="typology") == ("en", "sv", "pl")


def test_a_feature_on_which_a_branch_disagrees_stands_for_no_language(tmp_path: Path) -> None:
    path = tmp_path / "features.csv"
    path.write_text(
        "language,family,branch,f,g,h,i,j\ns,X,A,1,1,1,1,1\na,Y,C,1,1,1,0,0\nb,Z,D,0,1,1,0,0\n"
        "p,W,B,0,1,0,,\nq,W,B,1,1,0,,\nu,W,B,,,,,\n"
    )
    # From s: q 1 of 3, a 2 of 5, u 1 of 2 (of g and h), b 3 of 5, p 2 of 3.
    result = order_of(keys(*"abpqsu"), by="typology", start="s", features=str(path))
    assert result == ("s", "q", "a", "u", "b", "p")


def test_features_of_the_branch_stand_for_those_not_known_and_that_is_said() -> None:
    order = OrderConfig(by="typology", name="typology")
    # Malay has no known features; Khmer differs from Indonesian, of the same branch, in one feature.
    dataset: Any = keys("km", "ms-MY", "id-ID")
    assert compute_order(replace(order, start="id-ID"), dataset) == ("id-ID", "ms-MY", "km")
    [note] = notes(order, dataset)
    assert "ms-MY" in note
    assert "id-ID" not in note
    assert notes(order, keys("en", "tr")) == [] == notes(OrderConfig(by="random", seed=1), dataset)


def test_a_file_gives_features_and_families_of_any_key(tmp_path: Path) -> None:
    path = tmp_path / "features.csv"
    path.write_text("language,family,branch,f,g,h\nde,X,,1,1,1\nfra,X,,1,1,0\nq,Y,,0,1,\nen,Y,,0,0,0\n")
    dataset = keys("en-US", "q", "fr-FR", "de-DE")
    # From German: French differs in 1 of 3, q in 1 of 2, English in 3 of 3.
    values = {"features": str(path), "start": "de"}
    assert order_of(dataset, by="typology", **values) == ("de-DE", "fr-FR", "q", "en-US")
    # The chain continues from French to q: 1 of 2; then English.
    assert order_of(dataset, by="similarity", measure="typology", **values) == ("de-DE", "fr-FR", "q", "en-US")
    assert order_of(dataset, by="family", features=str(path)) == ("de-DE", "fr-FR", "en-US", "q")
    for text, message in (
        ("language,f\nde,1\nde,2\n", ":3: 'de' is repeated"),
        ("language,f,f \nde,1,2\n", ":1: column 'f' is repeated"),
        ("language,f\nen,1\neng,2\n", ": 'en-US' could be en or eng"),
        ("language,f\nde,nan\n", ":2: 'nan' is not a value of 'f'"),
        ("code,f\nde,1\n", ":2: each row must have a language and exactly one cell per column"),
        ("language,f\nde,1,2\n", ":2: each row must have"),
        ("language\nde\n", ":2: each row must have"),
        ("", ": has no rows"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            order_of(dataset, by="typology", **values)


def test_similarity_is_a_greedy_chain_over_the_trigrams_of_training_words() -> None:
    dataset = Words({"a": "ABC abd", "x": "abq", "y": "klm nop", "z": "abc klm", "q": "q"}, {"a": 2})
    # Shared of all: a and z 3 of 8, a and x 1 of 7; z and y 3 of 9, z and x 1 of 8. With nothing in common: by key.
    assert order_of(dataset, by="similarity", measure="vocabulary") == ("a", "z", "y", "q", "x")
    # Nothing in common with any: by size, then by key.
    assert order_of(dataset, by="similarity", measure="vocabulary", start="q")[:2] == ("q", "a")


def test_a_chain_starts_with_most_sentences_and_of_equals_with_english() -> None:
    assert order_of(keys("de", "en-US", "fr"), by="similarity", measure="vocabulary")[0] == "en-US"
    assert order_of(keys("de", "en-US", "fr", fr=2), by="similarity", measure="vocabulary")[0] == "fr"
    assert order_of(keys("fr", "de"), by="similarity", measure="vocabulary")[0] == "de"


def test_words_in_parentheses_are_settings_and_sweeps_keep_them_apart() -> None:
    assert rewritten(["order=random(3)"]) == ["order=random", "order.seed=3"] == rewritten(["order='random(3)'"])
    assert rewritten(["order=similarity(greedy,typology,de)"]) == [
        "order=similarity", "order.measure=typology", "order.start=de",
    ]  # fmt: skip
    assert rewritten(["order=random(1),h2l,[en,de]"]) == ["order='random(1)',h2l,[en,de]"]
    for remaining in ("order=choice(h2l,l2h)", "order=glob(h*)"):
        assert rewritten([remaining]) == [remaining]
    jobs = compose_command(["order=random(1),typology(de),similarity(greedy,typology),[en,de]", "seed=1,2", "-m"])
    assert [(job.config.order.by, job.config.order.seed, job.config.order.start) for job in jobs[::2]] == [
        ("random", 1, None), ("typology", None, "de"), ("similarity", None, None), (None, None, None),
    ]  # fmt: skip
    assert [job.config.seed for job in jobs] == [1, 2] * 4


@pytest.mark.parametrize(
    "order",
    ["randm(1)", "random(x)", "random(1,2)", "h2l(1)", "typology()", "similarity(greedy,de,fr)"],
)
def test_an_order_with_unknown_arguments_is_refused(order: str) -> None:
    with pytest.raises(UsageError, match=r"orders with arguments are random\(SEED\), typology"):
        rewritten([f"order={order}"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("order.seed=1",), "^order.seed=1: needs order=random$"),
        (("order=random", "order.start=en"), "^order.start=en: needs order=typology or order=similarity$"),
        (("order=h2l", "order.by=random"), "^order.by=random: order.by_size=descending is set too"),
        (("order=similarity", "order.measure=word"), "^order.measure=word: unknown; "),
        (("order=similarity", "order.features=f.csv"), "^order.features=f.csv: needs order.measure=typology"),
        (
            ("order=typology(xx)",),
            "^order=typology: 'xx' is not a language of the dataset; Known: de, en, es",
        ),
        (("order=similarity(gredy)",), "^order=similarity: 'gredy' is neither a .*; did you mean 'greedy'"),
        (("order=[deu,de]",), "^order: the language 'de' is repeated"),
    ],
)
def test_settings_of_other_orders_are_refused(
    values: tuple[str, ...], message: str, compose: Callable[..., Composed]
) -> None:
    with pytest.raises(UsageError, match=message):
        plan_run(compose(*values).config)


def test_a_run_is_known_by_the_sequence_that_its_order_came_to(make_run: Callable[..., Run]) -> None:
    run = make_run("order=random(1)")
    sequence = list(run.stream.languages)
    assert run.resolved["order"]["name"] == "random(1)"
    assert run.resolved["order"]["languages"] == sequence
    assert "-random_1_-" in run.id
    same = make_run(f"order=[{','.join(sequence)}]", "order.name='random(1)'")
    assert same.id == run.id
    # Another name gives another run that shares all stages.
    other = make_run(f"order=[{','.join(sequence)}]")
    assert (other.id != run.id, other.stages) == (True, run.stages)
    assert make_run("order=random(2)").id != run.id
    # As frozen, where the languages stand and how they came about does not matter any more.
    assert plan_run(run.config).id == run.id


def test_languages_are_found_by_any_of_their_codes_and_keys_stay(make_run: Callable[..., Run]) -> None:
    run, named = make_run("order=[spa,en-US]"), make_run("order=[es,en]")
    assert run.stream.languages == ("es", "en")
    assert run.id == named.id
    ids = {make_run("order=h2l", f"dataset.languages=[{values}]").id for values in ("eng_Latn,deu", "en,de")}
    assert len(ids) == 1
