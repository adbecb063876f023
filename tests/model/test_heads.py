"""The CRF against enumeration of all tag sequences, and the model's loss and probabilities against known answers."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torchcrf import CRF

from tests.conftest import some
from xclrun.model.crf import crf_log_likelihood
from xclrun.model.heads import TagCRF, TagHead, viterbi
from xclrun.model.network import Model

from .conftest import KnownEncoder, batch


def score(crf: CRF, emissions: Tensor, path: tuple[int, ...]) -> float:
    """Return the score of one tag sequence, term by term: emissions (W, T)."""
    total = crf.start_transitions[path[0]].item() + crf.end_transitions[path[-1]].item()
    total += sum(emissions[i, tag].item() for i, tag in enumerate(path))
    return total + sum(crf.transitions[a, b].item() for a, b in itertools.pairwise(path))


def enumerate_scores(crf: CRF, emissions: Tensor, words: int) -> dict[tuple[int, ...], float]:
    """Return every tag sequence of the first ``words`` words with its score."""
    paths = itertools.product(range(crf.num_tags), repeat=words)
    return {path: score(crf, emissions, path) for path in paths}


def log_sum(values: Iterable[float]) -> float:
    return math.log(math.fsum(math.exp(v) for v in values))


@pytest.fixture
def head() -> TagHead:
    torch.manual_seed(3)
    head = TagHead(6, 3)
    for parameter in head.crf.parameters():
        torch.nn.init.normal_(parameter, std=1.5)
    return head


def test_likelihood_and_decoding_equal_enumeration(head: TagHead) -> None:
    lengths = [4, 1, 2, 3]
    emissions = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(8)) * 2
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    tags = torch.tensor([[2, 0, 1, 1], [1, 0, 0, 0], [0, 2, 0, 0], [2, 2, 0, 0]])
    likelihood, decoded = head.log_likelihood(emissions, tags, mask), head.decode(emissions, mask)
    for i, words in enumerate(some(lengths)):
        scores = enumerate_scores(head.crf, emissions[i], words)
        gold = tuple(tags[i, :words].tolist())
        assert likelihood[i].item() == pytest.approx(scores[gold] - log_sum(scores.values()), rel=1e-4)
        assert tuple(decoded[i, :words].tolist()) == max(scores, key=scores.__getitem__)


def test_what_lies_beyond_the_mask_changes_nothing(head: TagHead) -> None:
    emissions = torch.randn(2, 5, 3)
    mask = torch.arange(5) < torch.tensor([[2], [3]])
    tags = torch.zeros(2, 5, dtype=torch.long)
    noisy = torch.where(mask.unsqueeze(2), emissions, 1e4)
    assert torch.equal(head.log_likelihood(emissions, tags, mask), head.log_likelihood(noisy, tags + ~mask * 2, mask))
    assert torch.equal(head.decode(emissions, mask)[mask], head.decode(noisy, mask)[mask])
    # Not even NaN, and its gradient is 0.
    lost = emissions.masked_fill(~mask.unsqueeze(2), math.nan).requires_grad_()
    result = head.log_likelihood(lost, tags, mask)
    assert torch.equal(result, head.log_likelihood(emissions, tags, mask))
    [gradient] = torch.autograd.grad(result.sum(), [lost])
    assert gradient.isfinite().all()
    assert not gradient[~mask].any()


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6), tags=st.integers(1, 5), seed=st.integers(0, 2**31 - 1)
)
@settings(max_examples=60)
def test_viterbi_equals_the_library_s_decoding(lengths: list[int], tags: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    crf = CRF(tags, batch_first=True)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 2)
    emissions = torch.randn(len(lengths), max(lengths), tags, generator=generator) * 2
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    result = viterbi(crf, emissions, mask)
    assert [row[:n].tolist() for row, n in zip(result, lengths, strict=True)] == crf.decode(emissions, mask)


def zeroed(model: Model) -> Model:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def test_loss_of_a_model_that_knows_nothing(encoder: KnownEncoder) -> None:
    """All-zero parameters: ln C for the intent, and ln T for each word, means over the sentences."""
    model = zeroed(Model(encoder, classes=5, tags=3, dropout=0.0))
    given = batch([4, 1, 3], labels=[0, 4, 2], tags=[[0, 1, 2, 0], [1], [2, 2, 2]])
    assert model.loss(given).item() == pytest.approx(math.log(5) + (4 + 1 + 3) / 3 * math.log(3), rel=1e-4)


def test_loss_is_the_sum_of_intent_and_tags(encoder: KnownEncoder) -> None:
    torch.manual_seed(1)
    model = Model(encoder, classes=4, tags=3, dropout=0.0)
    given = batch([3, 2], labels=[1, 3], tags=[[0, 1, 2], [2, 2]])
    output = model(given)
    intent = sum(
        log_sum(iter(row.tolist())) - row[label].item() for row, label in zip(output.logits, [1, 3], strict=True)
    )
    tags = 0.0
    for i, gold in enumerate([(0, 1, 2), (2, 2)]):
        scores = enumerate_scores(model.tagger.crf, output.emissions[i], len(gold))
        tags += log_sum(scores.values()) - scores[gold]
    assert model.loss(given).item() == pytest.approx((intent + tags) / 2, rel=1e-4)
    assert model.loss(given, output) == model.loss(given)


def test_loss_without_tags_is_the_intent_s(encoder: KnownEncoder) -> None:
    model = zeroed(Model(encoder, classes=7, tags=0, dropout=0.0))
    given = batch([2, 1], labels=[6, 0], tags=[[-1, -1], [-1]])
    assert model.loss(given).item() == pytest.approx(math.log(7), rel=1e-4)
    result = model.predict(given)
    assert result.keys() == {"label", "log2_label"}
    assert result["log2_label"].tolist() == pytest.approx([-math.log2(7)] * 2, rel=1e-4)


def test_log2_probabilities_equal_enumeration(encoder: KnownEncoder) -> None:
    torch.manual_seed(2)
    model = Model(encoder, classes=4, tags=3, dropout=0.0)
    given = batch([3, 1], labels=[2, 0], tags=[[1, 1, 0], [2]])
    result, output = model.predict(given), model(given)
    for i, gold in enumerate([(1, 1, 0), (2,)]):
        scores = enumerate_scores(model.tagger.crf, output.emissions[i], len(gold))
        expected = (scores[gold] - log_sum(scores.values())) / math.log(2)
        assert result["log2_tags"][i].item() == pytest.approx(expected, rel=1e-4)
        assert tuple(result["tags"][i, : len(gold)].tolist()) == max(scores, key=scores.__getitem__)
        probabilities = output.logits[i].exp() / output.logits[i].exp().sum()
        assert result["log2_label"][i].item() == pytest.approx(
            math.log2(probabilities[given.labels[i]].item()), rel=1e-4
        )
    assert result["label"].tolist() == output.logits.argmax(1).tolist()


def test_gold_that_training_never_had_has_no_probability(encoder: KnownEncoder) -> None:
    torch.manual_seed(2)
    model = Model(encoder, classes=4, tags=3, dropout=0.0)
    result = model.predict(batch([3, 2, 1], labels=[-1, 3, 0], tags=[[0, 1, 2], [0, -1], [1]]))
    assert result["log2_label"].isnan().tolist() == [True, False, False]
    # Padding has the tag 0, which is known: only words count.
    assert result["log2_tags"].isnan().tolist() == [False, True, False]
    reference = model.predict(batch([3, 2, 1], labels=[0, 3, 0], tags=[[0, 1, 2], [0, 1], [1]]))
    assert torch.equal(result["label"], reference["label"])
    assert torch.equal(result["tags"], reference["tags"])


def test_words_are_packed_from_their_labelled_pieces(encoder: KnownEncoder) -> None:
    """Each word's emission comes from the state of its labelled subword, in the order of the words."""
    torch.manual_seed(4)
    model = Model(encoder, classes=2, tags=3, dropout=0.0)
    given = batch([3, 2], labels=[0, 1], tags=[[0, 0, 0], [0, 0]], extra=2)
    assert given.word_pieces.tolist() == [[1, 4, 7], [1, 4, 0]]
    output = model(given)
    for i, words in enumerate([3, 2]):
        for w in range(words):
            state = encoder.table[given.input_ids[i, 1 + 3 * w]]
            assert torch.allclose(output.emissions[i, w], model.tagger.linear(state), rtol=1e-4, atol=1e-5)
        assert torch.allclose(
            output.logits[i], model.intent(encoder.table[given.input_ids[i, 0]]), rtol=1e-4, atol=1e-5
        )
    assert torch.equal(output.cls, encoder.table[given.input_ids[:, 0]])


