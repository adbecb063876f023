"""``python -m xclrun``: the command line."""

from __future__ import annotations

import sys

from xclrun.cli import main
from xclrun.core.ranks import launched

if __name__ == "__main__":
    if launched() > 1:
        # Started by torchrun: `join_launched` returns only in rank 0.
        from xclrun.train.ranks import join_launched

        join_launched()
    sys.exit(main())
