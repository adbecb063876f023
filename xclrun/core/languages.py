"""Languages of dataset keys: code, name, script, family and word order.

Datasets use different codes for the same language: ``de``, ``de-DE``, ``deu``, ``deu_Latn``, ``de_gsd``. All are read
as case-insensitive BCP 47 tags (RFC 5646): language, script and region, separated by hyphens or underscores. Other
parts, such as a treebank, are ignored. Files, IDs and tables use the dataset's keys. xclrun uses the language of a key
to describe the key, to accept other codes of this language, and to order a stream.

``languages.csv`` has a row for each language of the supported datasets, except for the rare languages of Taxi1500:

- ``code``: ISO 639-1, or 639-3 if there is none; ``others``: other codes of the language, namely the ISO 639-3 code,
  the most common member of a macrolanguage (``arb`` for ``ar``), and older codes.
- ``script``: script of most of its text, ISO 15924. ``family``, ``branch``: language family and branch.
- ``81A``, ``85A``–``89A``: six features of "The World Atlas of Language Structures Online" (WALS; Dryer & Haspelmath
  2013, CC BY 4.0), as in Table 9 of Zhao et al. 2021 (few-shot transfer); empty if unknown.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from xclrun.core.errors import UsageError

# Separator of the keys of a mixture (`xclrun.core.stream.Mixture`).
MIXED = "+"
TABLE = Path(__file__).with_suffix(".csv")
# WALS: order of subject, object and verb; adposition; genitive; adjective; demonstrative; numeral.
FEATURES = ("81A", "85A", "86A", "87A", "88A", "89A")
# ISO 15924 → English name.
SCRIPTS = {
    "Arab": "Arabic", "Armn": "Armenian", "Beng": "Bengali", "Cyrl": "Cyrillic", "Deva": "Devanagari",
    "Ethi": "Ethiopic", "Geor": "Georgian", "Grek": "Greek", "Gujr": "Gujarati", "Guru": "Gurmukhi",
    "Hang": "Hangul", "Hani": "Han", "Hans": "Han, simplified", "Hant": "Han, traditional", "Hebr": "Hebrew",
    "Jpan": "Japanese", "Khmr": "Khmer", "Knda": "Kannada", "Kore": "Korean", "Laoo": "Lao", "Latn": "Latin",
    "Mlym": "Malayalam", "Mong": "Mongolian", "Mtei": "Meetei Mayek", "Mymr": "Burmese", "Olck": "Ol Chiki",
    "Orya": "Odia", "Sinh": "Sinhala", "Taml": "Tamil", "Telu": "Telugu", "Tfng": "Tifinagh", "Thai": "Thai",
    "Tibt": "Tibetan",
}  # fmt: skip
# Regions that write Chinese in traditional characters.
TRADITIONAL = ("TW", "HK", "MO")


@dataclass(frozen=True)
class Language:
    """The language of a key.

    Attributes:
        code: ISO 639-1, or 639-3 if there is none.
        name: English name.
        script: ISO 15924: the script in the tag; if the tag has none, the language's main script.
        family, branch: for example Indo-European and Germanic.
        features: WALS feature → value; unknown features are absent.
        region: ISO 3166-1 or UN M.49; empty if the tag has none.
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
        """Display name of the script. For a plain `zh`, "Han": the text may be simplified or traditional."""
        either = self.script == "Hans" and not self.written and not self.region
        return SCRIPTS["Hani" if either else self.script]

    def includes(self, other: Language | None) -> bool:
        """Whether this language's tag covers ``other``.

        The codes must be equal, the regions only if both tags name one, the scripts only if this tag names one.
        """
        return (
            other is not None
            and other.code == self.code
            and (other.region == self.region or not self.region or not other.region)
            and (other.script == self.script or not self.written)
        )


@cache
def known_languages() -> dict[str, Language]:
    """Return code → language, for all codes of each language."""
    languages = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            features = {name: row[name] for name in FEATURES if row[name]}
            language = Language(row["code"], row["name"], row["script"], row["family"], row["branch"], features)
            languages.update(dict.fromkeys((row["code"], *row["others"].split()), language))
    return languages


@cache
def language_of(key: str) -> Language | None:
    """Return the language of a key, or None if it is unknown.

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


def key_of(name: str, keys: Collection[str], setting: str) -> str:
    """Find the dataset's key for a name: the name itself, or the only key with its language, script and region.

    Args:
        name: a key, a tag such as ``de`` for the key ``de-DE``, or a mixture of them, ``de+fr``.
        keys: the dataset's keys.
        setting: the setting that contains the name, for the message.

    Returns:
        The key. If the name's language is unknown or no key has this language, the unchanged name.
    """
    if name in keys:
        return name
    if MIXED in name:
        return MIXED.join(key_of(part, keys, setting) for part in name.split(MIXED))
    language = language_of(name)
    if language is None:
        return name
    matches = [key for key in keys if language.includes(language_of(key))]
    if len(matches) > 1:
        raise UsageError(f"{setting}: '{name}' is ambiguous; choose one of {', '.join(matches)}")
    return matches[0] if matches else name


def scripts_of(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return script name → keys with this script, most common script first; omit keys of unknown languages."""
    keys_of_script: dict[str, list[str]] = {}
    for key in keys:
        if (language := language_of(key)) is not None:
            keys_of_script.setdefault(language.script_name, []).append(key)
    return dict(sorted(keys_of_script.items(), key=lambda item: -len(item[1])))
