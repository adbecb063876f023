"""``xclrun export RUN DIR``: a trained hop for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xclrun.command.common import add_run, chosen_run, parser


def main(arguments: Sequence[str]) -> int:
    """Write a hop of a run as files; return the exit code."""
    options = parser(
        "export",
        "Write the model after a hop as files: the encoder as a folder that AutoModel.from_pretrained reads, with its "
        "tokenizer; beside it the heads and what a language has of its own (safetensors), and export.json, which says "
        "what each is.",
    )
    add_run(options)
    options.add_argument("folder", metavar="DIR", type=Path, help="a folder that is new or empty")
    options.add_argument("--hop", type=int, metavar="N", help="which hop, 0: before fine-tuning (default: the last)")
    options.add_argument(
        "--language",
        metavar="KEY",
        help="with which language's parts, where languages have parts of their own (default: the hop's)",
    )
    given = options.parse_args(list(arguments))
    directory = chosen_run(given.outputs, given.run)

    from xclrun.run import thaw
    from xclrun.train.export import export

    facts = export(thaw(directory, directory.path.parents[1]), given.hop, given.language, given.folder.expanduser())
    served = f", with the parts of {facts['language']}" if facts["language"] else ""
    print(f"hop {facts['hop']} of {facts['run']}{served}: {given.folder}")
    return 0
