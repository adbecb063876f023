"""Kept files: damage is noted, and what is not what its name says is made again."""

from __future__ import annotations

from pathlib import Path

from xclrun.store.kept import Kept


def test_a_damaged_file_is_noted_and_goes_and_others_stay(tmp_path: Path) -> None:
    told: list[str] = []
    kept = Kept(tmp_path, "cut-1", ".json", told.append)
    other = Kept(tmp_path, "cut-1-2", ".json", told.append).write(b"other")
    path = kept.write(b"content")
    assert (kept.find(), kept.read()) == (path, b"content")
    for ask in (kept.read, kept.find):
        path.write_bytes(b"contend")
        assert ask() is None
        assert told.pop() == f"{path} is damaged (its checksum does not match): it is made again"
        assert not path.exists()
        kept.write(b"content")
    newer = kept.write(b"another")
    assert sorted(tmp_path.iterdir()) == sorted([newer, other])
    assert not told
