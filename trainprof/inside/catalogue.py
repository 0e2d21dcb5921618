"""The probes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainprof.findings.distributed.data_parallel.probe import DataParallelProbe
from trainprof.findings.distributed.needless_averaging.probe import GradientSyncsProbe
from trainprof.findings.model.dense_embeddings.probe import EmbeddingTablesProbe
from trainprof.findings.model.padded_batches.probe import PaddingProbe
from trainprof.findings.model.python_in_model.probe import BackwardCodeProbe
from trainprof.inside.device.marks import DeviceMarksProbe
from trainprof.inside.device.memory import DeviceMemoryProbe, EmptiedCachesProbe
from trainprof.inside.limits.own_updates import OwnUpdatesProbe
from trainprof.inside.model.gradient_use import GradientUseProbe
from trainprof.inside.model.torch_settings import TorchSettingsProbe
from trainprof.inside.patching.warning_place import WarningPlaceProbe
from trainprof.inside.session import Probe
from trainprof.inside.spans.backward import BackwardProbe
from trainprof.inside.spans.checkpoint import CheckpointProbe
from trainprof.inside.spans.collective import CollectiveProbe, ProcessGroupProbe
from trainprof.inside.spans.compilation import CompilationProbe
from trainprof.inside.spans.cuda_sync import SynchronizeProbe
from trainprof.inside.spans.delivery import DeliveryProbe
from trainprof.inside.spans.fetch import FetchProbe
from trainprof.inside.spans.find_syncs import FindSyncsProbe
from trainprof.inside.spans.forward import ForwardProbe
from trainprof.inside.spans.garbage_collection import GarbageProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.inside.spans.optimizer import OptimizerProbe
from trainprof.inside.spans.sync import SyncProbe
from trainprof.inside.spans.transfer import TransferProbe
from trainprof.inside.stacks.sampler import StackSampler


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
        DeviceMarksProbe(),
        DeviceMemoryProbe(),  # reads on each tick of that clock
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
