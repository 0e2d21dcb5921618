"""Samples every GPU through NVML. A machine without NVML or GPU is normal.

NVML's failures are not all `NVMLError`, so any `Exception` is caught, its reason recorded once, and
the metric left out.
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

# Once rare calls of one sample took this long, the others wait for the next sample: the last one,
# at the script's end, must not be late.
MAX_RARE_NS: Final = 100_000_000

# NVML's return codes after which the same call is not repeated ...
_NO_PERMISSION: Final = 4
_NOT_SUPPORTED: Final = 3
# ... but another function may work: function not found, version mismatch, deprecated.
_NOT_OFFERED: Final = frozenset({_NOT_SUPPORTED, 13, 25, 26})
# Driver not loaded, GPU is lost, reset required, GPU not found.
_LOST: Final = frozenset({9, 15, 16, 28})


def load_nvml() -> Any:
    """Returns pynvml, imported only when GPUs are sampled."""
    import pynvml

    return pynvml


class Calls:
    """Counts and times calls to the driver; knows the one under way."""

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
        return f"{what}: no answer for {(self._now_ns() - since_ns) / NS_PER_S:.1f} s"

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
    """Reads every GPU that NVML lists, whatever CUDA_VISIBLE_DEVICES is.

    Calls run on the thread that calls `sample`, and may block. `load` returns the module to call;
    `environ` is the script's, for the GPUs that it sees.
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
    def hanging_call(self) -> str | None:
        """The call that has not returned, in words, else None."""
        return self._calls.under_way

    def sample(self) -> dict[str, Any]:
        """Returns `gpus`, an entry per device, and the totals `calls` and `call_ns`.

        Raises NothingToSample without NVML or a GPU, or if all are lost.
        """
        if self._nvml is None:
            self._open()
        present = [device for device in self._devices if not device.lost]
        present += [device for device in self._devices if device.lost and device.has_news]
        if not present:
            raise NothingToSample("all GPUs are lost")
        tick_ns = self._now_ns()
        for device in present:
            device.begin(tick_ns)
        self._ask_rare(present, tick_ns)
        entries = sorted((device.end() for device in present), key=lambda entry: entry["index"])
        return {"gpus": entries, "calls": self._calls.count, "call_ns": self._calls.total_ns}

    def close(self) -> None:
        """Shuts NVML down, ignoring failures."""
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
            raise NothingToSample("NVML lists no GPU")
        self._devices = [
            GpuDevice(nvml, index, self._calls, self._now_ns, self._interval_ns, count)
            for index in range(count)
        ]
        numbers = numbering([device.listed for device in self._devices], self._environ)
        for device in self._devices:
            device.take_number(numbers)

    def _ask_rare(self, present: list[GpuDevice], tick_ns: int) -> None:
        """Makes rare calls that are due, the longest overdue first, until time is up."""
        due = [(pace.next_ns, ask) for device in present for pace, ask in device.rare(tick_ns)]
        due.sort(key=lambda call: call[0])
        first_ns = self._now_ns()
        for _, ask in due:
            ask()
            if self._now_ns() - first_ns > MAX_RARE_NS:
                break


class GpuDevice:
    """One GPU: its identity and limits, read once, and its metrics.

    A `lost` one is not called again; `listed` is for the script's numbering.
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
            None
            if instances is None
            else tuple(
                MigInstance(x["uuid"], x["gpu_instance"], x["compute_instance"]) for x in instances
            ),
        )
        self._asked = [_AskedMetric(metric, interval_ns, devices) for metric in METRICS]

    @property
    def has_news(self) -> bool:
        """Returns whether a reason is not in an entry yet."""
        return bool(self._unreported)

    def take_number(self, numbers: Numbering) -> None:
        """Adds the script's device numbers to the next entry."""
        self._news["logical_index"] = numbers.devices[self._index]
        self._news["is_visible"] = numbers.is_visible[self._index]
        self._news["is_number_assumed"] = numbers.is_assumed
        for instance in self._news["mig"] or ():
            instance["logical_index"] = numbers.instances.get(instance["uuid"])

    def begin(self, tick_ns: int) -> None:
        """Begins an entry with the metrics of every sample."""
        self._entry = {**self._identity, "t_ns": self._now_ns()}
        for asked in self._asked:
            if asked.metric.tier is Tier.EVERY_SAMPLE and asked.is_due(tick_ns):
                self._read(asked, tick_ns)

    def rare(self, tick_ns: int) -> Iterator[tuple[MetricPace, Callable[[], None]]]:
        """Yields the rare calls that are due, each with its pace."""
        for asked in self._asked:
            if asked.metric.tier is Tier.RARE and asked.is_due(tick_ns):
                yield asked.pace, partial(self._read, asked, tick_ns)

    def end(self) -> dict[str, Any]:
        """Returns the entry: identity and metrics, None for those without an answer.

        `not_observed` {metric: reason} is in the first entry after the failure.
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
            return None  # most GPUs have no MIG
        if not self._is_divided:
            return None
        return self._read_once("mig", mig_instances) or []

    def _read_once(self, name: str, read: Callable[[Any, Any], Any]) -> Any:
        return self._ask(name, partial(read, self._nvml, self._handle))

    def _read(self, asked: _AskedMetric, tick_ns: int) -> None:
        """Adds one metric to the entry; None, and the reason, if it fails."""
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
        """Returns the call's result; None if it fails, with the reason recorded."""
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
    """A metric of one device: the reading that works, and when it is due."""

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
        """Records a failure; returns whether there is another reading to try now."""
        code = getattr(error, "value", None)
        # An error without a code comes from pynvml and will be the same next time.
        is_not_offered = code is None or code in _NOT_OFFERED
        if is_not_offered and self._number + 1 < len(self.metric.readings):
            self._number += 1
            return True
        self.is_silent = is_not_offered or code == _NO_PERMISSION
        return False


def describe(error: Exception) -> str:
    """Returns an error in one line, its type if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
