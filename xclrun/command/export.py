"""``xclrun export RUN DIR``: a trained hop for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xclrun.command.common import chosen_run, outputs_parser


def main(arguments: Sequence[str]) -> int:
    """Write a hop of a run as files; return the exit code."""
    parser = outputs_parser(
        "export",
        "Write the model after a hop as files: the encoder as a folder that AutoModel.from_pretrained reads, with its "
        "tokenizer; beside it the heads and what a language has of its own (safetensors), and export.json, which says "
        "what each is.",
    )
    parser.add_run()
    parser.add_argument("folder", metavar="DIR", type=Path, help="a folder that is new or empty")
    parser.add_argument("--hop", type=int, metavar="N", help="which hop, 0: before fine-tuning (default: the last)")
    parser.add_argument(
        "--language",
        metavar="KEY",
        help="with which language's parts, where languages have parts of their own (default: the hop's)",
    )
    args = parser.parse_args(list(arguments))
    directory = chosen_run(args.outputs, args.run)

    from xclrun.run import thaw
    from xclrun.train.export import export

    facts = export(thaw(directory, directory.path.parents[1]), args.hop, args.language, args.folder.expanduser())
    served = f", with the parts of {facts['language']}" if facts["language"] else ""
    print(f"hop {facts['hop']} of {facts['run']}{served}: {args.folder}")
    return 0
