"""Datasets of the ``datasets`` library: on the Hugging Face hub, or in a local folder.

A dataset has one config per language, one config with a column ``language``, or only the language that
``dataset.languages`` selects. A local folder can also hold one subfolder of Parquet files per language, or the output
of `save_to_disk`. ``dataset.hub_columns`` maps a reader's keys to columns with other names; columns without a key are
not read. Integers of a `ClassLabel` become names; −1 is a missing label.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.terminal import brief
from xclrun.data.example import SPLITS
from xclrun.data.readers.collect import Source
from xclrun.data.readers.files import SPLIT_NAMES, choose_languages, hidden

Rows = dict[str, list[dict[str, Any]]]

_LOCAL = "set dataset.root to a local folder"
# Maximum characters of a message of the library, or of a list of names.
_LONGEST = 300


def sources(cfg: DatasetConfig, keys: Sequence[str], needs: Sequence[Sequence[str]]) -> list[Source]:
    """Return the rows of each language and split of ``dataset.hub``; every row is a dict of ``keys``.

    Args:
        keys: the reader's keys. ``language`` selects rows.
        needs: groups of keys; the dataset must have a column for one key of each group.
    """
    if cfg.root is not None:
        raise UsageError(f"dataset.root={cfg.root} and dataset.hub={cfg.hub}: set one of them, and the other to null")
    for key in cfg.hub_columns or {}:
        if key not in keys:
            raise UsageError(f"dataset.hub_columns: unknown key '{key}'; {did_you_mean(key, keys)}")
    with _quiet():
        configs = [cfg.hub_config] if cfg.hub_config else _configs(cfg)
        if len(configs) > 1 or _folders(cfg).keys() - {"default"}:
            chosen = choose_languages(cfg.languages, configs, f"the configs of {cfg.hub}")
            per_language = {language: _splits(cfg, language, keys, needs) for language in chosen}
        else:
            per_language = _by_language(cfg, _splits(cfg, configs[0], keys, needs))
    trained = any(splits.get("train") for splits in per_language.values())
    for language, splits in per_language.items():
        for split in ("train", "test"):
            if not splits.get(split) and not (split == "train" and trained):
                raise UsageError(f"dataset.hub={cfg.hub} {language}: no rows in the {split} split")
    return [
        Source(language, split, f"dataset.hub={cfg.hub} {language} {split}", splits[split])
        for language, splits in per_language.items()
        for split in SPLITS
        if splits.get(split)
    ]


def _splits(cfg: DatasetConfig, config: str, keys: Sequence[str], needs: Sequence[Sequence[str]]) -> Rows:
    """Return split → rows of one config."""
    published = _load(cfg, config)
    splits = {}
    for split in SPLITS:
        if (name := next((name for name in SPLIT_NAMES[split] if name in published), None)) is not None:
            columns = _columns(cfg, config, published[name].column_names, keys, needs)
            splits[split] = _guarded(cfg, rows_of, published[name], columns)
        elif split == "test":
            raise UsageError(
                f"dataset.hub={cfg.hub} {config}: no test split; it has {brief(', '.join(published), _LONGEST)}"
            )
    return splits


def _columns(
    cfg: DatasetConfig, config: str, names: Collection[str], keys: Sequence[str], needs: Sequence[Sequence[str]]
) -> dict[str, str]:
    """Return key → column, by ``dataset.hub_columns`` or by name."""
    mapped = dict(cfg.hub_columns or {})
    for column in mapped.values():
        if column not in names:
            hint = did_you_mean(column, names)
            raise UsageError(f"dataset.hub_columns: {cfg.hub} {config} has no column '{column}'; {hint}")
    columns = {key: key for key in keys if key in names} | mapped
    for group in needs:
        if not columns.keys() & set(group):
            raise UsageError(
                f"dataset.hub={cfg.hub} {config}: no column {' or '.join(map(repr, group))}; set "
                f"dataset.hub_columns='{{{group[0]}: COLUMN}}' with one of {brief(', '.join(sorted(names)), _LONGEST)}"
            )
    return columns


def rows_of(table: Any, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of a split with a value for each key of ``columns`` (key → column)."""
    table = table.select_columns(list(dict.fromkeys(columns.values())))
    names = {column: class_names(feature) for column, feature in table.features.items()}
    return [{key: named(row[column], names[column]) for key, column in columns.items()} for row in table]


def class_names(feature: Any) -> list[str] | None:
    """Return the names of the integers in a column of classes, or of lists of classes."""
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    return getattr(feature, "names", None) or getattr(inner, "names", None)


