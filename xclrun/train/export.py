"""A trained hop as files for other programs: the encoder as a `transformers` folder, the rest next to it.

- ``config.json``, ``model.safetensors``, the tokenizer's files: the encoder, for ``AutoModel.from_pretrained``. Its
  last hidden states are those of the run; where the task reads the class through BERT's pooler, ``pooler_output`` is
  what the trained pooler gives. Pieces that a trimmed vocabulary left out are there again, as before fine-tuning.
- ``heads.safetensors``: the heads, under their names in `xclrun.model.network.Model`.
- ``language.safetensors``: what a language its own has, where the strategy gives languages parts; the encoder and
  the heads have it already.
- ``adapter/``: a language's adapters, as the library `adapters` writes them (``load_adapter`` puts them into the
  encoder, which is without them).
- ``export.json``: what each is, labels and tags in the order of their numbers, and the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.languages import key_of
from xclrun.core.stream import Hop
from xclrun.model.encoder import empty_encoder
from xclrun.model.network import Heads, Model, build
from xclrun.run import Run
from xclrun.store.files import atomic_directory, write_json
from xclrun.store.tensors import save_tensors
from xclrun.strategy.shared.adapters import NAME
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag

# What the parameters of a head begin with → what it is.
HEADS = {
    "intent": "linear layer on the last hidden state of [CLS]: logits of labels",
    "pooler": "BERT's pooler on the last hidden state of [CLS]: tanh of a linear layer; the encoder's own is the same",
    "classifier": "linear layer on the pooler's output: logits of labels",
    "tagger.linear": "linear layer on the last hidden states of words: scores of tags",
    "span.linear": "linear layer on the last hidden states of [CLS] and of the text's pieces: scores of start and end",
    "tagger.crf": "linear-chain CRF over these scores: start, end and transition scores, from row to column",
}


def export(run: Run, index: int | None, language: str | None, target: Path) -> dict[str, Any]:
    """Write a hop of a run into a new folder; nothing is trained.

    Args:
        run: has been trained up to the hop.
        index: of the hop; None: the last.
        language: whose parts are written, where languages have their own parts; None: the hop's.
        target: a folder that is not there yet, or is empty.

    Returns:
        What ``export.json`` says.

    Raises:
        UsageError: there is no such hop or language, the strategy serves all languages alike, or the folder is there.
        RunError: the store does not have the weights.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target}: is there already; name a folder that is new or empty")
    hop = _hop(run, index)
    graph = StageGraph(run, Listener(), StopFlag())
    bench, strategy = graph.bench, graph.strategy
    own_parts = bool(strategy.serving_signature(hop)) or strategy.adapters is not None
    language = language and key_of(language, run.stream.languages, "--language")
    _check_language(run, hop, language, own_parts)
    needed = {hop.index, *strategy.recalled(hop), *([hop.parent] if strategy.keeps_encoder(hop) else [])} - {0}
    for stage in (run.stages[i] for i in sorted(needed)):
        if graph.store.get(stage.train) is None:
            raise RunError(f"{run.id}: the store has no weights of hop {stage.hop.index} ({stage.hop.name}) any more")
    graph.weights(hop.index)
    seen = [name for h in run.stream.hops[: hop.index + 1] for name in h.train]
    served = language or (hop.train[-1] if own_parts and hop.train else None)
    if own_parts and served is not None:
        strategy.for_language(served, seen)
    model = bench.model.eval()
    facts = _facts(run, hop, served, seen)
    with atomic_directory(target) as folder:
        _plain_encoder(run, model, bench.encodings.tokenizer, bench.encodings.kept).save_pretrained(folder)
        bench.encodings.tokenizer.save_pretrained(folder)
        heads = {k: v for k, v in model.state_dict().items() if not k.startswith("encoder.")}
        save_tensors(folder / "heads.safetensors", heads)
        facts |= {"heads": _heads(heads)} if not model.tasks else {"tasks": _tasks(run, heads)}
        scale = None if model.classifier is None else model.classifier.scale
        if scale is not None:
            facts["heads"]["classifier"] = f"{scale} · cosine of a label's row in weight and the pooler's output"
        parts = {k: v for k, v in model.state_dict().items() if strategy.language_specific(k)}
        if own_parts and 0 < len(parts) < len(model.state_dict()):
            save_tensors(folder / "language.safetensors", parts)
            facts["language_parts"] = sorted(parts)
        if strategy.adapters is not None:
            encoder: Any = model.encoder
            encoder.save_adapter(str(folder / "adapter"), NAME, use_safetensors=True)
            facts["adapter"] = "load_adapter of the library adapters puts it into the encoder"
        write_json(folder / "export.json", facts)
        # Libraries write weights for the owner alone; an export is made to be passed on.
        os.umask(umask := os.umask(0))
        for path in folder.rglob("*"):
            path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
    return facts


