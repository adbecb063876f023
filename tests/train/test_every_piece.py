"""``model.label_on=all``: the CRF reads every word piece, and words are scored on their first."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torchcrf import CRF

from tests.strategy.real import graph
from xclrun.model.heads import _word_tags
from xclrun.plan import Run
from xclrun.store import predictions

Make = Callable[..., Run]


def test_every_piece_has_a_tag_and_words_are_scored_on_their_first(make_run: Make, do: Make) -> None:
    """Against torchcrf's own decoder and likelihood, sentence by sentence, over the tokenizer's own pieces.

    With distillation, whose teachers answer for every piece too.
    """
    few = ("strategy=kd_logit", "order=[en,de]", "model.vocab_size=110", "dataset.max_train=8", "trainer.epochs=1")
    run = do(make_run(*few, "model.label_on=all"))
    assert make_run(*few).stages[0].train != run.stages[0].train
    stages, names, tails = graph(run), run.dataset.tags, 0
    encoded, tokenizer = stages.bench.encodings.splits["en", "test"], stages.bench.encodings.tokenizer
    stages.weights(2)
    model = stages.bench.model.eval()
    rows = [row for row in predictions.read(run.directory.predictions(2)).to_pylist() if row["language"] == "en"]
    for i, (example, row) in enumerate(zip(run.dataset.split("en", "test"), rows, strict=True)):
        words = tokenizer(list(example.tokens), is_split_into_words=True).word_ids()[1:-1]
        first = [k == 0 or words[k - 1] != word for k, word in enumerate(words)]
        gold = [names.index(example.tags[w]) if f else len(names) for w, f in zip(words, first, strict=True)]
        mask = torch.ones(1, len(words), dtype=torch.bool)
        with torch.no_grad():
            emissions = model(encoded.batch([i])).emissions
            likelihood = CRF.forward(model.tagger.crf, emissions, torch.tensor([gold]), mask, reduction="none")
        assert emissions.shape == (1, len(words), len(names) + 1)
        [path] = model.tagger.crf.decode(emissions, mask)
        # X on a first piece counts as O.
        expected = [(*names, "O")[tag] for tag, f in zip(path, first, strict=True) if f]
        assert [names[tag] for tag in row["predicted_tags"]] == expected
        assert row["log2_gold_tags"] == pytest.approx(likelihood.item() / math.log(2), rel=1e-4)
        tails += first.count(False)
    assert tails
    with torch.no_grad():
        model.tagger.linear.bias[-1] += 1000.0
    result = stages.bench.evaluator.predict(model, encoded, "en", "test")["predicted_tags"]
    assert {names[tag] for row in result for tag in row} == {"O"}


@pytest.mark.parametrize(
    ("predicted", "gold", "words"),
    [
        # X, tag 3, is predicted for a word of a single piece: no piece of the sentence has X as its gold tag.
        ([3, 1], [0, 1], [0, 1]),
        ([3, 3], [1, -1], [0, 0]),
        # Of words of two pieces, the first piece counts, whatever the second has.
        ([3, 1, 2, 3], [1, 3, 2, 3], [0, 2]),
        ([1, 2, 2, 0], [1, 3, 2, 3], [1, 2]),
        ([1, 2], [1, 2], [1, 2]),
    ],
)
def test_x_on_the_first_piece_of_a_word_counts_as_outside(
    predicted: list[int], gold: list[int], words: list[int]
) -> None:
    assert _word_tags(predicted, gold, ("O", "B-a", "I-a")) == words
