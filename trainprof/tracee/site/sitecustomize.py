"""Starts trainprof in a Python process that runs under it, then makes way for the user's own one.

Python imports this from PYTHONPATH before the script's first line, in every Python child that
inherits the environment. It must be light and must never raise, but for what Python expects where
there is no sitecustomize. Children may be of any Python, so the syntax is that of all of them.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OLDEST = (3, 10)


def _start():  # type: () -> None
    if not os.environ.get("TRAINPROF_DIR") or sys.version_info < OLDEST:
        return
    # The script's interpreter may not have us installed: lend it our place, for us alone, as
    # what lies beside us (site-packages) may not come before the standard library.
    root = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
    sys.path.insert(0, root)
    try:
        import trainprof  # noqa: F401
    finally:
        sys.path.remove(root)
    from trainprof.tracee import bootstrap

    bootstrap.start()


def _chain():  # type: () -> None
    """Imports the sitecustomize that ours shadows, as Python would have done.

    What that one raises, Python reports as it would have without us. Where there is none, the
    ImportError is let through: Python expects it, and forgets this module over it.
    """
    ours = sys.modules.pop("sitecustomize", None)
    sys.path_importer_cache.pop(HERE, None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    finally:
        # The import in progress looks for its own name when it is done.
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


sys.path[:] = [entry for entry in sys.path if entry != HERE]
try:
    _chain()
finally:
    try:
        _start()
    except Exception:
        if os.environ.get("TRAINPROF_DEBUG"):
            raise
