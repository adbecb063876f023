"""Export a trained hop in Hugging Face format.

- ``config.json``, ``model.safetensors`` and the tokenizer's files: for ``from_pretrained`` of ``AutoModel`` and, if a
  class of transformers has the same head (`xclrun.train.fitting`), of this class. If the class head uses BERT's
  pooler, ``pooler_output`` comes from the trained pooler. Subwords outside a trimmed vocabulary have their embeddings
  from before fine-tuning.
- ``heads.safetensors``: the heads, under their names in `xclrun.model.network.Model`; absent if they have no
  parameters of their own, as an output layer that is tied to the embeddings.
- ``language.safetensors``: a copy of the language-specific parameters in encoder and heads.
- ``adapter/``: a language's adapters, for ``load_adapter`` of the library `adapters`. The exported encoder itself
  contains no adapters. LoRA of the library `peft` is added to the exported weights instead.
- ``README.md``: the model card (`xclrun.train.card`).
- ``export.json``: a description of each head, the labels and tags in index order, and the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.languages import key_of
from xclrun.core.stream import Hop
from xclrun.model.encoder import empty_encoder
from xclrun.model.network import Model, build, has_adapters
from xclrun.model.writing import Writer, below_output
from xclrun.plan import Run
from xclrun.store.files import atomic_directory, check_target, file_mode, write_json
from xclrun.store.tensors import save_tensors
from xclrun.strategy.shared.adapters import NAME
from xclrun.strategy.shared.low_rank import merged_weights
from xclrun.train.card import FIRST, LAST, card
from xclrun.train.fitting import agrees, fitting
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph, check_weights, evaluated_weights
from xclrun.train.stop import StopFlag

PROMPTS = {"prompts": "prompts and the keys that select them (xclrun.model.prompts); not part of the encoder"}


def export(
    run: Run, index: int | None, language: str | None, target: Path, described: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write a trained hop into a new or empty folder; return the content of ``export.json``.

    Args:
        index: number of the hop; None: the last hop.
        language: language whose parameters to write; None: the hop's last language.
        described: the run as `xclrun show --json` prints it, for the card; None: without scores.

    Raises:
        UsageError: the hop or language does not exist, all languages share the parameters, or the folder is
            not empty or cannot be written.
        RunError: the weights are not in the store, or damaged.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target}: already exists; choose a new or empty folder")
    check_target(target, "choose another folder")
    hops = run.stream.hops
    if index is not None and not 0 <= index < len(hops):
        raise UsageError(f"--hop {index}: {run.id} has hops 0 to {len(hops) - 1}")
    hop = hops[-1 if index is None else index]
    graph = StageGraph(run, Listener(), StopFlag())
    bench, strategy = graph.bench, graph.strategy
    # `for_language` sets the weights that are evaluated: merged ones, or a language's own parameters.
    served_apart = bool(run.plan(hop).serve) or strategy.parameters.adapters is not None
    own_parts = served_apart and (
        strategy.parameters.adapters is not None
        or any(map(strategy.parameters.language_specific, bench.model.state_dict()))
    )
    language = language and key_of(language, run.stream.languages, "--language")
    _check_language(run, hop, language, own_parts)
    check_weights(run, evaluated_weights(run, run.stages[hop.index]))
    # `for_language` may read the strategy's state, for example to merge weights.
    graph.load(hop) if served_apart else graph.weights(hop.index)
    seen = [name for h in run.stream.hops[: hop.index + 1] for name in h.train]
    served = language or (hop.train[-1] if own_parts and hop.train else None)
    if served_apart and (served or hop.train):
        strategy.for_language(served or hop.train[-1], seen)
    model = bench.model.eval()
    facts = _facts(run, hop, served, seen)
    with atomic_directory(target) as folder:
        plain = _plain_encoder(run, model, bench.encodings.tokenizer, bench.encodings.token_ids)
        fitted = fitting(run, model, plain)
        if fitted is not None and not agrees(fitted, model, run, bench.encodings):
            fitted = None
        if isinstance(head := model.heads.get(""), Writer) and fitted is not None:
            head.describe_end(fitted, bench.encodings.splits.values())
        (plain if fitted is None else fitted).save_pretrained(folder)
        facts |= {
            "transformers": None if fitted is None else type(fitted).__name__,
            "sentence": LAST if model.last else FIRST,
        }
        bench.encodings.tokenizer.save_pretrained(folder)
        heads = {k: v for k, v in model.state_dict().items() if not k.startswith("encoder.")}
        if heads:
            save_tensors(folder / "heads.safetensors", heads)
        facts |= _tasks(run, model, heads) if model.tasks else {"heads": _heads(heads, model.head_of("").described())}
        parts = {k: v for k, v in model.state_dict().items() if strategy.parameters.language_specific(k)}
        if own_parts and 0 < len(parts) < len(model.state_dict()):
            save_tensors(folder / "language.safetensors", parts)
            facts["language_parts"] = sorted(parts)
        if strategy.parameters.adapters is not None and has_adapters(model.encoder):
            encoder: Any = model.encoder
            encoder.save_adapter(str(folder / "adapter"), NAME, use_safetensors=True)
            facts["adapter"] = "load it into the encoder with load_adapter of the library adapters"
        write_json(folder / "export.json", facts)
        (folder / "README.md").write_text(card(run, facts, heads, described), encoding="utf-8")
        # Some libraries create weight files that only their owner can read, but an export is for sharing.
        mode = file_mode(folder)
        for path in folder.rglob("*"):
            if path.is_file():
                path.chmod(mode)
    return facts


def _check_language(run: Run, hop: Hop, language: str | None, own_parts: bool) -> None:
    if language is None:
        return
    if language not in run.stream.languages:
        raise UsageError(
            f"--language {language}: not a language of {run.id}; {did_you_mean(language, run.stream.languages)}"
        )
    if not own_parts:
        raise UsageError(
            f"--language {language}: all languages share the parameters of {run.strategy_name} after hop {hop.index}; "
            "omit this option"
        )


def _heads(names: Iterable[str], described: Mapping[str, str]) -> dict[str, str]:
    """Return layer → description, for the layers with these parameters."""
    parameters, texts = list(names), {**described, **PROMPTS}
    return {head: text for head, text in texts.items() if any(k.startswith(f"{head}.") for k in parameters)}


def _tasks(run: Run, model: Model, names: Iterable[str]) -> dict[str, Any]:
    """Return ``{"tasks": …}``: task → its keys, labels, tags and heads, for a model with several tasks.

    Heads have the same names as in ``heads.safetensors``.
    """
    parameters, tasks = list(names), {}
    for target in run.dataset.targets:
        task, prefix = target.task, f"tasks.{target.task.place}."
        described = model.head_of(task.place).described()
        heads = _heads((k.removeprefix(prefix) for k in parameters if k.startswith(prefix)), described)
        sets = {"keys": list(target.keys), "labels": list(target.labels), "tags": list(target.tags)}
        heads = {f"{prefix}{head}": text for head, text in heads.items()}
        tasks[task.place] = {"task": task.name, **sets, "heads": heads}
    return {"tasks": tasks}


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


def _plain_encoder(run: Run, model: Model, tokenizer: Any, token_ids: Any) -> Any:
    """Return the encoder as `transformers` builds it: all subwords, no adapters, and a pooler if the task has one.

    Low-rank updates are added to its weights, except for a language's updates of the library `adapters`.
    """
    encoder: Any = model.encoder
    state: dict[str, Tensor] = dict(merged_weights(encoder))
    # If several tasks have a pooler, use the first one.
    pooler = next((head.pooler for head in model.heads.values() if head.pooler is not None), None)
    if pooler is not None:
        state |= {f"pooler.{name}": tensor for name, tensor in pooler.state_dict().items()}
    settings = {key: value for key, value in encoder.config.to_dict().items() if key != "adapters"}
    if token_ids is not None:
        embeddings = encoder.get_input_embeddings().weight
        [name] = [key for key, tensor in encoder.named_parameters() if tensor is embeddings]
        task = run.dataset.targets[0].task
        before: Any = build(run.config.model, tokenizer, 1, 0, run.config.seed, None, task).encoder
        rows = before.get_input_embeddings().weight.detach().clone()
        rows[token_ids] = state[name].to(rows.device)
        state[name], settings["vocab_size"] = rows, len(rows)
    shape = type(encoder.config).from_dict(settings)
    writes = isinstance(model.heads.get(""), Writer)
    plain: Any = below_output(empty_encoder(shape, writes=True)) if writes else empty_encoder(shape)
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    return plain.eval()
