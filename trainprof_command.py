"""The console script: not in `trainprof`, as the user may have a module of that name."""

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Imports the trainprof beside this file, wherever another one lies, and runs it."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    try:
        import trainprof  # noqa: F401
    finally:
        sys.path.remove(here)
    from trainprof.__main__ import main

    main()
