"""The contract of strategies: ours pass, and for each check there is a wrong strategy that fails it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.strategy.test_contract import EVERY, given
from xclrun.strategy import STRATEGIES, Plan
from xclrun.strategy.er import ExperienceReplay
from xclrun.testing import Check, ContractError, strategy_checks
from xclrun.testing.strategies import STRATEGY_CONTRACT
from xclrun.train.others import end_ranks

NAMES = [function.__name__ for function in STRATEGY_CONTRACT]

# --- Ours.

# Settings whose other value a rule cannot guess: what the small model can do, and what a file would be needed for.
OTHER: dict[str, dict[str, str | None]] = {
    **{name: {"lora_targets": "[query]", "pretrained": None, "library": None} for name in STRATEGIES},
    "lang_spec_enc": {"layers": "[1]"},
    "merge": {"layers": "[0]"},
}
# A kind of state each; the full tier has all strategies, and for these the costly checks too.
FAST = ("er+lang_spec_trans",)
COSTLY = ("changes_keys_with_results", "resumes_after_every_step", "trains_on_two_devices")


@cache
def checks(strategy: str) -> dict[str, Check]:
    """Return the checks of a strategy, or of one over another (``er+lang_spec_trans``); they share their runs."""
    name = strategy.partition("+")[0]
    # Two layers, so that strategies that choose layers have a choice.
    layers = ("model.hidden_layers=2",) if name in ("freeze_bottom", "lang_spec_enc") else ()
    overrides = [text for text in given(strategy) if text != f"strategy={name}"]
    return {c.name: c for c in strategy_checks(name, *overrides, *layers, values=OTHER[name])}


@pytest.mark.some_cases(*(f"{strategy}-{name}" for strategy in FAST for name in NAMES if name not in COSTLY))
@pytest.mark.in_turn
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("strategy", EVERY)
def test_our_strategies_pass(strategy: str, name: str) -> None:
    checks(strategy)[name]()


@cache
def decoder_checks() -> dict[str, Check]:
    """Return the checks of o_lora in a decoder, whose updates are peft's."""
    small = ("dataset=mini_text", "model=tiny_decoder", "model.vocab_size=300", "model.max_length=48")
    small += ("model.max_target=16", "generation.max_new_tokens=3", "strategy.lora_rank=2")
    values = {"lora_targets": "[q]", "library": None}
    return {c.name: c for c in strategy_checks("o_lora", *small, values=values)}


@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs xclrun[peft]")
@pytest.mark.parametrize("name", NAMES)
def test_low_rank_updates_of_a_decoder_pass(name: str) -> None:
    decoder_checks()[name]()


# --- Wrong ones.