def named(value: Any, names: Sequence[str] | None) -> Any:
    """Return a value of a column with the names of its integers; raise a ValueError for a label without a name."""
    if names is None or value is None:
        return value
    if isinstance(value, list):
        # A tag without a name, such as -100, is reported by the parser of rows.
        return [names[tag] if tag is not None and 0 <= tag < len(names) else str(tag) for tag in value]
    # -1, and in other data -100, means no label.
    if value < 0:
        return None
    if value >= len(names):
        raise ValueError(f"the label {value} has no name; its column has names for 0 to {len(names) - 1}")
    return names[value]


def _by_language(cfg: DatasetConfig, splits: Rows) -> dict[str, Rows]:
    """Return language → split → rows, by the rows' column ``language``."""
    languages = {row.get("language") for rows in splits.values() for row in rows}
    if languages == {None} and len(cfg.languages or ()) == 1:
        return {str(language): splits for language in cfg.languages or ()}
    if not all(isinstance(language, str) for language in languages):
        raise UsageError(
            f"dataset.hub={cfg.hub}: needs one config per language, or a column 'language' with a key in every row; "
            f"select one language for all rows with dataset.languages=[KEY], or {_LOCAL}"
        )
    chosen = choose_languages(cfg.languages, set(map(str, languages)), f"the column 'language' of {cfg.hub}")
    return {
        language: {split: [row for row in rows if row["language"] == language] for split, rows in splits.items()}
        for language in chosen
    }


def _configs(cfg: DatasetConfig) -> list[str]:
    import datasets

    if folders := _folders(cfg):
        return list(folders)
    return _guarded(cfg, datasets.get_dataset_config_names, str(_folder(cfg) or cfg.hub))


def _load(cfg: DatasetConfig, config: str) -> Any:
    import datasets

    path = _folders(cfg).get(config, _folder(cfg))
    if path is None:
        return _guarded(cfg, datasets.load_dataset, cfg.hub, config)
    if (path / "dataset_dict.json").is_file():
        return _guarded(cfg, datasets.load_from_disk, str(path))
    if (path / "state.json").is_file():
        raise UsageError(f"dataset.hub={cfg.hub}: one split; save a DatasetDict with the splits {', '.join(SPLITS)}")
    return _guarded(cfg, datasets.load_dataset, str(path), *([] if config in _folders(cfg) else [config]))


def _folder(cfg: DatasetConfig) -> Path | None:
    """Return the local folder that ``dataset.hub`` names, or None for a dataset on the hub."""
    path = Path(str(cfg.hub)).expanduser()
    if path.is_dir():
        return path
    if str(cfg.hub).startswith((".", "/", "~")):
        raise UsageError(f"dataset.hub={cfg.hub}: no such folder ({path.absolute()})")
    return None


def _folders(cfg: DatasetConfig) -> dict[str, Path]:
    """Return config → subfolder of a local folder without a description of its configs."""
    folder = _folder(cfg)
    if folder is None or (folder / "README.md").is_file():
        return {}
    if (folder / "dataset_dict.json").is_file():
        return {"default": folder}
    known = {"data", *(name for names in SPLIT_NAMES.values() for name in names)}
    return {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_dir()
        and path.name not in known
        and not hidden(path.name)
        and ((path / "dataset_dict.json").is_file() or any(path.glob("**/*.parquet")))
    }


def _guarded(cfg: DatasetConfig, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of ``datasets``, which raises errors of many types; each becomes one line with advice."""
    from datasets.exceptions import DatasetNotFoundError

    try:
        return function(*arguments)
    except DatasetNotFoundError:
        raise UsageError(f"dataset.hub={cfg.hub}: the hub has no such dataset, or it needs a login; {_LOCAL}") from None
    except ConnectionError:
        raise UsageError(f"dataset.hub={cfg.hub}: the hub cannot be reached; {_LOCAL}") from None
    except Exception as error:
        # "An error occurred while generating the dataset" is raised from the error that says why.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        reason = brief(str(cause), _LONGEST) or type(cause).__name__
        if "scripts are no longer supported" in reason or "trust_remote_code" in reason:
            raise UsageError(
                f"dataset.hub={cfg.hub}: consists of a Python script, which xclrun does not run; use a version in "
                f"Parquet, or {_LOCAL}"
            ) from None
        kind = "" if isinstance(cause, OSError | ValueError | RuntimeError) else f"{type(cause).__name__}: "
        raise UsageError(f"dataset.hub={cfg.hub}: {kind}{reason}; or {_LOCAL}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the library's progress bars and retry notices, and restore its settings afterwards."""
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    hub_log = logging.getLogger("huggingface_hub")
    level = hub_log.level
    datasets.disable_progress_bars()
    hub_log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub_log.setLevel(level)
        if had_bars:
            datasets.enable_progress_bars()
