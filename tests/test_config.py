"""The schema, its values in conf/, and what stands beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from xclrun.compose.keys import known_keys, nearest
from xclrun.config.checks import check
from xclrun.config.files import choices, packaged
from xclrun.config.schema import Config, ModelConfig, StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.strategy import make

GROUPS = ("dataset", "order", "strategy", "model", "trainer", "evaluate", "tracking", "protocol")
YAMLS = sorted(packaged("conf").rglob("*.yaml"))


def leaves(node: yaml.Node, prefix: str = "") -> Iterator[tuple[str, yaml.Node]]:
    """Yield (dotted key, its node) of every value that is no mapping; the defaults list is no value."""
    assert isinstance(node, yaml.MappingNode)
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        if path == "defaults":
            continue
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, key


def package(path: Path) -> str:
    """Return where the keys of a YAML land in the config: ``trainer.``, or nothing for global ones."""
    group = path.parent.relative_to(packaged("conf")).as_posix()
    return f"{group}." if group in GROUPS else ""


def documented(path: Path) -> dict[str, bool]:
    """Return dotted key → whether a comment stands on its line or the line above."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    result = {}
    for key, node in leaves(yaml.compose(text, Loader=yaml.SafeLoader)):
        line = node.start_mark.line
        above = lines[line - 1].strip() if line else ""
        is_comment = above.startswith("#") and not above.startswith("# @package")
        result[package(path) + key] = is_comment or "  #" in lines[line]
    return result


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_value_is_documented(path: Path) -> None:
    # Presets change values that are documented where they stand.
    derived = path.parent.name == "experiment" or path.stem == "quick"
    found = documented(path)
    elsewhere = {key for other in YAMLS if derived for key, told in documented(other).items() if told}
    assert found, "no values"
    assert [key for key, told in found.items() if not told and key not in elsewhere] == []


def test_every_key_of_the_schema_is_set_in_some_yaml() -> None:
    given = {key for path in YAMLS for key in documented(path)} | {"protocol"}
    # Chosen from the group trainer.
    given |= {f"protocol.source_{key}" for key in given if key.startswith("trainer.")}
    assert [key for key in known_keys() if key not in given] == []


def test_every_choice_says_what_it_is() -> None:
    found = choices()
    assert set(GROUPS) | {"experiment", "sweep", "hydra/launcher"} <= set(found)
    for group, by_choice in found.items():
        for choice, comment in by_choice.items():
            assert len(comment) > 20, f"{group}={choice}"
            assert comment[0] != " "


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("trainer.epoch", "did you mean 'trainer.epochs'? Known: trainer.epochs, trainer.eps"),
        ("dataset.replay.memori", "did you mean 'dataset.replay.memory'? Known: dataset.replay.every_k, "),
        ("trainr.epochs", "did you mean 'trainer.epochs'? Known: trainer.epochs, trainer.eps"),
        ("datset.rplay.memori", "did you mean 'dataset.replay.memory'? Known: dataset.replay.every_k, "),
        ("foo.bar", "Known: bucket, dataset"),
        ("sed", "did you mean 'seed'? Known: bucket, dataset"),
        (
            "strategy.memory",
            "this strategy does not have it, only agem, der, derpp, er, er_ace, gdumb, gem, kd_logit, ",
        ),
    ],
)
def test_nearest(key: str, told: str) -> None:
    assert nearest(key).startswith(told)


@pytest.fixture
def config(compose: Any) -> Config:
    return compose("experiment=smoke").config


