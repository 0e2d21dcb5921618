"""Which places a trial leaves alone: the system's own, temporary files, caches, the run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

# The kernel's: links in them lead where their text does not say.
OF_KERNEL: Final = ("/dev", "/proc", "/sys")

TEMPORARY: Final = ("/tmp", "/var/tmp", "/usr/tmp")
ENV_TEMPORARY: Final = ("TMPDIR", "TEMP", "TMP")

ENV_CACHES: Final = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_ASSETS_CACHE",
    "HF_DATASETS_CACHE",
    "HF_MODULES_CACHE",
    "HF_XET_CACHE",
    "TRANSFORMERS_CACHE",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "NUMBA_CACHE_DIR",
    "MPLCONFIGDIR",
    "PYTHONPYCACHEPREFIX",
    "NLTK_DATA",
    "UV_CACHE_DIR",
    "PIP_CACHE_DIR",
)
HOME_CACHES: Final = (".cache", ".triton", ".nv", ".config/matplotlib")

# Where the script runs in the temporary directory itself: what is nobody's work in it.
TEMPORARY_NAMES: Final = (
    "tmp",
    "pymp-",
    "torchinductor_",
    "torch_extensions",
    "torch-shm-",
    "torchelastic_",
    "triton",
)
# Behind a root: of a free zone that the script itself runs in.
SCRIPT_RUNS_IN_IT: Final = "/"


def roots(
    environ: Mapping[str, str],
    *,
    cwd: str,
    scripts: Iterable[str],
    own: Iterable[str],
    named: Iterable[str] = (),
) -> dict[str, bool]:
    """Returns the zones by their topmost directory: True for free ones, False for contained ones.

    The longest root that a path lies under tells; where none does, the path is contained.

    Args:
        environ: The environment that the script was started with.
        cwd: Its working directory.
        scripts: Files on its command line; their directories are contained.
        own: Directories of ours, free whatever they lie in.
        named: Further paths, on its command line or by links: in the temporary directory
            somebody's work too.
    """
    free = [*OF_KERNEL, *TEMPORARY, *_named_by(environ, (*ENV_TEMPORARY, *ENV_CACHES))]
    home = environ.get("HOME")
    if home:
        free += [os.path.join(home, name) for name in HOME_CACHES]
    zones = {real(os.path.join(cwd, place)): True for place in free}
    zones.pop(os.sep, None)  # somebody's cache directory
    temporary = {real(place): True for place in (*TEMPORARY, *_named_by(environ, ENV_TEMPORARY))}
    works = [cwd, *(os.path.dirname(os.path.join(cwd, script)) for script in scripts)]
    works += [_directory_of(path) for path in map(real, named) if is_free(path, temporary)]
    for place in works:
        root = real(place)
        if zones.get(root):
            zones[root + SCRIPT_RUNS_IN_IT] = True
        zones[root] = False
    zones.update((real(place), True) for place in own)
    return zones


def is_free(path: str, zones: Mapping[str, bool]) -> bool:
    """Whether a path without links lies in a free zone."""
    below = ""
    while path != os.sep:
        told = zones.get(path)
        if told is not None:
            inside = below.startswith(TEMPORARY_NAMES) and path + SCRIPT_RUNS_IN_IT in zones
            return told or inside
        path, _, below = path.rpartition(os.sep)
        path = path or os.sep
    return False


def _named_by(environ: Mapping[str, str], names: Iterable[str]) -> list[str]:
    return [environ[name] for name in names if environ.get(name)]


def _directory_of(path: str) -> str:
    """Returns the directory that a path names, or that of the file, which need not be there yet."""
    if os.path.isdir(path) or not os.path.splitext(path)[1]:
        return path
    return os.path.dirname(path)


def real(path: str) -> str:
    return os.path.realpath(path)


def paths_among(words: Sequence[str], cwd: str) -> list[str]:
    """Returns what may be a path of the words of a command line, absolute: `--out=x` names x."""
    told = [value for word in words for value in (word, word.partition("=")[2]) if os.sep in value]
    return [os.path.join(cwd, os.path.expanduser(value)) for value in told]


def links_among(words: Sequence[str], cwd: str) -> list[str]:
    """Returns links in the working directory to directories, and to what a command line names.

    Whoever has put one there works with what it leads to, under a name without a slash.
    """
    named = {value for word in words for value in (word, word.partition("=")[2])}
    try:
        with os.scandir(cwd) as entries:
            links = [entry for entry in entries if entry.is_symlink()]
    except OSError:
        return []
    return [one.path for one in links if one.name in named or os.path.isdir(one.path)]


def scripts_among(words: Sequence[str], cwd: str) -> list[str]:
    """Returns the Python files that a command line names."""
    return [
        word for word in words if word.endswith(".py") and os.path.isfile(os.path.join(cwd, word))
    ]
