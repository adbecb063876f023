"""Counts of parameters: those of the CCL paper's Table 7, and what they are made of."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import SMALL
from xclrun.analysis.records import record
from xclrun.cli import main
from xclrun.command import params as command
from xclrun.compose.jobs import Composed
from xclrun.config.schema import StrategyConfig
from xclrun.core import plugins
from xclrun.core.stream import sequence, transfer
from xclrun.core.task import SEQUENCE_CLASS
from xclrun.model.network import skeleton
from xclrun.plan import Run
from xclrun.store import cache
from xclrun.strategy import STRATEGIES, Strategy, make
from xclrun.strategy.shared.expansion import Expandable
from xclrun.strategy.shared.parameters import Count, count, keeps_parameters, sizes

from .few import CLASSES, changed, planned
from .real import graph

Make = Callable[..., Run]
Do = Callable[..., Run]

INTENTS, TAGS, LANGUAGES = 114, 152, ("en", "de", "fr", "hi", "es", "th")
# The paper's Table 7, without the adapters.
TABLE_7 = {
    "naive": 178_081_402,
    "lang_spec_ft": 1_068_488_412,
    "inc_joint": 178_081_402,
    "multilingual": 178_081_402,
    "lang_spec_embed": 639_123_322,
    "lang_spec_enc_1_3": 284_399_482,
    "lang_spec_enc_4_6": 284_399_482,
    "lang_spec_enc_7_9": 284_399_482,
    "lang_spec_enc_10_12": 284_399_482,
    "lang_spec_enc_1_9": 497_035_642,
    "lang_spec_trans": 1_067_348_602,
    "lang_spec_enc_1_12": 603_353_722,
    "lang_spec_enc_1_6": 390_717_562,
    "lang_spec_enc_7_12": 390_717_562,
    "lang_spec_task": 179_221_212,
    "er": 178_081_402,
}


@pytest.fixture(scope="module")
def mbert(compose: Callable[..., Composed]) -> dict[str, list[int]]:
    return sizes(skeleton(compose("model=mbert").config.model, INTENTS, TAGS))


@pytest.fixture(scope="module")
def classifier(compose: Callable[..., Composed]) -> dict[str, list[int]]:
    return sizes(skeleton(compose("model=mbert").config.model, 3, 0, task=SEQUENCE_CLASS))


@pytest.fixture
def counted(mbert: dict[str, list[int]], compose: Callable[..., Composed]) -> Callable[[str], Count]:
    """Count a strategy's parameters with mBERT, six languages and MTOP's labels."""

    def run(name: str) -> Count:
        # lang_spec_enc_4_6 of the paper's tables: layers 4 to 6.
        name, *ends = re.split(r"_(?=\d)", name)
        layers = [f"strategy.layers={[*range(int(ends[0]), int(ends[1]) + 1)]}".replace(" ", "")] if ends else []
        strategy = make(compose(f"strategy={name}", *layers).config.strategy)
        return count(mbert, strategy, strategy.stream(LANGUAGES))

    return run


@pytest.mark.some_cases
@pytest.mark.parametrize("name", TABLE_7)
def test_the_paper_s_table_7(name: str, counted: Callable[[str], Count]) -> None:
    found = counted(name)
    assert found.total == found.learned == TABLE_7[name]
    assert found.trained == TABLE_7["naive"]
    assert found.stored == 4 * found.total


def test_closed_formulas_of_the_parts(counted: Callable[[str], Count]) -> None:
    v, d, f, p, t = 119_547, 768, 3_072, 512, 2
    layer = 4 * (d * d + d) + 2 * d + (d * f + f) + (f * d + d) + 2 * d
    expected = {
        "embeddings": (v + p + t) * d + 2 * d,
        "layers 1-12": 12 * layer,
        "pooler": d * d + d,
        "intent head": (d + 1) * INTENTS,
        "tag head": (d + 1) * TAGS + TAGS**2 + 2 * TAGS,
    }
    parts = counted("naive").parts
    assert {part.name: part.parameters for part in parts} == expected
    assert [part.of for part in parts] == ["body"] * 3 + ["heads"] * 2
    body = sum(part.parameters for part in parts if part.of == "body")
    assert body == 177_853_440


def test_parts_say_what_is_specific(counted: Callable[[str], Count]) -> None:
    parts = counted("lang_spec_enc_4_6").parts
    shared = ["embeddings", "layers 1-3", "layers 7-12", "pooler", "intent head", "tag head"]
    assert [part.name for part in parts if not part.specific and part.copies == 1] == shared
    assert [(part.name, part.copies) for part in parts if part.specific] == [("layers 4-6", 6)]


def test_a_hundred_layers_are_found_by_their_own_number(compose: Callable[..., Composed]) -> None:
    """Layer 1 is not layer 10 or 11."""
    strategy = make(compose("strategy=lang_spec_enc", "strategy.layers=[1]").config.strategy)
    named = {f"encoder.encoder.layer.{i}.weight": [10 ** (i % 10), 1] for i in range(100)}
    found = count(named, strategy, strategy.stream(("a", "b")))
    assert [(part.name, part.copies) for part in found.parts] == [("layer 1", 2), ("layers 2-100", 1)]


def test_what_is_frozen_is_no_part_of_what_is_learnt(compose: Callable[..., Composed]) -> None:
    strategy = make(compose("strategy=lang_spec_task").config.strategy)
    named = {"encoder.embeddings.x": [100, 0], "encoder.pooler.x": [20, 1], "intent.weight": [3, 1]}
    found = count(named, strategy, strategy.stream(("a", "b")))
    assert (found.total, found.trained, found.learned) == (126, 23, 26)


# mBERT with a head of three classes: all of it, its pooler, and the head without and with its bias.
ALL, POOLER, WEIGHTS, HEAD = 177_853_440 + 3 * 769, 768 * 769, 3 * 768, 3 * 769


@pytest.mark.parametrize(
    ("name", "adapting"),
    [
        ("full", ALL),
        ("fc", HEAD),
        ("fc_pooler", POOLER + HEAD),
        ("fc_reset_pooler", POOLER + HEAD),
        ("cos_pooler", POOLER + WEIGHTS),
    ],
)
def test_few_shot_adapting_trains_what_is_tuned(
    name: str, adapting: int, classifier: dict[str, list[int]], compose: Callable[..., Composed]
) -> None:
    strategy, model = make(compose(f"strategy={name}").config.strategy), classifier
    found = count(model, strategy, transfer("en", "de"))
    assert found.by_hop == (ALL, adapting)
    assert (found.total, found.learned) == (ALL, ALL)
    assert found.trained == round((ALL + adapting) / 2)
    alone = count(model, strategy, transfer(None, "de"))
    assert alone.by_hop == (adapting,)
    assert (alone.total, alone.learned) == (ALL, adapting)
    # In a longer stream all hops but the first adapt.
    assert count(model, strategy, sequence(("en", "de", "fr"))).by_hop == (ALL, adapting, adapting)


@pytest.mark.some_cases
@pytest.mark.parametrize("name", ["fc", "fc_pooler", "fc_reset_pooler", "cos_pooler", "full"])
def test_what_is_counted_as_trained_is_what_changes(name: str, finished: Make) -> None:
    run = planned(finished, f"strategy={name}", *CLASSES)
    counted, moved = run.directory.read_manifest()["parameters"], changed(run)
    # Few sentences do not touch every word, nor a class its own bias alone: what changes is named, not each number.
    model = graph(run).bench.model
    named = {n: p.numel() for n, p in model.named_parameters()}
    assert sum(named[n] for n in moved) <= counted["trained_by_hop"][1]
    strategy, hop = run.strategy(), run.stream.hops[2]
    assert {n for n in named if strategy.parameters.trains(n, hop)} >= moved
    assert sum(size for n, size in named.items() if strategy.parameters.trains(n, hop)) == counted["trained_by_hop"][1]
    assert counted["trained_by_hop"][0] == counted["total"] == sum(named.values())


# Parameters of a layer, and of what stands before and behind the layers, by hand.
def bert_layer(d: int, f: int) -> int:
    return 4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d


# Encoder → its parameters, pooler included where it has one.
ENCODERS = {
    "xlmr": 278_043_648,  # as its own library counts
    "xlmr_large": (250_002 + 514 + 1 + 2) * 1024 + 24 * bert_layer(1024, 4096) + 1024 * 1025,
    "labse": (501_153 + 512 + 2 + 2) * 768 + 12 * bert_layer(768, 3072) + 768 * 769,
    "distilmbert": (119_547 + 512 + 2) * 768 + 6 * bert_layer(768, 3072),
    # Distances: a row for each of 256 to either side, and a norm.
    "mdeberta": (251_000 + 2) * 768 + 12 * bert_layer(768, 3072) + (2 * 256 + 2) * 768,
    # Norms and matrices without bias, a gated feed-forward part; the first layer begins without a norm.
    "mmbert": (256_000 + 2) * 768 + 22 * (4 * 768**2 + 3 * 768 * 1152 + 2 * 768) - 768,
}


@pytest.mark.some_cases("xlmr", "distilmbert")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_that_are_named_have_their_size(name: str, compose: Callable[..., Composed]) -> None:
    named = sizes(skeleton(compose(f"model={name}").config.model, 1, 0))
    assert sum(n for name, (n, _) in named.items() if name.startswith("encoder.")) == ENCODERS[name]


@pytest.mark.parametrize("layers", [1, 3])
def test_the_skeleton_is_the_model_without_numbers(layers: int, make_run: Make) -> None:
    run = make_run(f"model.hidden_layers={layers}")
    bench = graph(run).bench
    vocabulary = len(bench.encodings.tokenizer)
    bare = skeleton(run.config.model, len(run.dataset.labels), len(run.dataset.tags), vocabulary)
    assert sizes(bare) == sizes(bench.model)
    assert {parameter.device for parameter in bare.parameters()} == {torch.device("meta")}


@pytest.mark.full
def test_what_is_counted_without_a_model_is_what_strategies_leave_as_it_was(compose: Callable[..., Composed]) -> None:
    """A strategy that says of a model's parameters that it leaves them does so; adapters and prompts do not say it."""
    own = [name for name, cls in STRATEGIES.items() if cls.prepare not in (Strategy.prepare, Expandable.prepare)]
    given = {name: [f"strategy={name}"] for name in own}
    for beneath in ("lang_spec_task", "lang_spec_lora_f"):
        given[f"er, {beneath}"] = ["strategy=er", f"strategy.expansion={beneath}"]
    nowhere: Any = None
    model, built = skeleton(compose().config.model, 3, 4), set()
    before = sizes(model)
    for name, overrides in given.items():
        strategy = make(compose(*overrides).config.strategy)
        if keeps_parameters(strategy):
            with torch.device("meta"):
                strategy.prepare(model, strategy.stream(LANGUAGES), nowhere)
            assert sizes(model) == before, name
        else:
            built.add(name)
    added = {"seq_lora", "inc_lora", "o_lora", "lang_spec_prompt", "l2p", "coda_prompt"}
    assert built == {name for name in own if STRATEGIES[name].has_adapters} | added | {"er, lang_spec_lora_f"}
    assert {"lang_spec_enc", "mbpa", "l2_init", "cos_pooler", "lang_spec_lora_f"} <= set(own)

    class Mine(Strategy[StrategyConfig]):
        def prepare(self, *given: Any) -> None:
            pass

    assert not keeps_parameters(Mine(StrategyConfig("mine")))


