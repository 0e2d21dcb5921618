"""What of torch holds functions that probes wrap."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.utils.data

OWNERS: Final[tuple[Any, ...]] = (
    torch,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.functional,
    torch.nn.utils,
    torch.nn.utils.clip_grad,
    torch.autograd,
    torch.autograd.graph,
    torch.serialization,
    torch.cuda,
    torch.accelerator,
    torch.xpu,
    torch.amp.GradScaler,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.distributed.distributed_c10d.Work,
    torch.distributed.device_mesh,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler,
    torch.optim.lr_scheduler.LRScheduler,
    torch.optim.lr_scheduler.ReduceLROnPlateau,
    torch.utils.data.DataLoader,
    torch.utils.data.dataloader,
    torch.utils.data.dataloader._BaseDataLoaderIter,
    torch.utils.data.dataloader._SingleProcessDataLoaderIter,
    torch.utils.data.dataloader._MultiProcessingDataLoaderIter,
    torch.utils.data._utils.fetch._MapDatasetFetcher,
    torch.utils.data._utils.fetch._IterableDatasetFetcher,
)
