"""Code that several strategies share.

- `memory`: balanced replay memory, its batches, and the base class of the strategies that have one.
- `distillation`: recorded outputs of a model and distances to them (der, kd, lwf).
- `penalty`: quadratic penalties (ewc, mas, si, l2).
- `expansion`: base class of the strategies that can be combined with language-specific parameters.
- `language_parameters`: language-specific parameters; base class of lang_spec_*.
- `added`: bases of the strategies that add parameters.
- `adapters`: language adapters.
- `low_rank`: low-rank updates that languages share (seq_lora, inc_lora, o_lora).
- `prompts`: pools of prompts in a frozen encoder (l2p, coda_prompt).
- `heads_only`: few-shot adaptation of heads on a frozen encoder; base class of fc and its variants.
- `fisher`: diagonal Fisher information (ewc).
- `inference`: forward passes over many sentences in eval mode.
- `parameters`: parameter counts of a strategy's model.
"""
