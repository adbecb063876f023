"""``xclrun model export RUN DIR``: export a trained model in Hugging Face format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xclrun.command.common import chosen_run, outputs_parser


def main(arguments: Sequence[str]) -> int:
    """Export a hop of a run; return the exit code."""
    parser = outputs_parser(
        "model export",
        "Export the model after a hop: the encoder as a folder for AutoModel.from_pretrained, with its tokenizer, "
        "with its head if transformers has the same; the heads and language-specific parameters as safetensors; "
        "export.json, which describes the files; and README.md, a model card.",
    )
    parser.add_run()
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new or empty folder")
    parser.add_argument("--hop", type=int, metavar="N", help="hop to export; 0: before fine-tuning (default: the last)")
    parser.add_argument(
        "--language",
        metavar="KEY",
        help="language whose language-specific parameters are exported, if any (default: the hop's language)",
    )
    args = parser.parse_args(list(arguments))
    directory = chosen_run(args.outputs, args.run)

    from xclrun.command.show import describe
    from xclrun.plan import thaw
    from xclrun.train.export import export

    described = describe(directory) if directory.finished else None
    run, folder = thaw(directory, directory.path.parents[1]), args.folder.expanduser()
    facts = export(run, args.hop, args.language, folder, described)
    served = f", with the language-specific parameters of {facts['language']}" if facts["language"] else ""
    print(f"hop {facts['hop']} of {facts['run']}{served}: {args.folder}")
    return 0
