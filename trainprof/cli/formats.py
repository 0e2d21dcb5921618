"""`--format`, of every verb that writes to stdout."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import typer


class Format(str, Enum):
    """How something is written."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"

    # Before 0.27 typer looks for the string of what a parser returned among the values.
    __str__ = str.__str__


FORMATS: Final = tuple(format.value for format in Format)


def parse_format(text: str) -> Format:
    if text not in FORMATS:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(FORMATS)}")
    return Format(text)


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        parser=parse_format,
        metavar="|".join(FORMATS),
        show_default=False,
        help=f"How to write it.  [default: {Format.TERMINAL.value}]",
    ),
]
