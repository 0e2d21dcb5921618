"""A training loop that is a library's: what it does between the parts of a step is not the user's.

The user calls it at one line, from which all parts of a step come; what it does in each step goes
by its settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trainprof.analysis.summary.code import HotLine, hottest

if TYPE_CHECKING:
    from trainprof.findings.run_context import RunContext

# Among the evidence: where that library is called.
LIBRARY_AT: Final = "library_at"
_OF_MODEL: Final = ("forward", "backward")
_OF_LOOP: Final = ("data_wait", "optimizer")
_LIGHTNING: Final = (
    "enable_progress_bar=False, logger=False or a larger log_every_n_steps of its Trainer"
)
_ANY: Final = "no progress bar, logging less often"


def is_library(context: RunContext, line: HotLine) -> bool:
    """Whether the line is where the user calls a library's loop: its code is not theirs.

    Forward and backward are called from there as well; where no look tells, the library has made
    the loader there.
    """
    return _is_librarys(context, line.site)


def _is_librarys(context: RunContext, site: str) -> bool:
    known = _known(context, _OF_MODEL)
    return _all_lead_to(site, known) if known else _makes_loaders(context, site)


def library_called_at(context: RunContext, line: HotLine | None) -> str | None:
    """Returns where a library's loop is called; None where the loop seems to be the user's.

    A loop of the user's may have one line for forward and backward, too: the other parts are asked
    as well, or whether there is a library that has a loop.

    Args:
        line: That most of the code between the parts of a step goes to, None where none is known.
    """
    known = _known(context, _OF_MODEL)
    if line is None and len(known) < len(_OF_MODEL):
        return None
    site = (known[-1] if line is None else line).site
    return site if is_called_at(context, site) else None


def is_called_at(context: RunContext, site: str) -> bool:
    """Whether a library's loop seems to be called at a line of the user's."""
    others = _known(context, _OF_LOOP)
    if not _is_librarys(context, site) or not _all_lead_to(site, others):
        return False
    return bool(others) or _settings(context) != _ANY or _makes_loaders(context, site)


def advice_for(context: RunContext, called_at: str, *, is_sure: bool) -> str:
    """Returns what can be changed of a library's loop.

    Args:
        called_at: The line that calls it.
        is_sure: The time is known to be the library's; else its own hooks may have it.
    """
    what = "what that library does" if is_sure else f"what the library called at {called_at} does"
    set_by = f"{what} in each step goes by its settings: {_settings(context)}, fewer callbacks"
    larger = "larger batches, where learning allows, are fewer steps"
    if is_sure:
        return f"{set_by}; {larger}"
    return f"{set_by}; {larger}; trainprof lines times hooks of your own that it calls"


def _settings(context: RunContext) -> str:
    """Returns what makes a library do less in each step."""
    builder = context.builder()
    if builder is not None and builder.quiet is not None:
        return f"{builder.quiet} of {builder.call}"
    return _LIGHTNING if context.torch.trains_by_lightning else _ANY


def _makes_loaders(context: RunContext, site: str) -> bool:
    """Whether a line makes a library build a loader that feeds training."""
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
