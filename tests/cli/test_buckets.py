"""``xclrun data buckets``: make, check and show; and runs on buckets, as reports and lists name them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TINY

from .conftest import Told

MINI = ("dataset=mini", "dataset.languages=[en,de]", "shots=1,2", "bucket=0,1")


def test_what_is_made_passes_the_check_and_what_is_broken_does_not(xclrun: Callable[..., Told], here: Path) -> None:
    made = xclrun("data", "buckets", "make", *MINI, "--to", "few", "-m")
    assert made.code == 0
    assert "few/mini: 8 written, 0 unchanged" in made.out
    assert "few/mini: 0 written, 8 unchanged" in xclrun("data", "buckets", "make", *MINI, "--to", "few").out
    # As drawn, as files, and files against their data.
    for arguments in (MINI, ("--from", "few"), ("--from", "few", "dataset=mini"), ("--from", "few/mini")):
        told = xclrun("data", "buckets", "check", *arguments)
        assert told.code == 0, told.out
        assert "8 buckets have all required properties" in told.out
        assert ("overlap with dev and test: not checked" in told.out) == ("dataset=mini" not in arguments)
    # One bucket becomes another one's copy, without a fingerprint.
    one, other = (here / f"few/mini/1-shots/de/{b}-th" for b in (0, 1))
    (other / "sampled.json").write_bytes((one / "sampled.json").read_bytes())
    assert "differs from the fingerprint in bucket.json" in xclrun("data", "buckets", "check", "--from", "few").line
    (other / "bucket.json").unlink()
    told = xclrun("data", "buckets", "check", "--from", "few")
    assert told.code == 1
    assert "mini/1-shots/de/1-th: disjointness: " in told.out
    labels = len(json.loads((one / "sampled.json").read_text(encoding="utf-8")))
    assert f"{labels} violations in 1 of 8 buckets" in told.out
    found = json.loads(xclrun("data", "buckets", "check", "--from", "few", "--json").out)
    assert {v["broken"] for v in found[0]["violations"]} == {"disjointness"}
    # Published PAN-X has empty files: they are named, and the others are still looked at.
    (here / "few/mini/1-shots/jv/3-th").mkdir(parents=True)
    (here / "few/mini/1-shots/jv/3-th/train.tsv").touch()
    told = xclrun("data", "buckets", "check", "--from", "few")
    assert told.code == 1
    assert "mini/1-shots/jv/3-th: examples: the file has none\n" in told.out
    assert f"{labels + 1} violations in 2 of 9 buckets" in told.out
    assert "1-shots/jv/3-th" in xclrun("data", "buckets", "show", "--from", "few").out
    # What is not asked for is not looked at.
    assert xclrun("data", "buckets", "check", "--from", "few", "dataset=mini", "bucket=0").code == 0


@pytest.mark.full
def test_a_folder_that_cannot_be_written_is_found_before_the_data_is_read(
    refused: Callable[..., str], here: Path
) -> None:
    (here / "file").touch()
    told = refused("data", "buckets", "make", "--to", "file/x", "dataset=mtop", "dataset.root=nowhere", "shots=5")
    assert told.startswith("cannot write file/x (")
    assert told.endswith("; choose another folder with --to DIR")


@pytest.mark.parametrize(("languages", "buckets"), [(3, 5), pytest.param(96, 120, marks=pytest.mark.full)])
def test_as_many_buckets_as_were_published_are_checked(
    languages: int, buckets: int, xclrun: Callable[..., Told], here: Path
) -> None:
    """11,520 files of 50 sentences each."""
    sentence = "Erika\tB-PER\nMustermann\tI-PER\nin\tO\nBonn\tB-LOC\n\n"
    for language in range(languages):
        for bucket in range(buckets):
            folder = here / f"many/panx/1-shots/l{language}/{bucket}-th"
            folder.mkdir(parents=True)
            (folder / "train.tsv").write_text(f"Nr. {bucket}\tB-ORG\n\n" + 50 * sentence, encoding="utf-8")
    told = xclrun("data", "buckets", "check", "--from", "many")
    assert f"in {languages * buckets} of {languages * buckets} buckets" in told.out


def test_show(xclrun: Callable[..., Told]) -> None:
    [first, second] = json.loads(xclrun("data", "buckets", "show", *MINI[:2], "shots=1", "--json").out)
    assert (first["language"], first["shots"], first["bucket"], second["language"]) == ("en", 1, 0, "de")
    assert set(first["names"].values()) == {1}
    assert first["drawn"]["sampler"] == "nway"
    told = xclrun("data", "buckets", "show", *MINI[:2], "shots=1", "--sentences").out
    assert first["fingerprint"][:12] in told
    assert all(example["id"] in told for example in first["examples"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("make", "dataset=mini", "shots=1"), "needs --to DIR"),
        (("make", "dataset=mini", "shots=1", "--to", "x", "--from", "y"), "--from is only for check and show"),
        (("check", "dataset=mini"), "needs shots=K"),
        (("check", "dataset=mini,mtop", "shots=1"), "one dataset at a time"),
        (("check", "--from", "nowhere"), "folder not found"),
        (("check", "--from", "."), "contains no buckets"),
        (("check", "dataset=mini", "shots=0"), "shots=0: must be at least 1"),
        (("check", "dataset=mini", "shots=1", "bucket=40"), "bucket=40: must be below dataset.buckets.number=40"),
        (("check", "dataset=mini", "shots=1000"), "disjoint buckets of shots=1000"),
        (("check", "dataset=mini", "shots=1", "dataset.buckets.root=x"), "needs dataset.buckets.sampler=files"),
        (("check", "dataset=mini", "shots=1", "dataset.buckets.sampler=files"), "dataset.buckets.root is needed"),
        (("chek",), "invalid choice"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], told: str, xclrun: Callable[..., Told]) -> None:
    found = xclrun("data", "buckets", *arguments)
    assert found.code == 2
    assert told in found.line


@pytest.mark.full
def test_published_files_that_do_not_fit_are_one_line(xclrun: Callable[..., Told], here: Path) -> None:
    """Files as others wrote them, so without a fingerprint: a word of pieces that the data has not, and another label.

    Pieces are known only when the data has been encoded: then the run fails, before anything is trained.
    """
    assert xclrun("data", "buckets", "make", *MINI[:2], "shots=1", "bucket=0", "--to", "made").code == 0
    labels = json.loads((here / "made/mini/1-shots/de/0-th/sampled.json").read_text(encoding="utf-8"))
    name, [row, *rest] = next(iter(labels.items()))

    def told(root: str, **content: object) -> Told:
        folder = here / root / "mini/1-shots/de/0-th"
        folder.mkdir(parents=True)
        (folder / "sampled.json").write_text(json.dumps({**labels, **content}), encoding="utf-8")
        given = ("experiment=fewshot", "language=de", "dataset.languages=[en,de]", "model.trim_vocabulary=true")
        return xclrun(*TINY, *given, "dataset.buckets.sampler=files", f"dataset.buckets.root={root}")

    words = " ".join(["zxqzxqw", *row["text_a"].split()[1:]])
    strange = told("strange", **{name: [{**row, "text_a": words}, *rest]})
    assert strange.code == 1
    line = "model.trim_vocabulary=true: the buckets have subwords that the dataset does not have; use false"
    assert [shown.strip() for shown in strange.err.splitlines()].count(line) == 1
    assert "Traceback" not in strange.err
    assert not list(here.glob("outputs/store/*/*/weights.safetensors"))
    new = told("new", new=[{**row, "uid": "n", "label": "new"}])
    assert new.code == 2
    assert "sampled.json: 'n' has the label 'new', which no training split of mini has" in new.line


@pytest.mark.full
def test_runs_on_buckets_are_averaged_and_named(xclrun: Callable[..., Told], here: Path, undrawn: None) -> None:
    assert xclrun(*TINY, "shots=1", "bucket=0,1", "-m").code == 0
    [sweep] = json.loads(xclrun("status", "--json").out)
    assert ["-s1-k1-b0-" in run["run_id"] for run in sweep["runs"]] == [True, False]
    assert "-s1-k1-b1-" in sweep["runs"][1]["run_id"]
    told = json.loads(xclrun("report", "--from-runs", "--json").out)
    [final] = [
        r
        for r in told["rows"]
        if (r["order"], r["measure"], r["metric"]) == ("mean", "FP", "intent_accuracy") and not r.get("language")
    ]
    assert (final["strategy"], final["n"]) == ("naive", 2)
    page = next((here / "outputs" / "reports").rglob("index.html")).read_text(encoding="utf-8")
    assert '<th scope="col" tabindex="0">K</th>' in page
