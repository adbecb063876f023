"""Statements: true and false claims about an example, their distributions, and their independence of other draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom, chisquare

from xclrun.config.schema import (
    Context,
    Corruption,
    DatasetConfig,
    PartConfig,
    StatementKind,
    StatementsConfig,
    Tagging,
    TagsAre,
    Truth,
)
from xclrun.core.errors import UsageError
from xclrun.core.task import STATEMENT_TRUTH, statement_of, task_of
from xclrun.data.example import Example
from xclrun.data.load import load_dataset
from xclrun.data.parts import Part
from xclrun.data.readers.collect import Splits
from xclrun.data.statements import HIDDEN, Draw, kinds, stated
from xclrun.plan import Run

Make = Callable[..., Run]

TAGS = ("NOUN", "VERB", "ADJ", "PUNCT")
# How often training has each: as uneven as tags are.
SHARES = (8, 4, 2, 1)
KINDS = kinds()
TAGS_OF_SPLIT = StatementKind(["{tags}"], wrong_from="split")


def tagged(n: int, length: int = 10) -> tuple[Example, ...]:
    """Sentences whose i-th words are ``w0 w1 …``, with tags as often as `SHARES` says."""
    bag = [tag for tag, share in zip(TAGS, SHARES, strict=True) for _ in range(share)]
    draw = Draw("tagged")
    return tuple(
        Example(f"s{i}", "en", tuple(f"w{j}" for j in range(length)), None, tuple(draw.ranked(bag, i)[:length]))
        for i in range(n)
    )


def alike(n: int) -> tuple[Example, ...]:
    """Sentences with one tag."""
    return tuple(Example(f"s{i}", "en", ("w", "w"), None, ("NOUN", "NOUN")) for i in range(n))


def labelled(n: int, labels: Sequence[str] = "abcde", **more: Any) -> tuple[Example, ...]:
    return tuple(Example(f"s{i}", "en", ("text", str(i)), labels[i % len(labels)], **more) for i in range(n))


def make(examples: Sequence[Example], task: str, kind: str = "pos", test: Sequence[Example] = (), **how: Any) -> Splits:
    """Return the statements about examples of a training split, and of a test split."""
    cfg = DatasetConfig(
        name="made", reader="jsonl", task=task, tags_are=TagsAre.words, statements=StatementsConfig(kind, **how)
    )
    entry = task_of(task, "words" if task == "token_tags" else "spans")
    splits = {("en", "train"): tuple(examples), ("en", "dev"): (), ("en", "test"): tuple(test)}
    part = stated(cfg, Part("", cfg, splits, {}, entry))
    assert part.task is STATEMENT_TRUTH
    return part.splits


def said(statement: Example) -> list[str]:
    """Return the tags that a statement about tags gives."""
    assert statement.text_b is not None
    head, _, tags = statement.text_b.partition(": ")
    assert head in ("Part of speech tags", "POS tags")
    return tags.split(" ")


@pytest.mark.parametrize("corrupt", list(Corruption))
def test_statements_about_tags_say_the_tags_back(corrupt: Corruption) -> None:
    made_of = (replace(e, id=f"{e.id}of{n}") for n in (10, 7, 1) for e in tagged(30, n))
    examples = {e.id: e for e in made_of}
    built = make(list(examples.values()), "token_tags", corrupt=corrupt)["en", "train"]
    assert [e.id for e in built] == [f"{name}#{k}" for name in examples for k in range(4)]
    for statement in built:
        name, k = statement_of(statement.id)
        wrong = [a != b for a, b in zip(examples[name].tags or (), said(statement), strict=True)]
        n = len(wrong)
        assert statement.label == ("false" if k else "true")
        assert statement.tokens == examples[name].tokens
        most = 0 if k == 0 else 1 if corrupt is Corruption.one else max(1, n // 2)
        assert min(1, most) <= sum(wrong) <= most


def test_half_of_the_places_are_drawn_anew_evenly_from_all_tags() -> None:
    """Of 5 of 10 places each, drawn from 18 tags: the old one may come back; so Binomial(5, 17/18) are wrong."""
    examples = tagged(400)
    built = make(examples, "token_tags")["en", "train"]
    right = {e.id: e.tags or () for e in examples}
    places, drawn, numbers = Counter[int](), Counter[str](), Counter[int]()
    for statement in built:
        name, k = statement_of(statement.id)
        if k:
            wrong = [i for i, (a, b) in enumerate(zip(right[name], said(statement), strict=True)) if a != b]
            places.update(wrong)
            numbers[len(wrong)] += 1
            drawn.update(said(statement)[i] for i in wrong)
    assert chisquare([places[i] for i in range(10)]).pvalue > 1e-3
    # Never drawn in training's tags: the other fourteen, each as often.
    remaining = [tag for tag in KINDS["pos"].tags or () if tag not in TAGS]
    assert len(remaining) == 14
    assert chisquare([drawn[tag] for tag in remaining]).pvalue > 1e-3
    # The false statements of one example are drawn apart: two that are wrong in one place say the same by chance.
    pairs = [
        (said(built[i]), said(built[i + 1]), right[e.id])
        for i, e in zip(range(1, len(built), 4), examples, strict=True)
    ]
    both = [
        a == b for first, two, tags in pairs for a, b, tag in zip(first, two, tags, strict=True) if tag not in (a, b)
    ]
    assert len(both) > 700
    assert sum(both) / len(both) < 0.1
    expected = binom(5, 17 / 18).pmf(range(6)) * len(examples) * 3
    few = [numbers[0] + numbers[1] + numbers[2] + numbers[3], numbers[4], numbers[5]]
    assert chisquare(few, [expected[:4].sum(), expected[4], expected[5]]).pvalue > 1e-3


def test_one_wrong_tag_is_drawn_as_often_as_training_has_it() -> None:
    examples = tagged(400)
    right = {e.id: e.tags or () for e in examples}
    result, places = Counter[tuple[str, str]](), Counter[int]()
    for statement in make(examples, "token_tags", corrupt=Corruption.one)["en", "train"]:
        name, k = statement_of(statement.id)
        if k:
            [at] = [i for i, (a, b) in enumerate(zip(right[name], said(statement), strict=True)) if a != b]
            places[at] += 1
            result[right[name][at], said(statement)[at]] += 1
    assert chisquare([places[i] for i in range(10)]).pvalue > 1e-3
    shares = Counter(tag for tags in right.values() for tag in tags)
    for old in TAGS:
        total = sum(result[old, new] for new in TAGS)
        remaining = [new for new in TAGS if new != old]
        rest = sum(shares[new] for new in remaining)
        expected = [total * shares[new] / rest for new in remaining]
        assert chisquare([result[old, new] for new in remaining], expected).pvalue > 1e-3


def test_no_two_statements_with_one_wrong_tag_say_the_same() -> None:
    """Of n words and four tags 3 n can be said that are false: all of them, where more are asked for."""
    for n in (1, 2):
        built = make(tagged(40, n), "token_tags", corrupt=Corruption.one, wrong=7)["en", "train"]
        message: dict[str, list[tuple[str, ...]]] = {}
        for statement in built:
            message.setdefault(statement_of(statement.id)[0], []).append(tuple(said(statement)))
        assert [len(group) for group in message.values()] == [1 + min(7, 3 * n)] * 40
        assert all(len(set(group)) == len(group) for group in message.values())


@pytest.mark.parametrize("how", [{"corrupt": Corruption.half}, {"corrupt": Corruption.one}, {"tagging": Tagging.word}])
def test_tags_that_are_called_the_same_are_no_wrong_ones(how: dict[str, Any]) -> None:
    names = {"NOUN": "open", "VERB": "open", "ADJ": "open"}
    kind = StatementKind(["{tags}"], words=["{word} is {tag}"], names=names, tags=list(TAGS))
    result = make(tagged(40), "token_tags", kinds={"pos": kind}, **how)["en", "train"]
    entry: dict[str, list[str]] = {}
    for statement in result:
        entry.setdefault(statement_of(statement.id)[0], []).append(str(statement.text_b))
    assert len(entry) == 40
    assert all(true not in false for true, *false in entry.values())
    assert sum(len(said) > 1 for said in entry.values()) >= 39


def test_statements_about_a_word_are_half_true_and_the_false_one_is_false_of_every_such_word() -> None:
    bank = Example("bank", "en", ("Bank", "on", "the", "bank"), None, ("VERB", "ADJ", "PUNCT", "NOUN"))
    examples = [*tagged(200), *(replace(bank, id=f"bank{i}") for i in range(40))]
    built = make(examples, "token_tags", tagging=Tagging.word)["en", "train"]
    assert Counter(e.label for e in built) == {"true": 240, "false": 240}
    right = {e.id: list(zip(e.tokens, e.tags or (), strict=True)) for e in examples}
    words = Counter[str]()
    for true, false in zip(built[::2], built[1::2], strict=True):
        name, _ = statement_of(true.id)
        (word, tag), (same, wrong) = (str(e.text_b).split(" is a ") for e in (true, false))
        assert (statement_of(false.id), same) == ((name, 1), word)
        assert (word, tag) in right[name]
        assert (word.lower(), wrong) not in [(w.lower(), t) for w, t in right[name]]
        words[word] += name.startswith("s")
    assert chisquare([words[f"w{j}"] for j in range(10)]).pvalue > 1e-3


def test_wrong_labels_are_others_each_once_and_evenly() -> None:
    examples = labelled(1500)
    kind = {"mine": StatementKind(["it is {label}"])}
    built = make(examples, "sequence_class", "mine", wrong=2, kinds=kind)["en", "train"]
    gold = {e.id: e.label for e in examples}
    entry = {name: [""] * 3 for name in gold}
    for statement in built:
        name, k = statement_of(statement.id)
        entry[name][k or 0] = str(statement.text_b).removeprefix("it is ")
    assert all(names[0] == gold[name] and len(set(names)) == 3 for name, names in entry.items())
    for k in (1, 2):
        pairs = Counter((names[0], names[k]) for names in entry.values())
        assert len(pairs) == 20
        assert chisquare(list(pairs.values())).pvalue > 1e-3


def test_there_are_as_many_false_statements_as_asked_or_as_there_are_other_classes() -> None:
    reviews = labelled(20, "12345")
    built = make(reviews, "sequence_class", "sentiment")["en", "train"]
    # Five numbers of stars, three names: 1 and 2 are both negative, and say so.
    assert Counter(e.label for e in built) == {"true": 20, "false": 40}
    assert {str(e.text_b).split()[-1].rstrip(".") for e in built if e.text_b and e.text_b.startswith("The")} == {
        "negative",
        "neutral",
        "positive",
    }
    assert "negative" in str(built[3].text_b)
    assert built[3].id == "s1#0"
    assert len(make(reviews, "sequence_class", "sentiment", wrong=1)["en", "train"]) == 40


def test_a_label_that_says_what_is_true_is_kept_and_numbers_the_statement() -> None:
    pairs = labelled(4, ("true", "false"), text_b="is it so")
    built = make(pairs, "sequence_class", "question")["en", "train"]
    assert [(e.id, e.label, e.text_b) for e in built[:2]] == [
        ("s0#0", "true", "is it so"),
        ("s1#1", "false", "is it so"),
    ]
    assert built[0].tokens == ("text", "0")
    with pytest.raises(UsageError, match=r"kind=question: example 's0' has the label 'a', not false or true"):
        make(labelled(4, text_b="why"), "sequence_class", "question")


def test_wrong_relations_of_test_are_those_of_test() -> None:
    facts = {"head": "Rome", "tail": "Italy"}
    splits = make(labelled(20, "abcd", facts=facts), "sequence_class", "relation", labelled(20, "wxyz", facts=facts))
    assert splits["en", "test"][0].text_b == "Rome - w - Italy"
    message = {split: {str(e.text_b).split(" - ")[1] for e in splits["en", split]} for split in ("train", "test")}
    assert message == {"train": set("abcd"), "test": set("wxyz")}
    # Of all other kinds wrong labels are those of training, whatever test holds.
    topics = make(labelled(20, "abcd"), "sequence_class", "topic", labelled(9, "axy"))["en", "test"]
    wrong = {
        str(e.text_b).rstrip(".").split()[-1 if "is" in str(e.text_b) else -2] for e in topics if e.label == "false"
    }
    assert wrong == set("abcd")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_template_of_every_kind_is_used_about_as_often(kind: str) -> None:
    facts = dict.fromkeys(("word", "sentence1", "sentence2", "noun", "pronoun", "head", "tail"), "W")
    about_tags = KINDS[kind].tags is not None or kind == "entities"
    if about_tags:
        examples = tagged(300)
    else:
        labels = ("true", "false") if KINDS[kind].truth is Truth.label else ("1", "3", "5")
        examples = labelled(300, labels, text_b="B", facts=facts)
    built = make(examples, "token_tags" if about_tags else "sequence_class", kind)["en", "train"]
    beginnings = [text.partition("{label}")[0].partition("{tags}")[0] for text in KINDS[kind].templates]
    filled = [text.format_map({**facts, "text_b": "B", "label": "", "tags": ""}) for text in beginnings]
    # The longest that fits: one may begin another.
    used = Counter(max((f for f in filled if str(e.text_b).startswith(f)), key=len) for e in built)
    assert len(used) == len(filled)
    assert len(used) == 1 or chisquare(list(used.values())).pvalue > 1e-3


def test_statements_do_not_hang_on_what_else_is_there() -> None:
    """Of the same seed, key, split and id: the same, in any order and company, shown or hidden."""
    examples = tagged(30)
    both = make(examples, "token_tags", test=examples)
    every = both["en", "train"]
    alone = make(list(reversed(examples)), "token_tags", test=examples[7:8])
    assert set(alone["en", "train"]) == set(every)
    assert alone["en", "test"] == both["en", "test"][28:32]
    # Another split of the same examples says other things; fewer false ones leave out the last.
    assert [e.text_b for e in both["en", "test"]] != [e.text_b for e in every]
    fewer = make(examples, "token_tags", wrong=1)["en", "train"]
    assert fewer == tuple(e for e in every if (statement_of(e.id)[1] or 0) < 2)
    hidden = make(examples, "token_tags", context=Context.hidden)["en", "train"]
    assert [(e.id, e.label, e.text_b) for e in hidden] == [(e.id, e.label, e.text_b) for e in every]
    assert {e.tokens for e in hidden} == {HIDDEN}


def test_a_context_holds_what_its_kind_says() -> None:
    pair = labelled(3, ("entailment", "neutral"), text_b="It rains .")
    assert make(pair, "sequence_class", "inference")["en", "train"][0].tokens == ("text", "0", "It", "rains", ".")
    facts = {"word": "set {x}", "sentence1": "One set .", "sentence2": "They set ."}
    [first, *_] = make(labelled(2, ("true", "false"), facts=facts), "sequence_class", "sense")["en", "train"]
    assert first.tokens == ("One", "set", ".", "They", "set", ".")
    assert str(first.text_b).startswith("set {x} is ")


def kind(template: str, *more: str, **options: Any) -> dict[str, Any]:
    """Return the settings of a kind ``pos`` with these templates."""
    return {"kinds": {"pos": StatementKind([template, *more], **options)}}


@pytest.mark.parametrize(
    ("examples", "task", "how", "reason"),
    [
        (labelled(3), "sequence_class", {}, r"kind=pos: needs tags"),
        (tagged(3), "token_tags", {"kind": "topic"}, r"kind=topic: needs label"),
        (tagged(3), "token_tags", {"kind": "poz"}, r"^dataset\.statements\.kind=poz: unknown; did you mean 'pos'\?"),
        (labelled(3, "a"), "sequence_class", {"kind": "topic"}, r"training has only 1 label"),
        (labelled(3), "sequence_class", {"kind": "relation"}, r"reader=jsonl have no 'head'; Known: label, text"),
        (labelled(3), "sequence_class", kind("{label"), r"'\{label' cannot be read"),
        (labelled(3), "sequence_class", kind("{label.x}"), r"with fields such as"),
        (labelled(3), "sequence_class", kind("so"), r"must contain \{label\} or \{tags\}"),
        (tagged(3), "token_tags", kind("{tags}", tags=["X"]), r"tags=\['X'\]: must contain at least two"),
        (tagged(3), "token_tags", kind("{tags}") | {"tagging": Tagging.word}, r"no template of statements about words"),
        # Wrong tags come from training: with a single tag, none could ever be drawn.
        (alike(3), "token_tags", {"kinds": {"pos": TAGS_OF_SPLIT}}, r"training has only 1 tag"),
        (tagged(3), "token_tags", kind("{tags}", names=dict.fromkeys(TAGS, "word")), r"training has only 1 tag"),
        (labelled(3), "sequence_class", kind("{label}", "so it is {text}"), r"'so it is \{text\}' lacks \{label\}"),
        (
            tagged(3), "token_tags", kind("{tags}", words=["{word}"]) | {"tagging": Tagging.word},
            r"'\{word\}' lacks \{tag\}",
        ),
        (labelled(3), "sequence_class", kind("It is {label}.", names={"a": " "}), r"names: the name of 'a' is blank"),
    ],
)  # fmt: skip
def test_impossible_statements_are_refused(
    examples: Sequence[Example], task: str, how: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        make(examples, task, **{"kind": "pos", **how})


# Through configs and runs.


def both(root: Path, **more: Any) -> DatasetConfig:
    """Slots of two languages as statements about tags, and a third's intents."""
    parts = {
        "slots": PartConfig(task="token_tags", languages=["en", "de"], statements="entities"),
        "plans": PartConfig(task="sequence_class", languages=["es"], **more.pop("plans", {})),
    }
    return DatasetConfig(name="both", reader="jsonl", root=str(root), parts=parts, **more)


