"""`python -m trainprof`, and what the console script calls."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line, out of reach of modules of the user's that are called like ours."""
    _put_last(["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    from trainprof.cli.app import main as run

    run()


def _put_last(entries: list[str]) -> None:
    """Moves search path entries to the end: not away, as what we need may only be there."""
    moved = {os.path.abspath(entry) for entry in entries}
    sys.path.sort(key=lambda entry: os.path.abspath(entry) in moved)


if __name__ == "__main__":
    main()
