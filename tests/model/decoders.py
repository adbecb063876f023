"""Small language models of two layers and width 16, as folders and in memory.

Causal models have a tokenizer of bytes, encoder-decoders one as T5's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

TEXTS = (
    "wake me at six",
    "will it rain in Rome at seven",
    "weck mich um sechs",
    "llama a Anna",
    "six a b c d e f x a b c d e f x",
)
BOS, END, TURN, OTHER = "<s>", "</s>", "<|turn|>", "<|end|>"
# A template without generation marks, whose turns end with a special token and a new line.
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


@cache
def _trained() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=[BOS, END, TURN, OTHER],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator(TEXTS, trainer)
    text: str = built.to_str()
    return text


def tokenizer(bos: bool = True, chat: str | None = None, **given: Any) -> Any:
    """Return a tokenizer of bytes that begins texts with BOS, as Llama's, or does not, as GPT-2's."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    built = Tokenizer.from_str(_trained())
    if bos:
        built.post_processor = processors.TemplateProcessing(f"{BOS} $A", f"{BOS} $A {BOS} $B", [(BOS, 0)])
    names: dict[str, Any] = {
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": END,
        "model_input_names": ["input_ids", "attention_mask"],
    } | given
    made = PreTrainedTokenizerFast(tokenizer_object=built, **names)
    made.chat_template = chat
    return made


def language_model(family: str = "llama", seed: int = 1, **settings: Any) -> Any:
    """Return an untrained language model whose weights are large enough that its texts differ."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": len(tokenizer()),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
        "initializer_range": 0.5,
        "tie_word_embeddings": True,
    }
    of_family = {"n_inner": 32} if family == "gpt2" else {"intermediate_size": 32, "num_key_value_heads": 2}
    if family == "bloom":
        of_family = {"n_layer": 2, "n_head": 2}
    if family.startswith("gemma"):
        of_family["head_dim"] = 8
    config = AutoConfig.for_model(family, **sizes | of_family | settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()


def write_decoder(folder: Path, family: str = "llama", chat: str | None = None, **settings: Any) -> Path:
    """Write a language model and its tokenizer into a folder."""
    language_model(family, **settings).save_pretrained(folder)
    tokenizer(chat=chat).save_pretrained(folder)
    return folder


# Layouts of T5's family → its family and settings.
T5S: dict[str, tuple[str, dict[str, Any]]] = {
    "T5": ("t5", {"tie_word_embeddings": True}),
    "Flan-T5": ("t5", {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
    "mT5": ("mt5", {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
    "umT5": ("umt5", {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
}


@cache
def t5_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    built = Tokenizer(models.BPE(unk_token="<unk>"))
    built.pre_tokenizer, built.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", END, "<unk>"]
    built.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=80, special_tokens=special, show_progress=False))
    built.post_processor = processors.TemplateProcessing(f"$A {END}", f"$A {END} $B {END}", [(END, 1)])
    names = {"pad_token": "<pad>", "eos_token": END, "unk_token": "<unk>"}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=built, model_input_names=inputs, **names)


def encoder_decoder(layout: str = "T5", seed: int = 1, **settings: Any) -> Any:
    """Return an untrained model of T5's family whose weights are large enough that its texts differ."""
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    family, given = T5S[layout]
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    further = {"vocab_size": len(t5_tokenizer()), "initializer_factor": 2.0}
    config = AutoConfig.for_model(family, **sizes | special | further | given | settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSeq2SeqLM.from_config(config).eval()
        if not given["tie_word_embeddings"]:
            # Transformers 5 ties the output layer of the family unless its weights differ.
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return model


def write_encoder_decoder(folder: Path, layout: str = "T5", **settings: Any) -> Path:
    """Write a model of T5's family and its tokenizer into a folder."""
    encoder_decoder(layout, **settings).save_pretrained(folder)
    t5_tokenizer().save_pretrained(folder)
    return folder
