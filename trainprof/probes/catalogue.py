"""The probes of a default run."""

from __future__ import annotations

from trainprof.probes.backward import BackwardProbe
from trainprof.probes.checkpoint import CheckpointProbe
from trainprof.probes.delivery import DeliveryProbe
from trainprof.probes.device_marks import DeviceMarksProbe
from trainprof.probes.device_memory import DeviceMemoryProbe
from trainprof.probes.fetch import FetchProbe
from trainprof.probes.forward import ForwardProbe
from trainprof.probes.garbage import GarbageProbe
from trainprof.probes.loader import LoaderProbe
from trainprof.probes.looks import LooksProbe
from trainprof.probes.optimizer import OptimizerProbe
from trainprof.probes.process_group import ProcessGroupProbe
from trainprof.probes.session import Probe
from trainprof.probes.sync import SyncProbe
from trainprof.probes.sync_debug import FindSyncsProbe
from trainprof.probes.synchronize import SynchronizeProbe
from trainprof.probes.torch_settings import TorchSettingsProbe
from trainprof.probes.transfer import TransferProbe
from trainprof.probes.warning_place import WarningPlaceProbe


def default_probes() -> list[Probe]:
    """Returns fresh probes, in the order in which they are attached."""
    loader = LoaderProbe()
    return [
        LooksProbe(),
        SynchronizeProbe(),  # with the next one ahead of the others: they set the clock of phases
        DeviceMarksProbe(),
        DeviceMemoryProbe(),  # reads at that clock
        loader,
        FetchProbe(loader),
        DeliveryProbe(loader),
        TransferProbe(),
        ForwardProbe(),
        TorchSettingsProbe(),  # ahead of the next two, which tell it
        BackwardProbe(),
        OptimizerProbe(),
        SyncProbe(),
        FindSyncsProbe(),
        CheckpointProbe(),
        GarbageProbe(),
        ProcessGroupProbe(),
        WarningPlaceProbe(),
    ]
