"""Run ids and stage keys that were given once stay as they are: a change of them throws away what users have trained.

`tests/golden_keys.json` holds them for the demo and for one run of each strategy. A change that alters results on
purpose raises a version, and the file is written anew by `python -m tests.test_golden`; its difference then says for
whom results change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from xclrun.compose.jobs import compose_jobs, composing
from xclrun.compose.overrides import rewritten
from xclrun.core.identity import digest
from xclrun.plan import plan_run
from xclrun.strategy import STRATEGIES

FILE = Path(__file__).with_name("golden_keys.json")
COMBINED = Path(__file__).with_name("golden_combined.json")

DEMO = tuple(
    (f"strategy={strategy}", f"order={order}", f"seed={seed}")
    for strategy in ("naive", "er", "lang_spec_ft")
    for order in ("h2l", "l2h")
    for seed in (1, 2)
)
EACH = tuple((f"strategy={name}",) for name in STRATEGIES)
# What enters identity beside the strategy: other tasks, buckets, few-shot transfer, points, half precision, expansions,
# an optimiser that goes on, labels on all word pieces.
OTHERS = (
    ("strategy=er", "strategy.expansion=lang_spec_task"),
    ("strategy=lang_spec_task", "strategy.start=own"),
    ("strategy=er", "strategy.expansion=lang_spec_task", "strategy.expansion.start=own"),
    ("strategy=lang_spec_ft", "strategy.expansion=lang_spec_ada_t"),
    ("strategy=kd_logit", "strategy.expansion=lang_spec_enc", "strategy.expansion.layers=[2]"),
    ("strategy=naive", "shots=2", "bucket=1"),
    ("strategy=naive", "evaluate.every_examples=40"),
    ("strategy=naive", "evaluate.attention=true"),
    ("strategy=naive", "trainer.precision=bf16"),
    ("strategy=naive", "dataset.task=sequence_class"),
    ("strategy=naive", "trainer.optimizer_state=kept"),
    ("strategy=lang_spec_ft", "trainer.optimizer_state=kept"),
    ("strategy=naive", "model.label_on=all"),
    ("strategy=naive", "experiment=fewshot", "language=de"),
    ("strategy=naive", "model.lr=1e-4", "dataset.max_train=40", "seed=7"),
)
# `fc` and its kin learn a class or tags, not both.
HEADS = ("fc", "fc_pooler", "fc_reset_pooler", "cos_pooler")

# Strategies on top of others, every way to merge, and settings at their edges: a run ID and a digest of all its keys.
EXPANDED = ("er", "ewc", "der", "agem", "kd_logit", "lwf", "si", "joint_replay", "mas", "gem", "er_ace")
EXPANDED += ("model_average", "l2_init")
EXPANSIONS = ("lang_spec_task", "lang_spec_trans", "lang_spec_ada_f", "seq_lora")
EDGES = (
    ("strategy=er_ace", "strategy.cosine=10"),
    ("strategy=mbpa", "evaluate.every_examples=8"),
    ("strategy=mbpa", "evaluate.every_examples=8", "strategy.adapt_points=true"),
    ("strategy=er", "strategy.memory=0"),
    ("strategy=lwf", "strategy.weight=0"),
    ("strategy=er", "evaluate.every_examples=8", "strategy.expansion=lang_spec_task"),
    ("strategy=o_lora", "strategy.penalty=0"),
    ("strategy=mbpa", "strategy.neighbours=0"),
    ("strategy=replay", "strategy.replay_write=0"),
    ("strategy=lang_spec_ft", "strategy.expansion=lang_spec_ada_t"),
    ("strategy=cos_pooler", "dataset.task=sequence_class"),
    ("strategy=fc", "dataset.task=sequence_class", "evaluate.every_examples=8"),
    *(
        ("strategy=merge", f"strategy.method={method}", f"strategy.start={start}")
        for method in ("mean", "fisher", "ties", "revert")
        for start in ("pretrained", "previous", "merged")
        if (method, start) != ("fisher", "merged")  # refused
    ),
    *(
        ("strategy=merge", "strategy.start=previous", "strategy.merged=er", f"strategy.method={m}")
        for m in ("mean", "fisher")
    ),
    *((f"strategy={name}", f"strategy.expansion={other}") for name in EXPANDED for other in EXPANSIONS),
)
SMALL = ("trainer=quick", "dataset.max_train=16", "dataset.max_eval=6", "order=[en,de,fr]")


def planned(given: Sequence[tuple[str, ...]], *common: str) -> dict[str, dict[str, object]]:
    """Return overrides → run id and the keys of every stage, planned as a command does."""
    found: dict[str, dict[str, object]] = {}
    common = ("dataset=mini", "model=tiny", "tracking=none", *common)
    with composing() as composer:
        jobs = compose_jobs([rewritten([*common, *one]) for one in given], composer)
    for one, job in zip(given, jobs, strict=True):
        run = plan_run(job.config)
        stages = [[s.train, s.state, s.evaluation, s.attention] for s in run.stages]
        found[" ".join(one)] = {"run": run.id, "stages": [[key and key[:16] for key in s] for s in stages]}
    return found


def keys() -> dict[str, dict[str, object]]:
    return planned(
        [
            (*one, "dataset.task=sequence_class") if one[0].removeprefix("strategy=") in HEADS else one
            for one in (*DEMO, *EACH, *OTHERS)
        ]
    )


def combined() -> dict[str, str]:
    """Return overrides → run id and a digest of its stages' keys."""
    return {name: f"{run['run']} {digest(run['stages'])[:16]}" for name, run in planned(EDGES, *SMALL).items()}


def test_run_ids_and_stage_keys_are_those_that_were_given_before() -> None:
    golden: Mapping[str, object] = json.loads(FILE.read_text())
    found = keys()
    changed = [name for name in golden if found.get(name) != golden[name]]
    assert not changed, f"ids or keys changed for: {changed}"
    assert sorted(found) == sorted(golden), "strategies without golden keys: python -m tests.test_golden"


@pytest.mark.full
def test_combined_strategies_keep_their_run_ids_and_stage_keys() -> None:
    golden: Mapping[str, str] = json.loads(COMBINED.read_text())
    found = combined()
    assert sorted(found) == sorted(golden)
    changed = [name for name in golden if found[name] != golden[name]]
    assert not changed, f"ids or keys changed for: {changed}"


if __name__ == "__main__":
    COMBINED.write_text(json.dumps(combined(), indent=1) + "\n")
    FILE.write_text(json.dumps(keys(), indent=1) + "\n")
