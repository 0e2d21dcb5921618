"""Containment of one process: made at its start, before the script's first line."""

from __future__ import annotations

import os
import posix
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainprof.record.names import SCRATCH_FILES, SCRATCH_INDEX
from trainprof.tracee.containment.changes import Changes
from trainprof.tracee.containment.escape import Escapes
from trainprof.tracee.containment.functions import FileFunctions, Functions
from trainprof.tracee.containment.index import SharedIndex
from trainprof.tracee.containment.installation import install
from trainprof.tracee.containment.packages import Packages
from trainprof.tracee.containment.paths import Paths
from trainprof.tracee.containment.tree import MergedTree
from trainprof.tracee.containment.zones import links_among, paths_among, real, roots, scripts_among


class Container:
    """Everything that keeps this process's writes in the scratch directory."""

    def __init__(
        self,
        scratch: str,
        *,
        run: str,
        tell: Callable[[str], None],
        tell_copy: Callable[[str, int], None],
        tell_move: Callable[[str, int], None],
        is_user_file: Callable[[str], bool],
        report: Callable[[BaseException], None],
    ) -> None:
        """Shares the scratch directory with the trial's other processes; the first sets it up.

        Args:
            scratch: An absolute directory, of this trial alone.
            run: The run directory.
            tell: Takes what was seen to escape, in a few words.
            tell_copy: Takes the path and the bytes of a large file that had to be copied.
            tell_move: The same of a directory that the script moved.
            is_user_file: Whether code in a file is the user's.
            report: Takes a fault of ours.

        Raises:
            OSError: If the scratch directory cannot be used.
        """
        scratch = real(scratch)
        os.makedirs(os.path.join(scratch, SCRATCH_FILES), mode=0o700, exist_ok=True)
        index = SharedIndex(os.path.join(scratch, SCRATCH_INDEX))
        if index.is_new:
            words, cwd = getattr(sys, "orig_argv", sys.argv), posix.getcwd()
            zones = roots(
                os.environ,
                cwd=cwd,
                scripts=scripts_among(words, cwd),
                own=(run, scratch),
                named=(*paths_among(words, cwd), *links_among(words, cwd)),
            )
            for path, is_free in zones.items():
                index.add_root(path, is_free=is_free)
        tree = MergedTree(scratch, index)
        changes = Changes(
            tree,
            scratch,
            tell_copy=self._told_safely(tell_copy),
            tell_move=self._told_safely(tell_move),
        )
        self._functions = Functions(tree, changes, report)
        self._files = FileFunctions(tree, changes, self._functions.report)
        self._files.passing = self._functions.passing
        self._packages = Packages(Paths(tree, changes))
        self._escapes = Escapes(
            tree,
            self._files,
            scratch,
            tell=tell,
            is_user_file=is_user_file,
            report=self._functions.report,
        )

    def install(self) -> None:
        install(self._functions, self._files)
        self._escapes.watch()

    def callbacks(self) -> dict[str, Callable[[ModuleType, int, int], None]]:
        """Returns what is to be called with a library right after its import, by its name."""
        return {name: self._guarded(wrap) for name, wrap in self._packages.callbacks().items()}

    def _told_safely(self, tell: Callable[[str, int], None]) -> Callable[[str, int], None]:
        def call(path: str, size: int) -> None:
            try:
                tell(path, size)
            except Exception as error:
                self._functions.report(error)

        return call

    def _guarded(self, wrap: Callable[[ModuleType], None]) -> Callable[..., None]:
        def call(module: ModuleType, *times: Any) -> None:
            try:
                wrap(module)
            except Exception as error:
                self._functions.report(error)

        return call
