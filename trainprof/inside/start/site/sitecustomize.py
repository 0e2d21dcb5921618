"""Starts trainprof in a Python process that runs under it, then makes way for the user's own one.

Python imports this from PYTHONPATH before the script's first line, in every Python child that
inherits the environment. It must be light and must never raise, but for what Python expects where
there is no sitecustomize. Children may be of any Python, so the syntax is that of all of them.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OLDEST = (3, 10)
NOT_STARTED = 125
TOO_OLD = (
    "trainprof: what a script under Python %d.%d writes cannot be kept from your files, as each "
    "trial does; that takes Python %d.%d\n"
)


NAME_IS_TAKEN = (
    "trainprof: what a script writes that has a module called trainprof (%s) cannot be kept from "
    "your files, as each trial does; rename that module\n"
)


class _EndsAtTorch(object):  # noqa: UP004 - of Python 2 another one is no class
    """Ends a trial whose script is to train in a Python that we cannot be in."""

    def __init__(self, message):  # type: (str) -> None
        self.message = message

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name == "torch":
            os.write(2, self.message.encode())
            os._exit(NOT_STARTED)


def _is_trial():  # type: () -> bool
    import json

    trial = json.loads(os.environ.get("TRAINPROF_OPTIONS", "{}")).get("trial") or {}
    return trial.get("scratch") is not None


def _taken_by():  # type: () -> str | None
    """Returns the file that `import trainprof` would find, unless that is a trainprof of ours."""
    for place in [_script_place()] + sys.path:  # noqa: RUF005 - Python 2 reads this, too
        folder = os.path.join(place, "trainprof")
        for path in (os.path.join(folder, "__init__.py"), folder + ".py"):
            if os.path.isfile(path):
                return None if os.path.isdir(os.path.join(folder, "inside")) else path
    return None


def _script_place():  # type: () -> str
    """Returns what Python puts first on its search path, later."""
    for word in getattr(sys, "orig_argv", ())[1:]:
        if word in ("-c", "-m"):
            break
        if not word.startswith("-") and os.path.exists(word):
            return str(word if os.path.isdir(word) else os.path.dirname(os.path.realpath(word)))
    return os.curdir


def _start():  # type: () -> None
    if not os.environ.get("TRAINPROF_DIR"):
        return
    if sys.version_info < OLDEST:
        if _is_trial():
            sys.meta_path.insert(0, _EndsAtTorch(TOO_OLD % (sys.version_info[:2] + OLDEST)))
        return
    # The script's interpreter may not have us installed: lend it our place, for us alone, as
    # what lies beside us (site-packages) may not come before the standard library.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(HERE))))
    taken = _taken_by()
    if taken is not None:  # it is the script's to import
        with open(os.path.join(os.environ["TRAINPROF_DIR"], "name_taken"), "w") as note:
            note.write(ascii(taken)[1:-1])
        if _is_trial():
            sys.meta_path.insert(0, _EndsAtTorch(NAME_IS_TAKEN % ascii(taken)))
        return
    sys.path.insert(0, root)
    try:
        import trainprof  # noqa: F401
    finally:
        sys.path.remove(root)
    from trainprof.inside.start import bootstrap

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
