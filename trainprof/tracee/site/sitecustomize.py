"""Starts trainprof in a Python process that runs under it, then makes way for the user's own one.

Python imports this from PYTHONPATH before the script's first line, in every Python child that
inherits the environment. It must be light and must never raise.
"""

import os
import sys


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    _chain()
    if not os.environ.get("TRAINPROF_DIR"):
        return
    # The script's interpreter may not have us installed: lend it our place while we import.
    root = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path.insert(0, root)
    try:
        from trainprof.tracee import bootstrap
    finally:
        sys.path.remove(root)
    bootstrap.start()


def _chain() -> None:
    """Imports the sitecustomize that ours shadows, as Python would have done."""
    ours = sys.modules.pop("sitecustomize", None)
    sys.path_importer_cache.pop(os.path.dirname(os.path.abspath(__file__)), None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # The import in progress looks for its own name when it is done.
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


try:
    _start()
except Exception as error:
    if os.environ.get("TRAINPROF_DEBUG"):
        raise
    del error
