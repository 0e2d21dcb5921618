"""Where Python's standard library lies.

`sysconfig` would tell, but `import torch` does not import it: a script's folder may have a file of
that name, which would be run in its place.
"""

from __future__ import annotations

import os
import sys


def standard_library() -> list[str]:
    """Returns its directories, that of Python code first; they may be the same."""
    version = "python{}.{}".format(*sys.version_info[:2])
    of_platform = os.path.join(sys.base_exec_prefix, sys.platlibdir, version)
    return list(dict.fromkeys([os.path.dirname(os.__file__), of_platform]))
