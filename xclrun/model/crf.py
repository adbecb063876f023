"""Log-likelihood of a linear-chain CRF and its gradient, by the forward-backward algorithm with matrix products.

ln p(y) = s(y) − ln Z, with s the score of a tag sequence and Z = Σ_y exp s(y) (Lafferty et al. 2001). The forward
recursion uses probabilities instead of logarithms, and divides them by their maximum at each word (Rabiner 1989,
section V.A, "scaling"). Each word thus costs one matrix product instead of a B × T × T array. The gradient is the count
of each gold tag minus its expected count. The backward recursion computes the gradient without autograd.

The scaled probability of a tag underflows if the tag is more than 708 nats below the word's best tag. At later words,
the tag's paths can gain on the best path at most the spread of the transitions. Therefore the lost share of Z is below
exp(spread − 708) for any emissions. If the spread exceeds `REACH`, this share could matter; the result is then
NaN, which ends the training.

Shapes: B sentences, W words, T tags.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Maximum spread, in nats. exp(650 − 708) is below the rounding error of float64, even for many words and tags.
REACH = 650.0


def crf_log_likelihood(
    emissions: Tensor, tags: Tensor, mask: Tensor, start: Tensor, transitions: Tensor, end: Tensor
) -> Tensor:
    """Return ln p(tags) of each sentence, (B,), computed in float64 and returned in the dtype of the emissions.

    Does not synchronize with the GPU. Supports `torch.func.vmap` over several CRFs.

    Args:
        emissions: (B, W, T).
        tags: (B, W) int64, from 0 to T − 1, including where the mask is False.
        mask: (B, W) bool, True on words, packed to the left; at least one per sentence.
        start, end: (T,); (B, T) if each sentence has a separate CRF.
        transitions: (T, T) or (B, T, T), from the tag of the row to the tag of the column.
    """
    value: Tensor = _LogLikelihood.apply(emissions, tags, mask, start, transitions, end)[0]
    return value


class _LogLikelihood(torch.autograd.Function):
    """`crf_log_likelihood` with the tensors that its gradient needs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        emissions: Tensor, tags: Tensor, mask: Tensor, start: Tensor, transitions: Tensor, end: Tensor
    ) -> tuple[Tensor, ...]:
        inside = mask.double()
        # Set emissions of padding to 0, because they can be infinite.
        scores = emissions.double().masked_fill(~mask.unsqueeze(2), 0.0)
        starts, moves, ends = start.double(), transitions.double(), end.double()
        # Factors of at most 1: exp(scores − peak) for each word, and exp(moves − highest) for each transition.
        peak, highest, last_peak = scores.amax(2), moves.amax((-2, -1)), ends.amax(-1)
        factors, matrix = (scores - peak.unsqueeze(2)).exp(), (moves - highest[..., None, None]).exp()
        first = starts + scores[:, 0]
        level = first.amax(1)
        forward = [(first - level.unsqueeze(1)).exp()]
        sizes = [torch.ones_like(level).unsqueeze(1)]
        for factor in factors.unbind(1)[1:]:
            reached = _times(forward[-1], matrix) * factor
            sizes.append(reached.amax(1, keepdim=True))
            forward.append(reached / sizes[-1])
        paths, size = torch.stack(forward, 1), torch.cat(sizes, 1)
        # One-hot gold tags, all zero on padding, so that the gold score is a sum of products.
        count = inside.sum(1)
        at_last = inside - torch.cat([inside[:, 1:], torch.zeros_like(inside[:, :1])], 1)
        gold = torch.zeros_like(scores).scatter(2, tags.unsqueeze(2), inside.unsqueeze(2))
        last = (paths * at_last.unsqueeze(2)).sum(1)
        leaving = (ends - last_peak.unsqueeze(-1)).exp()
        total = (last * leaving).sum(1, keepdim=True)
        log_z = ((size.log() + peak) * inside).sum(1) - peak[:, 0] + level + highest * (count - 1)
        log_z = log_z + total.squeeze(1).log() + last_peak
        pairs = tags[:, :-1] * scores.shape[2] + tags[:, 1:]
        table = moves.flatten(-2).expand(*pairs.shape[:1], -1)
        score = (gold * scores).sum((1, 2)) + (table.gather(1, pairs) * inside[:, 1:]).sum(1)
        score = score + (gold[:, 0] * starts).sum(1) + ((gold * at_last.unsqueeze(2)).sum(1) * ends).sum(1)
        spread = torch.maximum(highest - moves.amin((-2, -1)), last_peak - ends.amin(-1))
        value = (score - log_z).masked_fill(spread > REACH, torch.nan).to(emissions.dtype)
        # Factors of each word in the backward recursion.
        weights = factors / size.unsqueeze(2)
        return value, paths, weights, matrix, leaving / total, gold, at_last

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        emissions, _, _, start, transitions, end = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output[1:])
        ctx.shared, ctx.types = transitions.dim() == 2, [t.dtype for t in (emissions, start, transitions, end)]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if upstream is None:
            return (None,) * 6
        paths, weights, matrix, leaving, gold, at_last = ctx.saved_tensors
        back_matrix = matrix.transpose(-1, -2)
        ends = (leaving.unsqueeze(1) * at_last.unsqueeze(2)).unbind(1)
        # (B, T) for each word: backward · forward is the probability of each tag; 0 on padding.
        backward, arriving = [ends[-1]], []
        for weight, at_end in zip(weights.unbind(1)[:0:-1], ends[-2::-1], strict=True):
            arriving.append(backward[-1] * weight)
            backward.append(_times(arriving[-1], back_matrix, at_end))
        share = upstream.double()[:, None, None]
        of_words = (gold - paths * torch.stack(backward[::-1], 1)) * share
        starts, ends_ = of_words[:, 0], (of_words * at_last.unsqueeze(2)).sum(1)
        if arriving:
            before, after = paths[:, :-1], torch.stack(arriving[::-1], 1)
            after_gold, weighted = gold[:, 1:] * share, after * share
            if ctx.shared:
                before, gold_before = before.flatten(0, 1), gold[:, :-1].flatten(0, 1)
                after_gold, weighted = after_gold.flatten(0, 1), weighted.flatten(0, 1)
            else:
                gold_before = gold[:, :-1]
            moves = gold_before.transpose(-1, -2) @ after_gold - matrix * (before.transpose(-1, -2) @ weighted)
        else:
            moves = torch.zeros_like(matrix)
        if ctx.shared:
            starts, ends_ = starts.sum(0), ends_.sum(0)
        gradients = (of_words, starts, moves, ends_)
        emissions, start, transitions, end = (t.to(kind) for t, kind in zip(gradients, ctx.types, strict=True))
        return emissions, None, None, start, transitions, end


def _times(rows: Tensor, matrix: Tensor, plus: Tensor | None = None) -> Tensor:
    """Multiply rows (B, T) by a matrix (T, T) or by one matrix per row (B, T, T), and add ``plus`` (B, T)."""
    if matrix.dim() == 2:
        return rows @ matrix if plus is None else torch.addmm(plus, rows, matrix)
    product = (rows.unsqueeze(1) @ matrix).squeeze(1)
    return product if plus is None else product + plus
