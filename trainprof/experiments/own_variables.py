"""Environment variables that a script's own texts read: other values make other trials.

Their values are not kept: of those that are set a salted digest is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from trainprof.experiments.own_modules import MAX_FILE_BYTES, Own
from trainprof.experiments.salted_digest import is_digest_of, new_salt, salted_digest
from trainprof.experiments.syntax import constant, last_name
from trainprof.experiments.trackers import SWITCHES
from trainprof.launch.masking import is_secret_name
from trainprof.record.plain_file import contents_of

_ENVIRON: Final = "environ"
_READING: Final = frozenset(("get", "pop", "setdefault"))
# As OmegaConf names a variable in settings, of now and of before.
_IN_SETTINGS: Final = re.compile(rb"\$\{(?:oc\.)?env:\s*([A-Za-z_]\w*)")
# These are others in each session, or in each job of a batch system, and training is the same.
_OF_A_SESSION: Final = frozenset(
    (
        *("PATH", "PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "DISPLAY", "TMUX", "STY"),
        *("TMPDIR", "TMP", "TEMP", "HOST", "HOSTNAME", "JOB_ID", "MASTER_ADDR", "MASTER_PORT"),
        # Which of several alike it is makes no difference; how many there are is looked at apart.
        *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    )
)
_BEGINNINGS: Final = (
    *("SSH_", "XDG_", "SLURM", "PBS_", "LSB_", "SGE_", "OMPI_", "PMI_", "PMIX_", "KUBERNETES_"),
    *("TORCHELASTIC_", "TRAINPROF_"),
)
# No variable has that name.
_SALT: Final = ""
_UNSET: Final = ""


def variables_read(own: Own) -> list[str]:
    """Returns the names that texts read from the environment, and those that switch trackers.

    Without those that tell nothing of training: of a session, and what is secret.
    """
    names = set(SWITCHES)
    for _, tree in own.modules:
        names.update(_read_by(tree))
    for settings in own.settings:
        text = contents_of(settings.path, MAX_FILE_BYTES) or b""
        names.update(name.decode() for name in _IN_SETTINGS.findall(text))
    return sorted(name for name in names if _counts(name))


def digests_of_variables(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns a digest of each variable, "" of one that is not set, and their salt."""
    salt = new_salt()
    told = {
        name: salted_digest(environ[name], salt) if name in environ else _UNSET for name in names
    }
    return {_SALT: salt, **told}


def changed_variables(before: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Returns what is to be said of each variable that is another than it was.

    Args:
        before: As `digests_of_variables` tells them.
        environ: That there is now.
    """
    salt = before.get(_SALT, "")
    told = []
    for name, digest in before.items():
        if name == _SALT:
            continue
        if name not in environ:
            if digest != _UNSET:
                told.append(f"{name} was set and is not")
        elif digest == _UNSET:
            told.append(f"{name} was not set and is")
        elif not is_digest_of(environ[name], salt, digest):
            told.append(f"{name} is another one by now")
    return told


def _counts(name: str) -> bool:
    is_of_session = name in _OF_A_SESSION or name.startswith(_BEGINNINGS)
    return bool(name) and not is_of_session and not is_secret_name(name)


def _read_by(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        key = _key_of(node)
        name = None if key is None else constant(key)
        if isinstance(name, str):
            yield name


def _key_of(node: ast.AST) -> ast.expr | None:
    """Returns what names the variable where code reads one, None elsewhere."""
    if isinstance(node, ast.Subscript):
        is_read = isinstance(node.ctx, ast.Load) and last_name(node.value) == _ENVIRON
        return node.slice if is_read else None
    if isinstance(node, ast.Compare):
        is_in = isinstance(node.ops[0], (ast.In, ast.NotIn))
        return node.left if is_in and last_name(node.comparators[0]) == _ENVIRON else None
    if not isinstance(node, ast.Call):
        return None
    of_environ = (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in _READING
        and last_name(node.func.value) == _ENVIRON
    )
    if not of_environ and last_name(node.func) != "getenv":
        return None
    named = (word.value for word in node.keywords if word.arg == "key")
    return node.args[0] if node.args else next(named, None)
