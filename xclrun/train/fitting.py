"""Classes of transformers whose heads compute the same as a model's head, for exports.

| head | class of transformers |
|---|---|
| labels on the pooler's output (`Task.pooled`), in BERT | ``BertForSequenceClassification`` |
| the same, in RoBERTa, XLM-R and CamemBERT | ``…ForSequenceClassification``: its head's dense layer is the pooler |
| tags of words without a CRF | ``…ForTokenClassification`` |
| the output layer of a language model | ``…ForCausalLM``, ``…ForConditionalGeneration`` |

Other heads have no class: a CRF, labels and tags together, labels on [CLS] itself, cosine similarities, and heads of
several tasks, other causal encoders, prompts or adapters.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from xclrun.model.encoder import empty_encoder
from xclrun.model.heads import LabelsAndTags, TagHead
from xclrun.model.network import Model, has_adapters
from xclrun.model.writing import Writer, before_targets, below_output
from xclrun.plan import Run


def fitting(run: Run, model: Model, encoder: Any) -> Any:
    """Return a model of transformers with the weights of ``encoder`` and of the model's head; None if none fits.

    Args:
        encoder: the encoder as transformers builds it, with a pooler if the task uses one.
    """
    apart = run.strategy().parameters.adapters is not None and has_adapters(model.encoder)
    if model.tasks or model.prompts is not None or apart:
        return None
    head, target = model.head_of(""), run.dataset.targets[0]
    if isinstance(head, Writer):
        return _language_model(head, encoder)
    if model.last:
        return None
    if not isinstance(head, LabelsAndTags) or (head.class_head is None) is (head.tagger is None):
        return None
    if head.tagger is not None:
        if isinstance(head.tagger, TagHead) or head.tagger.linear.out_features != len(target.tags):
            return None
        kind: Any = AutoModelForTokenClassification
        names, layers = target.tags, {"classifier": head.tagger.linear}
    else:
        if head.classifier is None or head.pooler is None or head.classifier.scale is not None:
            return None
        pooler: Any = head.pooler
        kind, names = AutoModelForSequenceClassification, target.labels
        layers = {
            "classifier": head.classifier,
            "classifier.out_proj": head.classifier,
            "classifier.dense": pooler.dense,
        }
    return _with_weights(kind, encoder, list(names), layers)


def _language_model(head: Writer, encoder: Any) -> Any:
    config = type(encoder.config).from_dict(encoder.config.to_dict())
    config.use_cache = True
    whole = empty_encoder(config, writes=True)
    below_output(whole).load_state_dict(encoder.state_dict())
    output = whole.get_output_embeddings()
    if head.own:
        # In transformers 5, the output layer of T5's family is tied until it has other weights.
        output.weight = torch.nn.Parameter(output.weight.detach().clone())
        output.load_state_dict(head.output.state_dict())
    return whole.eval()


def _with_weights(kind: Any, encoder: Any, names: list[str], layers: dict[str, Any]) -> Any:
    """Return a model of an auto class with these weights; None if its head has other layers."""
    settings = encoder.config.to_dict()
    config = type(encoder.config).from_dict(settings)
    config.id2label, config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    try:
        with torch.random.fork_rng(devices=[]):
            fitted = kind.from_config(config)
    except ValueError:  # The family has no such class.
        return None
    base, state = f"{fitted.base_model_prefix}.", fitted.state_dict()
    ours = {f"{base}{name}": tensor for name, tensor in encoder.state_dict().items()}
    ours |= {
        f"{layer}.{part}": getattr(module, part) for layer, module in layers.items() for part in ("weight", "bias")
    }
    of_head = {name for name in state if not name.startswith(base)}
    # One linear layer after the encoder, or RoBERTa's two with tanh between them.
    linear, roberta = _named("classifier"), _named("classifier.dense", "classifier.out_proj")
    pooled = "classifier.dense" in layers
    fits = of_head == (linear if not pooled or f"{base}pooler.dense.weight" in state else roberta)
    if not fits or any(name not in ours or ours[name].shape != tensor.shape for name, tensor in state.items()):
        return None
    fitted.load_state_dict({name: ours[name].detach() for name in state})
    return fitted.eval()


def _named(*layers: str) -> set[str]:
    return {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}


@torch.no_grad()
def agrees(fitted: Any, model: Model, run: Run, encodings: Any) -> bool:
    """Whether a model of transformers gives the scores of ours on the first test sentences of each language."""
    model = model.cpu()
    for language in run.stream.languages:
        encoded = encodings.splits[language, "test"]
        for row in range(min(2, len(encoded))):
            batch = encoded.batch([row])
            ids = (
                batch.input_ids
                if encodings.token_ids is None
                else torch.from_numpy(encodings.token_ids)[batch.input_ids]
            )
            types = {"token_type_ids": batch.token_type_ids} if model.typed else {}
            if model.decodes:
                types["decoder_input_ids"] = before_targets(batch, fitted.config)
            theirs = fitted(input_ids=ids, attention_mask=batch.attention_mask, **types).logits
            output = model(batch)
            if output.emissions is not None or output.states is not None:
                theirs = theirs[:, batch.word_pieces[0]]
            ours = output.logits if output.emissions is None else output.emissions
            if output.states is not None:
                ours = model.head_of("").score_states(output.states[0]).unsqueeze(0)
            if ours is None or not torch.allclose(theirs, ours, rtol=1e-3, atol=1e-4):
                return False
    return True
