"""The probes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from trainprof.findings.distributed.data_parallel.probe import DataParallelProbe
from trainprof.findings.distributed.needless_averaging.probe import GradientSyncsProbe
from trainprof.findings.model.dense_embeddings.probe import EmbeddingTablesProbe
from trainprof.findings.model.padded_batches.probe import PaddingProbe
from trainprof.findings.model.python_in_model.probe import BackwardCodeProbe
from trainprof.inside.device.accelerator import may_have_device
from trainprof.inside.model.gradient_use import GradientUseProbe
from trainprof.inside.model.torch_settings import TorchSettingsProbe
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.patching.warning_place import WarningPlaceProbe
from trainprof.inside.session import Probe, Session
from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.checkpoint import CheckpointProbe
from trainprof.inside.spans.collective import CollectiveProbe, ProcessGroupProbe
from trainprof.inside.spans.compilation import CompilationProbe
from trainprof.inside.spans.cuda_sync import SynchronizeProbe
from trainprof.inside.spans.delivery import DeliveryProbe
from trainprof.inside.spans.fetch import FetchProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.garbage_collection import GarbageProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.inside.spans.sync import SyncProbe
from trainprof.inside.spans.transfer import TransferProbe
from trainprof.inside.stacks.sampler import StackSampler


class ProbeIfNeeded:
    """A probe whose module is not loaded in a run that has no use for it: that saves memory.

    Args:
        probe: Its class, in a module of this package.
        is_needed: Called when it is attached.
    """

    def __init__(
        self, name: str, probe: str, is_needed: Callable[[ModuleType, Session], bool]
    ) -> None:
        self.name, self._probe, self._is_needed = name, probe, is_needed

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        if self._is_needed(torch, session):
            module, _, name = self._probe.rpartition(".")
            probe: Probe = getattr(import_module(f".{module}", __package__), name)()
            probe.attach(torch, patcher, session)


def default_probes(trial: Mapping[str, Any] | None = None) -> list[Probe]:
    """Returns new probes in the order in which they are attached; `trial` is set by `tune`."""
    loader = LoaderProbe()
    before: list[Probe] = []
    after: list[Probe] = []
    if trial is not None:
        from trainprof.inside.trial.probes import probes_of_trial

        before, after = probes_of_trial(trial, loader)
    return [
        *before,
        StackSampler(),
        SynchronizeProbe(),  # first, with the next one: they set the clock of phases
        ProbeIfNeeded("device_marks", "device.marks.DeviceMarksProbe", _marks_devices),
        # Reads on each tick of that clock.
        ProbeIfNeeded("device_memory", "device.memory.DeviceMemoryProbe", _has_device),
        loader,
        FetchProbe(loader),
        DeliveryProbe(loader),
        TransferProbe(),
        ForwardProbe(),
        BackwardCodeProbe(),
        TorchSettingsProbe(),  # this and the next four subscribe to signals of later probes
        PaddingProbe(),
        EmbeddingTablesProbe(),
        GradientUseProbe(),
        GradientSyncsProbe(),
        DataParallelProbe(),
        ProbeIfNeeded("own_updates", "limits.own_updates.OwnUpdatesProbe", _has_limit),
        BackwardProbe(),
        OptimizerProbe(),
        SyncProbe(),
        ProbeIfNeeded("find_syncs", "spans.find_syncs.FindSyncsProbe", _finds_syncs),
        ProbeIfNeeded("emptied_caches", "device.memory.EmptiedCachesProbe", _has_device),
        CompilationProbe(),
        CheckpointProbe(),
        GarbageProbe(),
        ProcessGroupProbe(),
        CollectiveProbe(),
        WarningPlaceProbe(),
        *after,
    ]


def _marks_devices(torch: ModuleType, session: Session) -> bool:
    return may_have_device(torch) and not session.options.get("cuda_sync")


def _has_device(_: ModuleType, session: Session) -> bool:
    return session.accelerator is not None


def _has_limit(_: ModuleType, session: Session) -> bool:
    return session.limit.before_step is not None


def _finds_syncs(_: ModuleType, session: Session) -> bool:
    return bool(session.options.get("find_syncs"))
