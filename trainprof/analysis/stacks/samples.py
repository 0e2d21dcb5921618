"""Stack samples of threads, as inside/stacks/sampler.py takes them, and their places in code."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainprof.analysis.loading.fetches import Details
from trainprof.analysis.run.metadata import Sites, integers
from trainprof.analysis.timeline.events import Bool, Events, Int64, Nesting, ProcessLog
from trainprof.analysis.timeline.ledger import KEY, Attribution, Window, within
from trainprof.record.schema import FETCHED, Kind, StackFlag, Topic

# Fewer samples say little about a part of the run.
MIN_SAMPLES: Final = 8
# Standard errors of a share of samples.
CERTAIN: Final = 2.0
# Python before 3.12 runs comprehensions as functions with these names.
_COMPREHENSIONS: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

UNKNOWN, NO_TORCH, TORCH, LOSS = -1, 0, 1, 2

Texts = Mapping[Topic, Mapping[int, Any]]
# (site, function) of the user's frames, innermost first.
Frames = tuple[tuple[str, str], ...]
# The path of an installed module up to its name.
_INSTALLED: Final = re.compile(r".*/(?:(?:site|dist)-packages|python\d\.\d+)/")


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of a sample.

    Attributes:
        frames: Of the user's code.
        calls: From library to library below the innermost frame, outermost first: "PIL.Image
            (Image.rotate)".
    """

    frames: Frames = ()
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StackSamples:
    """Of one thread, in order; shape (n,).

    Attributes:
        is_known: Whether the thread was where it had been at the wanted moment.
        stack: Id of a STACK text, 0 without a frame of the user's.
        waits: Whether it waited there for another thread or process.
        held_ns: How long after the wanted moment Python code held the GIL; 0 if none ran.
        is_alone: Whether no other thread of the process ran Python code that could be it.
        runs: Whether it had a core, or waited for one, while the GIL was free.
        is_operator: Whether it computed without the GIL, in code of the user's, torch's or a
            library that uses torch.
        of_arrays: Whether it did so in a library that uses NumPy or SciPy without torch.
        torch: Between the parts of a step, whether its line computes with torch, by
            loss_in_loop.py: UNKNOWN, NO_TORCH, TORCH or LOSS.
    """

    wanted_ns: Int64
    taken_ns: Int64
    is_known: Bool
    stack: Int64
    waits: Bool
    held_ns: Int64
    is_alone: Bool
    runs: Bool
    is_operator: Bool
    of_arrays: Bool
    torch: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.taken_ns)

    def where(self, mask: Bool | Int64) -> StackSamples:
        return StackSamples(*(getattr(self, column.name)[mask] for column in fields(self)))


def thread_samples(details: Details, thread: int) -> StackSamples:
    rows = details[(details["kind"] == Kind.STACK_SAMPLE) & (details["thread"] == thread)]
    rows = rows[np.argsort(rows["end"], kind="stable")]

    def has(flag: StackFlag) -> Bool:
        is_set: Bool = (rows["flags"] & flag) > 0
        return is_set

    return StackSamples(
        wanted_ns=rows["start"].astype(np.int64),
        taken_ns=rows["end"].astype(np.int64),
        is_known=has(StackFlag.KNOWN),
        stack=rows["site"].astype(np.int64),
        waits=has(StackFlag.WAITS),
        held_ns=rows["value"].astype(np.int64),
        is_alone=~has(StackFlag.CROWDED),
        runs=has(StackFlag.RUNS),
        is_operator=has(StackFlag.OPERATOR),
        of_arrays=has(StackFlag.ARRAYS),
        torch=np.full(len(rows), UNKNOWN, dtype=np.int8),
    )


def distinct(samples: StackSamples) -> int:
    """Returns the number taken: a late sample stands for all that were due until then."""
    return len(np.unique(samples.taken_ns))


def sampled_threads(details: Details) -> list[int]:
    threads: list[int] = np.unique(details["thread"][details["kind"] == Kind.STACK_SAMPLE]).tolist()
    return threads


