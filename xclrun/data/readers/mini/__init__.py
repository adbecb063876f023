"""`mini`, the embedded corpus: intents and slots in six languages, generated from templates.

Each language has a YAML file of templates per intent and lists of values; ``{slot:list}`` in a template is replaced by
a value of the list, tagged as the slot. Sentences are drawn by hashes of their position, so that the corpus is equal on
every machine. Training sizes are proportional to those of MTOP (Li et al. 2021, Table 1), so that high-to-low resource
orders are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import blake2b
from importlib import resources

import yaml

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import OUTSIDE, SPLITS, Example
from xclrun.data.readers import reader
from xclrun.data.readers.collect import Notes, Splits
from xclrun.data.readers.files import choose_languages

# Training sentences: MTOP's 15,667 · 13,424 · 11,814 · 11,330 · 10,934 · 10,759, divided by 24.5.
TRAIN = {"en": 640, "de": 548, "fr": 483, "hi": 463, "es": 447, "th": 440}
DEV, TEST = 120, 200
LANGUAGES = ("en", "de", "fr", "es", "hi", "th")

# Relative frequencies of the intents, equal in every language.
WEIGHTS = {
    "set_alarm": 9, "delete_alarm": 5, "show_alarms": 5, "set_timer": 7, "pause_timer": 4, "create_reminder": 8,
    "show_reminders": 5, "get_weather": 9, "get_sunset": 4, "play_music": 9, "stop_music": 5, "send_message": 7,
    "read_messages": 5, "make_call": 7, "get_directions": 7, "find_restaurant": 6, "find_recipe": 6, "get_news": 6,
}  # fmt: skip

_SLOT = re.compile(r"\{(\w+):(\w+)\}")
_Sentence = tuple[tuple[str, ...], tuple[str, ...]]


def read(languages: Sequence[str] | None = None) -> Splits:
    """Return (language, split) → examples; None: all languages."""
    chosen = choose_languages(LANGUAGES if languages is None else languages, LANGUAGES, "mini")
    return {(language, split): _splits(language)[split] for language in chosen for split in SPLITS}


@reader("mini", languages=LANGUAGES)
def _read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    # mini is the default dataset, so a user who sets only a location probably forgot the dataset.
    for key in ("root", "hub"):
        if (place := getattr(cfg, key)) is not None:
            raise UsageError(
                f"dataset.{key}={place}: the embedded dataset=mini reads no files; set the dataset as well, "
                "for example dataset=jsonl"
            )
    return read(cfg.languages), {}


def _draw(bound: int, *place: object) -> int:
    """Return a pseudorandom number below ``bound``, a hash of ``place``."""
    key = "/".join(map(str, place)).encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") % bound


@cache
def _splits(language: str) -> dict[str, tuple[Example, ...]]:
    sizes = {"train": TRAIN[language], "dev": DEV, "test": TEST}
    text = resources.files(__name__).joinpath(f"{language}.yaml").read_text(encoding="utf-8")
    source = yaml.load(text, Loader=yaml.CSafeLoader)
    drawn = _corpus(source, language, sum(sizes.values()))
    result, start = {}, 0
    for split, size in sizes.items():
        rows = drawn[start : start + size]
        result[split] = tuple(
            Example(f"mini-{language}-{split}-{i:04d}", language, tokens, intent, tags)
            for i, (intent, (tokens, tags)) in enumerate(rows)
        )
        start += size
    return result


def _corpus(source: dict[str, dict[str, list[str]]], language: str, total: int) -> list[tuple[str, _Sentence]]:
    """Return ``total`` distinct sentences in a random order; intents have the relative frequencies `WEIGHTS`."""
    counts = _shares(total)
    rows = []
    taken: set[tuple[str, ...]] = set()
    for intent, count in counts.items():
        drawn = 0
        for sentence in _sentences(source, intent, language):
            key = tuple(token.casefold() for token in sentence[0])
            if key not in taken:
                taken.add(key)
                rows.append((intent, sentence))
                drawn += 1
            if drawn == count:
                break
        else:
            raise ValueError(f"{language}.yaml: {intent} gives {drawn} distinct sentences, {count} are needed")
    return sorted(rows, key=lambda row: _draw(1 << 60, language, "mix", row[0], *row[1][0]))


def _shares(total: int) -> dict[str, int]:
    """Return intent → number of sentences; the largest-remainder method makes the numbers sum to ``total``."""
    whole = sum(WEIGHTS.values())
    counts = {intent: total * weight // whole for intent, weight in WEIGHTS.items()}
    by_remainder = sorted(WEIGHTS, key=lambda intent: -(total * WEIGHTS[intent] % whole))
    for intent in by_remainder[: total - sum(counts.values())]:
        counts[intent] += 1
    return counts


def _sentences(source: dict[str, dict[str, list[str]]], intent: str, language: str) -> Iterator[_Sentence]:
    """Yield sentences of an intent, from each template in turn; some sentences occur repeatedly."""
    templates = source["intents"][intent]
    for turn in range(400):
        for number, template in enumerate(templates):
            tokens: list[str] = []
            tags: list[str] = []
            for position, token in enumerate(template.split(" ")):
                slot = _SLOT.fullmatch(token)
                if slot is None:
                    tokens.append(token)
                    tags.append(OUTSIDE)
                    continue
                values = source["values"][slot[2]]
                words = values[_draw(len(values), language, intent, turn, number, position)].split(" ")
                tokens += words
                tags += [f"B-{slot[1]}", *[f"I-{slot[1]}"] * (len(words) - 1)]
            yield tuple(tokens), tuple(tags)
