"""What several strategies share, a module each.

- `memory`: a balanced replay memory, the batches that are drawn from it, and the base of the strategies that keep one.
- `distillation`: recorded outputs of a model, and distances to them, for der, kd and lwf.
- `penalty`: quadratic penalties, for ewc, mas, si and l2.
- `expansion`: the base of the strategies that can be laid over one that gives languages parts.
- `language_parts`: parameters of which each language has its own; the base of lang_spec_*.
- `adapters`: language parts that are MAD-X adapters.
- `heads_only`: few-shot adapting of heads on a frozen encoder; the base of fc and its kin.
- `fisher`: the diagonal Fisher information, for ewc.
- `inference`: the model without dropout and gradients, over many sentences.
- `parameters`: how many parameters a strategy's model has.
"""
