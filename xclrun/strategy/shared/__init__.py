"""What several strategies share, a module each.

- `memory`: a balanced replay memory, and the base of the strategies that keep one (er, agem, kd).
- `written`: the memory of lifelong learning, and the base of the strategies that have it (replay, agem_replay, mbpa).
- `expansion`: the base of the strategies that can be laid over one that gives languages parts.
- `language_parts`: parameters of which each language has its own; the base of lang_spec_*.
- `adapters`: language parts that are MAD-X adapters.
- `heads_only`: few-shot adapting of heads on a frozen encoder; the base of fc and its kin.
- `fisher`: the diagonal Fisher information, for ewc.
- `inference`: the model without dropout and gradients, over many sentences.
- `parameters`: how many parameters a strategy's model has.
"""
