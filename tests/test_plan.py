"""Identity and sharing: what changes a run id or a stage key, what does not, and which strategies share which hops."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import some
from xclrun.compose.jobs import Composed
from xclrun.compose.keys import known_keys
from xclrun.config.schema import StrategyConfig, TrainerConfig
from xclrun.core import identity as plan
from xclrun.core import task
from xclrun.core.errors import UsageError
from xclrun.core.graph import Kind, Plan, Stage
from xclrun.core.identity import DataIdentity, derive, digest
from xclrun.core.stream import Hop, Stream, independent, joint, resolve_order, sequence, transfer
from xclrun.data import encodings
from xclrun.launch.forecast import missing
from xclrun.plan import Run, plan_run
from xclrun.strategy import STRATEGIES as ALL_STRATEGIES
from xclrun.strategy import make, strategy_class

ORDER = ("en", "de", "es")
LISTED = ("order=list", "order.languages=[en,de,es]", "order.name=mine")
# MTOP's training sizes.
MTOP = {"en": 15667, "de": 13424, "fr": 11814, "hi": 11330, "es": 10934, "th": 10759}

# Every key of the config, and what changes with it:
#   nothing     it cannot change a result
#   id          the run id alone: a name, or what the fingerprints of data and encoder stand for in the stage keys
#   all         every stage: the model, the seed
#   trained     every hop that was trained, that is all but hop 0
#   evaluated   as trained, and how hop 0 is evaluated
#   own         what the strategy does by itself: see OWN
#   composed    another strategy beneath: what changes, `test_an_expansion_changes_what_it_does` says
#   merged      how models are merged: what changes, tests/strategy/test_merge says
#   protocol    other hops, or how the source is trained: what changes, tests/test_fewshot says
# Under further conditions: parts, tests/data/test_parts; statements, test_statements; questions, test_questions and
# tests/train/test_span; texts, tests/train/test_texts; orders, tests/data/test_orders; blocks and `continues`,
# tests/strategy/test_growing; points, tests/strategy/test_mbpa; mixtures, tests/train/test_curriculum; buckets and slot
# F1, below.
KEYS = {
    "id": """
        dataset.name dataset.reader dataset.task dataset.tags_are dataset.statements.kind dataset.languages
        dataset.max_train dataset.max_eval dataset.max_dev dataset.max_test dataset.stratified dataset.repeat_to
        dataset.blocks dataset.subset_seed dataset.unanswerable order.name order.languages order.by_size
        strategy.name strategy.adapt_points model.name model.lr trainer.mixture_steps evaluate.attention source
        language shots bucket
    """,
    "nothing": """
        dataset.root dataset.hub dataset.hub_config dataset.hub_columns dataset.word_column dataset.tag_column
        dataset.tag_names dataset.text_column dataset.label_column dataset.text_b_column dataset.language_column
        dataset.header dataset.parts dataset.statements.wrong dataset.statements.corrupt dataset.statements.tagging
        dataset.statements.context dataset.statements.kinds dataset.on_bad_line dataset.buckets.sampler
        dataset.buckets.draw_from dataset.buckets.counts dataset.buckets.number dataset.buckets.root
        dataset.replay.memory dataset.replay.every_k dataset.source_lr order.by order.seed order.start
        order.measure order.features strategy.pretrained model.hub model.revision model.path model.package
        model.windows.stride model.windows.question model.windows.answer model.max_target model.source_lr
        dataset.text.prompt dataset.text.completion dataset.text.system dataset.text.template dataset.text.loss_per
        generation.max_new_tokens generation.batch_tokens generation.stop evaluate.generate evaluate.stride
        trainer.checkpoint_minutes trainer.gradient_checkpointing
        tracking.enabled tracking.to tracking.uri tracking.experiment sweep_name
        paths.outputs paths.store store.keep runtime.device runtime.threads runtime.deterministic
        runtime.devices runtime.rank_timeout
    """,
    "own": """
        strategy.memory strategy.every_k strategy.selection strategy.interleave strategy.weight
        strategy.teacher_precision strategy.penalty strategy.gamma strategy.fisher_examples strategy.examples
        strategy.damping strategy.temperature strategy.beta strategy.margin strategy.compared strategy.rate
        strategy.layers strategy.start strategy.reduction strategy.adapter strategy.lora_rank
        strategy.lora_alpha strategy.lora_targets strategy.prefix_length strategy.reset strategy.alpha
        strategy.replay_write strategy.replay_interval strategy.replay_number strategy.pool
        strategy.length strategy.selected strategy.cosine strategy.library
    """,
    "served": """
        strategy.neighbours strategy.key strategy.distance strategy.adapt_steps strategy.adapt_lr
        strategy.adapt_penalty strategy.adapt_together
    """,
    "composed": "strategy.expansion strategy.merged strategy.continues strategy.warm_up",
    "all": """
        model.frozen_precision model.layers model.trim_vocabulary model.vocab_size model.hidden_size model.hidden_layers
        model.attention_heads model.intermediate_size model.positions model.family model.settings
        model.token_types model.max_length model.dropout model.label_on dataset.as_text seed
    """,
    "trained": """
        trainer.epochs trainer.batch_size trainer.gradient_accumulation trainer.optimizer trainer.lr
        trainer.betas trainer.eps trainer.weight_decay trainer.clip_norm trainer.schedule trainer.warmup
        trainer.packing trainer.group_by_length trainer.cuda_graphs trainer.selection trainer.patience evaluate.slot_f1
        evaluate.gradient_overlap evaluate.class_gradients
    """,
    "handed on": "trainer.optimizer_state",
    "evaluated": """
        trainer.precision evaluate.batch_size evaluate.batch_tokens evaluate.every_examples evaluate.every_share
        evaluate.point_splits evaluate.keep_points
    """,
    "protocol": "protocol protocol.name",
    "merged": """
        strategy.method strategy.scale strategy.density strategy.drop strategy.decay strategy.share
        strategy.strength strategy.reverted
    """,
}
EXPECTED = {key: what for what, keys in KEYS.items() for key in keys.split()} | {
    f"protocol.source_trainer.{f.name}": "protocol" for f in dataclasses.fields(TrainerConfig)
}


# A merge trains as another strategy does, and its settings depend on its method: see tests/strategy/test_merge.
STRATEGIES = [name for name in ALL_STRATEGIES if name != "merge"]


@dataclasses.dataclass(frozen=True)
class Own:
    """The hops in which a strategy does something by itself: in training, in evaluation, in the state that it keeps."""

    train: tuple[int, ...] = ()
    evaluation: tuple[int, ...] = ()
    state: tuple[int, ...] = ()
    # Another strategy that trains the same.
    trained_as: str = ""
    # The hops whose training its settings change, where they are fewer.
    tuned: tuple[int, ...] | None = None


# Something is kept after each hop, and changes the training of the next ones.
KEEPING = Own(train=(2, 3), evaluation=(2, 3), state=(1, 2, 3))
# The memory is used in the hop that fills it.
WRITING = Own(train=(1, 2, 3), evaluation=(1, 2, 3), state=(1, 2, 3))
# The first training is naive's, and notes what the penalty of the next ones is made of.
GATHERING = dataclasses.replace(WRITING, tuned=(2, 3))
# The same memory, of which evaluation makes something else.
ADAPTING = dataclasses.replace(WRITING, trained_as="replay")
# The first language's parts start as the whole model does, and serve from its hop on.
PARTS = Own(train=(2, 3), evaluation=(1, 2, 3))
# Adapters are there from the start.
ADAPTERS = Own(train=(1, 2, 3), evaluation=(0, 1, 2, 3))
# The first hop trains everything, the others adapt heads.
HEADS = Own(train=(2, 3), evaluation=(2, 3))
# Later hops are trained otherwise, from nothing that is kept.
LATER = HEADS
# Every hop is trained otherwise, from nothing that is kept.
ALWAYS = Own(train=(1, 2, 3), evaluation=(1, 2, 3))
OWN = {
    "naive": Own(),
    "lang_spec_ft": Own(),
    "inc_joint": Own(),
    "growing": Own(),
    "multilingual": Own(),
    "zero_shot": Own(),
    "lang_spec_trans": PARTS,
    "lang_spec_enc": PARTS,
    "lang_spec_embed": PARTS,
    "lang_spec_task": PARTS,
    "lang_spec_ada_t": ADAPTERS,
    "lang_spec_ada_f": ADAPTERS,
    "lang_spec_lora_t": ADAPTERS,
    "lang_spec_lora_f": ADAPTERS,
    "lang_spec_prompt": ADAPTERS,
    "l2p": ADAPTERS,
    "coda_prompt": ADAPTERS,
    "seq_lora": ADAPTERS,
    "inc_lora": ADAPTERS,
    "o_lora": ADAPTERS,
    "er": KEEPING,
    "agem": KEEPING,
    "replay": WRITING,
    "agem_replay": WRITING,
    "mbpa": ADAPTING,
    "ewc": KEEPING,
    "ewc_online": KEEPING,
    "kd_logit": KEEPING,
    "kd_rep": KEEPING,
    "fc": HEADS,
    "fc_pooler": HEADS,
    "fc_reset_pooler": HEADS,
    "cos_pooler": HEADS,
    "l2_prev": LATER,
    "lwf": LATER,
    "joint_replay": LATER,
    "model_average": LATER,
    "freeze_bottom": LATER,
    "l2_init": ALWAYS,
    "gdumb": ALWAYS,
    "mas": KEEPING,
    "gem": KEEPING,
    "er_ace": KEEPING,
    "der": WRITING,
    "derpp": WRITING,
    "si": GATHERING,
}

# Settings that change other hops than the strategy's other settings: the form of all heads, and a penalty that needs
# an earlier hop.
TUNED = {
    ("er_ace", "strategy.cosine"): {"train": (1, 2, 3), "evaluation": (0, 1, 2, 3)},
    ("o_lora", "strategy.penalty"): {"train": (2, 3), "evaluation": (2, 3)},
}


# No hop starts from another one that was trained.
SINGLE = ("lang_spec_ft", "multilingual", "zero_shot", "growing", "gdumb")
# Those that do not learn one language after another.
STREAMS = {
    "lang_spec_ft": "each alone",
    "inc_joint": "cumulative",
    "growing": "cumulative, anew",
    "gdumb": "cumulative, anew",
    "multilingual": "union",
    "zero_shot": "first",
}


def starting(*kinds: Own) -> list[str]:
    """Return the strategies of these kinds whose first training is on one language."""
    return [name for name in STRATEGIES if OWN[name] in kinds and name != "multilingual"]


def leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a resolved config."""
    for key, value in node.items():
        if value and isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


