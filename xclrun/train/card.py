"""The model card of an export (README.md): data, strategy, scores, command, and code that loads the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from xclrun.core.identity import NESTED
from xclrun.core.task import BY_NAME
from xclrun.plan import Run

# The subword whose state represents a sentence.
FIRST, LAST = "first subword", "last subword"
PIPELINES = {
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "CausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ConditionalGeneration": "text-generation",
}
# Ends of the names of classes that write texts.
WRITERS = ("CausalLM", "LMHeadModel", "ConditionalGeneration")


def card(run: Run, facts: Mapping[str, Any], heads: Collection[str], described: Mapping[str, Any] | None = None) -> str:
    """Return the card in Markdown, with the metadata that the Hugging Face Hub reads.

    Args:
        facts: content of ``export.json``.
        heads: names of the parameters in ``heads.safetensors``.
        described: the run as `xclrun show --json` prints it; None if it has no scores.
    """
    config, fitted = run.config, facts["transformers"]
    pipeline = next((name for end, name in PIPELINES.items() if fitted and fitted.endswith(end)), None)
    head = ["---", "library_name: transformers", "tags:", "- xclrun"]
    head += [f"pipeline_tag: {pipeline}"] if pipeline else []
    settings = {k: v for k, v in run.resolved["strategy"].items() if k not in ("name", *NESTED)}
    shown = ", ".join(f"{key}={value}" for key, value in settings.items())
    of_language = f", with the parameters of {facts['language']}" if facts["language"] else ""
    entries = {
        "Encoder": f"{config.model.name}, after hop {facts['hop']} of {len(run.stream.hops) - 1}{of_language}",
        "Data": f"{config.dataset.name}; trained on {', '.join(facts['learnt']) or 'no language'}, in this order",
        "Strategy": run.strategy_name + (f" ({shown})" if shown else ""),
        "Task": facts.get("task") or ", ".join(facts["tasks"]),
        "Run": f"{run.id}, seed {config.seed}",
    }
    commands = dict.fromkeys((described or {}).get("sweeps", {}).values())
    lines = [*head, "---", "", f"# {run.strategy_name} on {config.dataset.name}", ""]
    lines += [f"- **{name}**: {value}" for name, value in entries.items()]
    lines += ["", "## Scores", "", *_scores(facts, described)]
    if commands:
        lines += ["", "## Command", "", *(f"    {command}" for command in commands)]
    return "\n".join([*lines, "", "## Use", "", "```python", *_code(facts, heads), "```", ""])


def _scores(facts: Mapping[str, Any], described: Mapping[str, Any] | None) -> list[str]:
    """Return a table of the hop's test scores."""
    if described is None:
        return ["The run has no scores."]
    rows = []
    for metric, matrix in described["scores"].items():
        values = matrix[facts["hop"]] if facts["hop"] < len(matrix) else []
        quantity = BY_NAME[metric].quantity
        cells = ["" if value is None else quantity.shown(value) for value in values]
        rows.append(f"| {metric} ({quantity.unit}) | {' | '.join(cells)} |")
    languages: Sequence[str] = described["languages"]
    return [f"| test | {' | '.join(languages)} |", "|---|" + "---:|" * len(languages), *rows]


def _code(facts: Mapping[str, Any], heads: Collection[str]) -> list[str]:
    """Return Python code that loads the model and predicts."""
    length, fitted = facts["max_length"], facts["transformers"]
    words = [
        "words = tokenizer(",
        f'    ["wake", "me"], is_split_into_words=True, truncation=True, max_length={length}, return_tensors="pt"',
        ")",
    ]
    tokenizer = 'tokenizer = AutoTokenizer.from_pretrained("DIR")'
    if fitted and fitted.endswith(WRITERS):
        kind = "AutoModelForSeq2SeqLM" if fitted.endswith(WRITERS[-1]) else "AutoModelForCausalLM"
        return [
            f"from transformers import {kind}, AutoTokenizer",
            "",
            tokenizer,
            f'model = {kind}.from_pretrained("DIR")',
            'prompt = tokenizer("wake me", return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**prompt, max_new_tokens=20)[0]))",
        ]
    if fitted:
        kind = f"AutoModelFor{'Token' if fitted.endswith('TokenClassification') else 'Sequence'}Classification"
        return [
            f"from transformers import {kind}, AutoTokenizer",
            "",
            f"{tokenizer}",
            f'model = {kind}.from_pretrained("DIR")',
            *words,
            "best = model(**words).logits.argmax(-1)[0]",
            "print([model.config.id2label[i] for i in best.reshape(-1).tolist()])",
            *(["# A word has the tag of the subword that export.json names."] if "Token" in kind else []),
        ]
    lines = [
        "from safetensors.torch import load_file",
        "from transformers import AutoModel, AutoTokenizer",
        "",
        tokenizer,
        'encoder, heads = AutoModel.from_pretrained("DIR"), load_file("DIR/heads.safetensors")',
        *words,
        "states = encoder(**words).last_hidden_state[0]  # a row for each subword",
    ]
    sentence = f"states[{-1 if facts['sentence'] == LAST else 0}]"
    for layer, name, given in (
        ("pooler.dense", "pooled", sentence),
        ("intent", "labels", sentence),
        ("classifier", "labels", "pooled.tanh()"),
        ("tagger.linear", "tags", "states"),
        ("span.linear", "starts_and_ends", "states"),
    ):
        if f"{layer}.weight" in heads:
            lines.append(f'{name} = {given} @ heads["{layer}.weight"].T + heads["{layer}.bias"]')
    return [*lines, "# export.json describes the heads, and lists labels and tags in the order of the scores."]
