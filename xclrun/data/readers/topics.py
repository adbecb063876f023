"""Topics of sentences in hundreds of languages, as released: SIB-200 and Taxi1500.

| reader | files | a line | classes |
|---|---|---|---|
| ``sib200`` (Adelani et al. 2024) | ``data/annotated/LANGUAGE/{train,dev,test}.tsv``; the root is ``annotated`` | \
index_id, category, text, quoted as in CSV where the text has quotes; a header first | seven |
| ``taxi1500`` (Ma et al. 2023) | ``eng_data/eng_train.tsv``, or ``train/LANGUAGE.tsv`` as the authors' scripts write \
| id of the verse, label, verse, without quoting | six |

Keys are the releases': ``eng_Latn`` with the script in SIB-200, ISO 639-3 codes in Taxi1500. An id is the same sentence
in every language. A language without training or dev file has an empty split.
"""

from __future__ import annotations

import csv

from xclrun.data.example import Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.files import BadRow, Place
from xclrun.data.readers.rows import columns, one_of, text_example

TOPICS = ("entertainment", "geography", "health", "politics", "science/technology", "sports", "travel")
TAXI = ("Description", "Faith", "Grace", "Recommendation", "Sin", "Violence")


@row_reader("sib200", ("{language}/{split}.tsv",), gives=["label"], may_lack=("train", "dev"))
def parse_sib200(line: str, place: Place) -> Example | None:
    """Return the example of one line; None for the header."""
    header = ["index_id", "category", "text"]
    try:
        [fields] = csv.reader([line], delimiter="\t", strict=True)
    except csv.Error as error:
        raise BadRow(f"not tab-separated columns with quotes as in CSV ({error})") from None
    if fields == header:
        return None
    name, label, text = columns(fields, header)
    return text_example(place, name, text, one_of(label, TOPICS))


@row_reader(
    "taxi1500",
    ("{folder}/{language}_{split}.tsv", "{split}/{language}.tsv", "{language}/{split}.tsv", "{language}_{split}.tsv"),
    gives=["label"],
    may_lack=("train", "dev"),
)
def parse_taxi1500(line: str, place: Place) -> Example | None:
    """Return the example of one line; None for a header."""
    header = ["id", "label", "verse"]
    fields = columns(line.split("\t"), header)
    if fields == header:
        return None
    name, label, text = fields
    return text_example(place, name, text, one_of(label, TAXI))
