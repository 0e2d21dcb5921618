"""Temporary."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup


@cache
def environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainprof.report.html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (files("trainprof.report.html") / "static" / "style.css").read_text("utf-8")
    style += (files("trainprof.report.html") / "static" / "bars.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment.globals |= {"style": Markup(style), "style_hash": digest}
    return environment
