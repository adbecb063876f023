"""Encode prompts and their completions for language models, without torch.

For causal models, a row is the prompt P and a target T, the completion and an end. The model predicts each subword of T
from the state of the subword before it: these states are the row's "words" and the subwords of T are their "tags". The
last subword of T is therefore no input.

- White space at the end of a prompt moves to the completion.
- P begins as the tokenizer begins a text (BOS), once. With ``dataset.text.template=chat``, the tokenizer's template
  writes all special tokens instead.
- T is the rest of the subwords of prompt + completion if these begin with P; otherwise the completion is encoded alone.
- T ends with the tokenizer's end (EOS) or, in a chat, with the special token that ends the turn.
- If a row is longer than ``model.max_length``, the prompt loses subwords at its beginning, after BOS. In training, T
  loses subwords beyond ``model.max_target``, and so its end. In dev and test, T is never cut: a T that does not fit has
  no probability.

For encoder-decoders (T5), a row is the prompt and an end, at most ``model.max_length`` subwords. T is the completion,
without white space at its beginning, and an end. It is encoded alone and takes no room of the prompt; the decoder reads
it after its own start. A T of any length has a probability.

The cases above are counted (`MARKS`). In dev and test, each choice of an example is a further row, after the rows of
all examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xclrun.config.schema import ModelConfig, Template, TextConfig
from xclrun.core.errors import UsageError
from xclrun.data.batches import UNSEEN, Encoded, Prompts, Ragged
from xclrun.data.example import Example, Targets

# Bits of `Encoded.marks`: prompts without their beginning, targets without their end, references that do not fit,
# completions encoded without their prompt.
MARKS = ("cut_prompts", "cut_targets", "long_references", "encoded_alone")
_PROMPT, CUT_TARGET, _LONG, _ALONE = (1 << bit for bit in range(len(MARKS)))
INPUT, OUTPUT = "{input}", "{output}"


def check_texts(model: ModelConfig) -> None:
    """Check that a row has room for a target and a prompt."""
    if model.target_limit >= model.max_length:
        raise UsageError(
            f"model.max_target={model.max_target}: must be below model.max_length={model.max_length}, which prompt and "
            "target share"
        )


@dataclass(frozen=True)
class _Pair:
    """A prompt and a completion, as texts; ``apart``: whether the completion does not follow the prompt as it is."""

    prompt: str
    completion: str
    apart: bool = False


@dataclass(frozen=True)
class Ends:
    """Special subwords of a tokenizer: those that begin a text, the one that ends it, and all."""

    start: tuple[int, ...]
    end: int
    special: frozenset[int]

    @classmethod
    def of(cls, tokenizer: Any) -> Ends:
        if tokenizer.eos_token_id is None:
            raise UsageError("the tokenizer has no end of text (eos_token), so the model could not learn to stop")
        whole, plain = tokenizer("a")["input_ids"], subwords(tokenizer, ["a"])[0]
        at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
        added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        return cls(tuple(whole[:at]), tokenizer.eos_token_id, frozenset(added | set(tokenizer.all_special_ids)))


def encode_texts(
    examples: Sequence[Example],
    tokenizer: Any,
    target: Targets,
    model: ModelConfig,
    split: str = "test",
    decoder: bool = False,
) -> Encoded:
    """Encode prompts with their completions, one row each; in dev and test, then one row for each choice.

    Args:
        decoder: whether the model is an encoder-decoder, which reads prompts and writes targets apart.
    """
    settings: TextConfig = target.settings or TextConfig()
    ends, writer = Ends.of(tokenizer), _Writer(settings, tokenizer, decoder)
    trains = split == "train"
    owners = list(range(len(examples)))
    pairs = [writer.pair(e, e.target.references[0]) for e in examples]
    for i, example in enumerate(() if trains else examples):
        owners += [i] * len(example.target.choices)
        pairs += [writer.pair(example, choice) for choice in example.target.choices]
    chat = settings.template is Template.chat
    encoded = list(_apart(pairs, tokenizer, ends) if decoder else _encoded(pairs, tokenizer, ends, chat))
    first = [tokenizer.bos_token_id] if chat else list(ends.start)
    start = len(first) if all(prompt[: len(first)] == first for prompt, _, _ in encoded) else 0
    rows, places, targets, prompts, marks, stops = [], [], [], [], [], {ends.end}
    for number, (owner, (prompt, completion, mark)) in enumerate(zip(owners, encoded, strict=True)):
        if not completion:
            raise UsageError(f"example '{examples[owner].id}': nothing is left to write after the prompt")
        if chat and completion[-1] in ends.special:
            stops.add(completion[-1])
        if trains and len(completion) > model.target_limit:
            completion, mark = completion[: model.target_limit], mark | CUT_TARGET
        room = model.max_length if decoder else model.max_length - len(completion) + 1
        if room <= start:
            completion, room, mark = [], model.max_length, mark | _LONG
        kept = shortened(prompt, room, start)
        if len(kept) < len(prompt):
            mark |= _PROMPT
        rows.append(kept if decoder else kept + completion[:-1])
        first_place = 0 if decoder else len(kept) - 1
        places.append(range(first_place, first_place + len(completion)))
        targets.append(completion)
        prompts.append(shortened(prompt, model.max_length, start) if number < len(examples) else [])
        # Choices share the prompt of their example, which is counted once.
        marks.append(mark if number < len(examples) else 0)
    pieces, flags = Ragged.of(rows), np.array(marks, np.int64)
    return Encoded(
        ids=np.array([examples[i].id for i in owners], object),
        languages=np.array([examples[i].language for i in owners], object),
        pieces=pieces,
        types=Ragged(np.zeros_like(pieces.values), pieces.offsets),
        word_pieces=Ragged.of(places),
        tags=Ragged.of(targets),
        labels=np.full(len(rows), UNSEEN, np.int64),
        words=np.array([len(examples[i].tokens) for i in owners], np.int64),
        cut=(flags & ~_ALONE).astype(bool),
        pad=int(tokenizer.pad_token_id),
        tokenizer=tokenizer,
        prompts=Prompts(Ragged.of(prompts), start, tuple(sorted(stops)), writer.header()),
        marks=flags,
    )


def shortened(prompt: list[int], room: int, start: int) -> list[int]:
    """Return a prompt of at most ``room`` subwords: the first ``start``, and its last ones."""
    if len(prompt) <= room:
        return prompt
    return prompt[:start] + prompt[len(prompt) - (room - start) :]


def written(text: str, settings: TextConfig, prompt: str, header: str = "") -> str:
    """Return the answer in a decoded completion: without what ``dataset.text.completion`` puts around it.

    Args:
        header: what a chat template writes before an answer (`Prompts.header`).
    """
    _, moved = _moved(prompt)
    before, _, after = settings.completion.partition(OUTPUT)
    if settings.template is Template.chat:
        text = text.strip().removeprefix(header).lstrip()
        return text.removeprefix(before.lstrip()).removesuffix(after.rstrip()).strip()
    for prefix in (moved + before, (moved + before).lstrip()):
        if prefix and text.startswith(prefix):
            text = text.removeprefix(prefix)
            break
    return text.removesuffix(after) if after else text


class _Writer:
    """Makes prompts and completions of examples."""

    def __init__(self, settings: TextConfig, tokenizer: Any, decoder: bool = False) -> None:
        self.settings, self.tokenizer, self.decoder = settings, tokenizer, decoder
        self.chat = settings.template is Template.chat
        if self.chat and not tokenizer.chat_template:
            raise UsageError("dataset.text.template=chat: the tokenizer has no chat template; use template=none")
        if not self.chat and settings.system is not None:
            raise UsageError("dataset.text.system: needs dataset.text.template=chat")

    def pair(self, example: Example, answer: str) -> _Pair:
        prompt = self.settings.prompt.replace(INPUT, example.whole)
        completion = self.settings.completion.replace(OUTPUT, answer)
        if self.chat:
            return self._turns(example, prompt, completion.strip())
        if example.target.turns:
            raise UsageError(f"example '{example.id}': a dialogue needs dataset.text.template=chat")
        if self.decoder:
            return _Pair(prompt, self.settings.completion.lstrip().replace(OUTPUT, answer), apart=True)
        prompt, moved = _moved(prompt)
        return _Pair(prompt, moved + completion)

    def header(self) -> str:
        """Return what the template writes before an answer, as it is decoded; empty if it is part of the prompt.

        This is the name of the role if the template has no generation prompt, or an empty thought.
        """
        if not self.chat:
            return ""
        asked, answer = {"role": "user", "content": "a"}, "\ue000"
        try:
            before = self._render([asked], add_generation_prompt=True)
            whole = self._render([asked, {"role": "assistant", "content": answer}])
        except Exception:  # A template may need other turns.
            return ""
        header, found, _ = whole.removeprefix(before).partition(answer)
        if not whole.startswith(before) or not found:
            return ""
        [pieces] = subwords(self.tokenizer, [header])
        text: str = self.tokenizer.decode(pieces, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.strip()

    def _turns(self, example: Example, prompt: str, completion: str) -> _Pair:
        system = [] if self.settings.system is None else [("system", self.settings.system)]
        turns = [{"role": r, "content": c} for r, c in (*system, *example.target.turns, ("user", prompt))]
        before = self._apply(example, turns, add_generation_prompt=True)
        whole = self._apply(example, [*turns, {"role": "assistant", "content": completion}])
        if whole.startswith(before):
            return _Pair(before, whole[len(before) :])
        # The template changes earlier turns, for example by removing thoughts.
        return _Pair(before, completion, apart=True)

    def _apply(self, example: Example, turns: list[dict[str, str]], **options: Any) -> str:
        try:
            return self._render(turns, **options)
        except Exception as error:
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"example '{example.id}': the tokenizer's chat template fails: {problem}") from error

    def _render(self, turns: list[dict[str, str]], **options: Any) -> str:
        # Jinja runs in the sandbox of transformers: templates are data.
        text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, **options)
        return text


def _moved(prompt: str) -> tuple[str, str]:
    """Return a prompt without the white space at its end, and this white space."""
    stripped = prompt.rstrip()
    return stripped, prompt[len(stripped) :]


def _encoded(
    pairs: Sequence[_Pair], tokenizer: Any, ends: Ends, chat: bool
) -> Iterator[tuple[list[int], list[int], int]]:
    """Yield the subwords of prompt and target of each pair, and its mark."""
    prompts = subwords(tokenizer, [pair.prompt for pair in pairs])
    wholes = subwords(tokenizer, [pair.prompt + pair.completion for pair in pairs])
    first = list(ends.start)
    for pair, prompt, whole in zip(pairs, prompts, wholes, strict=True):
        mark = 0
        if whole[: len(prompt)] == prompt and not pair.apart:
            completion = whole[len(prompt) :]
        else:
            [completion], mark = subwords(tokenizer, [pair.completion]), _ALONE
        if not chat:
            if prompt[: len(first)] != first:
                prompt = first + prompt
            # A text is predicted from something: without BOS and prompt, from the end of another text.
            yield prompt or [ends.end], [*completion, ends.end], mark
            continue
        last = next((i for i in range(len(completion) - 1, -1, -1) if completion[i] in ends.special), None)
        if last is not None and not tokenizer.decode(completion[last + 1 :]).strip():
            yield prompt, completion[: last + 1], mark
        else:
            yield prompt, [*completion, ends.end] if completion else [], mark


def _apart(pairs: Sequence[_Pair], tokenizer: Any, ends: Ends) -> Iterator[tuple[list[int], list[int], int]]:
    """Yield the subwords of prompt and target of each pair, both with an end, and no mark."""
    prompts = subwords(tokenizer, [pair.prompt for pair in pairs])
    completions = subwords(tokenizer, [pair.completion for pair in pairs])
    for prompt, completion in zip(prompts, completions, strict=True):
        yield [*ends.start, *prompt, ends.end], [*completion, ends.end], 0


def subwords(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    if not texts:
        return []
    options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    rows: list[list[int]] = tokenizer(list(texts), verbose=False, **options)["input_ids"]
    return rows
