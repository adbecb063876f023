"""The store of stages: entries are complete, and damaged ones count as absent."""

from collections.abc import Callable
from pathlib import Path

import pytest

from xclrun.core.identity import digest
from xclrun.store.stages import StageStore

KEY = digest("a stage")
FACTS = {"kind": "train", "hop": "en", "training": {"updates": 12, "epochs": [{"loss": 0.125}]}}


def fill(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(bytes(range(256)) * 8)
    (folder / "facts.json").write_text("{}")


@pytest.fixture
def output() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, output: list[str]) -> StageStore:
    return StageStore(tmp_path / "store", output.append)


def test_an_empty_store(store: StageStore) -> None:
    assert not store.has(KEY)
    assert store.get(KEY) is None
    assert list(store.all_keys()) == []


def test_what_is_put_is_there(store: StageStore, output: list[str]) -> None:
    folder = store.put(KEY, FACTS, fill)
    assert folder == store.get(KEY) == store.root / KEY[:2] / KEY
    assert store.has(KEY)
    assert (folder / "weights.safetensors").stat().st_size == 2048
    facts = store.facts(KEY)
    assert {name: facts[name] for name in FACTS} == FACTS
    assert facts["key"] == KEY
    assert sorted(facts["files"]) == ["facts.json", "weights.safetensors"]
    assert list(store.all_keys()) == [KEY]
    assert store.damaged(KEY) is None
    assert output == []


def test_a_stage_is_put_once(store: StageStore) -> None:
    store.put(KEY, FACTS, fill)
    store.put(KEY, {**FACTS, "hop": "de"}, lambda folder: (folder / "other").touch() or None)
    assert store.facts(KEY)["hop"] == "en"
    assert store.get(KEY) is not None
    assert list((store.root / KEY[:2]).iterdir()) == [store.path(KEY)]


def test_a_stage_that_fails_is_not_there(store: StageStore) -> None:
    def half(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put(KEY, FACTS, half)
    assert not store.has(KEY)
    assert list((store.root / KEY[:2]).iterdir()) == []


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def not_an_object(path: Path) -> None:
    path.write_text("[1]")


def another_number(path: Path) -> None:
    """Change a score, as a flipped bit can: the JSON can be read, but is not what was written."""
    path.write_text(path.read_text().replace("0.125", "0.135"))


def another_digit(path: Path) -> None:
    """Change a digit that is beyond what a number holds: harmless, but not what was written."""
    path.write_text(path.read_text().replace("0.125", "0.1250"))


DAMAGE: list[tuple[str, Callable[[Path], None]]] = [
    *[("weights.safetensors", how) for how in (truncate, flip, empty, Path.unlink)],
    *[("facts.json", how) for how in (truncate, flip, empty, Path.unlink)],
    *[
        ("stage.json", how)
        for how in (truncate, flip, empty, not_an_object, another_number, another_digit, Path.unlink)
    ],
]


@pytest.mark.parametrize(("name", "damage"), DAMAGE, ids=lambda value: getattr(value, "__name__", value))
def test_damage_is_found_said_and_repaired(
    name: str, damage: Callable[[Path], None], store: StageStore, output: list[str]
) -> None:
    path = store.put(KEY, FACTS, fill) / name
    before = path.read_bytes()
    damage(path)
    assert not path.is_file() or path.read_bytes() != before
    assert store.damaged(KEY) == name
    assert store.get(KEY) is None
    assert len(output) == 1
    assert str(path) in output[0]
    # It is gone, so the stage can be made again.
    assert not store.has(KEY)
    store.put(KEY, FACTS, fill)
    assert store.get(KEY) is not None
    assert path.read_bytes() == before
    assert list((store.root / KEY[:2]).iterdir()) == [store.path(KEY)]


def test_what_is_being_made_is_no_stage(store: StageStore) -> None:
    other = digest("another")
    store.put(other, FACTS, fill)

    def look(folder: Path) -> None:
        fill(folder)
        (folder / "stage.json").write_text("{}")
        assert list(store.all_keys()) == [other]
        assert not store.has(KEY)
        (folder / "stage.json").unlink()

    store.put(KEY, FACTS, look)
    assert sorted(store.all_keys()) == sorted([KEY, other])


def test_checkpoints_and_leases_lie_beside_the_stage(store: StageStore) -> None:
    folder = store.put(KEY, FACTS, fill)
    assert store.checkpoints(KEY).parent == store.lease(KEY).path.parent == folder.parent
    store.checkpoints(KEY).mkdir()
    assert list(store.all_keys()) == [KEY]


def test_a_stage_that_is_gone_and_one_that_is_damaged_are_told_apart(tmp_path: Path) -> None:
    store, key = StageStore(tmp_path), "ab" * 32
    assert store.problem(key) == "its weights are no longer in the store"
    store.put(key, {"kind": "train"}, lambda folder: (folder / "w").write_text("1"))
    assert store.problem(key) is None
    (store.path(key) / "w").write_text("2")
    assert store.problem(key) == f"{store.path(key) / 'w'} is damaged"
    assert (store.path(key) / "w").exists()
