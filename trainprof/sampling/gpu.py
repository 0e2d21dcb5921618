"""What NVML shows of every GPU. No NVML, or no GPU, is normal.

NVML's failures are of many kinds, and not all are `NVMLError`: here `Exception` is caught, the
reason kept once, and the metric left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from trainprof.sampling.clock import NS_PER_S, Clock
from trainprof.sampling.gpu_mapping import MigInstance, Numbering, NvmlDevice, numbering
from trainprof.sampling.gpu_metrics import (
    IDENTITY,
    METRICS,
    Metric,
    MetricPace,
    Tier,
    is_mig_enabled,
    mig_instances,
)
from trainprof.sampling.loop import NothingToSample

# Seldom calls that are due wait for the next sample once one has taken so long: the last sample,
# at the script's end, must not be late.
MAX_SELDOM_NS: Final = 100_000_000

# NVML's return codes that the next call will not mend ...
_NO_PERMISSION: Final = 4
_NOT_SUPPORTED: Final = 3
# ... but perhaps another way to ask: function not found, version mismatch, deprecated.
_NOT_OFFERED: Final = frozenset({_NOT_SUPPORTED, 13, 25, 26})
# Driver not loaded, GPU is lost, reset required, GPU not found.
_LOST: Final = frozenset({9, 15, 16, 28})


def load_nvml() -> Any:
    """Returns the module that speaks to NVML; imported only where GPUs are sampled."""
    import pynvml

    return pynvml


class Calls:
    """The calls made to the driver: how many, how long they took, and which one is under way."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.count = 0
        self.total_ns = 0
        self.last_ns = 0
        self._now_ns = now_ns
        self._under_way: tuple[str, int] | None = None

    @property
    def under_way(self) -> str | None:
        asking = self._under_way
        if asking is None:
            return None
        what, since_ns = asking
        return f"{what} has not been answered for {(self._now_ns() - since_ns) / NS_PER_S:.1f} s"

    def ask(self, what: str, call: Callable[[], Any]) -> Any:
        started_ns = self._now_ns()
        self._under_way = what, started_ns
        try:
            return call()
        finally:
            self._under_way = None
            self.last_ns = self._now_ns() - started_ns
            self.total_ns += self.last_ns
            self.count += 1


