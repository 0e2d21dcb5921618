"""The probes of a trial of `tune`: what they change is all that differs from a plain run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainprof.inside.session import Probe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.trial import optimizer_arguments
from trainprof.inside.trial.copies import NonBlockingProbe
from trainprof.inside.trial.free_data import FreeDataProbe
from trainprof.inside.trial.loader_alone import LoaderAloneProbe
from trainprof.inside.trial.loader_arguments import LoaderOverridesProbe
from trainprof.inside.trial.loader_sites import TrialSites
from trainprof.inside.trial.losses import LossesProbe
from trainprof.inside.trial.notes import TrialNotes
from trainprof.inside.trial.optimizer_arguments import OptimizerSettingsProbe
from trainprof.inside.trial.settings import SettingsProbe


def probes_of_trial(
    trial: Mapping[str, Any], loader: LoaderProbe
) -> tuple[list[Probe], list[Probe]]:
    """Returns the probes to be attached before those of a plain run, and after them.

    Args:
        trial: As launch/options.py tells it (TrialOptions).
        loader: The probe of the plain run that records loaders.
    """
    overrides, settings, data = trial["loaders"], trial["settings"], trial["data"]
    notes = TrialNotes(_never(overrides, settings, data))
    sites = TrialSites(loader, trial["sites"])
    before: list[Probe] = [notes, SettingsProbe(settings, notes)]
    after: list[Probe] = [LossesProbe()]
    if data == "free":
        batches = trial.get("pass_batches")
        before.append(FreeDataProbe(loader, sites, notes, pass_batches=batches))
    if overrides:
        after.append(LoaderOverridesProbe(sites, overrides, notes))
    if overrides.get("pin_memory"):
        after.append(NonBlockingProbe())
    if data == "alone":
        batches = trial.get("batches")
        after.append(LoaderAloneProbe(loader, sites, notes, batches=batches))
    wanted = [name for name in optimizer_arguments.KNOWN if settings.get(name)]
    after.extend(OptimizerSettingsProbe(name, notes) for name in wanted)
    return before, after


def _never(overrides: Mapping[str, Any], settings: Mapping[str, Any], data: str) -> dict[str, str]:
    """Returns what the trial changes, and what it means where it has never come to that."""
    no_loader = "no loader that was built at these lines was iterated"
    asked = dict.fromkeys(overrides, no_loader)
    if data == "free":
        asked["data"] = "no pass over a loader of these lines was long enough"
    elif data == "alone":
        asked["data"] = no_loader
    for name in settings:
        if name in optimizer_arguments.KNOWN:
            asked[name] = "no optimizer was built"
    return asked
