"""The model in a summary: what torch.compile took, and how torch was set."""

from __future__ import annotations

from dataclasses import dataclass

from trainprof.analysis.device.activity import Overlap
from trainprof.analysis.model.compilations import compilations_of
from trainprof.analysis.model.torch_settings import TorchSettings, torch_settings
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.summary.code import Compilation
from trainprof.analysis.timeline.intervals import Coverage
from trainprof.analysis.timeline.ledger import update_seconds
from trainprof.analysis.timeline.timeline_part import TimelinePart


@dataclass(frozen=True, slots=True)
class ModelPart:
    """How the model was compiled and torch set."""

    compilations: list[Compilation]
    torch: TorchSettings


def model_part(
    run: Analysed, time: TimelinePart, overlap: Overlap | None, compiling: Coverage
) -> ModelPart:
    """Returns what a run tells of its model.

    Args:
        run: The run.
        time: Of its training thread.
        overlap: What its device did.
        compiling: When torch.compile compiled.
    """
    timeline, sites = run.timeline, run.sites()
    worked = overlap.least if overlap is not None else None
    updates_s = update_seconds(
        timeline.events, timeline.nesting, time.attribution, timeline.window, compiling
    )
    return ModelPart(
        compilations_of(run.process.details, timeline, sites, worked),
        torch_settings(run.metadata, sites, updates_s),
    )
