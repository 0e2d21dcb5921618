"""A pure-Python accelerator: tensors of device "fakegpu", whose work takes no time.

Private API of torch (a PrivateUse1 backend made in Python): for tests only. Register once per
process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from trainprof.inside.spans.transfer import TransferProbe

aten = torch.ops.aten


class _Backend:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    synchronize = staticmethod(lambda device=None: None)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.float16, torch.bfloat16])


class FakeTensor(torch.Tensor):
    """A tensor of the fake device around one of the host."""

    _raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> FakeTensor:
        made: FakeTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device="fakegpu:0",
            requires_grad=False,
        )
        made._raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self) -> str:  # type: ignore[override]
        return f"FakeTensor({self._raw})"

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if op is aten.copy_.default and args[0].device != args[1].device:
            _raw(args[0]).copy_(_raw(args[1]))
            return args[0]
        if op is aten._to_copy.default and kwargs.get("device") is not None:
            target = torch.device(kwargs["device"]).type
            rest = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
            copied = aten._to_copy.default(_raw(args[0]), **rest)
            return copied if target == "cpu" else FakeTensor(copied)
        if op is aten._local_scalar_dense.default:
            return _raw(args[0]).item()
        raw_args, raw_kwargs = pytree.tree_map(_raw, args), pytree.tree_map(_raw, kwargs)
        if "device" in raw_kwargs:
            raw_kwargs["device"] = torch.device("cpu")
        result = op(*raw_args, **raw_kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        ours = {id(_raw(leaf)): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}

        def wrap(leaf: Any) -> Any:
            if id(leaf) in ours:
                return ours[id(leaf)]
            return FakeTensor(leaf) if isinstance(leaf, torch.Tensor) else leaf

        return pytree.tree_map(wrap, result)


def _raw(leaf: Any) -> Any:
    return leaf._raw if isinstance(leaf, FakeTensor) else leaf


_registered: list[torch.library.Library] = []


def register() -> None:
    """Makes "fakegpu" a device of this process, once."""
    if _registered:
        return
    _setup_privateuseone_for_python_backend("fakegpu", backend_module=_Backend())
    # Later tests in this process may join groups, whose backend goes by the device there is.
    torch.distributed.Backend.default_device_backend_map["fakegpu"] = "gloo"
    library = torch.library.Library("aten", "IMPL")

    def known(keywords: dict[str, Any]) -> dict[str, Any]:
        unknown = ("device", "pin_memory", "layout")
        return {k: v for k, v in keywords.items() if k not in unknown and v is not None}

    def empty(size: Any, **keywords: Any) -> FakeTensor:
        return FakeTensor(torch.empty(size, **known(keywords)))

    def empty_strided(size: Any, stride: Any, **keywords: Any) -> FakeTensor:
        return FakeTensor(torch.empty_strided(size, stride, **known(keywords)))

    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    _registered.append(library)


def transfer_probe() -> TransferProbe:
    """Returns a probe that knows the fake device's tensors."""
    probe = TransferProbe()
    probe.plain_types.add(FakeTensor)
    return probe
