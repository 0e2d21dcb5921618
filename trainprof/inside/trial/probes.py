"""The probes of a trial of `tune`: everything that differs from a plain run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from trainprof.inside.limits.limit import is_loader_worker
from trainprof.inside.patching.function_modes import FunctionModes
from trainprof.inside.patching.patcher import Patcher, called_around
from trainprof.inside.session import Probe, Session
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.trial.free_data import FreeDataProbe
from trainprof.inside.trial.loaders import (
    LoaderAloneProbe,
    LoaderOverridesProbe,
    NonBlockingProbe,
)
from trainprof.inside.trial.notes import TrialNotes, TrialSites
from trainprof.inside.trial.settings import (
    AUTOCAST,
    CHANNELS_LAST,
    OPTIMIZER_SETTINGS,
    AutocastProbe,
    ChannelsLastProbe,
    OptimizerSettingsProbe,
    SettingsProbe,
)
from trainprof.record.schema import Topic

MOST_LOSSES: Final = 50


def probes_of_trial(
    trial: Mapping[str, Any], loader: LoaderProbe
) -> tuple[list[Probe], list[Probe]]:
    """Returns the probes to attach before those of a plain run, and after them."""
    overrides, settings, data = trial["loaders"], trial["settings"], trial["data"]
    notes = TrialNotes(_reasons_if_unused(overrides, settings, data))
    sites = TrialSites(loader, trial["sites"])
    before: list[Probe] = [notes, SettingsProbe(settings, notes)]
    after: list[Probe] = [LossesProbe()]
    if data == "free":
        before.append(FreeDataProbe(loader, sites, notes, trial.get("epoch_batches")))
    if overrides:
        after.append(LoaderOverridesProbe(sites, overrides, notes))
    if overrides.get("pin_memory"):
        after.append(NonBlockingProbe())
    if data == "alone":
        after.append(LoaderAloneProbe(loader, sites, notes, trial.get("batches")))
    wanted = [name for name in OPTIMIZER_SETTINGS if settings.get(name)]
    after.extend(OptimizerSettingsProbe(name, notes) for name in wanted)
    if AUTOCAST in settings:
        after.append(AutocastProbe(settings[AUTOCAST], notes))
    if CHANNELS_LAST in settings:
        after.append(ChannelsLastProbe(notes))
    return before, after


def _reasons_if_unused(
    overrides: Mapping[str, Any], settings: Mapping[str, Any], data: str
) -> dict[str, str]:
    """Returns by change the reason to note if the script never reaches it."""
    no_loader = "no loader built at these lines was iterated"
    asked = dict.fromkeys(overrides, no_loader)
    if data == "free":
        asked["data"] = "no epoch of a loader built at these lines was long enough"
    elif data == "alone":
        asked["data"] = no_loader
    built = [name for name in settings if name in OPTIMIZER_SETTINGS]
    asked |= dict.fromkeys(built, "no optimizer was built")
    reasons = {
        AUTOCAST: "no disabled autocast context was built",
        CHANNELS_LAST: "no optimizer has 4-D weights",
    }
    return asked | {name: why for name, why in reasons.items() if name in settings}


class LossesProbe:
    """Records the losses of the first backward passes, to compare trials."""

    name = "trial_losses"

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        self._plain = torch.Tensor
        self._mode_depth = FunctionModes(torch).depth
        # Bypasses the sync probe: our own read is not a sync point of the script.
        self._value = torch._C.TensorBase.item
        keep, kept = patcher.guarded(self._keep), self._kept

        def before(*args: Any, **kwargs: Any) -> None:
            if len(kept) < MOST_LOSSES and args and kwargs.get("accumulate_grad"):
                keep(args[0])

        name = "_engine_run_backward"
        make = called_around(before)
        patcher.around(make, (torch.autograd, name), (torch.autograd.graph, name))
        session.on_end.subscribe(patcher.guarded(self._note))

    def _keep(self, roots: Any) -> None:
        """Keeps the root of a backward pass if it is a scalar."""
        loss = roots[0]
        if type(loss) is not self._plain or self._mode_depth():
            return
        if loss.numel() == 1 and loss.is_floating_point():
            self._kept.append(loss.detach().clone())

    def _note(self) -> None:
        log = self._session.log
        if not self._kept or not log.is_open or is_loader_worker():
            return
        values = [float(self._value(loss)) for loss in self._kept]
        losses = [value if math.isfinite(value) else None for value in values]
        log.note(Topic.TRIAL, {"losses": losses})
