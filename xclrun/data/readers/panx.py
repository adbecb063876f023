"""Tagged words in columns: WikiANN, also called PAN-X (Pan et al. 2017; splits of Rahimi et al. 2019).

A line is a word and its tag between them a tab, and sentences stand between blank lines. In the release words have the
language before them (``de:Mainz``), one folder or name per language; XTREME's copy has names like ``test-de.tsv`` and
bare words. Lines of more columns are read by the first and the last. Sentences have no ids: theirs are the split and
the number of their first line.
"""

from __future__ import annotations

from xclrun.data.example import Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.files import BadRow, Place, blocks, check_tags

LAYOUT = (
    "{language}/{split}",
    "{language}-{split}",
    "{split}-{language}.tsv",
    "{language}/{split}.tsv",
    "{language}-{split}.tsv",
)


@row_reader("panx", LAYOUT, gives=["tags"], rows=blocks)
def parse(block: list[str], place: Place) -> Example:
    """Return the example of one block of lines.

    Raises:
        BadRow: a line has no tag or no word, or the tags are not BIO where they are spans.
    """
    words: list[str] = []
    tags: list[str] = []
    for place.below, line in enumerate(block):
        word, *others = (field.strip() for field in line.split("\t"))
        if not others:
            raise BadRow("a word and its tag are needed, between them a tab")
        bare, tag = word.removeprefix(f"{place.language}:") or word, others[-1]
        if not bare:
            raise BadRow("the word is blank")
        check_tags([tag], [bare], place.task)
        words.append(bare)
        tags.append(tag)
    return Example(place.name, place.language, tuple(words), None, tuple(tags))
