"""Frozen configs: another process, elsewhere, reads the same files and refuses what has changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from xclrun.config.schema import BucketsConfig, PartConfig
from xclrun.core.errors import RunError
from xclrun.core.version import FORMAT
from xclrun.plan import Run, freeze, thaw
from xclrun.store.files import write_json

Make = Callable[..., Run]


def frozen(run: Run, **groups: Mapping[str, Any]) -> dict[str, Any]:
    """Freeze a run with other values in some groups of its config; return what the file holds."""
    changed = {group: replace(getattr(run.config, group), **values) for group, values in groups.items()}
    freeze(replace(run, config=replace(run.config, **changed)))
    content: dict[str, Any] = yaml.safe_load(run.directory.read_config())
    return content


@pytest.mark.parametrize("home", [False, True])
def test_all_paths_of_a_config_are_absolute(
    home: bool, make_run: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    before, place = ("~/", tmp_path / "me") if home else ("", tmp_path)
    (place / "folder").mkdir(parents=True)
    found = frozen(
        make_run(),
        paths={"store": f"{before}store"},
        model={"path": f"{before}model"},
        dataset={
            "root": f"{before}data",
            "hub": f"{before}folder",
            "buckets": BucketsConfig(root=f"{before}buckets"),
            "parts": {"a": PartConfig(root="left", hub="owner/name"), "b": PartConfig(hub=f"{before}folder")},
        },
    )
    dataset = found["dataset"]
    values = (
        found["paths"]["store"],
        found["model"]["path"],
        dataset["root"],
        dataset["hub"],
        dataset["buckets"]["root"],
    )
    assert values == tuple(str(place / name) for name in ("store", "model", "data", "folder", "buckets"))
    # A name on the hub is no path; and with a root for all, those of parts lie below it.
    assert [dataset["parts"][name]["hub"] for name in "ab"] == ["owner/name", str(place / "folder")]
    assert dataset["parts"]["a"]["root"] == "left"


def test_parts_without_a_common_root_have_absolute_ones(
    make_run: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = {"a": PartConfig(root="data"), "b": PartConfig()}
    found = frozen(make_run(), dataset={"root": None, "parts": parts})["dataset"]["parts"]
    assert (found["a"]["root"], found["b"]["root"]) == (str(tmp_path / "data"), None)


def test_folders_of_pretrained_adapters_are_absolute_and_names_stay(
    make_run: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from xclrun.plan.frozen import _with_folders

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    own = {"name": "x", "pretrained": {"en": "mine", "de": "@hub/name"}}
    made = {"name": "x", "pretrained": {"en": str(tmp_path / "mine"), "de": "@hub/name"}}
    assert _with_folders(own) == made
    assert _with_folders({"name": "er", "expansion": own}) == {"name": "er", "expansion": made}
    assert own["pretrained"]["en"] == "mine", "the run's own settings stay"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"data": {"fingerprint": "0"}}, "the data has changed since the run began"),
        ({"encoder": "another"}, "the encoder has changed since the run began"),
        ({"code_version": "0.0.1"}, "made by an older version (0.0.1); this version gives the run another ID"),
        ({"code_version": "999.0"}, "made by another version (999.0); this version gives the run another ID"),
        ({"code_version": None}, "the data or the encoder has changed since the run was submitted"),
        (None, "the data or the encoder has changed since the run was submitted"),
    ],
    ids=str,
)
def test_a_run_with_another_id_says_why(change: dict[str, Any] | None, told: str, make_run: Make) -> None:
    run = make_run()
    freeze(run)
    assert thaw(run.directory).id == run.id
    directory = type(run.directory)(run.directory.path.rename(run.directory.path.with_name("another")))
    if change is not None:
        from xclrun.core.version import code_version

        same = {"fingerprint": run.data_fingerprint}
        facts = {"data": same, "encoder": run.encoder, "code_version": code_version()}
        write_json(directory.manifest, {**facts, **change})
    with pytest.raises(RunError) as raised:
        thaw(directory)
    assert str(raised.value) == f"another: {told}; re-run its command"


@pytest.mark.parametrize(("difference", "told"), [(1, "a newer version (9.9)"), (-1, "an older version (9.9)")])
def test_a_run_in_another_format_is_not_read(difference: int, told: str, make_run: Make) -> None:
    run = make_run()
    freeze(run)
    write_json(run.directory.manifest, {"format": FORMAT + difference, "code_version": "9.9"})
    with pytest.raises(RunError, match=f"made by {re.escape(told)}"):
        thaw(run.directory)


def test_a_merge_of_release_0_2_names_the_merged_strategy_as_an_expansion(make_run: Make) -> None:
    run = make_run("strategy=merge", "strategy.merged=er", "strategy.method=mean")
    freeze(run)
    text = run.directory.config.read_text()
    assert "  merged:\n" in text
    run.directory.queue(text.replace("  merged:\n", "  expansion:\n"), run.stored)
    assert thaw(run.directory).resolved == run.resolved


def test_a_repeated_run_keeps_the_weights_that_its_config_removes(make_run: Make, tmp_path: Path) -> None:
    run = make_run("store.keep=none")
    freeze(run)
    assert run.kept < {*run.keys}
    assert thaw(run.directory).kept == run.kept
    assert thaw(run.directory, tmp_path / "again", fresh=True).kept == {*run.keys}
