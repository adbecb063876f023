"""Compare the CCL paper's findings with our results.

A finding states that a measure is higher for one strategy than for another. The paper's difference and our difference
are means over the orders that both studies have. In the paper's Table 8, each finding holds for intents and for slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

from xclrun.analysis.aggregate import incomplete
from xclrun.analysis.bootstrap import paired_p_value
from xclrun.analysis.replicates import TIE
from xclrun.analysis.significance import ALPHA, holm
from xclrun.report.inference import Inference
from xclrun.report.published import labels_of
from xclrun.report.published.ranking import over_orders, paper_orders, shared_orders
from xclrun.report.summary import Summary


@dataclass(frozen=True)
class Claim:
    """The measure is higher for strategy ``more`` than for ``less``; both are names in the paper's tables."""

    text: str
    measure: str
    more: str
    less: str


CLAIMS = (
    Claim("sequential fine-tuning forgets more than retraining on all data", "F", "naive", "inc_joint"),
    Claim("sequential fine-tuning performs worse than monolingual models", "FP", "lang_spec_ft", "naive"),
    Claim("joint training performs better", "FP", "multilingual", "naive"),
    Claim("retraining on all languages so far performs better", "FP", "inc_joint", "naive"),
    Claim("replay reduces forgetting", "F", "naive", "er"),
    Claim("replay improves final performance", "FP", "er", "naive"),
    Claim("weight regularization forgets more than replay", "F", "ewc_online", "er"),
    Claim("output distillation forgets more than replay", "F", "kd_logit", "er"),
    Claim("representation distillation forgets more than replay", "F", "kd_rep", "er"),
    Claim("language-specific encoders reduce forgetting", "F", "naive", "lang_spec_trans"),
    Claim("language-specific encoders reduce zero-shot transfer", "T0", "naive", "lang_spec_trans"),
    Claim("language-specific lower layers reduce forgetting", "F", "naive", "lang_spec_enc_1_9"),
    Claim("shared upper layers improve zero-shot transfer", "T0", "lang_spec_enc_1_9", "lang_spec_trans"),
    Claim("language-specific heads forget more than encoders", "F", "lang_spec_task", "lang_spec_trans"),
    Claim("language-specific heads reduce zero-shot transfer", "T0", "naive", "lang_spec_task"),
    Claim("adapters in a tuned encoder reduce forgetting", "F", "naive", "lang_spec_ada_t"),
    Claim("adapters in a tuned encoder improve transfer", "T", "lang_spec_ada_t", "naive"),
    Claim("adapters improve transfer more in a frozen encoder", "T", "lang_spec_ada_f", "lang_spec_ada_t"),
    Claim("adapters perform worse in a frozen encoder", "FP", "lang_spec_ada_t", "lang_spec_ada_f"),
)
# The paper's orders from high to low resource and from low to high.
HIGH_TO_LOW, LOW_TO_HIGH = "order1", "order2"


@dataclass(frozen=True)
class Finding:
    """A claim about one metric, with the paper's difference and ours.

    Attributes:
        text: the claim in words.
        metric: name of the metric. For a difference between two metrics, the short names of both metrics.
        difference: the formula of the difference.
        published, ours: the difference as a fraction; NaN if a strategy is missing.
        p: p-value of our difference by a paired t-test over replicates (orders, or seeds of one order), with Holm's
            correction over all findings; NaN if not tested, see `_tested`.
        detectable: the true difference, as a fraction, that this t-test detects with 80 % power before correction, if
            differences spread as in our runs; NaN if not tested.
        p_sentences: p-value of our difference over resampled test sentences; NaN without predictions.
    """

    text: str
    metric: str
    difference: str
    published: float
    ours: float
    p: float = math.nan
    detectable: float = math.nan
    p_sentences: float = math.nan

    @property
    def verdict(self) -> str:
        if math.isnan(self.ours):
            return "not run"
        if abs(self.ours) <= TIE:
            return "no difference"
        if math.isnan(self.p):
            return "same direction, untested" if self.ours > 0 else "opposite direction, untested"
        if self.p >= ALPHA:
            return "same direction, not significant" if self.ours > 0 else "opposite direction, not significant"
        return "holds" if self.ours > 0 else "does not hold"


