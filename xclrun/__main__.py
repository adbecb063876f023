"""``python -m xclrun``: the command line."""

from __future__ import annotations

import os
import sys

from xclrun.cli import main

if __name__ == "__main__":
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Started by torchrun: `join_launched` returns only in rank 0.
        from xclrun.train.ranks import join_launched

        join_launched()
    sys.exit(main())
