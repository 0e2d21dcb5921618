"""Watches a trial from outside: the room that its files leave, and where it is connected to."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import time
from typing import Final

import psutil

# A trial ends before its files leave less than this on their file system, or half of what was free.
_RESERVE_BYTES: Final = 2 << 30
_CONNECTIONS_EVERY_S: Final = 2.0
_MOST_CONNECTIONS: Final = 20


class TrialWatch:
    """Asked once a second or so while a trial runs.

    Args:
        pid: Its script's process.
        cwd: Where it runs.

    Attributes:
        is_full: The trial had to end, or the file system that takes its files would be full.
        connections: Addresses outside of this machine that its processes were connected to.
    """

    def __init__(self, pid: int, cwd: str) -> None:
        self._pid = pid
        self._cwd = cwd
        self._reserve_bytes: int | None = None
        self._next_s = 0.0
        self.is_full = False
        self.connections: dict[str, None] = {}

    def must_end(self) -> bool:
        """Whether the trial has to end now."""
        if time.monotonic() >= self._next_s and len(self.connections) < _MOST_CONNECTIONS:
            self._next_s = time.monotonic() + _CONNECTIONS_EVERY_S
            self._connect()
        with contextlib.suppress(OSError):
            # By way of the process: in its sandbox this is another file system.
            there = os.statvfs(f"/proc/{self._pid}/root{self._cwd}")
            free = there.f_bavail * there.f_frsize
            if self._reserve_bytes is None:
                self._reserve_bytes = min(_RESERVE_BYTES, free // 2)
            self.is_full = self.is_full or free < self._reserve_bytes
        return self.is_full

    def _connect(self) -> None:
        with contextlib.suppress(psutil.Error, OSError):
            script = psutil.Process(self._pid)
            for process in (script, *script.children(recursive=True)):
                with contextlib.suppress(psutil.Error, OSError, ValueError):
                    for connection in process.net_connections(kind="inet"):
                        if connection.raddr and not _is_here(connection):
                            there = connection.raddr
                            self.connections[f"{there.ip} port {there.port}"] = None


def _is_here(connection: psutil._ntuples.pconn) -> bool:
    """Whether a connection leads to this machine itself, as those of ranks and workers do."""
    there = ipaddress.ip_address(connection.raddr.ip)
    mapped = there.ipv4_mapped if isinstance(there, ipaddress.IPv6Address) else None
    return (mapped or there).is_loopback or connection.raddr.ip == connection.laddr.ip
