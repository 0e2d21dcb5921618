"""Which functions of the C library change files, where a script calls them past Python."""

from __future__ import annotations

import os
from typing import Final

# That only write to what is open are not among them: it was opened by one of these, or by Python.
CHANGING_FILES: Final = frozenset(
    (
        *(
            "open",
            "open64",
            "openat",
            "openat64",
            "creat",
            "creat64",
            "fopen",
            "fopen64",
            "freopen",
        ),
        *("rename", "renameat", "renameat2", "unlink", "unlinkat", "remove", "rmdir"),
        *("mkdir", "mkdirat", "mkfifo", "mknod", "mkstemp", "mkostemp", "mkdtemp"),
        *("link", "linkat", "symlink", "symlinkat", "truncate", "truncate64"),
        *("chmod", "fchmodat", "chown", "lchown", "fchownat", "utime", "utimes", "utimensat"),
        *("setxattr", "lsetxattr", "removexattr", "system", "popen", "syscall"),
    )
)
# Any of these gives the C library's functions.
LIBRARIES: Final = ("libc.", "libc-", "libm.", "libdl.", "librt.", "libpthread.", "ld-linux")


def is_c_library(name: object) -> bool:
    """Whether a library that was opened by this name has those functions.

    Args:
        name: None: all that the process has loaded.
    """
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    return name is None or (isinstance(name, str) and os.path.basename(name).startswith(LIBRARIES))
