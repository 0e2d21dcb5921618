"""A recording with the timeline of its training process: what the parts of a summary come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainprof.analysis.lines.times import has_timed_functions
from trainprof.analysis.machine.host_ranks import HostPart
from trainprof.analysis.run.metadata import Metadata, number
from trainprof.analysis.run.place_names import Sites
from trainprof.analysis.run.recording import Recording
from trainprof.analysis.run.training_process import TrainingProcess
from trainprof.analysis.timeline.timeline import Timeline
from trainprof.record.schema import Kind

DEFAULT_WAIT_THRESHOLD_S: Final = 0.5
# A damaged manifest may hold any number: in ns, and times the batches, it must fit an int64.
LONGEST_THRESHOLD_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Analysed:
    """A recording with the timeline of its training process.

    Attributes:
        origin_ns, end_ns: Start and end of the run.
        host: What the process has of it.
        part: The epoch or the steps that the timeline is narrowed to, in words, or None.
    """

    recording: Recording
    process: TrainingProcess
    timeline: Timeline
    origin_ns: int
    end_ns: int
    host: HostPart
    part: str | None = None

    @property
    def metadata(self) -> Metadata:
        return self.process.metadata

    def sites(self) -> Sites:
        return self.metadata.sites(self.recording.manifest.get("cwd"))

    def wait_threshold_s(self) -> float:
        options = self.recording.section("options")
        told = number(options.get("wait_threshold_s"), DEFAULT_WAIT_THRESHOLD_S)
        return told if 0 <= told <= LONGEST_THRESHOLD_S else DEFAULT_WAIT_THRESHOLD_S

    def device_timing(self) -> str:
        """Returns how the device was timed, as Run has it."""
        if self.metadata.device() is None:
            return "cpu"
        return "synchronized" if self.synchronized() is not None else "async"

    def synchronized(self) -> tuple[int, float] | None:
        """Returns how often --cuda-sync waited for a device, and for how many seconds."""
        details = self.process.details
        told = details[details["kind"] == Kind.SYNCHRONIZED]
        if len(told) == 0:
            return None
        last = told[int(told["value"].argmax())]
        return int(last["value"]), (int(last["end"]) - int(last["start"])) / 1e9

    def has_timed_lines(self) -> bool:
        is_asked_for = bool(self.recording.section("options").get("lines"))
        return is_asked_for or any(map(has_timed_functions, self.recording.logs))
