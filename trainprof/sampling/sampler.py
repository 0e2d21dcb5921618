"""Samples host, process tree and GPUs into a run's `samples/`, from the supervisor's process.

Files with one JSON object a line; each has `t_ns` (the event logs' clock), the first `time_ns` too:
    host.jsonl       counters of the machine (see host.py), `interval_s`, `sampler_cpu_ns`
    processes.jsonl  `processes`: counters per process (see process_tree.py)
    states.jsonl     `states` of processes that read (see process_tree.py); only while one does
    gpus.jsonl       `gpus`: metrics per device (see gpu.py), `calls`, `call_ns`; only with a GPU
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from trainprof.record.run_directory import RunDirectory
from trainprof.sampling.clock import Clock
from trainprof.sampling.gpu import GpuReader
from trainprof.sampling.host import HostReader
from trainprof.sampling.loop import SampleLoop, SampleStream
from trainprof.sampling.process_tree import WATCH_INTERVAL_S, ProcessTree, ReadingWatch

# NVML's figures are means over 1/6 s and more.
MIN_GPU_INTERVAL_S: Final = 0.1
# Share of a core, while processes read.
MAX_STATE_TICK_SHARE: Final = 0.01
# A driver call mostly waits, and MetricPace makes slow ones less often.
MAX_GPU_TICK_SHARE: Final = 0.5


class Sampler:
    """Samples until it is stopped; a failure or a hanging call never reaches the caller.

    GPUs have their own thread: a driver call may take long or never return. The states of
    processes that read have one too: they are sampled more often.
    """

    def __init__(
        self,
        directory: RunDirectory,
        root_pid: int,
        interval_s: float,
        *,
        script_environ: Mapping[str, str] | None = None,
        gpu_reader: GpuReader | None = None,
    ) -> None:
        clock = self._clock = Clock()
        self._host = HostReader()
        self._tree = ProcessTree(root_pid)
        self._watch = ReadingWatch()
        gpu_interval_s = max(interval_s, MIN_GPU_INTERVAL_S)
        gpus = gpu_reader or GpuReader(environ=script_environ, interval_s=gpu_interval_s)
        self._gpus = gpus
        self._is_stopped = False
        samples = directory.samples
        host = SampleStream(samples / "host.jsonl", self._take_host, clock)
        processes = SampleStream(samples / "processes.jsonl", self._take_processes, clock)
        states = SampleStream(samples / "states.jsonl", self._watch.sample, clock)
        devices = SampleStream(samples / "gpus.jsonl", gpus.sample, clock, gpus.close)
        self._streams = (host, processes, states, devices)
        self._host_loop = SampleLoop((host, processes), interval_s, clock)
        self._state_loop = SampleLoop(
            (states,),
            min(interval_s, WATCH_INTERVAL_S),
            clock,
            max_tick_share=MAX_STATE_TICK_SHARE,
            pause_ns=self._watch.pause_ns,
        )
        self._gpu_loop = SampleLoop(
            (devices,), gpu_interval_s, clock, max_tick_share=MAX_GPU_TICK_SHARE
        )
        self._loops = (self._host_loop, self._state_loop, self._gpu_loop)

    @property
    def not_observed(self) -> dict[str, str]:
        """Reasons why sampling stopped: {"gpus": "NVML: ...", "host": "host.jsonl: ..."}."""
        reasons = {x.name: x.ended for x in self._streams if x.ended is not None}
        hanging_call = self._gpus.hanging_call if self._is_stopped else None
        return reasons if hanging_call is None else {**reasons, "gpus": hanging_call}

    @property
    def is_alive(self) -> bool:
        return any(loop.is_alive for loop in self._loops)

    def start(self) -> None:
        """Starts the threads; they take the first samples at once."""
        for loop in self._loops:
            loop.start()

    def stop(self, timeout_s: float) -> None:
        """Takes the last samples and stops; returns after `timeout_s` even if a call hangs."""
        deadline_s = time.monotonic() + timeout_s
        for loop in self._loops:
            loop.ask_to_stop()
        for loop in self._loops:
            loop.wait(deadline_s - time.monotonic())
        self._is_stopped = True

    def _take_host(self) -> dict[str, Any]:
        return {
            **self._host.sample(),
            "interval_s": self._host_loop.pace.interval_s,
            "sampler_cpu_ns": self._clock.thread_cpu_ns()
            + self._state_loop.cpu_ns
            + self._gpu_loop.cpu_ns,
        }

    def _take_processes(self) -> dict[str, Any] | None:
        sample = self._tree.sample()
        self._watch.choose(sample["processes"] if sample else ())
        return sample