class LineNames:
    """Turns stacks into lines."""

    def __init__(self, texts: Texts, sites: Sites) -> None:
        self._stacks = texts[Topic.STACK]
        self._places = texts[Topic.SITE]
        self._sites = sites

    def stacks(self, ids: Int64, *, of_dataset: bool = False) -> Counter[Stack]:
        """Counts the stacks by ids of STACK texts; without their text they are empty.

        With `of_dataset` they are also empty outside of batch preparation in the user's code, and a
        library's dataset has only its calls.
        """
        counted = Counter[Stack]()
        for number, count in Counter(ids.tolist()).items():
            counted[self._stack(number, of_dataset=of_dataset)] += count
        return counted

    def frames(self, stack: int) -> Frames:
        """Returns the user's frames of one stack."""
        return self._stack(stack).frames

    def libraries(self, stack: int) -> tuple[str | None, str | None]:
        """Returns the package that a stack imports, "" if unknown, and the function that called the
        user's innermost frame; None without one, or if not recorded.
        """
        text = self._stacks.get(stack)
        first = text[0] if isinstance(text, list) and text else None
        pair = first if isinstance(first, list) and len(first) == 2 else (None, None)
        imported, caller = (x if isinstance(x, str) else None for x in pair)
        return imported, caller

    def _stack(self, stack: int, *, of_dataset: bool = False) -> Stack:
        frame_ids = self._stacks.get(stack)
        frame_ids = frame_ids if isinstance(frame_ids, list) else []
        numbers = [n for n in frame_ids if isinstance(n, int)]
        called = (n for ids in frame_ids if isinstance(ids, list) for n in integers(ids))
        calls = tuple(library_call(self._places.get(n)) for n in called)
        if of_dataset and numbers[:1] == [FETCHED]:
            return Stack((), calls)
        if of_dataset and FETCHED not in numbers:
            return Stack()
        frames = [(self._sites[n], self._function(n)) for n in numbers if n != FETCHED]
        while len(frames) > 1 and is_part_of(frames[0], frames[1]):
            frames[:2] = [(frames[0][0], frames[1][1])]
        return Stack(tuple(frames), calls)

    def _function(self, number: int) -> str:
        place = self._places.get(number)
        return str(place[2]) if isinstance(place, list) and len(place) > 2 else ""


def library_call(place: Any) -> str:
    """Returns a function of a library, by its module's public name: "zipfile (ZipExtFile.read)".

    Args:
        place: [file, line, qualified name], as a SITE text has it.
    """
    file, _, name = place if isinstance(place, list) and len(place) == 3 else ("", 0, "")
    path = _INSTALLED.sub("", str(file).replace(os.sep, "/")).removesuffix(".py")
    first, *inner = path.removesuffix("/__init__").split("/")
    public = takewhile(lambda part: not part.startswith("_"), inner)
    return f"{'.'.join([first, *public])} ({str(name).rpartition('<locals>.')[2]})"


def is_part_of(frame: tuple[str, str], caller: tuple[str, str]) -> bool:
    """Whether a (site, function) is a comprehension or a lambda in the function that runs it."""
    if frame[1] == "<lambda>":
        return frame[0].rpartition(":")[0] == caller[0].rpartition(":")[0]
    return frame[1] in _COMPREHENSIONS and function_of(*frame)[0] == function_of(*caller)[0]


def line_names(log: ProcessLog, cwd: Any) -> LineNames:
    texts = {topic: log.texts_of(topic) for topic in (Topic.STACK, Topic.SITE)}
    return LineNames(texts, Sites(texts[Topic.SITE], cwd if isinstance(cwd, str) else None))


@dataclass(frozen=True, slots=True)
class PartsOfLoop:
    """What the training thread did at any time, by ledger key."""

    events: Events
    nesting: Nesting
    attribution: Attribution
    window: Window

    def at(self, times: Int64) -> Int64:
        """Returns the key's number for each time, -1 outside of the training loop."""
        around = self.nesting.innermost(self.events, times)
        key = np.full(len(times), KEY["other"], dtype=np.int64)
        key[around >= 0] = self.attribution.key[around[around >= 0]]
        key[key < 0] = KEY["other"]
        key[within(self.attribution.segments, times)] = KEY["evaluation"]
        key[(times < self.window.loop_start) | (times >= self.window.loop_end)] = -1
        return key

    def keys_of(self, samples: StackSamples) -> tuple[Int64, Int64]:
        """Returns the keys where samples were taken and wanted; a loss in the loop is "loss"."""
        taken, wanted = self.at(samples.taken_ns), self.at(samples.wanted_ns)
        for key in (taken, wanted):
            key[(samples.torch == LOSS) & (key == KEY["other"])] = KEY["loss"]
        return taken, wanted


def concurrent_share(samples: StackSamples, parts: PartsOfLoop) -> float | None:
    """Returns the share of samples that met another running Python thread; None with too few."""
    inside = parts.at(samples.taken_ns) >= 0
    if np.count_nonzero(inside) < MIN_SAMPLES:
        return None
    return float(1 - samples.is_alone[inside].mean())


def least_share(share: float, samples: float) -> float:
    """Returns the lower bound of the time behind a share of samples, with 98 % certainty.

    Source:
        Wilson, Probable Inference, the Law of Succession, and Statistical Inference, 1927.
    """
    if samples <= 0:
        return 0.0
    square = CERTAIN**2 / samples
    spread = math.sqrt(share * (1 - share) * square + square**2 / 4)
    return max((share + square / 2 - spread) / (1 + square), 0.0)


def is_more(samples: int, others: int) -> bool:
    """Whether the difference of two numbers of samples is beyond chance."""
    return samples - others > CERTAIN * math.sqrt(samples + others)


def function_of(site: str, name: str) -> tuple[str, str]:
    """Returns what identifies a function: its file and its name."""
    return site.rpartition(":")[0], name
