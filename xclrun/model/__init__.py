"""The model: an encoder with heads.

Submodules: `source` (where an encoder comes from), `vocabulary` (tokenizers), `encoder`, `heads`, `network` (the
trained module). Planning imports only modules that do not import torch.
"""