def _hop(run: Run, index: int | None) -> Hop:
    hops = run.stream.hops
    if index is None:
        return hops[-1]
    if not 0 <= index < len(hops):
        raise UsageError(f"--hop {index}: {run.id} has hops 0 to {len(hops) - 1}")
    return hops[index]


def _check_language(run: Run, hop: Hop, language: str | None, own_parts: bool) -> None:
    if language is None:
        return
    if language not in run.stream.languages:
        raise UsageError(
            f"--language {language}: {run.id} has no such language; {did_you_mean(language, run.stream.languages)}"
        )
    if not own_parts:
        raise UsageError(
            f"--language {language}: after hop {hop.index} of {run.strategy_name} all languages have the same parts; "
            "leave it out"
        )


def _heads(names: Iterable[str]) -> dict[str, str]:
    """Return what each of the heads is that have parameters of these names."""
    there = list(names)
    return {name: what for name, what in HEADS.items() if any(k.startswith(f"{name}.") for k in there)}


def _tasks(run: Run, names: Iterable[str]) -> dict[str, Any]:
    """Return what ``export.json`` says of several tasks, by the name that their heads have in ``heads.safetensors``."""
    there, found = list(names), {}
    for of in run.dataset.targets:
        prefix = f"tasks.{of.task.head}."
        own = _heads(k.removeprefix(prefix) for k in there if k.startswith(prefix))
        sets = {"task": of.task.name, "keys": list(of.keys), "labels": list(of.labels), "tags": list(of.tags)}
        found[of.task.head] = {**sets, "heads": {f"{prefix}{name}": what for name, what in own.items()}}
    return found


def _facts(run: Run, hop: Hop, language: str | None, seen: list[str]) -> dict[str, Any]:
    config, dataset = run.config, run.dataset
    sets: dict[str, Any] = {}
    if dataset.task is not None:
        sets = {"task": dataset.task.name, "labels": list(dataset.labels), "tags": list(dataset.tags)}
    return {
        "run": run.id,
        "strategy": run.strategy_name,
        "dataset": config.dataset.name,
        "hop": hop.index,
        "learnt": seen,
        "language": language,
        **sets,
        "max_length": config.model.max_length,
        "tagged_piece_of_a_word": config.model.label_on.value,
    }


def _plain_encoder(run: Run, model: Model, tokenizer: Any, kept: Any) -> Any:
    """Return the encoder as its library makes it: with a pooler where the task has one, all pieces, no adapters."""
    encoder: Any = model.encoder
    state: dict[str, Tensor] = dict(encoder.state_dict())
    # Of several poolers, the first task's.
    heads = model.tasks.values() if model.tasks else [model]
    pooler = next((of.pooler for of in heads if isinstance(of, Heads) and of.pooler is not None), None)
    if pooler is not None:
        state |= {f"pooler.{name}": tensor for name, tensor in pooler.state_dict().items()}
    settings = {key: value for key, value in encoder.config.to_dict().items() if key != "adapters"}
    if kept is not None:
        own = encoder.get_input_embeddings().weight
        [name] = [key for key, tensor in encoder.named_parameters() if tensor is own]
        task = run.dataset.targets[0].task
        before: Any = build(run.config.model, tokenizer, 1, 0, run.config.seed, None, task).encoder
        rows = before.get_input_embeddings().weight.detach().clone()
        rows[kept] = state[name].to(rows.device)
        state[name], settings["vocab_size"] = rows, len(rows)
    shape = type(encoder.config).from_dict(settings)
    plain: Any = empty_encoder(shape)
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    return plain.eval()
