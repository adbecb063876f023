"""The core with the newest transformers 5, in a second environment: train, also LoRA, export, read every family."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# One process, since importing the libraries takes most of the time.
SMOKE = """
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from tests.conftest import TINY
from tests.model.encoders import write_family
from xclrun.cli import main
from xclrun.config.schema import ModelConfig
from xclrun.core.task import INTENT_SLOTS
from xclrun.data.example import Dataset, Example
from xclrun.model.encoder import pretrained_encoder
from xclrun.model.families import FAMILIES
from xclrun.model.folder import check_folder
from xclrun.model.vocabulary import load_tokenizer


def finite(encoder, tokenizer):
    given = tokenizer("wake me up", return_tensors="pt")
    with torch.no_grad():
        states = encoder(given["input_ids"], attention_mask=given["attention_mask"]).last_hidden_state
    return bool(states.isfinite().all())


assert transformers.__version__.startswith("5."), transformers.__version__
assert main([*TINY, "strategy=naive", "runtime.threads=1"]) == 0
[run] = Path("outputs/runs").iterdir()
assert main(["model", "export", run.name, "exported"]) == 0
assert finite(*(library.from_pretrained("exported") for library in (AutoModel, AutoTokenizer)))

data = Dataset("made", INTENT_SLOTS, ("en",), {("en", "train"): (Example("1", "en", ("a",), "b"),)})
# adapters needs transformers 4, so LoRA comes from peft; a decoder is exported with its update.
if find_spec("peft"):
    assert main([*TINY, "strategy=seq_lora", "runtime.threads=1"]) == 0
    small = ["model.vocab_size=300", "dataset.max_train=8", "dataset.max_eval=2", "generation.max_new_tokens=3"]
    brief = ["order=[en,de]", "trainer.epochs=1", "tracking=none", "runtime.device=cpu", "runtime.threads=1"]
    assert main(["dataset=mini_text", "model=tiny_decoder", "strategy=inc_lora", *small, *brief]) == 0
    [run] = [path for path in Path("outputs/runs").iterdir() if "inc_lora" in path.name]
    assert main(["model", "export", run.name, "written"]) == 0
    text = AutoTokenizer.from_pretrained("written")("wake me up", return_tensors="pt")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained("written")
    assert model.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=2).shape[0] == 1

for family in FAMILIES:
    folder = write_family(family, Path(family))
    model = ModelConfig(name=family, path=str(folder), max_length=24)
    check_folder(folder, f"model.path={family}", model)
    assert finite(pretrained_encoder(model).eval(), load_tokenizer(model, data, folder)), family
"""


@pytest.mark.full
@pytest.mark.in_turn
def test_the_core_runs_with_transformers_5(tmp_path: Path) -> None:
    """An environment that has the packages of this one, and a newer transformers in front of them."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    shared = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "shared.pth").write_text("\n".join(shared) + "\n")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    installed = subprocess.run([*pip, "transformers>=5,<6"], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip cannot install transformers 5: {installed.stderr.strip().splitlines()[-1]}")
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, "-c", SMOKE], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
