"""Examples of other tasks as prompts and references (``dataset.as_text``): their task becomes ``text_to_text``.

| ``dataset.as_text`` | examples have | prompt | reference |
|---|---|---|---|
| ``frames`` | an intent and slots | the text | ``intent [slot words] [slot words]`` |
| ``answers`` | answers to a question | text, line end, question | an answer; empty if the text has none |
| ``statements`` | a statement and its truth | text, line end, statement | ``true`` or ``false`` |
| ``labels`` | a label | the text; of a pair, both, with a line end between them | the label |

``statements`` needs ``dataset.statements``. With ``statements`` and ``labels``, the labels are the choices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xclrun.config.schema import AsText, DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import INTENT_SLOTS, SEQUENCE_CLASS, SPAN, STATEMENT_TRUTH, Task, text_task
from xclrun.core.texts import Reply
from xclrun.data.example import Example
from xclrun.data.parts import Part
from xclrun.scores.spans import spans


@dataclass(frozen=True)
class Form:
    """How examples become texts.

    Attributes:
        task: the task whose examples are converted.
        references: example → references.
        labels: whether the labels are the choices.
    """

    task: Task
    references: Callable[[Example], Sequence[str]]
    labels: bool = False


def frame(example: Example) -> str:
    """Return ``intent [slot words] …``, with the slots in the order of the text.

    >>> frame(Example("1", "en", ("wake", "me", "at", "six"), "alarm", ("O", "B-person", "O", "B-time")))
    'alarm [person me] [time six]'
    """
    slots = [f"[{name} {' '.join(example.tokens[a : b + 1])}]" for name, a, b in spans(example.tags or ())]
    return " ".join([str(example.label), *slots])


def _answers(example: Example) -> Sequence[str]:
    return list(dict.fromkeys(answer.text for answer in example.answers or ())) or [""]


def _label(example: Example) -> Sequence[str]:
    return [str(example.label)]


FORMS = {
    AsText.frames: Form(INTENT_SLOTS, lambda example: [frame(example)]),
    AsText.answers: Form(SPAN, _answers),
    AsText.statements: Form(STATEMENT_TRUTH, _label, labels=True),
    AsText.labels: Form(SEQUENCE_CLASS, _label, labels=True),
}


def texts_of(cfg: DatasetConfig, part: Part) -> Part:
    """Return a part with its examples as prompts and references."""
    kind = AsText(cfg.as_text)
    form, key = FORMS[kind], f"dataset.as_text={kind.value}"
    if cfg.parts and kind is not AsText.statements:
        raise UsageError(f"{key}: parts (dataset.parts) can only be read as statements")
    if part.task != form.task:
        fitting = [other.value for other, way in FORMS.items() if way.task == part.task]
        hint = f"use {fitting[0]}" if fitting else f"it needs {form.task.name}"
        hint = "set dataset.statements.kind" if kind is AsText.statements else hint
        raise UsageError(f"{key}: the examples of dataset={cfg.name} are of the task {part.task.name}; {hint}")
    seen = {e.label for (_, split), examples in part.splits.items() if split == "train" for e in examples}
    choices = tuple(form.task.classes or sorted(label for label in seen if label)) if form.labels else ()
    splits = {place: tuple(_text(e, form, choices) for e in examples) for place, examples in part.splits.items()}
    return replace(part, splits=splits, task=text_task(kind.value))


def _text(example: Example, form: Form, choices: tuple[str, ...]) -> Example:
    references = tuple(form.references(example))
    # A label that training lacks cannot be chosen.
    target = Reply(references, choices if len(choices) > 1 and references[0] in choices else ())
    prompt = example.whole if example.text_b is None else f"{example.whole}\n{example.text_b}"
    text = None if example.text_b is None and example.text is None else prompt
    return Example(
        example.id, example.language, (*example.tokens, *example.tokens_b), None, None, text, None, example.facts,
        target=target,
    )  # fmt: skip
