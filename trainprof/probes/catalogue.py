"""The probes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.checkpoint import CheckpointProbe
from trainprof.probes.collective import CollectiveProbe
from trainprof.probes.compilation import CompilationProbe
from trainprof.probes.delivery import DeliveryProbe
from trainprof.probes.device_marks import DeviceMarksProbe
from trainprof.probes.device_memory import DeviceMemoryProbe
from trainprof.probes.embedding_tables import EmbeddingTablesProbe
from trainprof.probes.emptied_caches import EmptiedCachesProbe
from trainprof.probes.fetch import FetchProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.garbage import GarbageProbe
from trainprof.probes.gradient_syncs import GradientSyncsProbe
from trainprof.probes.gradient_use import GradientUseProbe
from trainprof.probes.loader import LoaderProbe
from trainprof.probes.looks import LooksProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.own_updates import OwnUpdatesProbe
from trainprof.probes.padding import PaddingProbe
from trainprof.probes.process_group import ProcessGroupProbe
from trainprof.probes.session import Probe
from trainprof.probes.sync import SyncProbe
from trainprof.probes.sync_debug import FindSyncsProbe
from trainprof.probes.synchronize import SynchronizeProbe
from trainprof.probes.torch_settings import TorchSettingsProbe
from trainprof.probes.transfer import TransferProbe
from trainprof.probes.warning_place import WarningPlaceProbe


def default_probes(trial: Mapping[str, Any] | None = None) -> list[Probe]:
    """Returns fresh probes, in the order in which they are attached.

    Args:
        trial: What a trial of `tune` changes, as launch/options.py tells it; None for a plain run.
    """
    loader = LoaderProbe()
    before: list[Probe] = []
    after: list[Probe] = []
    if trial is not None:
        from trainprof.probes.trial import probes_of_trial

        before, after = probes_of_trial(trial, loader)
    return [
        *before,
        LooksProbe(),
        SynchronizeProbe(),  # with the next one ahead of the others: they set the clock of phases
        DeviceMarksProbe(),
        DeviceMemoryProbe(),  # reads at that clock
        loader,
        FetchProbe(loader),
        DeliveryProbe(loader),
        TransferProbe(),
        ForwardProbe(),
        TorchSettingsProbe(),  # this one and the next four are told by those behind them
        PaddingProbe(),
        EmbeddingTablesProbe(),
        GradientUseProbe(),
        GradientSyncsProbe(),
        OwnUpdatesProbe(),
        BackwardProbe(),
        OptimizerProbe(),
        SyncProbe(),
        FindSyncsProbe(),
        EmptiedCachesProbe(),
        CompilationProbe(),
        CheckpointProbe(),
        GarbageProbe(),
        ProcessGroupProbe(),
        CollectiveProbe(),
        WarningPlaceProbe(),
        *after,
    ]