# --- The command.


def params(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["plan", "--params", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


GIVEN = ("task.intents=114", "task.tags=152", "model=mbert")


def test_the_command_needs_neither_data_nor_weights(capsys: pytest.CaptureFixture[str]) -> None:
    found = params(*GIVEN, "dataset=mtop", "order=order1", "strategy=lang_spec_trans,naive", capsys=capsys)
    assert [(c["strategy"], c["total"], c["trained"], c["stored_bytes"], c["languages"]) for c in found] == [
        ("lang_spec_trans", 1_067_348_602, 178_081_402, 4 * 1_067_348_602, 6),
        ("naive", 178_081_402, 178_081_402, 4 * 178_081_402, 6),
    ]


def test_orders_and_seeds_are_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("task.intents=3", "task.tags=0", "task.languages=2", "strategy=lang_spec_task")
    [found] = params(*given, "seed=1,2", "order=h2l,l2h", capsys=capsys)
    assert found["languages"] == 2
    # Three intents and a bias each, of 128 numbers; no tags.
    assert [part["parameters"] for part in found["parts"]][-1] == 3 * 129
    assert found["total"] - found["trained"] == 3 * 129


@pytest.mark.full
def test_the_command_counts_what_a_run_trains(finished: Make, capsys: pytest.CaptureFixture[str], corpus: Any) -> None:
    run = finished("strategy=lang_spec_task")
    shape = [text for text in SMALL if text.startswith("model.")]
    data = ["dataset=jsonl", f"dataset.root={corpus}", "order=[en,de,es]", "strategy=lang_spec_task"]
    [found] = params(*data, *shape, capsys=capsys)
    manifest = run.directory.read_manifest()
    assert {key: found[key] for key in manifest["parameters"]} == manifest["parameters"]
    assert manifest["parameters"]["languages"] == 3


def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--params", *GIVEN, "strategy=lang_spec_enc", "strategy.layers=[10,11,12]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mbert · lang_spec_enc(layers=[10,11,12]) · 6 languages · 114 intents, 152 tags"
    assert ["layers", "10-12", "21,263,616", "6", "127,581,696", "yes"] in [line.split() for line in lines]
    assert lines[-3:] == [
        "total                284,399,482 (1.14 GB in fp32)",
        "trained at each hop  178,081,402",
        "trained in any hop   284,399,482",
    ]


def test_the_table_says_which_hop_trains_what(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("experiment=fewshot", "language=de", "dataset.task=sequence_class", "task.classes=3", "model=mbert")
    assert main(["plan", "--params", *given, "strategy=cos_pooler"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines]
    assert ["layers", "1-12", "85,054,464", "1", "85,054,464", "hop", "1"] in rows
    assert ["pooler", "590,592", "1", "590,592", "yes"] in rows
    assert ["class", "head", "2,304", "1", "2,304", "yes"] in rows
    assert ["class", "head", "3", "1", "3", "hop", "1"] in rows
    assert "trained at each hop  177,855,747 (hop 1), 592,896 (hop 2)" in lines
    assert main(["plan", "--params", *given, "strategy=fc", "source=none"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["layers", "1-12", "85,054,464", "1", "85,054,464", "no"] in [line.split() for line in lines]
    assert "trained at each hop  2,307" in lines


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["task.intent=3"], "unknown key 'task.intent'; did you mean 'task.intents'?"),
        (["task.intents=0"], "task.intents=0: must be a whole number of at least 1"),
        (["task.tags=x"], "task.tags=x: must be a whole number of at least 0"),
        (["task.languages=2", "order=order1"], "task.languages=2: the order has 6 languages"),
        (["dataset=mtop", "task.intents=2"], "params also takes task.intents=N task.tags=N task.languages=N"),
        (
            ["strategy=lang_spec_enc", "strategy.layers=[1,2,3]", *GIVEN[:2]],
            "the encoder has no layer 3, only layers 1 to 2",
        ),
        (["--jsn"], "plan --params: unknown option '--jsn'"),
    ],
)
def test_wrong_usage(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--params", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_learned_vocabulary_is_counted_again_when_the_data_change(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    corpus: Path,
    changed_corpus: Callable[..., Path],
) -> None:
    learned: list[Path] = []
    subwords = command._subwords

    def counting(config: Any, dataset: Any) -> tuple[int | None, int | None]:
        learned.append(config.dataset.root)
        return subwords(config, dataset)

    monkeypatch.setattr(command, "cache_folder", lambda: tmp_path / "user")
    monkeypatch.setattr(command, "_subwords", counting)
    arguments = ("dataset=jsonl", "order=[en,de,es]", "strategy=naive")
    [first] = params(*arguments, f"dataset.root={corpus}", capsys=capsys)
    assert params(*arguments, f"dataset.root={corpus}", capsys=capsys) == [first]
    assert len(learned) == 1

    def longer(rows: list[dict[str, Any]]) -> None:
        rows[0]["tokens"][0] = "zvqxjk"

    [other] = params(*arguments, f"dataset.root={changed_corpus({('de', 'train'): longer})}", capsys=capsys)
    assert other["total"] > first["total"]
    # If the cache cannot be written, the result is the same; after a change of the code it is computed again.
    shutil.rmtree(tmp_path / "user")
    (tmp_path / "user").write_text("a file")
    for _ in range(2):
        assert params(*arguments, f"dataset.root={corpus}", capsys=capsys) == [first]
    (tmp_path / "user").unlink()
    for module, name, value in ((plugins, "hashes", ["other"]), (cache, "source_hash", "other")):
        monkeypatch.setattr(module, name, lambda value=value: value)
        assert params(*arguments, f"dataset.root={corpus}", capsys=capsys) == [first]
    assert len(learned) == 6


# --- The manifest.


def test_the_manifest_says_what_is_kept(finished: Make) -> None:
    """A memory after the first hop is known though the evaluation is shared with naive."""
    naive, er = (finished(*given).directory.read_manifest() for given in ((), ("strategy=er",)))
    assert [stage["kept"] for stage in naive["stages"]] == [{"examples": 0, "bytes": 0, "seconds": 0.0}] * 4
    kept = [stage["kept"] for stage in er["stages"][1:]]
    assert [entry["examples"] for entry in kept] == [10, 10, 10]
    assert all(entry["bytes"] > 0 and entry["seconds"] > 0 for entry in kept)


@pytest.mark.some_cases
@pytest.mark.parametrize("name", ["er", "kd_logit", "agem"])
def test_the_manifest_says_what_was_trained_on(name: str, finished: Make) -> None:
    """Steps of er are its own; kd and A-GEM learn from the memory beside the batches of the hop."""
    given = ("trainer.epochs=1", "strategy.every_k=2", "strategy.memory=25")
    run = finished(f"strategy={name}", *given)
    stages = run.directory.read_manifest()["stages"][1:]
    trained = [stage["training"] for stage in stages]
    # Hops 2 and 3 have 18 and 13 sentences in batches of 4, so 2 memory batches of each language, or of all, in hop 2,
    # and 2 in hop 3. The first language has less than the memory would hold, so that is largest later.
    batches = {"er": (2, 4), "kd_logit": (2, 4), "agem": (2, 2)}[name]
    drawn = [0, *(4 * n for n in batches)]
    own, beside = (
        [t["examples"] - n for t, n in zip(trained, (22, 18, 13), strict=True)],
        [t["beside_examples"] for t in trained],
    )
    assert (own, beside) == ((drawn, [0, 0, 0]) if name == "er" else ([0, 0, 0], drawn))
    assert [t["beside_tokens"] > 0 for t in trained] == [n > 0 for n in beside]
    assert all(t["tokens"] > t["examples"] and t["seconds"] > 0 and t["step"] > 0 for t in trained)
    # What a run took, as reports compare it, is both together.
    costs = record(run.directory).costs
    assert costs["examples"] == 22 + 18 + 13 + sum(drawn)
    assert costs["tokens"] == sum(t["tokens"] + t["beside_tokens"] for t in trained)
    kept = [stage["kept"]["bytes"] for stage in stages]
    assert costs["memory"] == max(kept) > kept[0] > 0


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        (("naive",), [0, 0, 0]),
        (("growing",), [0, 22, 40]),
        (("inc_joint",), [0, 22, 40]),
        (("joint_replay",), [0, 22, 40]),
        (("joint_replay", "strategy.rate=0"), [0, 0, 0]),
        (("gdumb", "strategy.memory=30"), [0, 22, 30]),
        (("multilingual",), [0]),
    ],
)
def test_the_manifest_counts_earlier_sentences_that_a_hop_reads(
    strategy: tuple[str, ...], kept: list[int], finished: Make
) -> None:
    """Strategies without a state keep training data: the memory of the budget is not 0."""
    name, *given = strategy
    run = finished(f"strategy={name}", *given, "trainer.epochs=1")
    found = [stage["kept"] for stage in run.directory.read_manifest()["stages"][1:]]
    assert [(size["examples"], size["bytes"]) for size in found] == [(count, 8 * count) for count in kept]
    assert record(run.directory).costs["memory"] == 8 * max(kept)


def test_every_run_knows_its_own_count_from_a_shared_hop_0(finished: Make) -> None:
    naive, alone = (
        finished(*given).directory.read_manifest()["parameters"] for given in ((), ("strategy=lang_spec_ft",))
    )
    assert alone["total"] == 3 * naive["total"]
    assert alone["trained"] == naive["trained"] == naive["total"]
