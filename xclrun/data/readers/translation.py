"""Parallel sentences of treebanks as translation: PUD, whose sentences have equal ``sent_id`` in all languages.

A key is a pair of languages, ``en-de``: the prompt is the English sentence, the reference the German one. The files are
those of ``dataset=pud`` (reader ``conllu``). ``dataset.languages`` or the order selects pairs; by default, all pairs
from English, or from the first language without English, are read. Sentences without a translation in the same split
are counted (``untranslated``).
"""

from __future__ import annotations

from dataclasses import replace

from xclrun.config.schema import DatasetConfig, TagsAre
from xclrun.core.errors import UsageError
from xclrun.core.task import TOKEN_TAGS, task_of
from xclrun.data.example import SPLITS, Example
from xclrun.data.readers import READERS, reader
from xclrun.data.readers.collect import Notes, Splits

SOURCE = "en"


@reader("pud_translation", ("{language}-{split}.conllu",), gives=["target"])
def read_translations(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Translations of the sentences of Parallel UD."""
    pairs = None if cfg.languages is None else [_pair(str(key)) for key in cfg.languages]
    languages = None if pairs is None else list(dict.fromkeys(language for pair in pairs for language in pair))
    treebanks = replace(cfg, reader="conllu", task=TOKEN_TAGS.name, tags_are=TagsAre.words, languages=languages)
    try:
        sentences, notes = READERS["conllu"].read(treebanks)
    except UsageError as error:
        if pairs is None or not str(error).startswith("dataset.languages"):
            raise
        raise UsageError(f"dataset.languages=[{','.join(map('-'.join, pairs))}]: {error}") from None
    found = list(dict.fromkeys(language for language, _ in sentences))
    if pairs is None:
        source = SOURCE if SOURCE in found else found[0]
        pairs = [(source, language) for language in found if language != source]
    target = task_of(cfg.task).target
    assert target is not None
    splits: Splits = {}
    counts: Notes = {name: dict(by_split) for name, by_split in notes.items() if name == "skipped"}
    for source, language in pairs:
        key, aligned = f"{source}-{language}", 0
        for split in SPLITS:
            translations = {example.id: example.whole for example in sentences[language, split]}
            splits[key, split] = tuple(
                Example(e.id, key, e.tokens, None, None, e.text, target=target(translations[e.id]))
                for e in sentences[source, split]
                if e.id in translations
            )
            aligned += len(splits[key, split])
            if missing := len(sentences[source, split]) - len(splits[key, split]):
                counts.setdefault("untranslated", {})[f"{key}/{split}"] = missing
        if not aligned:
            raise UsageError(
                f"dataset.root={cfg.root}: no sentence of '{source}' has the sent_id of a sentence of '{language}'; "
                "use parallel treebanks, such as PUD"
            )
    return splits, counts


def _pair(key: str) -> tuple[str, str]:
    source, _, language = key.partition("-")
    if not source or not language or source == language:
        raise UsageError(f"dataset.languages: '{key}' must be a pair of two languages, such as en-de")
    return source, language