def test_prediction_leaves_no_graph(encoder: KnownEncoder) -> None:
    result = Model(encoder, classes=2, tags=2, dropout=0.0).predict(batch([2], [0], [[0, 1]]))
    assert not result["log2_label"].requires_grad
    assert not result["log2_tags"].requires_grad


def test_the_crf_computes_in_fp32_under_autocast(head: TagHead) -> None:
    emissions, mask = torch.randn(2, 3, 3), torch.ones(2, 3, dtype=torch.bool)
    tags = torch.zeros(2, 3, dtype=torch.long)
    plain = head.log_likelihood(emissions, tags, mask), head.decode(emissions, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = head.log_likelihood(emissions, tags, mask), head.decode(emissions, mask)
        assert head.linear(torch.randn(1, 6)).dtype is torch.bfloat16
    assert inside[0].dtype is torch.float32
    assert torch.equal(plain[0], inside[0])
    assert torch.equal(plain[1], inside[1])


def by(crf: CRF, function: Callable[..., Tensor], emissions: Tensor, tags: Tensor, mask: Tensor) -> list[Tensor]:
    """Return the value of ``function`` and its gradients: at the emissions, start, end and transitions."""
    given = emissions.clone().requires_grad_()
    value = function(given, tags, mask)
    reference = [crf.start_transitions, crf.end_transitions, crf.transitions]
    # Sentences count differently.
    weights = torch.linspace(-1, 2, len(tags), dtype=value.dtype)
    result = torch.autograd.grad(
        (value * weights).sum(), [given, *reference], allow_unused=True, materialize_grads=True
    )
    return [value.detach(), *result]


@pytest.mark.parametrize(("words", "tags", "scale"), [(1, 4, 1.0), (2, 1, 1.0), (9, 5, 3.0), (30, 11, 200.0)])
def test_log_likelihood_and_its_gradients_are_the_library_s(words: int, tags: int, scale: float) -> None:
    """In float64, also where scores lie from −200 to 200, so that a word's best path is e^800 times its worst."""
    generator = torch.Generator().manual_seed(words)

    def drawn(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1) * scale

    crf, length = TagCRF(tags, batch_first=True).double(), torch.randint(1, words + 1, (7,), generator=generator)
    length[0], length[1] = words, 1
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.copy_(drawn(*parameter.shape))
    mask = torch.arange(words) < length.unsqueeze(1)
    given = drawn(7, words, tags), torch.randint(0, tags, (7, words), generator=generator), mask
    oracle = by(crf, lambda *entry: CRF.forward(crf, *entry, reduction="none"), *given)
    for first, other in zip(by(crf, crf, *given), oracle, strict=True):
        torch.testing.assert_close(first, other, rtol=1e-11, atol=1e-11)
    # What a model has: fp32 in and out.
    single = [tensor.float() for tensor in by(crf, crf, given[0].float().double(), *given[1:])]
    for first, other in zip(by(crf.float(), crf, given[0].float(), *given[1:]), single, strict=True):
        torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-5 * scale)


