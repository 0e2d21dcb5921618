"""Where trainprof lies: in tracebacks its frames begin there, however the checkout is called."""

from __future__ import annotations

import os
from pathlib import Path

import trainprof

PACKAGE = str(Path(trainprof.__file__).parent) + os.sep
