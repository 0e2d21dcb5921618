"""Records copies between devices, and models moved to one."""

from __future__ import annotations

import re
import sys
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from types import FrameType, ModuleType
from typing import Any, Final

from trainprof.inside.model.parameters import parameters_of
from trainprof.inside.patching.function_modes import FunctionModes, caller_of
from trainprof.inside.patching.patcher import (
    Arguments,
    Patcher,
    Wrapped,
    beyond_ours,
    hide_our_frame,
    is_profiling,
    let_dynamo_skip,
    recorded_outermost,
    uncounted,
)
from trainprof.inside.session import Session
from trainprof.record.schema import Kind, Topic, TransferFlag

# Functions of torch that create a tensor without host data.
_CREATES: Final = re.compile(
    r"\btorch\.(?:rand|randn|randint|randperm|normal|zeros|ones|full|empty|arange|linspace|eye)"
    r"(?:_like)?\("
)
_COPIES: Final = re.compile(r"\s*\.(?:to|cuda)\(")


class TransferProbe:
    """Wraps the copying methods of `torch.Tensor`; only copies between devices are recorded.

    Attributes:
        plain_types: Tensor types whose attributes can be read without running user code.
    """

    name = "transfer"

    def __init__(self) -> None:
        self.plain_types: set[type] = set()

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._session = session
        self._modes = FunctionModes(torch)
        self.plain_types.update({torch.Tensor, torch.nn.Parameter})
        # Threads that are moving a model; their copies are part of that.
        self._placing: set[int] = set()
        self._devices: set[str] = set()
        # By site: whether its last source was pinned.
        self._pinned: dict[int, bool] = {}
        # By site of a copy to a device, from the line's text.
        self._created_in_line: dict[int, bool] = {}
        observe = patcher.guarded(self._observe)
        self._device_type = torch.device
        for name, leads_across in (
            ("to", self._to_leads_across),
            ("cuda", lambda args, _: bool(args[0].is_cpu)),
            ("cpu", lambda args, _: not args[0].is_cpu),
            ("copy_", self._copy_leads_across),
        ):
            before = self._marking(patcher, leads_across)
            make = partial(self._make_copy, observe, before, name == "copy_")
            in_c, clocks = None, (session.copy_now, session.copy_now)
            if before is None and name != "copy_":
                in_c = session.in_c("copy", self._make_copied(observe), clocks=clocks)
            patcher.around_if_there(make, (torch.Tensor, name), inherited=True, in_c=in_c)
        placed = patcher.guarded(self._placed)
        placing = recorded_outermost(session.phase_now, placed, self._placing)
        patcher.around_if_there(placing, (torch.nn.Module, "_apply"))

    def _marking(
        self, patcher: Patcher, leads_across: Callable[..., bool]
    ) -> Callable[..., None] | None:
        """Returns a function that marks the device's stream when a copy begins, if wanted."""
        on_begin, plain = self._session.on_copy_begin, self.plain_types
        if not on_begin.watchers:
            return None

        def before(start: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not args or type(args[0]) not in plain:
                return
            if self._modes.depth() or get_ident() in self._placing:
                return
            if leads_across(args, kwargs):
                on_begin(start)

        return patcher.guarded(before)

    def _to_leads_across(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns whether `tensor.to(...)` copies between the host and a device."""
        where: Any = args[1] if len(args) > 1 else kwargs.get("device", kwargs.get("other"))
        kind = type(where)
        if kind is str:
            is_to_cpu = where.partition(":")[0] == "cpu"
        elif kind is self._device_type:
            is_to_cpu = where.type == "cpu"
        elif kind in self.plain_types:
            is_to_cpu = where.is_cpu
        elif kind is int:
            is_to_cpu = False
        else:
            return False
        return bool(args[0].is_cpu != is_to_cpu)

    def _copy_leads_across(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        source: Any = args[1] if len(args) > 1 else kwargs.get("src")
        return type(source) in self.plain_types and bool(source.is_cpu != args[0].is_cpu)

    def _end_of_copy(self) -> Callable[[], int]:
        """Returns the clock for the ends of copies.

        Most calls copy nothing between devices: `_observe` marks the end of those that do.
        """
        session = self._session
        return session.now if session.on_copy_end.watchers else session.phase_now

    def _make_copied(self, observe: Callable[..., None]) -> Callable[..., None]:
        """Returns what the wrapper in C calls with the results of copies."""
        plain, now = self.plain_types, self._end_of_copy()

        def copied(start: int, result: Any, *args: Any, **kwargs: Any) -> None:
            if type(result) in plain and type(args[0]) in plain:
                observe(args[0], result, start, now(), args[1:], kwargs)

        let_dynamo_skip(uncounted(copied), and_all_below=True)
        return copied

    def _make_copy(
        self,
        observe: Callable[..., None],
        before: Callable[..., None] | None,
        source_is_argument: bool,
        original: Wrapped,
    ) -> Wrapped:
        session, plain = self._session, self.plain_types
        began, now = session.copy_now, self._end_of_copy()

        def copy(*args: Any, **kwargs: Any) -> Any:
            start = began()
            if before is not None:
                before(start, args, kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                hide_our_frame(error)
                raise
            tensor = args[0]
            if source_is_argument:
                source = args[1] if len(args) > 1 else kwargs.get("src")
                if type(source) in plain and type(tensor) in plain:
                    observe(source, tensor, start, now(), args[2:], kwargs)
            elif result is not tensor and type(result) in plain and type(tensor) in plain:
                observe(tensor, result, start, now(), args[1:], kwargs)
            return result

        return copy

    def _observe(
        self,
        source: Any,
        result: Any,
        start: int,
        end: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        # A mode would see our reads of `.device` as calls; the call comes again below it.
        if self._modes.depth() or get_ident() in self._placing:
            return
        origin, target = source.device, result.device
        if origin == target or "meta" in (origin.type, target.type):
            return
        self._note_device(target if target.type != "cpu" else origin)
        self._session.on_copy_end(end)
        to_host = TransferFlag.D2H if target.type == "cpu" else TransferFlag.D2D
        flags: int = TransferFlag.H2D if origin.type == "cpu" else to_host
        if kwargs.get("non_blocking", next((a for a in args if type(a) is bool), False)):
            flags |= TransferFlag.NON_BLOCKING
        sites, frame = self._session.sites, caller_of(beyond_ours(sys._getframe(2)))
        site = sites.find(frame)
        users = frame if frame is not None and sites.is_user_code(frame.f_code) else None
        if users is None:
            flags |= TransferFlag.BY_LIBRARY
        if origin.type == "cpu":
            if users is not None and self._is_created_in_line(users, site):
                flags |= TransferFlag.CREATED_IN_LINE
            if self._was_pinned(source, site):
                flags |= TransferFlag.PINNED
            self._session.on_h2d_copy(source)
        size = result.numel() * result.element_size()
        self._session.emit(_TRANSFER, start, end, site, size, flags)

    def _is_created_in_line(self, frame: FrameType, site: int) -> bool:
        if site not in self._created_in_line:
            self._created_in_line[site] = is_created_in(self._session.sites.text_of(frame))
        return self._created_in_line[site]

    def _was_pinned(self, source: Any, site: int) -> bool:
        """Returns whether a host tensor is pinned, or the last one from the same line.

        torch's profiler would record `is_pinned`, and a dispatch mode of the script would see it.
        """
        if is_profiling() or self._modes.dispatch_depth():
            return self._pinned.get(site, True)
        try:
            self._pinned[site] = bool(source.is_pinned())
        except (RuntimeError, NotImplementedError):  # a device without pinned memory
            self._pinned[site] = False
        return self._pinned[site]

    def _note_device(self, device: Any) -> None:
        name = str(device)
        if name not in self._devices:
            self._devices.add(name)
            self._session.log.note(Topic.ENVIRONMENT, {"device": name})
            if self._session.accelerator is not None:
                self._session.accelerator.saw(device.type, device.index)

    def _placed(self, start: int, caller: FrameType | None, given: Arguments) -> None:
        session = self._session
        if session.on_copy_begin.watchers:  # mark the model's device
            self._note_device_of(given[0][0])
        end = session.phase_now()
        session.emit(_PLACEMENT, start, end, session.sites.find(caller))

    def _note_device_of(self, model: Any) -> None:
        parameter: Any = next(parameters_of(model), None)
        if type(parameter) in self.plain_types and not self._modes.would_notice():
            with self._modes.unseen():
                device = parameter.device
            if device.type not in ("cpu", "meta"):
                self._note_device(device)


def is_created_in(line: str) -> bool:
    """Returns whether all tensors that a line copies are created in it by torch's functions."""
    ends = (_end_of_call(line, creation.end()) for creation in _CREATES.finditer(line))
    copies = sum(_COPIES.match(line, end) is not None for end in ends)
    return 0 < copies == len(_COPIES.findall(line))


def _end_of_call(line: str, begin: int) -> int:
    """Returns the end of the call whose arguments start at `begin`, or the line's end."""
    depth = 1
    for at in range(begin, len(line)):
        depth += {"(": 1, ")": -1}.get(line[at], 0)
        if not depth:
            return at + 1
    return len(line)


_TRANSFER, _PLACEMENT = int(Kind.TRANSFER), int(Kind.PLACEMENT)
