"""Languages behind the keys of datasets: code, name, script, family, and what word order they have.

Releases call one language by many codes: ``de``, ``de-DE``, ``deu``, ``deu_Latn``, ``de_gsd``. All are read as BCP 47
tags (RFC 5646): language, script and region, between hyphens or underscores, in any case; what else is there, such
as a treebank, is passed over. Keys stay what releases call them, in files, ids and tables: languages are looked up to
show what a key is, to find a key by any code of its language, and to order a stream.

``languages.csv`` has a row for each language of the readers' releases but Taxi1500's long tail:

- ``code``: ISO 639-1, or 639-3 if there is none; ``others``: the same language in ISO 639-3, its commonest member
  if that is a macrolanguage (``arb`` for ``ar``), and older codes.
- ``script``: of most of its text, ISO 15924. ``family``, ``branch``: the usual ones.
- ``81A``, ``85A``–``89A``: six features of "The World Atlas of Language Structures Online" (WALS; Dryer & Haspelmath
  2013, CC BY 4.0), those of FS's Table 9; empty where it has none.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from xclrun.core.errors import UsageError

# Between the keys of a mixture (`xclrun.core.stream.Mixture`).
MIXED = "+"
TABLE = Path(__file__).with_suffix(".csv")
# Of WALS: order of subject, object and verb; adposition; genitive; adjective; demonstrative; numeral.
FEATURES = ("81A", "85A", "86A", "87A", "88A", "89A")
# ISO 15924 → what people call it.
SCRIPTS = {
    "Arab": "Arabic", "Armn": "Armenian", "Beng": "Bengali", "Cyrl": "Cyrillic", "Deva": "Devanagari",
    "Ethi": "Ethiopic", "Geor": "Georgian", "Grek": "Greek", "Gujr": "Gujarati", "Guru": "Gurmukhi",
    "Hang": "Hangul", "Hani": "Han", "Hans": "Han, simplified", "Hant": "Han, traditional", "Hebr": "Hebrew",
    "Jpan": "Japanese", "Khmr": "Khmer", "Knda": "Kannada", "Kore": "Korean", "Laoo": "Lao", "Latn": "Latin",
    "Mlym": "Malayalam", "Mong": "Mongolian", "Mtei": "Meetei Mayek", "Mymr": "Burmese", "Olck": "Ol Chiki",
    "Orya": "Odia", "Sinh": "Sinhala", "Taml": "Tamil", "Telu": "Telugu", "Tfng": "Tifinagh", "Thai": "Thai",
    "Tibt": "Tibetan",
}  # fmt: skip
# Where Chinese is written in traditional characters.
TRADITIONAL = ("TW", "HK", "MO")


@dataclass(frozen=True)
class Language:
    """What is known of the language of a key.

    Attributes:
        code: ISO 639-1, or 639-3 if there is none.
        name: in English.
        script: ISO 15924: the tag's own, else that of most of the language's text.
        family, branch: such as Indo-European and Germanic.
        features: WALS feature → value, of those that are known.
        region: ISO 3166-1 or UN M.49, of the tag; empty without one.
        written: whether the tag names the script.
    """

    code: str
    name: str
    script: str
    family: str
    branch: str
    features: Mapping[str, str]
    region: str = ""
    written: bool = False

    @property
    def script_name(self) -> str:
        # Data called `zh` are in either kind of characters: those of Parallel UD are traditional.
        either = self.script == "Hans" and not self.written and not self.region
        return SCRIPTS["Hani" if either else self.script]


@cache
def known_languages() -> dict[str, Language]:
    """Return code → language, under each of its codes."""
    languages = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            features = {name: row[name] for name in FEATURES if row[name]}
            language = Language(row["code"], row["name"], row["script"], row["family"], row["branch"], features)
            languages.update(dict.fromkeys((row["code"], *row["others"].split()), language))
    return languages


@cache
def language_of(key: str) -> Language | None:
    """Return the language that a key names; None where it names none that is known.

    >>> language_of("zh-TW").script, language_of("eng_Latn").code, language_of("yelp")
    ('Hant', 'en', None)
    """
    first, *rest = key.replace("_", "-").split("-")
    language = known_languages().get(first.lower())
    if language is None:
        return None
    for part in rest:
        if len(part) == 4 and part.title() in SCRIPTS and not language.written:
            language = replace(language, script=part.title(), written=True)
        elif not language.region and ((len(part) == 2 and part.isalpha()) or (len(part) == 3 and part.isdigit())):
            language = replace(language, region=part.upper())
    if language.script == "Hans" and not language.written and language.region in TRADITIONAL:
        language = replace(language, script="Hant")
    return language


def key_of(name: str, keys: Collection[str], what: str) -> str:
    """Return the key that a name means: itself, or the only key of the language, script and region that it names.

    Args:
        name: a key, or a tag such as ``de`` for the key ``de-DE``; a mixture of them, ``de+fr``.
        keys: those of the dataset.
        what: what the name was given as, for the message.

    Returns:
        The key; the name as it is where no key, or no known language, is meant.

    Raises:
        UsageError: several keys are meant.
    """
    if name in keys:
        return name
    if MIXED in name:
        return MIXED.join(key_of(part, keys, what) for part in name.split(MIXED))
    asked = language_of(name)
    if asked is None:
        return name
    found = [key for key in keys if _means(asked, language_of(key))]
    if len(found) > 1:
        raise UsageError(f"{what}: '{name}' can be each of {', '.join(found)}; give one of them")
    return found[0] if found else name


def _means(asked: Language, of: Language | None) -> bool:
    """Whether a key's language is what was asked for: neither says another region or script than the other."""
    return (
        of is not None
        and of.code == asked.code
        and (asked.region == of.region or not asked.region or not of.region)
        and (asked.script == of.script or not asked.written)
    )


def scripts_of(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return name of a script → the keys in it, the script of most keys first; without keys of no known language."""
    keys_of_script: dict[str, list[str]] = {}
    for key in keys:
        if (language := language_of(key)) is not None:
            keys_of_script.setdefault(language.script_name, []).append(key)
    return dict(sorted(keys_of_script.items(), key=lambda item: -len(item[1])))
