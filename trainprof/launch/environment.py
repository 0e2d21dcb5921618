"""The environment of the script's process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from trainprof.record.names import ENV_DIRECTORY, ENV_OPTIONS

ENV_PYTHONPATH: Final = "PYTHONPATH"


def script_environment(
    environ: Mapping[str, str],
    *,
    directory: str,
    options: Mapping[str, Any],
    site_directory: str,
) -> dict[str, str]:
    """Returns `environ` with what the tracee needs, and nothing else changed.

    Args:
        environ: The environment trainprof was started with.
        directory: The run directory, absolute: the script may change its working directory.
        options: What the tracee is to know, as JSON values.
        site_directory: Folder of the `sitecustomize` that starts the tracee.
    """
    environment = dict(environ)
    environment[ENV_DIRECTORY] = directory
    environment[ENV_OPTIONS] = json.dumps(options, allow_nan=False)
    environment[ENV_PYTHONPATH] = _with_first(environ.get(ENV_PYTHONPATH, ""), site_directory)
    return environment


def _with_first(search_path: str, entry: str) -> str:
    """Puts `entry` first; an empty search path stays empty behind it, as "" would mean the cwd."""
    if not search_path:
        return entry
    others = [other for other in search_path.split(os.pathsep) if other != entry]
    return os.pathsep.join([entry, *others])