# Other values of keys that are null or empty by default.
POSSIBLE = {"dataset.parts": {"en": {}}, "strategy.layers": [1], "strategy.fisher_examples": 7}
POSSIBLE |= {"strategy.adapter": "ia3", "strategy.lora_targets": ["k"], "strategy.reduction": 4}
POSSIBLE |= {"strategy.library": "adapters", "strategy.examples": 7, "strategy.compared": 7, "strategy.cosine": 10.0}


def changed(resolved: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the config with another value of one key."""
    result = copy.deepcopy(resolved)
    *parents, last = key.split(".")
    node = result
    for parent in parents:
        node = node[parent]
    value = node[last]
    # Settings stay possible, since strategies check them, and names stay words of the id.
    if type(value) is int:
        node[last] = value + 1
    elif type(value) is float:
        node[last] = value / 2 if value else 1.0
    elif key in POSSIBLE:
        node[last] = POSSIBLE[key]
    else:
        node[last] = f"{value}x" if isinstance(value, str) else ["another", value]
    return result


def data_identity(**changes: str) -> DataIdentity:
    """Return made-up fingerprints; ``de_test="new"`` changes that of a split."""
    content = {(language, split): f"{language} {split}" for language in ORDER for split in ("train", "dev", "test")}
    for key, value in changes.items():
        language, split = key.split("_")
        content[language, split] = value
    return DataIdentity(content, labels="labels")


@dataclasses.dataclass(frozen=True)
class Planned:
    """Hash of the run id, and stages, of a config on made-up data."""

    id: str
    stages: tuple[Stage, ...]

    @classmethod
    def of(
        cls,
        resolved: dict[str, Any],
        data: DataIdentity | None = None,
        encoder: str = "encoder",
        order: tuple[str, ...] = ORDER,
    ) -> Planned:
        name = resolved["strategy"]["name"]
        # A changed name is that of no strategy; what stands behind it here is naive.
        kind = strategy_class(name if name in STRATEGIES else "naive")
        strategy = kind(kind.settings_type(**resolved["strategy"]))
        data = data or data_identity()
        stages = plan.stages(resolved, strategy.stream(order), data, encoder, strategy)
        # The words before the hash are for people.
        return cls(plan.run_id(resolved, data, encoder, strategy.version).rpartition("-")[2], stages)

    def keys(self, part: str) -> list[str | None]:
        return [getattr(stage, part) for stage in self.stages]


def differs(a: Planned, b: Planned, part: str) -> list[bool]:
    """Return for each hop whether a key changed."""
    return [x != y for x, y in zip(a.keys(part), b.keys(part), strict=True)]


@pytest.fixture(scope="module")
def resolved(compose: Callable[..., Composed]) -> Callable[..., dict[str, Any]]:
    """Compose the resolved config of a strategy; a memory, so that er is not naive."""

    def make(name: str = "naive", *overrides: str) -> dict[str, Any]:
        return compose(f"strategy={name}", *LISTED, *overrides).resolved

    return make


# --- Every key of the config.


@pytest.mark.some_cases
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_key_falls_on_its_side(strategy: str, resolved: Callable[..., dict[str, Any]]) -> None:
    config = resolved(strategy)
    before = Planned.of(config)
    hops = range(len(before.stages))
    # What is no setting of a strategy is the same for all that keep and train alike.
    alike = next(
        name for name in STRATEGIES if (OWN[name], STREAMS.get(name)) == (OWN[strategy], STREAMS.get(strategy))
    )
    for key in some(leaves(config)):
        if key == "strategy.name" and strategy != "naive":
            continue  # Another name is another stream: what that changes, the sharing tests say.
        if alike != strategy and not key.startswith("strategy."):
            continue
        assert key in EXPECTED, f"{key} is new: write down in EXPECTED what changes with it"
        kind = EXPECTED[key]
        if kind in ("composed", "protocol") or key == "strategy.pretrained":
            continue  # Not any value can stand there; pretrained adapters: tests/strategy/test_adapters.
        after = Planned.of(changed(config, key))
        assert (after.id != before.id) == (kind != "nothing"), key
        for part in ("train", "evaluation", "state"):
            from_hop = {"all": 0, "trained": 1, "evaluated": 0 if part == "evaluation" else 1}
            reached = [hop >= from_hop[kind] if kind in from_hop else False for hop in hops]
            if kind == "handed on":
                # Not where each hop starts from hop 0.
                reached = [hop > 0 and strategy not in SINGLE for hop in hops]
            if kind == "served":
                reached = [part == "evaluation" and hop in OWN[strategy].evaluation for hop in hops]
            if kind == "own":
                tuned = OWN[strategy].tuned if part != "state" else None
                usual = tuned or getattr(OWN[strategy], part)
                reached = [hop in TUNED.get((strategy, key), {}).get(part, usual) for hop in hops]
            elif part == "state":
                # Where nothing is kept, nothing can change.
                reached = [is_reached and hop in OWN[strategy].state for hop, is_reached in enumerate(reached)]
            assert differs(before, after, part) == reached, f"{key}: {part}"


@pytest.mark.parametrize(
    ("overrides", "spans", "changed_hops"),
    [
        (["trainer.selection=best"], True, [1, 2, 3]),
        (["trainer.selection=best"], False, []),  # there is no F1 among the scores that choose
        (["trainer.selection=last"], True, []),
        (["trainer.selection=last", "trainer.patience=0"], True, []),
        (["trainer.selection=last", "trainer.patience=1"], True, [1, 2, 3]),  # it chooses the end
    ],
)
def test_another_f1_retrains_only_what_is_chosen_by_it(
    overrides: list[str], spans: bool, changed_hops: list[int], resolved: Callable[..., dict[str, Any]]
) -> None:
    config, data = resolved("naive", *overrides), dataclasses.replace(data_identity(), spans=spans)
    other = copy.deepcopy(config)
    other["evaluate"]["slot_f1"] = "tag_macro"
    before, after = Planned.of(config, data), Planned.of(other, data)
    assert before.id != after.id
    for part in ("train", "evaluation"):
        assert [hop for hop, is_changed in enumerate(differs(before, after, part)) if is_changed] == changed_hops


def test_in_few_shot_transfer_source_and_target_choose_each_in_its_own_way(make_run: Callable[..., Run]) -> None:
    few = ("experiment=fewshot", "order=list", "language=de", "shots=null", "bucket=null", "dataset.max_train=9")
    for source, target, shared in (("best", "last", [0]), ("last", "best", [0, 1]), ("last", "last", [0, 1, 2])):
        ways = (f"protocol.source_trainer.selection={source}", f"trainer.selection={target}", "trainer.patience=null")
        one, other = (make_run(*few, *ways, f"evaluate.slot_f1={way}") for way in ("span_micro", "tag_macro"))
        pairs = zip(one.stages, other.stages, strict=True)
        assert [hop for hop, (a, b) in enumerate(pairs) if a.train == b.train] == shared


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("strategy", "expansion", "trained", "evaluated"),
    [
        *[
            (name, "lang_spec_task", [2, 3], [1, 2, 3])
            for name in ("er", "agem", "kd_logit", "kd_rep", "ewc", "ewc_online")
        ],
        ("lang_spec_ft", "lang_spec_ada_f", [1, 2, 3], [0, 1, 2, 3]),
    ],
)
def test_an_expansion_changes_what_it_does(
    strategy: str, expansion: str, trained: list[int], evaluated: list[int], make_run: Callable[..., Run]
) -> None:
    plain, over = make_run(f"strategy={strategy}"), make_run(f"strategy={strategy}", f"strategy.expansion={expansion}")
    assert plain.id != over.id
    pairs = list(zip(plain.stages, over.stages, strict=True))
    assert [hop for hop, (a, b) in enumerate(pairs) if a.train != b.train] == trained
    assert [hop for hop, (a, b) in enumerate(pairs) if a.evaluation != b.evaluation] == evaluated


def test_every_key_is_there(resolved: Callable[..., dict[str, Any]]) -> None:
    """The walk sees what the schema has: no more, no less."""
    walked = {key for name in ALL_STRATEGIES for key in leaves(resolved(name))}
    walked |= set(leaves(resolved("naive", "protocol=fewshot")))
    assert walked == set(EXPECTED) == set(known_keys())


def test_hydra_s_own_node_is_no_part(resolved: Callable[..., dict[str, Any]]) -> None:
    assert "hydra" not in resolved()
    assert resolved("naive", "hydra/launcher=local") == resolved()


def test_no_expansion_is_the_default(resolved: Callable[..., dict[str, Any]]) -> None:
    assert resolved("er", "strategy.expansion=null") == resolved("er")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_order_of_keys_does_not_matter(strategy: str, resolved: Callable[..., dict[str, Any]]) -> None:
    config = resolved(strategy)
    turned = {key: config[key] for key in reversed(config)}
    turned["trainer"] = {key: config["trainer"][key] for key in reversed(config["trainer"])}
    assert Planned.of(turned) == Planned.of(config)


# --- Data, encoder, versions.

CHANGED_DATA = [
    # change, hops whose training changes, hops whose evaluation changes
    ({"en_train": "new"}, [1, 2, 3], [1, 2, 3]),
    ({"de_train": "new"}, [2, 3], [2, 3]),
    ({"es_train": "new"}, [3], [3]),
    ({"en_dev": "new"}, [1, 2, 3], [1, 2, 3]),
    ({"de_dev": "new"}, [2, 3], [2, 3]),
    ({"es_dev": "new"}, [3], [3]),
    ({"en_test": "new"}, [], [0, 1, 2, 3]),
    ({"es_test": "new"}, [], [0, 1, 2, 3]),
]


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in SINGLE])
@pytest.mark.parametrize(("change", "trained", "evaluated"), CHANGED_DATA, ids=lambda value: str(value))
def test_changed_data(
    strategy: str, change: dict[str, str], trained: list[int], evaluated: list[int], resolved: Callable[..., Any]
) -> None:
    config = resolved(strategy)
    before, after = Planned.of(config), Planned.of(config, data_identity(**change))
    assert before.id != after.id
    assert differs(before, after, "train") == [hop in trained for hop in range(4)]
    assert differs(before, after, "evaluation") == [hop in evaluated for hop in range(4)]
    kept = OWN[strategy].state
    assert differs(before, after, "state") == [hop in trained and hop in kept for hop in range(4)]


@pytest.mark.parametrize(("language", "own"), [("en", 1), ("de", 2), ("es", 3)])
def test_changed_data_of_one_language_alone(language: str, own: int, resolved: Callable[..., Any]) -> None:
    config = resolved("lang_spec_ft")
    for split in ("train", "dev"):
        before, after = Planned.of(config), Planned.of(config, data_identity(**{f"{language}_{split}": "new"}))
        assert differs(before, after, "train") == [hop == own for hop in range(4)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_label_sets_the_encoder_and_the_version_of_the_algorithms_change_every_stage(
    strategy: str, resolved: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = resolved(strategy), data_identity()
    before = Planned.of(config, data)
    others = [Planned.of(config, dataclasses.replace(data, labels="others")), Planned.of(config, encoder="another")]
    monkeypatch.setattr(plan, "ALGORITHMS", plan.ALGORITHMS + 1)
    for after in (*others, Planned.of(config, data)):
        assert before.id != after.id
        assert all(differs(before, after, "train"))
        assert all(differs(before, after, "evaluation"))


@dataclasses.dataclass(frozen=True)
class Reading:
    """A strategy that reads the weights of all earlier hops: in training, or after it and at evaluation points."""

    field: str
    points: Mapping[str, Any] | None = None

    def plan(self, hop: Hop) -> Plan:
        served = {"name": "reading"} if self.field == "reads" else {}
        read = {self.field: range(1, hop.index)}
        return Plan(train={"name": "reading"}, serve=served, points=self.points, **read) if hop.depth else Plan()


@pytest.mark.parametrize(
    ("field", "points", "inside", "stream", "shared"),
    [
        ("trains_with", None, False, independent, False),
        ("reads", None, True, independent, False),
        # Nothing is read inside a hop without evaluation points, or where the strategy does not change them.
        ("reads", None, False, independent, True),
        ("reads", {}, True, independent, True),
        # The weights of ancestors are in the parent's key.
        ("trains_with", None, False, sequence, False),
    ],
)
def test_weights_that_a_training_reads_are_in_its_key(
    field: str,
    points: Mapping[str, Any] | None,
    inside: bool,
    stream: Callable[..., Stream],
    shared: bool,
    resolved: Callable[..., Any],
) -> None:
    """The training on es follows en, de or de, en; its key and its needs agree on whether it reads their weights."""
    config = resolved("naive")
    config["evaluate"]["every_share"] = 0.5 if inside else None
    one, two = (
        plan.stages(config, stream(order), data_identity(), "encoder", Reading(field, points))[3]
        for order in (("en", "de", "es"), ("de", "en", "es"))
    )
    assert (one.train == two.train) is shared
    assert bool(one.needs[Kind.weights]) is not shared


@pytest.mark.usefixtures("forget_plugins")
def test_windows_are_in_the_identity_of_each_task_whose_encoding_reads_them() -> None:
    """The task's encoding decides, also a plug-in's; not whether the task predicts answers."""

    def encoded(name: str, encoding: str) -> bool:
        metric = dataclasses.replace(task.CLASS_ACCURACY, name=name, short=name)
        task.register(task.Task(name, metric, encoding=encoding))
        config = {"dataset": {"task": name}, "model": {"max_length": 9, "windows": {"stride": 3}}}
        assert plan.identity(config)["model"]["max_length"] == 9
        return "windows" in plan.identity(config)["model"]

    def encode_nothing(*_: Any) -> Any: ...

    encodings.register("pages", encodings.Encoding(encode_nothing, settings=("windows",)))
    encodings.register("lines", encodings.Encoding(encode_nothing))
    names = ("windows", "pages", "lines", "words")
    assert [encoded(f"task_of_{name}", name) for name in names] == [True, True, False, False]
    parts = {"a": {"task": "task_of_words"}, "b": {"task": "task_of_pages"}}
    config = {"dataset": {"task": "intent_slots", "parts": parts}, "model": {"windows": {"stride": 3}}}
    assert "windows" in plan.identity(config)["model"]
    config["dataset"]["statements"] = {"kind": "labels"}
    assert "windows" not in plan.identity(config)["model"]
    # A key that other encodings read too must stay in their IDs.
    with pytest.raises(UsageError, match="settings=max_length"):
        encodings.register("short", encodings.Encoding(encode_nothing, settings=("max_length",)))


def test_a_later_key_changes_identity_only_with_another_value(
    resolved: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolved("er")
    before = Planned.of(config)
    monkeypatch.setitem(plan.LATER, "trainer.added", None)
    config["trainer"]["added"] = None
    assert Planned.of(config) == before
    config["trainer"]["added"] = 1
    after = Planned.of(config)
    assert before.id != after.id
    assert differs(before, after, "train") == [False, True, True, True]

    strategy = strategy_class("er")(strategy_class("er").settings_type(**config["strategy"]))
    assert "every_k" in strategy.described()
    monkeypatch.setitem(plan.LATER, "strategy.every_k", config["strategy"]["every_k"])
    assert "every_k" not in strategy.described()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_s_version_changes_what_it_computes(
    strategy: str, resolved: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Planned.of(resolved(strategy))
    monkeypatch.setattr(strategy_class(strategy), "version", strategy_class(strategy).version + 1)
    after = Planned.of(resolved(strategy))
    assert before.id != after.id
    for part in ("train", "evaluation", "state"):
        own = () if OWN[strategy].trained_as and part != "evaluation" else getattr(OWN[strategy], part)
        assert differs(before, after, part) == [hop in own for hop in range(len(before.stages))]


# The same through the readers and the configs.


def edit_label(rows: list[dict[str, Any]]) -> None:
    rows[3]["label"] = next(row["label"] for row in rows if row["label"] != rows[3]["label"])


def edit_token(rows: list[dict[str, Any]]) -> None:
    rows[0]["tokens"][0] += "x"


@pytest.mark.parametrize("edit", [edit_label, edit_token])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_one_sentence_changes_the_id(
    split: str, edit: Callable[..., None], make_run: Callable[..., Run], changed_corpus: Callable[..., Path]
) -> None:
    before, after = make_run(), make_run(data=changed_corpus({("de", split): edit}))
    assert before.id != after.id
    changes = [a.train != b.train for a, b in zip(before.stages, after.stages, strict=True)]
    # A training sentence of any language also enters the vocabulary that the encoder starts from.
    expected = {"train": [True] * 4, "dev": [False, False, True, True], "test": [False] * 4}
    assert changes == expected[split]
    assert all(a.evaluation != b.evaluation for a, b in zip(before.stages, after.stages, strict=True)) == (
        split != "dev"
    )


def test_where_things_lie_and_how_they_run_does_not_change_the_id(
    make_run: Callable[..., Run], corpus: Path, tmp_path: Path
) -> None:
    before = make_run("strategy=er")
    moved = Path(shutil.copytree(corpus, tmp_path / "moved"))
    for other in (
        make_run("strategy=er", data=moved, outputs="elsewhere"),
        make_run("strategy=er", "runtime.device=auto", "runtime.threads=2", f"paths.store={tmp_path}/store"),
        make_run("strategy=er", "tracking=mlflow", "tracking.experiment=mine", "tracking.uri=http://localhost"),
        make_run("strategy=er", "trainer.checkpoint_minutes=1", "dataset.on_bad_line=skip"),
    ):
        assert other.id == before.id
        assert other.stages == before.stages


def test_ids_tell_a_person_what_a_run_is(make_run: Callable[..., Run]) -> None:
    assert make_run("strategy=er", "seed=7").id.startswith("jsonl-er-en-de-es-s7-")
    assert make_run("bucket=2", "dataset.max_train=3").id.startswith("jsonl-naive-en-de-es-s1-b2-")


# The small corpus has too few sentences for disjoint buckets.
BY_TAGS = ("dataset.buckets.sampler=minimum",)


def test_how_buckets_are_drawn_counts_with_shots_alone(make_run: Callable[..., Run]) -> None:
    from xclrun.core.identity import identity

    plain, few = make_run().resolved, make_run(*BY_TAGS, "shots=2").resolved
    assert "buckets" not in identity(plain)["dataset"]
    assert identity(few)["shots"] == 2
    assert set(identity(few)["dataset"]["buckets"]) == {"sampler", "draw_from", "counts", "number"}


def test_k_and_bucket_name_a_run(make_run: Callable[..., Run]) -> None:
    run = make_run(*BY_TAGS, "shots=2", "bucket=1")
    assert run.id.startswith("jsonl-naive-en-de-es-s1-k2-b1-")
    assert run.label == "naive · en-de-es · seed 1 · K = 2 · bucket 1"
    first = make_run(*BY_TAGS, "shots=2")
    assert first.id == make_run(*BY_TAGS, "shots=2", "bucket=0").id
    assert first.config.bucket == first.resolved["bucket"] == 0
    assert len({make_run(*BY_TAGS, *few).id for few in (["shots=2"], ["shots=2", "bucket=1"], ["shots=1"], [])}) == 4


def test_buckets_share_what_does_not_depend_on_them(make_run: Callable[..., Run]) -> None:
    """The vocabulary that is learned and the label sets come from the whole training splits, so hop 0 is one."""
    runs = [make_run(*BY_TAGS, f"shots={k}", f"bucket={b}") for k, b in ((1, 0), (1, 1), (2, 0))]
    everything = make_run()
    assert {run.stages[0].train for run in runs} == {everything.stages[0].train}
    assert {run.stages[0].evaluation for run in runs} == {everything.stages[0].evaluation}
    assert len({run.stages[1].train for run in (*runs, everything)}) == 4
    assert {run.whole_fingerprint for run in runs} == {everything.data_fingerprint}
    assert len({run.data_fingerprint for run in runs}) == 3
    subset = make_run("dataset.max_train=3", "bucket=1")
    assert subset.whole_fingerprint == everything.data_fingerprint


def test_ids_are_names_of_folders(make_run: Callable[..., Run]) -> None:
    odd = make_run("order.name='a..b: c'")
    assert odd.id.startswith("jsonl-naive-a..b__c-s1-")
    assert odd.directory.path.parent == odd.outputs / "runs"
    # Two hundred languages; letters of three bytes are not cut in two.
    long = make_run(f"order.name='{'ก' * 400}'")
    assert len(long.id.encode()) < 200
    assert long.id.startswith("jsonl-naive-กก")
    assert long.id != make_run(f"order.name='{'ก' * 401}'").id
    long.directory.open("", {})


def test_budgets_of_replay_count_where_they_are_used(make_run: Callable[..., Run]) -> None:
    assert make_run("dataset.replay.memory=9").id == make_run().id
    assert make_run("strategy=er", "dataset.replay.memory=9").id == make_run("strategy=er", "strategy.memory=9").id
    assert make_run("strategy=er", "dataset.replay.memory=9").id != make_run("strategy=er").id


# --- Sharing.


@pytest.fixture
def planned(make_run: Callable[..., Run]) -> Callable[..., tuple[Stage, ...]]:
    """Plan the stages of a strategy: ``planned("er", "order=[de,en]", "strategy.memory=5")``."""
    return lambda strategy, *overrides: make_run(f"strategy={strategy}", *overrides).stages


@pytest.fixture(scope="module")
def everything(resolved: Callable[..., dict[str, Any]]) -> list[tuple[str, tuple[Stage, ...]]]:
    """Return (strategy, stages) of all strategies and orders."""
    return [
        (strategy, Planned.of(config, order=order).stages)
        for strategy in STRATEGIES
        for config in [resolved(strategy)]
        for order in itertools.permutations(ORDER)
    ]


def test_hop_0_is_shared_by_all(everything: list[tuple[str, tuple[Stage, ...]]]) -> None:
    first = {
        (strategy if OWN[strategy] is ADAPTERS else "all", stages[0].train, stages[0].evaluation)
        for strategy, stages in everything
        if strategy != "o_lora"  # its first two hops are those of inc_lora
    }
    # The untrained model is the same for all; the adapters that serve a language in it are not.
    assert len({train for _, train, _ in first}) == 1
    assert len(first) == len({evaluation for _, _, evaluation in first}) == len(starting(ADAPTERS))


def test_hop_1_is_shared(everything: list[tuple[str, tuple[Stage, ...]]]) -> None:
    """By all that begin with one language alike, whatever follows; `lang_spec_ft` learns every language so."""
    stages = [(name, s) for name, of in everything if name in starting(Own(), KEEPING, PARTS, HEADS) for s in of]
    alone = [(name, s) for name, s in stages if s.hop.depth == 1 and len(s.hop.train) == 1]
    assert {name for name, _ in alone} == set(starting(Own(), KEEPING, PARTS, HEADS))
    assert {s.hop.train for _, s in alone} == {(language,) for language in ORDER}
    assert len({s.train for _, s in alone}) == len(ORDER)
    # Parts serve the languages that were not seen otherwise.
    assert len({s.evaluation for name, s in alone if OWN[name] is not PARTS}) == len(ORDER)


@pytest.mark.some_cases
@pytest.mark.parametrize(
    ("strategy", "nothing"),
    [
        *((name, "memory=0") for name in ("er", "agem", "gem", "er_ace", "der", "derpp", "kd_logit", "kd_rep")),
        *((name, "weight=0") for name in ("kd_logit", "kd_rep", "lwf")),
        *((name, "penalty=0") for name in ("ewc", "ewc_online", "mas", "si", "l2_prev", "l2_init")),
        ("der", "alpha=0"),
        ("joint_replay", "rate=0"),
        ("model_average", "weight=1"),
    ],
)
def test_a_strategy_that_is_set_to_do_nothing_is_naive(
    strategy: str, nothing: str, planned: Callable[..., tuple[Stage, ...]]
) -> None:
    assert planned(strategy, f"strategy.{nothing}") == planned("naive")


def test_zero_shot_is_naives_first_hop(planned: Callable[..., tuple[Stage, ...]]) -> None:
    alone, naive = planned("zero_shot"), planned("naive")
    assert len(alone) == 2
    assert [(s.train, s.evaluation) for s in alone] == [(s.train, s.evaluation) for s in naive[:2]]


def test_no_two_hops_share_a_key_that_they_should_not(everything: list[tuple[str, tuple[Stage, ...]]]) -> None:
    """Over all strategies and orders, the number of different trainings is the one counted by hand."""
    stages = [stage for _, stages in everything for stage in stages if stage.hop.index]
    # Hop 1: three languages, as all start alike but those with adapters and those that do something at once.
    # Hops 2 and 3: six orders each, of naive,
    # inc_joint and all that do something of their own. Multilingual: one. The union of inc_joint's last hop goes on
    # from a model, so that it is no multilingual training; growing's begins anew, and is it where the order is sorted.
    # GDumb's begins anew too, and is no other's. The first hop of o_lora is that of inc_lora.
    ordered, growing, gdumb = len(STRATEGIES) - len(SINGLE), 6 + 5, 6 + 6
    first, as_another = len(starting(ADAPTERS, WRITING, GATHERING, ALWAYS)), len(starting(ADAPTING))
    several = growing + gdumb + 1
    assert len({stage.train for stage in stages}) == 3 * first + (ordered - as_another) * (6 + 6) + several
    # And parts, and copies that are adapted, serve otherwise from hop 1 on.
    other = len(starting(PARTS)) + as_another
    assert len({stage.evaluation for stage in stages}) == 3 * (first + other) + ordered * (6 + 6) + several


def test_only_strategies_that_keep_something_have_a_state(everything: list[tuple[str, tuple[Stage, ...]]]) -> None:
    for strategy, stages in some(everything):
        assert [s.hop.index for s in stages if s.state is not None] == list(OWN[strategy].state), strategy


# --- Streams and orders.


def shape(stream: Stream) -> list[tuple[int, tuple[str, ...], tuple[str, ...], int, int]]:
    return [(hop.index, hop.train, hop.select, hop.parent, hop.depth) for hop in stream.hops]


BEFORE = (0, (), (), -1, 0)


def test_streams() -> None:
    en, de, es = ("en",), ("de",), ("es",)
    assert shape(sequence(ORDER)) == [BEFORE, (1, en, en, 0, 1), (2, de, de, 1, 2), (3, es, es, 2, 3)]
    two, three = ("en", "de"), ("en", "de", "es")
    assert shape(sequence(ORDER, cumulative=True)) == [
        BEFORE,
        (1, en, en, 0, 1),
        (2, two, two, 1, 2),
        (3, three, three, 2, 3),
    ]
    assert shape(independent(ORDER)) == [BEFORE, (1, en, en, 0, 1), (2, de, de, 0, 1), (3, es, es, 0, 1)]
    union = ("de", "en", "es")
    assert shape(joint(ORDER)) == [BEFORE, (1, union, union, 0, 1)]
    for stream in (sequence(ORDER), independent(ORDER), joint(ORDER)):
        assert stream.languages == ORDER
    assert [hop.name for hop in sequence(ORDER, cumulative=True).hops] == [
        "before fine-tuning",
        "en",
        "en+de",
        "en+de+es",
    ]


def test_few_shot_transfer() -> None:
    en, de = ("en",), ("de",)
    assert shape(transfer("en", "de")) == [BEFORE, (1, en, en, 0, 1), (2, de, de, 1, 2)]
    assert shape(transfer(None, "de")) == [BEFORE, (1, de, de, 0, 1)]
    assert [hop.adapts for hop in transfer("en", "de").hops] == [False, False, True]
    assert [hop.adapts for hop in transfer(None, "de").hops] == [False, True]
    assert (transfer("en", "de").languages, transfer(None, "de").languages) == (("en", "de"), ("de",))


@pytest.fixture(scope="module")
def orders(compose: Callable[..., Composed]) -> dict[str, tuple[str, ...]]:
    """Return the paper's six orders."""
    actual = {name: compose(f"order={name}").config.order for name in [f"order{i}" for i in range(1, 7)]}
    return {name: resolve_order(order.languages, order.by_size, MTOP) for name, order in actual.items()}


def test_the_six_orders_are_a_latin_square(orders: dict[str, tuple[str, ...]]) -> None:
    for order in orders.values():
        assert sorted(order) == sorted(MTOP)
    for position in range(6):
        assert sorted(order[position] for order in orders.values()) == sorted(MTOP)


@pytest.mark.parametrize(("by_size", "name"), [("h2l", "order1"), ("l2h", "order2")])
def test_orders_by_size_are_the_paper_s_on_mtop(
    by_size: str, name: str, orders: dict[str, tuple[str, ...]], compose: Callable[..., Composed]
) -> None:
    order = compose(f"order={by_size}").config.order
    assert order.name == by_size
    # The order in which a dataset has its languages does not matter where sizes differ.
    for languages in (sorted(MTOP), sorted(MTOP, reverse=True)):
        assert resolve_order(order.languages, order.by_size, {key: MTOP[key] for key in languages}) == orders[name]


def test_of_languages_of_equal_size_the_first_counts_as_the_larger() -> None:
    sizes = {"b": 5, "a": 5, "c": 9}
    assert resolve_order(None, "descending", sizes) == ("c", "b", "a")
    assert resolve_order(None, "ascending", sizes) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (["en", "dee"], "no language 'dee'; did you mean 'de'"),
        (["en", "de", "en"], "'en' is repeated"),
        ([], "order.languages is empty"),
        (None, "order.languages is needed"),
    ],
)
def test_orders_that_cannot_be(languages: list[str] | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_order(languages, None, MTOP)


# --- Hashes.


def test_derived_seeds_are_pinned() -> None:
    """Another value would change every result: raise ALGORITHMS with it."""
    assert derive(1, "encoder") == 2341506912559313934
    assert derive(42, "shuffle", 1, 0) == 4973396807669600399
    assert derive(42, "replay", 2, 100, "en") == 7228578331917817413
    # They are the first bits of a hash.
    text = b'[7,"memory",3,"th"]'
    assert derive(7, "memory", 3, "th") == int.from_bytes(hashlib.sha256(text).digest()[:8], "big") // 2


def test_derived_seeds_do_not_collide() -> None:
    purposes = ("encoder", "heads", "shuffle", "dropout", "memory", "replay")
    positions = [
        (seed, purpose, hop, step)
        for seed in range(5)
        for purpose in purposes
        for hop in range(7)
        for step in range(200)
    ]
    seeds = {derive(*position) for position in positions}
    assert len(seeds) == len(positions)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Positions are told apart by more than their digits.
    assert len({derive(1, "x", 1, 11), derive(1, "x", 11, 1), derive(11, "x", 1, 1), derive(1, "x", 111)}) == 4


def test_digest_is_a_hash_of_content() -> None:
    assert digest({"a": 1, "b": [1, "é"]}) == digest({"b": [1, "é"], "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
    assert digest([["a"], []]) != digest([[], ["a"]])
    text = json.dumps({"a": "é"}, ensure_ascii=False, separators=(",", ":"))
    assert digest({"a": "é"}) == hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(float("nan"))


def test_a_strategy_that_is_unknown() -> None:
    with pytest.raises(UsageError, match="did you mean 'naive'"):
        make(StrategyConfig("naiv"))


# --- Packing: `auto` is a word for one of the two values that count.

GRAPHS = ("trainer.cuda_graphs=true", "model.max_length=48")


@pytest.mark.parametrize(
    ("overrides", "packs"),
    [
        ((), True),
        (("strategy=er", "strategy.expansion=lang_spec_lora_f"), True),
        (("model.family=distilbert",), False),
        (("strategy=l2p",), False),
        (("strategy=lang_spec_prompt",), False),
        (("strategy=lang_spec_ada_f", "strategy.adapter=prefix"), False),
        (GRAPHS, False),
    ],
)
def test_ids_and_keys_contain_what_automatic_packing_is(
    make_run: Callable[..., Run], overrides: tuple[str, ...], packs: bool
) -> None:
    run = make_run(*overrides, "trainer.packing=auto")
    assert run.resolved["trainer"]["packing"] is packs
    same = make_run(*overrides, f"trainer.packing={str(packs).lower()}")
    assert (run.id, run.stages) == (same.id, same.stages)
    assert plan_run(run.config).id == run.id


def test_each_trainer_of_few_shot_transfer_packs_by_itself(make_run: Callable[..., Run]) -> None:
    few = ("experiment=fewshot", "order=list", "source=en", "language=de", "trainer.packing=auto")
    source = "protocol.source_trainer"
    run = make_run(*few, f"{source}.packing=auto", f"{source}.cuda_graphs=true", "model.max_length=48")
    assert [trainer.packing for trainer in run.config.trainers.values()] == [True, False]


def test_packing_has_three_values(make_run: Callable[..., Run]) -> None:
    for other in ("yes_please", "1", "[true]", "null"):
        with pytest.raises(UsageError, match=r"^trainer\.packing=.*: must be auto, true or false$"):
            make_run(f"trainer.packing={other}")


def test_models_trained_separately_are_missing_only_once_whether_they_pack_or_not(
    make_run: Callable[..., Run],
) -> None:
    packed, prompts = make_run("trainer.packing=auto"), make_run("strategy=l2p", "trainer.packing=auto")
    assert [(gives, len(runs)) for gives, runs in missing([packed, prompts])] == [("F, T0, FP", 2), ("T", 1)]