FILE = """
import random

import torch

from dataclasses import dataclass

from xclrun.config.schema import StrategyConfig
from xclrun.strategy import Plan, State, Step, Strategy, register


@dataclass
class Settings(StrategyConfig):
    level: float = 0.5


runs = 0


@register
class Wrong(Strategy[Settings]):
    name = "{name}"
    settings_type = Settings
    begun = seen = 0
{body}
"""
STATE = """
    def state_dict(self):
        return State({"seen": self.seen})

    def load_state_dict(self, state):
        self.seen = state.facts["seen"]
"""
SCALE = """
    def end_training(self, context):
        with torch.no_grad():
            for parameter in context.model.parameters():
                parameter.mul_(1 + {by})
"""
BEGUN = """
    def begin_hop(self, context):
        self.begun += 1
"""
# Check → the body of a strategy that fails it; each does what a paper's code might do.
WRONG = {
    "is_registered": "",
    "finishes_a_run": '''
    def begin_hop(self, context):
        assert context.hop.index < 3
''',
    # It counts the runs of the process.
    "repeats_its_results": SCALE.format(by="runs / 100") + '''
    def begin_hop(self, context):
        global runs
        runs += 1
''',
    "leaves_global_generators": '''
    def end_training(self, context):
        random.random()
''',
    # It forgets, when a run is resumed, how many hops it has begun.
    "resumes_after_every_step": BEGUN + SCALE.format(by="self.begun / 100"),
    # Its state is stored and not read again.
    "restores_its_state": STATE + '''
    def end_hop(self, context):
        self.seen += 1

    def load_state_dict(self, state):
        pass
''',
    # Its state needs what happens in training alone.
    "recomputes_its_state": STATE + BEGUN + '''
    def end_hop(self, context):
        self.seen += self.begun
''',
    # Its predictions need what happens in training alone.
    "recomputes_its_predictions": '''
    def prepare(self, model, stream, library):
        self.model = model

    def for_language(self, language, seen):
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1 + self.begun / 100)
''' + BEGUN,
    "changes_keys_with_results": SCALE.format(by="self.settings.level") + '''
    def plan(self, hop):
        return Plan(train={"strategy": self.name})
''',
    # The loss of a batch is the sum over its sentences.
    "accumulates_gradients": '''
    def steps(self, number, main, context):
        yield Step(main, lambda batch, rows: context.model.loss(batch) * len(batch.indices))
''',
    # It counts the micro-batches of a step, of which each device has one.
    "trains_on_two_devices": '''
    def steps(self, number, main, context):
        losses = []

        def loss(batch, rows):
            losses.append(context.model.loss(batch))
            return losses[-1]

        def edit(mean_gradient):
            for parameter in context.model.parameters():
                if parameter.grad is not None:
                    parameter.grad *= len(losses)

        yield Step(main, loss, edit=edit)
''',
}  # fmt: skip
# Check → overrides of a run that is long enough for it.
SHORTER = {"changes_keys_with_results": ("dataset.languages=[en]", "order=[en]")}


def plugin(name: str, folder: Path) -> tuple[str, Path]:
    """Write the file of a wrong strategy; return the strategy's name and the file."""
    strategy, path = f"wrong_{name}", folder / f"{name}.py"
    path.write_text(FILE.replace("{name}", strategy).replace("{body}", WRONG[name]))
    return strategy if name != "is_registered" else "absent", path


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """End the other ranks after the tests."""
    yield
    end_ranks()


def fails(check: Check) -> None:
    with pytest.raises(ContractError) as error:
        check()
    message = str(error.value)
    # An exception fails the check of a whole run alone: elsewhere it would be the check's own mistake.
    assert "Observed: " in message or check.name == "finishes_a_run"
    assert message.startswith(f"{check.plugin}: {check.name}: {check.requirement} ")
    assert "\n" not in message


@pytest.mark.some_cases("finishes_a_run", "recomputes_its_predictions", "changes_keys_with_results")
@pytest.mark.parametrize("name", WRONG)
def test_for_each_check_a_wrong_strategy_fails_it(
    name: str, tmp_path: Path, forget_plugins: Callable[[], None]
) -> None:
    strategy, path = plugin(name, tmp_path)
    [check] = [c for c in strategy_checks(strategy, *SHORTER.get(name, ()), plugin=path) if c.name == name]
    fails(check)


@pytest.mark.full
def test_two_devices_in_a_script_without_a_main_guard_fail_in_a_line_that_names_the_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from xclrun.testing import strategy_checks\n"
        "[check] = [c for c in strategy_checks('naive') if c.name == 'trains_on_two_devices']\n"
        "check()\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert 'under if __name__ == "__main__":' in done.stderr.splitlines()[-1]
    assert "bootstrapping" not in done.stderr


def test_a_strategy_that_shares_what_differs_from_naive_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ours: the keys of a plug-in have the hash of its source."""
    monkeypatch.setattr(ExperienceReplay, "plan", lambda self, hop: Plan(state=self.described()))
    [check] = [c for c in strategy_checks("er") if c.name not in WRONG]
    assert check.name == "shares_only_equal_results"
    fails(check)