class GpuReader:
    """Reads every GPU that NVML shows, whatever CUDA_VISIBLE_DEVICES says.

    All calls are made from the thread that calls `sample`; each may block. `load` returns the
    module to call; the script's `environ` says which GPUs the script sees.
    """

    def __init__(
        self,
        load: Callable[[], Any] = load_nvml,
        *,
        environ: Mapping[str, str] | None = None,
        interval_s: float = 0.5,
        clock: Clock | None = None,
    ) -> None:
        self._load = load
        self._environ = environ or {}
        self._interval_ns = int(interval_s * NS_PER_S)
        self._now_ns = (clock or Clock()).now_ns
        self._calls = Calls(self._now_ns)
        self._nvml: Any = None
        self._devices: list[GpuDevice] = []

    @property
    def hangs_in(self) -> str | None:
        """The call that has not returned, in words, or None."""
        return self._calls.under_way

    def sample(self) -> dict[str, Any]:
        """Returns `gpus`, an entry per device, and the totals `calls` and `call_ns`.

        NothingToSample if there is no NVML, no GPU, or none is left.
        """
        if self._nvml is None:
            self._open()
        present = [device for device in self._devices if not device.lost]
        present += [device for device in self._devices if device.lost and device.has_news]
        if not present:
            raise NothingToSample("every GPU is lost")
        tick_ns = self._now_ns()
        for device in present:
            device.begin(tick_ns)
        self._ask_seldom(present, tick_ns)
        entries = sorted((device.end() for device in present), key=lambda entry: entry["index"])
        return {"gpus": entries, "calls": self._calls.count, "call_ns": self._calls.total_ns}

    def close(self) -> None:
        """Gives NVML back; its own failure is of no interest any more."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()

    def _open(self) -> None:
        try:
            nvml = self._calls.ask("loading NVML", self._load)
            self._calls.ask("NVML's start", nvml.nvmlInit)
            count = self._calls.ask("the number of GPUs", nvml.nvmlDeviceGetCount)
        except Exception as error:
            raise NothingToSample(f"NVML: {describe(error)}") from error
        self._nvml = nvml
        if count == 0:
            raise NothingToSample("NVML shows no GPU")
        self._devices = [
            GpuDevice(nvml, index, self._calls, self._now_ns, self._interval_ns, count)
            for index in range(count)
        ]
        numbers = numbering([device.listed for device in self._devices], self._environ)
        for device in self._devices:
            device.take_number(numbers)

    def _ask_seldom(self, present: list[GpuDevice], tick_ns: int) -> None:
        """Asks what is due, the longest overdue first, as far as there is time."""
        due = [(pace.next_ns, ask) for device in present for pace, ask in device.seldom(tick_ns)]
        due.sort(key=lambda call: call[0])
        first_ns = self._now_ns()
        for _, ask in due:
            ask()
            if self._now_ns() - first_ns > MAX_SELDOM_NS:
                break


class GpuDevice:
    """One GPU: its identity and limits, read once, and its metrics.

    Of one that is `lost` no further call is made; `listed` is as the script's numbering needs it.
    """

    def __init__(
        self,
        nvml: Any,
        index: int,
        calls: Calls,
        now_ns: Callable[[], int],
        interval_ns: int,
        devices: int,
    ) -> None:
        self.lost = False
        self._nvml = nvml
        self._index = index
        self._calls = calls
        self._now_ns = now_ns
        self._reported: set[str] = set()
        self._unreported: dict[str, str] = {}
        self._entry: dict[str, Any] = {}
        self._is_divided = False
        self._handle = self._ask("handle", lambda: nvml.nvmlDeviceGetHandleByIndex(index))
        self._identity: dict[str, Any] = {"index": index}
        self._identity |= {name: self._read_once(name, read) for name, read in IDENTITY.items()}
        instances = self._mig()
        self._news: dict[str, Any] = {"mig": instances}
        self.listed = NvmlDevice(
            self._identity["uuid"],
            None if instances is None else tuple(map(_instance, instances)),
        )
        self._asked = [_AskedMetric(metric, interval_ns, devices) for metric in METRICS]

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell that no entry has told yet."""
        return bool(self._unreported)

    def take_number(self, numbers: Numbering) -> None:
        """Takes in the numbers that the script gives the devices; the next entry has them."""
        self._news["logical_index"] = numbers.devices[self._index]
        self._news["is_visible"] = numbers.is_visible[self._index]
        self._news["is_number_assumed"] = numbers.is_assumed
        for instance in self._news["mig"] or ():
            instance["logical_index"] = numbers.instances.get(instance["uuid"])

    def begin(self, tick_ns: int) -> None:
        """Begins an entry with what is asked at every sample."""
        self._entry = {**self._identity, "t_ns": self._now_ns()}
        for asked in self._asked:
            if asked.metric.tier is Tier.EVERY_SAMPLE and asked.is_due(tick_ns):
                self._read(asked, tick_ns)

    def seldom(self, tick_ns: int) -> Iterator[tuple[MetricPace, Callable[[], None]]]:
        """Yields the dear calls that are due, each with its pace."""
        for asked in self._asked:
            if asked.metric.tier is Tier.SELDOM and asked.is_due(tick_ns):
                yield asked.pace, partial(self._read, asked, tick_ns)

    def end(self) -> dict[str, Any]:
        """Returns the entry: identity, and the metrics asked for, None where not answered.

        `not_observed` {metric: reason} stands in the first entry after a reason came up.
        """
        entry = {**self._entry, **self._news}
        self._entry, self._news = {}, {}
        if self._unreported:
            entry["not_observed"], self._unreported = self._unreported, {}
        return entry

    def _mig(self) -> list[dict[str, Any]] | None:
        if self.lost:
            return None
        try:
            asked = partial(is_mig_enabled, self._nvml, self._handle)
            self._is_divided = self._calls.ask(f"MIG mode of GPU {self._index}", asked)
        except Exception:
            return None  # most GPUs know of no MIG: nothing is missing there
        if not self._is_divided:
            return None
        return self._read_once("mig", mig_instances) or []

    def _read_once(self, name: str, read: Callable[[Any, Any], Any]) -> Any:
        return self._ask(name, partial(read, self._nvml, self._handle))

    def _read(self, asked: _AskedMetric, tick_ns: int) -> None:
        """Puts what one metric tells into the entry; None, and the reason, where it fails."""
        if self.lost:
            return
        metric, answer = asked.metric, None
        while answer is None and not asked.is_silent:
            try:
                answer = self._calls.ask(
                    f"{metric.name} of GPU {self._index}",
                    partial(asked.reading, self._nvml, self._handle),
                )
            except Exception as error:
                if not asked.try_next_reading(error):
                    self._keep_reason(metric.name, error)
                    break
        asked.pace.asked(tick_ns, self._calls.last_ns, is_answered=answer is not None)
        self._entry.update(answer or dict.fromkeys(metric.keys))

    def _ask(self, name: str, call: Callable[[], Any]) -> Any:
        """Returns what `call` returns, or None and keeps the reason."""
        if self.lost:
            return None
        try:
            return self._calls.ask(f"{name} of GPU {self._index}", call)
        except Exception as error:
            self._keep_reason(name, error)
            return None

    def _keep_reason(self, name: str, error: Exception) -> None:
        reason = describe(error)
        code = getattr(error, "value", None)
        if code in _LOST:
            self.lost, name = True, "gpu"
        elif code == _NOT_SUPPORTED and self._is_divided:
            reason = f"{reason} (MIG is on)"
        if name not in self._reported:
            self._reported.add(name)
            self._unreported[name] = reason


class _AskedMetric:
    """A metric of one device: which of its readings is offered, and when it is due."""

    def __init__(self, metric: Metric, interval_ns: int, devices: int) -> None:
        self.metric = metric
        self.pace = MetricPace(metric.tier, interval_ns, devices)
        self.is_silent = False
        self._number = 0

    @property
    def reading(self) -> Callable[[Any, Any], dict[str, Any]]:
        return self.metric.readings[self._number]

    def is_due(self, tick_ns: int) -> bool:
        return not self.is_silent and self.pace.is_due(tick_ns)

    def try_next_reading(self, error: Exception) -> bool:
        """Takes in a failure; tells whether there is another reading to try at once."""
        code = getattr(error, "value", None)
        # An error that is not NVML's own comes from the binding: it will be there next time.
        is_not_offered = code is None or code in _NOT_OFFERED
        if is_not_offered and self._number + 1 < len(self.metric.readings):
            self._number += 1
            return True
        self.is_silent = is_not_offered or code == _NO_PERMISSION
        return False


def describe(error: Exception) -> str:
    """Returns an error in one line; some of NVML's have no text."""
    return " ".join(str(error).split()) or type(error).__name__


def _instance(entry: Mapping[str, Any]) -> MigInstance:
    return MigInstance(entry["uuid"], entry["gpu_instance"], entry["compute_instance"])
