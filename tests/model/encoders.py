"""Encoders of all families as folders: a library config, weights drawn at random, and a tokenizer of the family's kind.

A tokenizer is BERT's ([CLS] … [SEP]), T5's (… </s>), or one of byte-level BPE as in Llama and Qwen: no special piece
around a sentence, none for padding, and no space before a text's first word.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tests.conftest import TEMPLATES, sentences
from xclrun.model.families import FAMILIES

# Families without [CLS] in front, in addition to causal families.
ENDED = ("t5", "mt5", "umt5")
# Settings of a family in addition to the common sizes.
FURTHER: dict[str, dict[str, Any]] = {
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    },
    "electra": {"embedding_size": 8},
    "longformer": {"attention_window": [8, 8]},
    "xlm-roberta-xl": {"type_vocab_size": 1},
}
LAYERS, WIDTH = 2, 16


@cache
def texts() -> tuple[str, ...]:
    return tuple(" ".join(row["tokens"]) for language in TEMPLATES for row in sentences(language, "train", 30))


@cache
def tokenizer(kind: str) -> Any:
    """Return a tokenizer: ``bert``, ``t5`` or ``bytes``."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    from xclrun.model.vocabulary import learn_wordpieces

    if kind == "bert":
        pieces = {piece: i for i, piece in enumerate(learn_wordpieces(texts(), 200))}
        built = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
        built.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        around = [(piece, pieces[piece]) for piece in ("[CLS]", "[SEP]")]
        built.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
        )
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        return PreTrainedTokenizerFast(tokenizer_object=built, **names)
    built = Tokenizer(models.BPE(unk_token="<unk>" if kind == "t5" else None))
    if kind == "t5":
        built.pre_tokenizer, built.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        special = ["<pad>", "</s>", "<unk>"]
        built.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=200, special_tokens=special))
        built.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
        return PreTrainedTokenizerFast(tokenizer_object=built, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    split = pre_tokenizers.Split(Regex(r" ?\p{L}+| ?\p{N}+|\s+"), "isolated")
    built.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    letters = pre_tokenizers.ByteLevel.alphabet()
    built.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=330, initial_alphabet=letters))
    built.add_special_tokens(["<|end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<|end|>")


def kind_of(family: str) -> str:
    return "t5" if family in ENDED else "bytes" if FAMILIES[family].causal else "bert"


def write_family(family: str, folder: Path) -> Path:
    """Write an encoder of a family into a new folder."""
    import torch

    from xclrun.config.schema import ModelConfig
    from xclrun.model.encoder import empty_encoder, shape_of

    pieces = tokenizer(kind_of(family))
    shape = ModelConfig(
        name=family,
        family=family,
        hidden_size=WIDTH,
        hidden_layers=LAYERS,
        attention_heads=2,
        intermediate_size=24,
        vocab_size=len(pieces),
        max_length=40,
        settings=FURTHER.get(family, {}),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        padding = 0 if pieces.pad_token_id is None else pieces.pad_token_id
        empty_encoder(shape_of(shape, len(pieces), padding)).save_pretrained(folder)
    pieces.save_pretrained(folder)
    return folder