def changed(config: Config, key: str, value: Any) -> Config:
    """Return the config with one dotted key changed."""
    head, dot, rest = key.partition(".")
    return dataclasses.replace(config, **{head: changed(getattr(config, head), rest, value) if dot else value})


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("trainer.epochs", 0, "at least 1"),
        ("trainer.batch_size", 0, "at least 1"),
        ("trainer.gradient_accumulation", -1, "at least 1"),
        ("trainer.patience", 0, "at least 1"),
        ("trainer.lr", 0.0, "above 0"),
        ("trainer.lr", float("inf"), "finite"),
        ("trainer.lr", float("nan"), "finite"),
        ("trainer.eps", 0.0, "above 0"),
        ("trainer.weight_decay", -0.1, "at least 0"),
        ("trainer.betas", (0.9,), "two numbers"),
        ("trainer.betas", (0.9, 1.0), "below 1"),
        ("trainer.betas", (0.9, float("nan")), "finite"),
        ("trainer.clip_norm", 0.0, "above 0"),
        ("trainer.warmup", 1.1, "at most 1"),
        ("trainer.checkpoint_minutes", 0.0, "above 0"),
        ("evaluate.batch_size", 0, "at least 1"),
        ("dataset.max_train", 0, "at least 1"),
        ("dataset.max_eval", 0, "at least 1"),
        ("dataset.languages", ["en", ["de"]], "list of lists"),
        ("order.by_size", "descendin", "did you mean 'descending'?"),
        ("trainer.batch_size", 10**12, "at most 2,147,483,647"),
        ("runtime.threads", 0, "at least 1"),
        ("runtime.threads", 10**5, "at most 4,096"),
        ("seed", -1, "at least 0"),
        ("seed", 2**63, "below 9,223,372"),
        ("bucket", -1, "at least 0"),
        ("paths.outputs", "", "set a folder"),
        ("model.dropout", 1.0, "below 1"),
        ("model.max_length", 2, "at least 3"),
        ("dataset.repeat_to", 2 * 10**9, "at most 1,000,000"),
        ("dataset.statements.wrong", 10**9, "at most 1,000"),
        ("model.max_length", 10**12, "at most 1,000,000"),
        ("model.vocab_size", 9, "at least 10"),
        ("model.vocab_size", 10**12, "at most 10,000,000"),
        ("model.hidden_size", 0, "at least 1"),
        ("model.hidden_layers", 0, "at least 1"),
        ("model.hidden_size", None, "set it to train from scratch, or set model.path"),
        ("model.hidden_size", 127, "multiple of model.attention_heads=4"),
    ],
)
def test_check_names_key_value_and_what_is_possible(config: Config, key: str, value: Any, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        check(changed(config, key, value))
    message = str(raised.value)
    assert message.startswith(f"{key}=")
    assert told in message
    assert "\n" not in message


# Names that no folder, command or page should have, and why.
REFUSED = {
    "": "is empty",
    "  ": "is empty",
    "..": "leads to another folder",
    ".": "leads to another folder",
    "a/b": "leads to another folder",
    "..\\a": "leads to another folder",
    ".x": "would be a hidden file",
    "--help": "looks like an option",
    "a\nb": "has a character that cannot be printed",
    "a\x1b[2J": "has a character that cannot be printed",
}


def test_names_that_would_do_harm_in_a_path_or_a_command_are_refused(config: Config) -> None:
    keys = ("dataset.name", "strategy.name", "model.name", "order.name", "language", "source")
    for name, why in REFUSED.items():
        for key in keys:
            with pytest.raises(UsageError) as error:
                check(changed(config, key, name))
            assert str(error.value).startswith(f"{key}=")
            assert f": {why}; a name begins with" in str(error.value)
            assert "\n" not in str(error.value)
        for key in ("order.languages", "dataset.languages"):
            with pytest.raises(UsageError, match=key):
                check(changed(config, key, ["en", name]))
    for key in keys[:4]:  # what people call their own
        for name in ("mine", "Müller & Söhne (2)", "5", "_", "a..b", "x-y.z+1"):
            check(changed(config, key, name))


def test_bounds_that_are_allowed(config: Config) -> None:
    edges = {"seed": 2**63 - 1, "bucket": 0, "trainer.warmup": 1.0, "trainer.weight_decay": 0.0, "model.dropout": 0.0}
    for key, value in edges.items():
        check(changed(config, key, value))


def test_a_pretrained_encoder_needs_no_shape(config: Config) -> None:
    for model in (ModelConfig("x", path="somewhere"), ModelConfig("x", hub="someone/something")):
        check(dataclasses.replace(config, model=model))


def test_settings_of_another_strategy_are_refused() -> None:

    with pytest.raises(UsageError, match="use strategy=er"):
        make(StrategyConfig("er"))
