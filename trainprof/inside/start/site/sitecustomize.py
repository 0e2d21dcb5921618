"""Starts trainprof in a profiled Python process, after the user's own sitecustomize.

Python imports this from PYTHONPATH before the script's first line, in every Python child that
inherits the environment. It must be fast and never raise, except the ImportError that Python
expects without a sitecustomize. Children may be any Python, so the syntax is valid in all of them.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OLDEST = (3, 10)
NOT_STARTED = 125
TOO_OLD = (
    "trainprof: a trial must redirect the files that your script writes, which does not work with "
    "Python %d.%d; use Python %d.%d or later\n"
)
NAME_IS_TAKEN = (
    "trainprof: your module %s hides the trainprof package, so a trial cannot redirect the files "
    "that your script writes; rename that module\n"
)


class _EndsAtTorch(object):  # noqa: UP004 - a new-style class in Python 2
    """Ends a trial at `import torch` in a Python in which trainprof cannot run."""

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
    """Returns the file that `import trainprof` would find, None if it is our package."""
    for place in [_script_place()] + sys.path:  # noqa: RUF005 - Python 2 syntax
        folder = os.path.join(place, "trainprof")
        for path in (os.path.join(folder, "__init__.py"), folder + ".py"):
            if os.path.isfile(path):
                return None if os.path.isdir(os.path.join(folder, "inside")) else path
    return None


def _script_place():  # type: () -> str
    """Returns the directory that Python will put first on sys.path."""
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
    # The script's interpreter may not have trainprof: add its directory for this import only, for
    # other packages in it must not precede the standard library.
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(HERE))))
    taken = _taken_by()
    if taken is not None:  # the script may import it
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

    Its errors are left to Python to report. Without one the ImportError is raised, which Python
    expects; it also makes Python drop this module.
    """
    ours = sys.modules.pop("sitecustomize", None)
    sys.path_importer_cache.pop(HERE, None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    finally:
        # The import system reads its own entry after this import.
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