def findings(summary: Summary, inference: Inference) -> list[Finding]:
    """Return a finding for each claim and metric; empty if our runs have orders that the paper lacks."""
    orders = shared_orders(summary.comparison)
    rows = over_orders(orders)
    labels = labels_of(summary, {row.model for row in rows})
    published = {(row.model, row.metric, row.measure): row.value for row in rows}
    findings = []
    for claim, metric in product(CLAIMS, summary.comparison.metrics):
        keys = [(model, metric, claim.measure) for model in (claim.more, claim.less)]
        if all(key in published for key in keys):
            more, less = labels.get(claim.more, ""), labels.get(claim.less, "")
            ours = summary.value(more, metric, claim.measure) - summary.value(less, metric, claim.measure)
            theirs, difference = published[keys[0]] - published[keys[1]], f"{claim.measure} {claim.more} − {claim.less}"
            tested = _tested(inference, metric, claim.measure, more, less)
            if not math.isnan(tested[0]):
                # Over all replicates that both strategies have, as the p-value.
                ours = inference.tests[metric, claim.measure].t_test(more, less).difference
            elif {more, less} & incomplete(summary.comparison):
                ours = math.nan
            findings.append(Finding(claim.text, metric, difference, theirs, ours, *tested))
    naive = labels.get("naive", "")
    if all(("naive", metric, "F") in published for metric in ("slot_f1", "intent_accuracy")):
        slots, intent = (published["naive", metric, "F"] for metric in ("slot_f1", "intent_accuracy"))
        ours = summary.value(naive, "slot_f1", "F") - summary.value(naive, "intent_accuracy", "F")
        text, difference = "slots are forgotten more than intents", "F naive, slots − intent"
        findings.append(Finding(text, "slots, intent", difference, slots - intent, ours))
    if {HIGH_TO_LOW, LOW_TO_HIGH} <= {*orders}:
        names = {paper_orders().get(run.languages): run.order for run in summary.comparison.strategies.get(naive, ())}
        for metric in summary.comparison.metrics:
            high, low = (
                next(r.value for r in over_orders([order]) if (r.model, r.metric, r.measure) == ("naive", metric, "F"))
                for order in (HIGH_TO_LOW, LOW_TO_HIGH)
            )
            our_high, our_low = (
                summary.value(naive, metric, "F", names.get(order, "")) for order in (HIGH_TO_LOW, LOW_TO_HIGH)
            )
            text = "the paper's order from low to high resource forgets more"
            difference = "F naive, order2 − order1"
            findings.append(Finding(text, metric, difference, low - high, our_low - our_high))
    adjusted = holm([finding.p for finding in findings])
    return [replace(finding, p=float(p)) for finding, p in zip(findings, adjusted, strict=True)]


def _tested(inference: Inference, metric: str, measure: str, a: str, b: str) -> tuple[float, float, float]:
    """Return the uncorrected p-value over replicates, the detectable difference, and the p-value over test sentences.

    The first two are NaN if a strategy does not learn in sequence or there is only one replicate. For T
    and T0, they are also NaN if the tests hold only for the reference models of these runs (`Tests.condition`). The
    p-value over test sentences is NaN without predictions.
    """
    tests, resampled = inference.tests.get((metric, measure)), inference.resampled.get(metric)
    tested = tests is not None and not tests.condition and {a, b} <= set(tests.strategies)
    over_runs = (tests.t_test(a, b).p, tests.detectable(a, b)) if tests is not None and tested else (math.nan, math.nan)
    draws = None if resampled is None else resampled.difference(a, b, measure)
    return *over_runs, math.nan if draws is None else paired_p_value(draws)
