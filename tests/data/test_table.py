"""The reader of tables: CSV, TSV and Parquet."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xclrun.config.schema import DatasetConfig, OnBadLine
from xclrun.core.errors import UsageError
from xclrun.data.example import SPLITS, Example
from xclrun.data.readers import table
from xclrun.data.readers.collect import Notes, Splits

Config = Callable[..., DatasetConfig]
CSV = 'id,text,label,other\n7,"Wie ""warm"",\nwird es?",weather,x\n8,Weck mich,alarm,y\n'
TEXTS = ['Wie "warm",\nwird es?', "Weck mich"]


def write(root: Path, content: str | bytes, name: str = "{language}.{split}.csv", languages: str = "de") -> Path:
    """Write the content as every split of some languages."""
    for language in languages.split():
        for split in SPLITS:
            path = root / name.format(language=language, split=split)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def read(config: Config, **options: Any) -> tuple[Splits, Notes]:
    return table.read(config("table", **{"task": "sequence_class", **options}))


def rows(splits: Splits, language: str = "de", split: str = "test") -> list[tuple[str, str, str | None]]:
    return [(e.id, e.whole, e.label) for e in splits[language, split]]


@pytest.mark.parametrize("name", [name for name in table.LAYOUT if name.endswith(".csv")])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_csv_is_read_with_quotes_and_ids(tmp_path: Path, config: Config, name: str, start: str) -> None:
    write(tmp_path, start + CSV.replace("\n", "\r\n") if start else CSV, name, "de en")
    splits, notes = read(config)
    assert list(splits) == [(language, split) for language in ("de", "en") for split in SPLITS]
    [(first, text, label), second] = rows(splits, "en", "dev")
    assert (first, text.replace("\r", ""), label) == ("7", TEXTS[0], "weather")
    assert second == ("8", "Weck mich", "alarm")
    assert notes == {}


def test_names_of_columns_in_joined_files_are_no_rows(tmp_path: Path, config: Config) -> None:
    write(tmp_path, "text,label\na,x\ntext,label\n \nb,y\n")
    splits, notes = read(config)
    assert rows(splits) == [("test-1", "a", "x"), ("test-2", "b", "y")]
    assert set(notes["header_lines"].values()) == {1}


def test_semicolons_separate_columns_where_the_names_say_so(tmp_path: Path, config: Config) -> None:
    write(tmp_path, 'text;label\n"a; b";x\nc, d;y\n')
    assert rows(read(config)[0]) == [("test-1", "a; b", "x"), ("test-2", "c, d", "y")]


def test_tsv_loses_only_quotes_around_a_whole_column(tmp_path: Path, config: Config) -> None:
    write(tmp_path, 'text\tlabel\n"a ""b"" c"\tx\n"d" e\ty\n\nf"\tx\n', "{language}_{split}.tsv")
    assert [text for _, text, _ in rows(read(config)[0])] == ['a "b" c', '"d" e', 'f"']


def test_pairs_of_chosen_columns(tmp_path: Path, config: Config) -> None:
    write(tmp_path, "label,premise,hypothesis,gold\n9,a b,c d,no\n")
    columns = {"text_column": "premise", "text_b_column": "hypothesis", "label_column": "gold"}
    assert read(config, **columns)[0]["de", "test"] == (Example("test-1", "de", ("a", "b"), "no", text_b="c d"),)


def test_columns_without_a_header_are_numbered(tmp_path: Path, config: Config) -> None:
    write(tmp_path, "x,a b,1\ny,c,2\n")
    chosen = {"header": False, "text_column": "2", "label_column": "-3"}
    assert rows(read(config, **chosen)[0]) == [("test-1", "a b", "x"), ("test-2", "c", "y")]
    for column in ("0", "4", "-4", "text"):
        with pytest.raises(UsageError, match=rf"text_column={column}: without a header, .* from 1 to 3"):
            read(config, **{**chosen, "text_column": column})
    write(tmp_path, "label,text,id\nx,a,1\n")
    with pytest.raises(UsageError, match=r"test\.csv:1: names of columns|train\.csv:1: names of columns"):
        read(config, **chosen)


def test_a_column_of_languages_divides_the_rows_of_a_file(tmp_path: Path, config: Config) -> None:
    content = {"train": "a,x,de\nb,y,de\nc,x,en\n", "dev": "a,x,de\n", "test": "d,x,yo\ne,y,en\nf,y,de\n"}
    for split, body in content.items():
        (tmp_path / f"{split}.csv").write_text("text,label,lang\n" + body)
    splits, _ = read(config, language_column="lang")
    sizes = {(language, split): len(examples) for (language, split), examples in splits.items() if examples}
    assert sizes == {
        ("de", "train"): 2, ("de", "dev"): 1, ("de", "test"): 1, ("en", "train"): 1, ("en", "test"): 1,
        ("yo", "test"): 1,
    }  # fmt: skip
    assert rows(splits, "en", "test") == [("test-1", "e", "y")]
    assert list(dict.fromkeys(key for key, _ in read(config, language_column="lang", languages=["yo", "de"])[0])) == [
        "yo",
        "de",
    ]
    (tmp_path / "test.csv").write_text("text,label,lang\na,x,de\nb,x,\nc,x,en\n")
    with pytest.raises(UsageError, match=r"test\.csv:3: no language in the column 'lang'"):
        read(config, language_column="lang", languages=["de"])
    (tmp_path / "test.csv").write_text("text,label,lang\na,x,de\n")
    with pytest.raises(UsageError, match="no test rows of 'en'"):
        read(config, language_column="lang", languages=["de", "en"])


def test_files_in_one_language_need_no_language_in_their_names(tmp_path: Path, config: Config) -> None:
    write(tmp_path, CSV, "{split}.csv")
    assert len(read(config, languages=["de"])[0]["de", "test"]) == 2
    with pytest.raises(UsageError, match=r"no data found; train\.csv .*language_column=.* dataset\.languages="):
        read(config)
    write(tmp_path, "text,label\na,b\n", "{language}-{split}.csv")
    assert len(read(config, languages=["de"])[0]["de", "test"]) == 1, "files with the language have priority"


@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_rows_of_several_languages_are_not_read_as_one(tmp_path: Path, config: Config, end: str) -> None:
    def fill(*languages: str | None) -> None:
        data = pa.table({"text": ["a", "b"], "label": ["x", "y"], "lang": languages})
        for split in SPLITS:
            path = str(tmp_path / f"{split}.{end}")
            pq.write_table(data, path) if end == "parquet" else data.to_pandas().to_csv(path, index=False)

    fill("de", "en")
    with pytest.raises(UsageError, match=r"train\.\w+: .*'lang' .*\(de, en\); set dataset\.language_column=lang"):
        read(config, languages=["de"])
    assert rows(read(config, languages=["de"], language_column="lang")[0]) == [("test-1", "a", "x")]
    # A label may be a language, and a column may repeat the language of all rows.
    assert len(read(config, languages=["de"], label_column="lang")[0]["de", "test"]) == 2
    fill("de", None)
    assert len(read(config, languages=["de"])[0]["de", "test"]) == 2


@pytest.mark.parametrize("parts", [False, True])
def test_parquet_with_names_of_classes(tmp_path: Path, config: Config, parts: bool) -> None:
    features = datasets.Features({
        "id": datasets.Value("int64"), "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["cold", "warm"]), "other": datasets.Sequence(datasets.Value("int64")),
    })  # fmt: skip
    data = {"id": [0, 5, 6], "text": ["a b", "c", "d"], "label": [1, 0, -1], "other": [[], [1], []]}
    content = datasets.Dataset.from_dict(data, features=features)
    for split in SPLITS:
        path = tmp_path / "de" / (f"{split}-00000-of-00001.parquet" if parts else f"{split}.parquet")
        path.parent.mkdir(exist_ok=True)
        content.to_parquet(str(path))
    splits, notes = read(config)
    assert rows(splits) == [("0", "a b", "warm"), ("5", "c", "cold")]
    assert notes == {"unlabeled": dict.fromkeys(("de/train", "de/dev", "de/test"), 1)}


def test_a_label_without_a_name_is_an_error_of_its_file(tmp_path: Path, config: Config) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])})
    (tmp_path / "de").mkdir()
    for split in SPLITS:
        content = datasets.Dataset.from_dict({"text": ["x", "y"], "label": [0, 1]}, features=features)
        schema = content.data.table.schema
        table = pa.table({"text": ["x", "y"], "label": [0, 2 if split == "dev" else -100]}, schema=schema)
        pq.write_table(table, tmp_path / "de" / f"{split}.parquet")
    with pytest.raises(UsageError, match=rf"{tmp_path}/de/dev.parquet: the label 2 has no name"):
        read(config)
    (tmp_path / "de" / "dev.parquet").unlink()
    splits, notes = read(config)
    assert (len(splits["de", "train"]), notes["unlabeled"]["de/train"]) == (1, 1)


def test_a_label_in_parquet_is_one_value(tmp_path: Path, config: Config) -> None:
    for split in SPLITS:
        pq.write_table(pa.table({"text": ["a", "b"], "label": [["x"], ["y"]]}), tmp_path / f"de.{split}.parquet")
    with pytest.raises(UsageError, match=r"parquet:1: 'label' must be one name or number, not \['x'\]"):
        read(config)


def test_line_ends_of_old_macintoshes_are_named(tmp_path: Path, config: Config) -> None:
    write(tmp_path, "text\tlabel\ra\tx\r", "{language}.{split}.tsv")
    with pytest.raises(UsageError, match="carriage returns without line feeds"):
        read(config)


def test_parquet_labels_of_pandas(tmp_path: Path, config: Config) -> None:
    content = pa.table({"text": ["a", "b", "c"], "label": pa.array([1.0, None, float("nan")])})
    for split in SPLITS:
        pq.write_table(content, tmp_path / f"de.{split}.parquet")
    splits, notes = read(config)
    assert rows(splits) == [("test-1", "a", "1")]
    assert notes["unlabeled"]["de/test"] == 2


BAD = [
    ("text,label\na,b,c\n", r"\.csv:2: 3 columns instead of 2"),
    ('text,label\n"a\nb",x\nc\n', r"\.csv:4: 1 column instead of 2"),
    ('text,label\n"a,x\n', r"\.csv:2: not CSV \(unexpected end of data\)"),
    ("text,label\n ,x\n", r"\.csv:2: 'text' must be a string that is not blank"),
    ("text,class\na,x\n", r"dataset\.label_column=label: no such column; .*text"),
    ("text\tlabel\na\tx\n", "no such column; .* by commas, and of .tsv files by tabs"),
    ("text,text,label\na,b,x\n", r"dataset\.text_column=text: 2 columns have this name"),
    (b"text,label\na,x\nb\xff,x\n", r"\.csv:3: not UTF-8"),
    ("", r"\.csv: no examples"),
    ("text,label\n", r"\.csv: no examples"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), BAD)
def test_mistakes_name_file_and_line(tmp_path: Path, config: Config, content: str | bytes, message: str) -> None:
    write(tmp_path, CSV)
    (tmp_path / "de.test.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=message):
        read(config)


def test_bad_rows_can_be_skipped_and_rows_without_a_label_always_are(tmp_path: Path, config: Config) -> None:
    write(tmp_path, "text,label\na,x\nb\nc,\n")
    splits, notes = read(config, on_bad_line=OnBadLine.skip)
    assert rows(splits) == [("test-1", "a", "x")]
    assert (notes["skipped"]["de/test"], notes["unlabeled"]["de/test"]) == (1, 1)


def test_a_damaged_parquet_file_is_named(tmp_path: Path, config: Config) -> None:
    write(tmp_path, b"PAR1 nothing PAR1", "{language}.{split}.parquet")
    with pytest.raises(UsageError, match=r"de\.train\.parquet: cannot be read as Parquet \("):
        read(config)


def test_long_texts_in_csv_have_no_limit(tmp_path: Path, config: Config) -> None:
    write(tmp_path, f"text,label\n{'a' * 200_000},x\n")
    assert len(rows(read(config)[0])[0][1]) == 200_000