def test_a_crf_whose_paths_could_be_lost_says_nan() -> None:
    """The way through tag 1 at word 0 is e^−800 at first, and the only good one in the end."""
    crf = TagCRF(2, batch_first=True).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.zero_()
        crf.transitions[1, 0] = 640.0
    emissions = torch.zeros(1, 2, 2, dtype=torch.float64)
    emissions[0, 0, 0] = 1200.0
    given = emissions, torch.tensor([[1, 0]]), torch.ones(1, 2, dtype=torch.bool)
    oracle = CRF.forward(crf, *given, reduction="none")
    assert crf(*given).item() == pytest.approx(oracle.item(), rel=1e-12) == -560.0 - math.log(2)
    # There e^744 brings back what e^−750 is too little for: without a limit the way would be missing, and nothing said.
    emissions[0, 0, 0] = 750.0
    with torch.no_grad():
        crf.transitions[1, 0] = 744.0
    assert CRF.forward(crf, *given, reduction="none").isfinite().all()
    assert crf(*given).isnan().all()


def test_many_crfs_are_mapped_and_each_sentence_can_have_its_own() -> None:
    torch.manual_seed(0)
    copies, sentences, words, tags = 3, 4, 6, 5
    reference = [torch.randn(copies, *shape) for shape in ((tags,), (tags, tags), (tags,))]
    emissions, gold = torch.randn(copies, sentences, words, tags), torch.randint(0, tags, (copies, sentences, words))
    mask = torch.arange(words) < torch.randint(1, words + 1, (copies, sentences, 1))

    def mean(parameters: Sequence[Tensor], *given: Tensor) -> Tensor:
        return crf_log_likelihood(*given, *parameters).mean()

    mapped = vmap(grad(mean))(reference, emissions, gold, mask)
    repeated = [p.repeat_interleave(sentences, 0).requires_grad_() for p in reference]
    flat = crf_log_likelihood(emissions.flatten(0, 1), gold.flatten(0, 1), mask.flatten(0, 1), *repeated)
    for_each = torch.autograd.grad(flat.sum() / sentences, repeated)
    for i in range(copies):
        alone = [p[i].clone().requires_grad_() for p in reference]
        expected = torch.autograd.grad(mean(alone, emissions[i], gold[i], mask[i]), alone)
        for first, all_of, of_sentences in zip(expected, mapped, for_each, strict=True):
            torch.testing.assert_close(all_of[i], first)
            torch.testing.assert_close(of_sentences.unflatten(0, (copies, sentences))[i].sum(0), first)
