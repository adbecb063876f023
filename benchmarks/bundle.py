"""``python -m benchmarks.bundle``: pack what a GPU machine without a network needs, into the folder ``.gpu/``.

The machine has Python with torch, transformers, pandas, pyarrow, scipy, statsmodels and matplotlib. The folder adds:

- ``wheels/``: further packages, in the versions of this environment;
- ``mtop16.tar.xz``: balanced MTOP, if ``../shared/data`` (or the folder in XCLRUN_SHARED) has it; runs use mini
  otherwise;
- ``encoder.tar.xz``: multilingual-e5-small (`xclrun.model.e5`) in the format of transformers. Its vocabulary is reduced
  to the subwords of the data, which are segmented as before; without this, the file would be 20 times as large;
- ``run.sh``: installs the wheels, then runs the GPU tests, `benchmarks.gpu` and a study (``benchmarks/bundle.sh``).

``REHEARSE=1 bash .gpu/run.sh`` rehearses all of it on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from xclrun.command.plan import plan_runs
from xclrun.model.e5 import E5

# What runs import, and what the GPU tests import; only the source of antlr4 is published.
PACKAGES = ("hydra-core", "omegaconf", "rich", "pytorch-crf", "submitit", "cloudpickle")
TESTS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis", "sortedcontainers")
SOURCES = ("antlr4-python3-runtime",)
SPLITS = ("train", "dev", "test")
EMBEDDINGS = "embeddings.word_embeddings.weight"


def wheels(folder: Path, python: str) -> None:
    """Download the wheels of `PACKAGES` and `TESTS` for a version of Python, and build those of `SOURCES`."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    for command, names, options in (
        ("download", (*PACKAGES, *TESTS), ["--only-binary=:all:", f"--python-version={python}", "-d"]),
        ("wheel", SOURCES, ["-w"]),
    ):
        pinned = [f"{name}=={version(name)}" for name in names]
        subprocess.run([*pip, command, "-q", "--no-deps", *options, str(folder), *pinned], check=True)


def reduced_encoder(sentences: Sequence[Sequence[str]], target: Path) -> None:
    """Write multilingual-e5-small with the subwords of ``sentences`` (lists of words) into the folder ``target``."""
    from transformers import AutoTokenizer

    source = E5.folder()
    whole = AutoTokenizer.from_pretrained(source)

    def segmented(tokenizer: Any) -> list[list[int]]:
        result: list[list[int]] = tokenizer([*map(list, sentences)], is_split_into_words=True)["input_ids"]
        return result

    before = segmented(whole)
    kept = sorted({*whole.all_special_ids, *(subword for subwords in before for subword in subwords)})
    new = {old: number for number, old in enumerate(kept)}
    target.mkdir(parents=True)
    tensors = load_file(source / "model.safetensors")
    tensors[EMBEDDINGS] = np.ascontiguousarray(tensors[EMBEDDINGS][kept])
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = _read(source / "config.json")
    _write(target / "config.json", config | {"vocab_size": len(kept), "pad_token_id": new[config["pad_token_id"]]})
    tokenizer = _read(source / "tokenizer.json")
    unigrams = tokenizer["model"]
    unigrams |= {"vocab": [unigrams["vocab"][old] for old in kept], "unk_id": new[unigrams["unk_id"]]}
    for token in tokenizer["added_tokens"]:
        token["id"] = new[token["id"]]
    for token in tokenizer["post_processor"]["special_tokens"].values():
        token["ids"] = [new[old] for old in token["ids"]]
    _write(target / "tokenizer.json", tokenizer)
    for file in source.glob("*_config.json"):
        facts = _read(file)
        if decoder := facts.get("added_tokens_decoder"):
            facts["added_tokens_decoder"] = {str(new[int(old)]): token for old, token in decoder.items()}
        _write(target / file.name, facts)
    if segmented(AutoTokenizer.from_pretrained(target)) != [[new[old] for old in subwords] for subwords in before]:
        raise RuntimeError("the reduced vocabulary segments sentences differently")


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def words(settings: Sequence[str]) -> list[Sequence[str]]:
    """Return the words of each sentence of a dataset, which overrides select."""
    [run] = plan_runs([*settings, "strategy=multilingual", "tracking=none"])
    splits = [run.dataset.split(language, name) for language in run.stream.languages for name in SPLITS]
    return [example.tokens for examples in splits for example in examples]


def pack(target: Path, data: Path | None, python: str | None) -> None:
    """Write the bundle into the new folder ``target``.

    Args:
        data: folder of balanced MTOP; None: the dataset mini.
        python: version of Python on the GPU machine; None: no wheels.
    """
    shutil.rmtree(target, ignore_errors=True)
    (target / "wheels").mkdir(parents=True)
    if python is not None:
        wheels(target / "wheels", python)
    if data is not None:
        _archive(data, target / "mtop16.tar.xz")
    settings = ["dataset=mini"] if data is None else ["dataset=mtop", f"dataset.root={data}"]
    with tempfile.TemporaryDirectory() as folder:
        encoder = Path(folder) / "encoder"
        reduced_encoder(words(settings), encoder)
        _archive(encoder, target / "encoder.tar.xz")
    shutil.copy(Path(__file__).with_suffix(".sh"), target / "run.sh")


def _archive(folder: Path, target: Path) -> None:
    with tarfile.open(target, "w:xz", preset=6) as archive:
        archive.add(folder, arcname=folder.name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bundle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(".gpu"))
    parser.add_argument("--python", default="3.12", help="version of Python on the GPU machine")
    options = parser.parse_args(arguments)
    data = Path(os.environ.get("XCLRUN_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "mtop16"
    pack(options.out, data if data.is_dir() else None, options.python)
    for file in sorted(options.out.rglob("*.*")):
        print(f"{file.stat().st_size / 2**20:7.2f} MiB  {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
