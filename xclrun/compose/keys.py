"""Known config keys, and suggestions for unknown keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from xclrun.config import schema
from xclrun.config.files import choices
from xclrun.core.errors import did_you_mean, known, similar
from xclrun.strategy import STRATEGIES, names_with

# Entries of maps with free names: dataset.parts.NAME.KEY.
_ENTRY = re.compile(r"\+*dataset\.(parts|statements\.kinds)\.([^.]+)\.([^.]+)")

# Keys → what other programs and papers call them.
_CALLED = {
    "trainer.lr": "lr learning_rate",
    "trainer.batch_size": "bs batch train_batch_size per_device_train_batch_size",
    "trainer.epochs": "epoch num_epochs num_train_epochs max_epochs",
    "trainer.gradient_accumulation": "accumulation gradient_accumulation_steps",
    "trainer.weight_decay": "wd",
    "trainer.precision": "fp16 bf16 amp",
    "model.max_length": "max_len max_seq_length seq_len",
    "model": "encoder model_name model_name_or_path",
    "order": "languages tasks",
    "dataset": "data corpus benchmark",
    "dataset.root": "train dev valid test files folder data_dir",
    "strategy": "method algorithm approach baseline",
    "strategy.memory": "buffer buffer_size mem_size memory_size",
    "paths.outputs": "output output_dir out save_dir",
    "runtime.device": "gpu gpus cuda",
    "hydra.launcher.n": "workers jobs num_workers n_jobs",
    "tracking": "wandb mlflow tensorboard logger",
}
SYNONYMS = {word: key for key, words in _CALLED.items() for word in words.split()}
# Groups in which a key is likely to be meant, the likeliest first.
_GROUPS = ("trainer", "strategy", "dataset", "model", "runtime", "paths", "evaluate", "tracking")


def expansion_choices() -> dict[str, str]:
    """Return choice → description for ``strategy.expansion``: the strategies that only add parameters."""
    descriptions = choices()["strategy"]
    return {name: descriptions.get(name, "") for name in names_with("expands")}


def nested_choices() -> dict[str, dict[str, str]]:
    """Return each key whose value is another strategy → choice → description."""
    return {"strategy.expansion": expansion_choices(), "strategy.merged": choices()["strategy"]}


def known_keys(strategy: str | None = None) -> list[str]:
    """Return all dotted keys, with the settings of one strategy or of all."""
    keys: set[str] = set()

    def collect(node: Any, prefix: str) -> None:
        for f in dataclasses.fields(node):
            kind = getattr(schema, f.type, None) if isinstance(f.type, str) else f.type
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                collect(kind, f"{prefix}{f.name}.")
            elif not f.metadata.get("omegaconf_ignore"):
                keys.add(prefix + f.name)

    collect(schema.Config, "")
    collect(schema.ProtocolConfig, "protocol.")
    for name in STRATEGIES if strategy is None or strategy not in STRATEGIES else [strategy]:
        collect(STRATEGIES[name].settings_type, "strategy.")
    return sorted(keys)


def nearest(key: str) -> str:
    """Return the end of an error message about an unknown key: the nearest key and the keys of its group."""
    keys = known_keys()
    if entry := _ENTRY.fullmatch(key):
        group, name, setting = entry.groups()
        node = schema.PartConfig if group == "parts" else schema.StatementKind
        names = [f.name for f in dataclasses.fields(node)]
        if setting in names:
            return f"there is no '{name}'; add it with dataset.{group}={{{name}: {{{setting}: …}}}}"
        return did_you_mean(setting, names)
    if key == "strategy.expansion":
        traits = ("expandable", "adds_language_parameters", "mixes_languages")
        expandable, expansions, mixing = (", ".join(names_with(trait)) for trait in traits)
        return (
            f"choose one of the strategies {expandable}. {expansions} are expansions themselves; {mixing} mix "
            "languages in a batch, so they cannot have language-specific parameters"
        )
    if key in ("sweep", "experiment"):
        return f"begin the YAML of the {key} with the line '# @package _global_': it sets keys of the whole config"
    if key in keys:
        owners = [name for name in STRATEGIES if has_setting(name, key.removeprefix("strategy."))]
        return f"this strategy does not have it, only {', '.join(owners)}"
    top = {name.partition(".")[0] for name in keys} | {group for group in choices() if "/" not in group}
    near = _meant(key, keys, sorted(top))
    parent, dot, _ = (near or [key])[0].partition("=")[0].rpartition(".")
    siblings = [name for name in keys if dot and name.startswith(parent + dot)]
    if not near:
        return did_you_mean(key, siblings or top, limit=20)
    meant = " or ".join(f"'{name}'" for name in near[:3])
    return f"did you mean {meant}? {known(near[0], siblings or top, limit=20)}"


def _meant(key: str, keys: Sequence[str], top: Sequence[str]) -> list[str]:
    """Return what an unknown key may stand for: keys, or choices such as ``strategy=er``; the likeliest first."""
    group, dot, leaf = key.rpartition(".")
    by_leaf: dict[str, list[str]] = {}
    for name in sorted(keys, key=_rank):
        by_leaf.setdefault(name.rpartition(".")[2], []).append(name)
    if near := similar(key, keys if dot else top, cutoff=0.87):
        return near[:1]
    if (word := leaf.lower()) in SYNONYMS:
        return [SYNONYMS[word]]
    if word in by_leaf:
        return by_leaf[word]
    siblings = [name for name in keys if name.startswith(group + dot)] if dot else [*keys, *top]
    if near := similar(key, siblings, cutoff=0.8 if dot else 0.6):
        return near[:1]
    if choice := choice_named(word):
        return [choice]
    return by_leaf[near[0]] if (near := similar(word, by_leaf, cutoff=0.75)) else []


def _rank(key: str) -> int:
    group = key.partition(".")[0]
    return _GROUPS.index(group) if group in _GROUPS else len(_GROUPS)


def choice_named(word: str) -> str | None:
    """Return ``GROUP=NAME`` for the name of a choice, regardless of case; None if there is none."""
    found = (f"{group}={name}" for group in ("strategy", "dataset", "model", "order", "sweep", "experiment")
             for name in choices()[group] if name.lower() == word.lower())  # fmt: skip
    return next(found, None)


def has_setting(strategy: str, setting: str) -> bool:
    """Whether a strategy has a setting. True for a YAML file with another name: its strategy is unknown here."""
    if strategy not in STRATEGIES:
        return True
    return setting in {f.name for f in dataclasses.fields(STRATEGIES[strategy].settings_type)}
