"""What cannot be trained is refused in a line when a run is planned: overrides that do not go together, and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from xclrun.core.errors import UsageError
from xclrun.plan import Run

from .test_graphs import GRAPHS
from .test_several_tasks import STREAM

BLOCKS = ("order=[en,de]", "dataset.blocks=3")
OWN_HOPS = "the strategy does not train on the blocks one after another; use growing, naive or inc_joint"
EVERY = "evaluate.every_examples=10"
TAGS = "dataset.task=token_tags"

REFUSED = [
    # Blocks of a training split.
    (("order=[en,de]", "dataset.blocks=1"), r"dataset\.blocks=1: must be at least 2"),
    (("order=[en,de]", "dataset.blocks=19"), r"dataset\.blocks=19: de/train has 18 examples"),
    ((*BLOCKS, "shots=2"), r"dataset\.blocks=3: cannot be combined with shots"),
    ((*BLOCKS, "dataset.repeat_to=40"), r"cannot be combined with dataset\.repeat_to"),
    ((*BLOCKS, "strategy=multilingual"), OWN_HOPS),
    ((*BLOCKS, "strategy=zero_shot"), OWN_HOPS),
    ((*BLOCKS, "strategy=lang_spec_ft"), OWN_HOPS),
    ((*BLOCKS, "strategy=lang_spec_enc", "strategy.layers=[1]"), "language-specific parameters do not support blocks"),
    (
        (*BLOCKS, "strategy=er", "strategy.expansion=lang_spec_task"),
        "language-specific parameters do not support blocks",
    ),
    (("order=[fr,de]", "dataset.blocks=3"), "order: the dataset has no language 'fr'"),
    (
        ("order=[en+de]", "dataset.blocks=3"),
        r"dataset\.blocks=3: the order ends with the mixture en\+de",
    ),
    # Moment estimates in 8 bits, without the library.
    (
        ("trainer.optimizer=adam_8bit",),
        r"^trainer\.optimizer=adam_8bit: .* run pip install -e '\.\[bitsandbytes\]' in xclrun's clone",
    ),
    # Mixtures of keys.
    (("order=[en,de]", "trainer.mixture_steps=5"), r"^trainer\.mixture_steps=5: needs an order with a mixture"),
    (("order=[en+de]", "trainer.mixture_steps=0"), r"^trainer\.mixture_steps=0: must be at least 1"),
    (("order=[en+dd,es]",), r"order: the dataset has no language 'dd'; Known: de, en, es"),
    (("order=[en+de,de]",), r"order: the language 'de' is repeated in \[en\+de, de\]"),
    (
        ("order=[en+de]", "trainer.batch_size=null"),
        r"trainer\.batch_size=null order=\[…en\+de…\]: a mixture needs a batch",
    ),
    (("order=[en+de]", "trainer.group_by_length=true"), r"trainer\.group_by_length=true order=\[…en\+de…\]: mixtures"),
    (("order=[en+de,es]", "strategy=zero_shot"), r"strategy=zero_shot order=\[…en\+de…\]: mixtures need a strategy"),
    (("order=[en+de,es]", "strategy=inc_joint"), r"strategy=inc_joint order=\[…en\+de…\]: mixtures need a strategy"),
    (
        ("order=[en+de,es]", "strategy=lang_spec_task"),
        r"strategy=lang_spec_task order=.*: key-specific parameters do not",
    ),
    # Several tasks in one model.
    (
        (*STREAM, "strategy=fc"),
        r"^strategy=fc: dataset\.parts has several tasks \(intent_slots, .*\); this strategy adapts the he",
    ),
    (
        (*STREAM, "strategy=merge"),
        r"^strategy=merge: dataset\.parts has several tasks .*; the merge would dilute the heads",
    ),
    ((*STREAM, "strategy=mbpa", "strategy.key=pooler"), r"strategy\.key=pooler .*each task has its own pooler"),
    ((*STREAM, "evaluate.slot_f1=tag_macro"), r"^evaluate\.slot_f1=tag_macro: dataset\.parts has several tasks \(.*\)"),
    ((*STREAM, "shots=2"), r"^shots=2: .* one task; dataset\.parts has several"),
    (
        (*STREAM, "strategy=er", "strategy.selection=ring"),
        r"^strategy=er: .*; strategy\.selection=ring chooses by class",
    ),
    ((*STREAM, "model.label_on=all"), r"^model\.label_on=all dataset\.task=token_tags: only intent_slots"),
    # A task that lacks what is asked for.
    ((TAGS, "model.label_on=all"), r"^model\.label_on=all dataset\.task=token_tags: only intent_slots"),
    ((TAGS, "evaluate.class_gradients=true"), r"^evaluate\.class_gradients=true: dataset 'jsonl' has no classes"),
    # Points inside hops.
    (("evaluate.every_share=1.5",), r"evaluate\.every_share=1\.5: must be above 0 and at most 1"),
    (("evaluate.every_share=0.1", EVERY), r"evaluate\.every_examples=10 is set too"),
    (("evaluate.keep_points=2",), r"needs evaluate\.every_examples"),
    ((EVERY, "evaluate.keep_points=0"), r"evaluate\.keep_points=0: must be at least 1, all or null"),
    ((EVERY, "evaluate.keep_points=some"), "must be at least 1, all or null"),
    # Recorded steps.
    (
        (*GRAPHS, "trainer.packing=true", "trainer.gradient_accumulation=2"),
        r"^trainer\.cuda_graphs=true trainer\.packing=true trainer\.gradient_accumulation=2: .* set it to 1$",
    ),
    ((*GRAPHS, "trainer.precision=fp16"), r"^trainer\.cuda_graphs=true trainer\.precision=fp16: .* use bf16"),
    ((*GRAPHS, "evaluate.gradient_overlap=true"), r"^trainer\.cuda_graphs=true evaluate\.gradient_overlap=true: grad"),
    ((*GRAPHS, "evaluate.class_gradients=true"), r"^trainer\.cuda_graphs=true evaluate\.class_gradients=true: grad"),
    ((*GRAPHS, "model.max_length=50"), r"^trainer\.cuda_graphs=true model\.max_length=50: must be a multiple of 16"),
    ((*GRAPHS, "model.family=distilbert"), r"^trainer\.cuda_graphs=true.* needs an encoder of BERT's or RoBERTa's fam"),
]


@pytest.mark.some_cases
@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_what_cannot_be_is_refused_in_a_line(
    overrides: tuple[str, ...], message: str, make_run: Callable[..., Run]
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        make_run(*overrides)
    assert "\n" not in str(refused.value)
