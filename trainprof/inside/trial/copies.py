"""Makes copies of pinned tensors to a device non-blocking, where a trial pins memory.

Pinned memory alone gains little: the host still waits for each copy that is not `non_blocking`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainprof.inside.patching.function_modes import FunctionModes
from trainprof.inside.patching.patcher import Patcher, hide_our_frame
from trainprof.inside.session import Session

Wrapped = Callable[..., Any]


class NonBlockingProbe:
    """Wraps `to` and `cuda` around the transfer probe, which then records what is really done.

    Attributes:
        plain_types: As of TransferProbe.
    """

    name = "trial_copies"

    def __init__(self) -> None:
        self.plain_types: set[type] = set()

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._modes = FunctionModes(torch)
        self._device_type = torch.device
        self.plain_types.update({torch.Tensor, torch.nn.Parameter})
        for name in ("to", "cuda"):
            make = self._maker(patcher, always_leads_across=name == "cuda")
            patcher.around_if_there(make, (torch.Tensor, name), inherited=True)

    def _maker(
        self, patcher: Patcher, *, always_leads_across: bool
    ) -> Callable[[Wrapped], Wrapped]:
        plain = self.plain_types

        def does_wait(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            """Whether a call copies from pinned memory to a device, and waits for that."""
            if patcher.is_silent or self._modes.depth() or not args[0].is_cpu:
                return False
            if not (always_leads_across or self._leads_to_device(args, kwargs)):
                return False
            # The script's own dispatch mode would see us ask.
            return not self._modes.dispatch_depth() and bool(args[0].is_pinned())

        def make(original: Wrapped) -> Wrapped:
            def copy(*args: Any, **kwargs: Any) -> Any:
                if args and type(args[0]) in plain:
                    try:
                        if does_wait(args, kwargs):
                            args, kwargs = without_waiting(args, kwargs)
                    except Exception as error:
                        patcher.fail(error)
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    hide_our_frame(error)
                    raise

            return copy

        return make

    def _leads_to_device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        where: Any = args[1] if len(args) > 1 else kwargs.get("device", kwargs.get("other"))
        if type(where) is str:
            return where.partition(":")[0] not in ("cpu", "meta")
        if type(where) is self._device_type:
            return where.type not in ("cpu", "meta")
        if type(where) in self.plain_types:
            return where.device.type not in ("cpu", "meta")
        return type(where) is int


def without_waiting(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with `non_blocking` on: the first bool among those without a name."""
    place = next((n for n, value in enumerate(args) if type(value) is bool), None)
    if place is None:
        return args, {**kwargs, "non_blocking": True}
    return (*args[:place], True, *args[place + 1 :]), kwargs