def test_parts_of_different_tasks_are_one_as_statements(corpus: Path) -> None:
    dataset = load_dataset(both(corpus, statements=StatementsConfig("intent")))
    assert dataset.task is STATEMENT_TRUTH
    assert dataset.languages == ("slots-en", "slots-de", "plans")
    assert dataset.labels == ("false", "true")
    assert dataset.tags == ()
    assert Counter(e.label for e in dataset.split("slots-de", "test")) == {"true": 8, "false": 24}
    with pytest.raises(UsageError, match=r"^dataset\.parts\.plans\.statements must be given; Known: coref"):
        load_dataset(both(corpus))
    with pytest.raises(UsageError, match=r"label_prefix=x: statements are labeled true or false"):
        load_dataset(both(corpus, statements=StatementsConfig("intent"), plans={"label_prefix": "x"}))
    with pytest.raises(UsageError, match=r"shots=1: cannot be combined with dataset\.statements"):
        load_dataset(both(corpus, statements=StatementsConfig("intent")), shots=1)


def test_how_statements_are_made_is_part_of_a_run_only_where_there_are_some(make_run: Make) -> None:
    values = ("dataset.task=sequence_class", "dataset.statements.kind=intent")
    assert make_run(*values, "dataset.statements.wrong=1").id != make_run(*values).id
    assert make_run("dataset.statements.wrong=1").id == make_run().id


def test_a_limit_counts_statements(make_run: Make) -> None:
    run = make_run("dataset.task=sequence_class", "dataset.statements.kind=intent", "dataset.max_train=25")
    every = make_run("dataset.task=sequence_class", "dataset.statements.kind=intent")
    assert every.dataset.sizes() == {"en": 66, "de": 54, "es": 39}
    assert run.dataset.sizes() == {"en": 25, "de": 25, "es": 25}
    assert set(run.dataset.split("en", "train")) < set(every.dataset.split("en", "train"))


@pytest.mark.full
def test_a_run_on_statements_keeps_what_scores_need(make_run: Make, do: Make) -> None:
    from xclrun.store import predictions

    run = do(make_run("dataset.task=sequence_class", "dataset.statements.kind=intent", "trainer.epochs=1"))
    rows = predictions.read(run.directory.predictions(1)).to_pylist()
    assert {(row["gold"], statement_of(row["example_id"])[1] == 0) for row in rows} == {(0, False), (1, True)}
    assert all(row["log2_gold"] <= 0 for row in rows)
