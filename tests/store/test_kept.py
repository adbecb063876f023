"""Kept files: what lies in their place and is not what their name says."""

from __future__ import annotations

from pathlib import Path

from xclrun.store.kept import Kept


def test_a_folder_in_the_place_of_a_file_is_told_and_gives_way(tmp_path: Path) -> None:
    told: list[str] = []
    kept = Kept(tmp_path, "cut-1", ".json", told.append)
    path = kept.write(b"content")
    for ask in (kept.read, kept.find, lambda: kept.write(b"content")):
        path.unlink(missing_ok=True)
        path.mkdir()
        (path / "inside").touch()
        assert ask() in (None, path)
        assert told.pop() == f"{path} is damaged (it is a folder): it is made again"
        assert not path.is_dir()
    # The last one wrote it; nothing else is left.
    assert kept.read() == b"content"
    assert [*tmp_path.iterdir()] == [path]
    assert not told


def test_a_link_to_a_folder_goes_and_the_folder_stays(tmp_path: Path) -> None:
    told: list[str] = []
    folder, other = tmp_path / "cache", tmp_path / "other"
    kept = Kept(folder, "cut-1", ".json", told.append)
    path = kept.write(b"content")
    other.mkdir()
    for ask in (kept.read, kept.find, lambda: kept.write(b"content")):
        path.unlink(missing_ok=True)
        path.symlink_to(other)
        assert ask() in (None, path)
        assert not path.is_symlink()
    assert [*folder.iterdir()] == [path]
    assert other.is_dir()
