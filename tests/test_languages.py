"""Codes of languages: keys of all releases find their language, and a language its key."""

from __future__ import annotations

import csv

import pytest

from xclrun.core.errors import UsageError
from xclrun.core.languages import FEATURES, SCRIPTS, TABLE, key_of, known_languages, language_of, scripts_of

# MASSIVE 1.0's locales.
MASSIVE = """
    af-ZA am-ET ar-SA az-AZ bn-BD cy-GB da-DK de-DE el-GR en-US es-ES fa-IR fi-FI fr-FR he-IL hi-IN hu-HU hy-AM id-ID
    is-IS it-IT ja-JP jv-ID ka-GE km-KH kn-IN ko-KR lv-LV ml-IN mn-MN ms-MY my-MM nb-NO nl-NL pl-PL pt-PT ro-RO ru-RU
    sl-SL sq-AL sv-SE sw-KE ta-IN te-IN th-TH tl-PH tr-TR ur-PK vi-VN zh-CN zh-TW
""".split()  # noqa: SIM905


@pytest.mark.parametrize(
    ("key", "code", "script"),
    [
        ("eng_Latn", "en", "Latin"),
        ("arb_Arab", "ar", "Arabic"),
        ("arb_Latn", "ar", "Latin"),
        ("zho_Hant", "zh", "Han, traditional"),
        ("zh-CN", "zh", "Han, simplified"),
        ("zh-TW", "zh", "Han, traditional"),
        ("zh", "zh", "Han"),
        ("zh-Hans-TW", "zh", "Han, simplified"),
        ("jv-ID", "jv", "Latin"),
        ("hau", "ha", "Latin"),
        ("en_ewt", "en", "Latin"),
        ("de-st", "de", "Latin"),
        ("SR-latn", "sr", "Latin"),
        ("sr", "sr", "Cyrillic"),
        ("iw", "he", "Hebrew"),
        ("tgl", "tl", "Latin"),
        ("fil-PH", "tl", "Latin"),
    ],
)
def test_keys_of_releases_find_language_and_script(key: str, code: str, script: str) -> None:
    found = language_of(key)
    assert found is not None
    assert (found.code, found.script_name) == (code, script)


def test_tasks_are_no_languages() -> None:
    for key in ("yelp", "boolq", "wic", "wsc", "mnli", "fewrel", "agnews", "fiction", "udpos", "squad", ""):
        assert language_of(key) is None


def test_all_of_massive_are_known_with_family_and_script() -> None:
    found = [language_of(key) for key in MASSIVE]
    assert len(found) == 51
    assert all(of is not None and of.family and of.branch and of.script in SCRIPTS for of in found)
    by_script = scripts_of(MASSIVE)
    assert sum(map(len, by_script.values())) == 51
    assert next(iter(by_script)) == "Latin"
    assert by_script["Cyrillic"] == ["mn-MN", "ru-RU"]


def test_the_table_is_consistent() -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    codes = [code for row in rows for code in (row["code"], *row["others"].split())]
    assert len(set(codes)) == len(codes) == len(known_languages())
    assert all(row["script"] in SCRIPTS and row["name"] and row["family"] and row["branch"] for row in rows)
    values = {name: {row[name] for row in rows} for name in FEATURES}
    assert values["81A"] <= {"", "SVO", "SOV", "VSO", "VOS", "No dominant order"}
    assert values["89A"] == {"", "Numeral-noun", "Noun-numeral"}
    branches = {(row["branch"], row["family"]) for row in rows}
    assert len({branch for branch, _ in branches}) == len(branches)


def test_a_key_is_found_by_any_tag_of_its_language_and_of_several_none_is_guessed() -> None:
    for name in ("de", "deu", "DE-de", "deu_Latn", "de-DE"):
        assert key_of(name, MASSIVE, "order") == "de-DE"
    assert key_of("zh-TW", MASSIVE, "order") == "zh-TW"
    assert key_of("zh-TW+deu", MASSIVE, "order") == "zh-TW+de-DE"
    assert key_of("pt-BR", MASSIVE, "order") == "pt-BR"  # another region: not there
    assert key_of("deu", ["deu", "de"], "order") == "deu"
    assert key_of("arb_Latn", ["arb_Arab", "arb_Latn"], "order") == "arb_Latn"
    assert key_of("yelp", MASSIVE, "order") == "yelp"
    with pytest.raises(UsageError, match=r"^order: 'zh' is ambiguous; choose one of zh-CN, zh-TW$"):
        key_of("zh", MASSIVE, "order")
