"""Elastic weight consolidation (EWC): a penalty per earlier hop on changes of weights with high Fisher information.

Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks", section 2.1, for more than two tasks.
From hop 2 on, the loss of hop i has one penalty per earlier hop j, around the weights θ*_j at the end of that hop:

    Σ_{j<i} λ/2 · Σ_θ F_j[θ] · (θ − θ*_j)²

F_j is the Fisher information of hop j, computed as in ``ewc_online``. For each weight, let A = Σ_j F_j and m = (Σ_j F_j
θ*_j) / A. Up to a constant, the penalties then add up to λ/2 · Σ_θ A (θ − m)², so the state contains only A and m.

Settings: ``penalty`` λ; ``fisher_examples``, the number of sentences drawn at random from a hop for F (null: all
sentences). Cost: 8 bytes per weight (A and m), on the device during training and in the stored state.
"""

from __future__ import annotations

from xclrun.strategy.base import Context, State
from xclrun.strategy.ewc_online import FisherPenalty, PenaltySettings
from xclrun.strategy.shared.penalty import tensor_group


class EWC(FisherPenalty[PenaltySettings]):
    name = "ewc"
    settings_type = PenaltySettings

    def end_hop(self, context: Context) -> None:
        weights = dict(context.model.named_parameters())
        precision, anchor = dict(self.precision), dict(self.anchor)
        for name, fisher in self.fisher(context).items():
            last = weights[name].detach().clone()
            if name in precision:
                before, middle = precision[name].to(fisher.device), anchor[name].to(fisher.device)
                total = before + fisher
                # Where every Fisher value is 0, the quotient 0 / 0 becomes 0: the anchor has no effect there.
                precision[name], anchor[name] = total, middle + (fisher / total).nan_to_num_(0.0) * (last - middle)
            else:
                precision[name], anchor[name] = fisher, last
        self.precision, self.anchor = precision, anchor

    def state_dict(self) -> State:
        anchors = {f"anchor/{name}": tensor for name, tensor in self.anchor.items()}
        return State(tensors=super().state_dict().tensors | anchors)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.anchor = tensor_group(state, "anchor")
