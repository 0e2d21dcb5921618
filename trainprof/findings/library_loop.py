"""A training loop inside a library: its settings decide what it does between parts of a step.

Your code calls it at one line, from which all parts of a step are called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trainprof.analysis.summary.code import HotLine, hottest

if TYPE_CHECKING:
    from trainprof.findings.run_context import RunContext

# Of the evidence: where the library is called.
LIBRARY_AT: Final = "library_at"
_OF_MODEL: Final = ("forward", "backward")
_OF_LOOP: Final = ("data_wait", "optimizer")
_LIGHTNING: Final = "Trainer(..., enable_progress_bar=False, log_every_n_steps=100)"
_ANY: Final = "no progress bar, less logging"


def is_library(context: RunContext, line: HotLine) -> bool:
    """Whether your code calls a library's loop at this line.

    Forward and backward are called from there as well. Without samples of them, the library has
    built the loader there.
    """
    return _is_librarys(context, line.site)


def _is_librarys(context: RunContext, site: str) -> bool:
    known = _known(context, _OF_MODEL)
    return _all_lead_to(site, known) if known else _makes_loaders(context, site)


def library_called_at(context: RunContext, line: HotLine | None) -> str | None:
    """Returns where a library's loop is called; None where the loop seems to be in your code.

    Your loop may have one line for forward and backward, too. So the other parts of a step count
    as well, and whether a known library has a loop.

    Args:
        line: Where most time between the parts of a step goes, None where unknown.
    """
    known = _known(context, _OF_MODEL)
    if line is None and len(known) < len(_OF_MODEL):
        return None
    site = (known[-1] if line is None else line).site
    return site if is_called_at(context, site) else None


def is_called_at(context: RunContext, site: str) -> bool:
    """Whether your code seems to call a library's loop at a line."""
    others = _known(context, _OF_LOOP)
    if not _is_librarys(context, site) or not _all_lead_to(site, others):
        return False
    return bool(others) or _settings(context) != _ANY or _makes_loaders(context, site)


def advice_for(context: RunContext, called_at: str, *, is_sure: bool) -> str:
    """Returns what can be changed in a library's loop.

    Args:
        called_at: The line that calls it.
        is_sure: The time is the library's; else your hooks that it calls may have it.
    """
    advice = f"change the library's settings: {_settings(context)}, fewer callbacks"
    return advice if is_sure else f"{advice}; trainprof lines times your hooks"


def _settings(context: RunContext) -> str:
    """Returns the settings with which a library does less in each step."""
    builder = context.builder()
    if builder is not None and builder.quiet is not None:
        return f"{builder.call}(..., {builder.quiet})"
    return _LIGHTNING if context.torch.trains_by_lightning else _ANY


def _makes_loaders(context: RunContext, site: str) -> bool:
    """Whether a library builds a loader of training at a line."""
    return any(
        feeder.loader.site == site and feeder.loader.built_by is not None
        for feeder in context.feeding
    )


def _known(context: RunContext, parts: tuple[str, ...]) -> list[HotLine]:
    lines = (hottest(context.summary.part_lines, part) for part in parts)
    return [line for line in lines if line is not None]


def _all_lead_to(site: str, lines: Iterable[HotLine]) -> bool:
    """Whether all lines are called from a place, or are there themselves."""
    return all(site == line.site or site in line.called_from for line in lines)
