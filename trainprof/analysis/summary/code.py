"""What is known of lines of code, and of how torch and others work beside them."""

from __future__ import annotations

import inspect
import tokenize
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from trainprof.record.names import site_name

if TYPE_CHECKING:
    from trainprof.analysis.run.process_name import ProcessName

# The part of lines in the preparation of batches, which is no ledger key.
MAKING: Final = "making batches"
NS_S: Final = 1e-9
MODULE_CODE: Final = "<module>"
# Compute capabilities (NVIDIA, CUDA C++ Programming Guide): of tensor cores, of TF32 and bfloat16.
TENSOR_CORES_FROM: Final = 7
TF32_FROM: Final = 8

# File, line, qualified name.
Place = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class HotLine:
    """A function of the user's that part of the run goes to, by looks at where threads stood.

    Attributes:
        part: Ledger key of the training thread's time.
        site: The line of the function that was met most, innermost of the user's own.
        function: Its name.
        called_from: The lines of the user's that it was called from, innermost first.
        looks: How many met it; 0 where `share` was worked out from that of another part.
        share: Of the part, all of the function's lines.
        line_share: Likewise that line's alone; None in older runs.
        seconds: That share of the part's time; None where that is not known.
        is_at_least: It may be more: at most moments nobody could look.
        is_line_known: Whether looks tell its line from the function's others; if not, it is one of
            those. True in older runs.
        is_likely: Most of the part seems to go to it; `share` is of looks that came too late.
        waits_share: Of the looks at its function, those that met it waiting for another thread or
            process; None in older runs, and where it was not asked for.
        is_end: Most of the part ends there, where Python lets others run: what takes long stands
            there or before it. `share` is of the looks that were wanted in the part.
        torch_share: Of the looks at its function, or at what the line calls, those that met torch
            computing; None in older runs, where that is not known, and of what is no code between
            the parts of a step.
        other_lines: The function's other lines with much of the part, and their shares of it.
        library_call: The function of a library, called by that line or below it, in which most
            samples met the line: "PIL.Image (Image.rotate)". None in older runs, and without one.
    """

    part: str
    site: str
    function: str
    called_from: list[str]
    looks: int
    share: float
    seconds: float | None
    is_at_least: bool = False
    line_share: float | None = None
    is_likely: bool = False
    waits_share: float | None = None
    is_end: bool = False
    torch_share: float | None = None
    is_line_known: bool = True
    other_lines: dict[str, float] = field(default_factory=dict)
    library_call: str | None = None


@dataclass(frozen=True, slots=True)
class HottestLine:
    """A line of the user's with the time that a step spends in it, without what it calls of theirs.

    Attributes:
        site: file:line.
        function: Its name.
        part: Ledger key, or "fetch" for the preparation of batches in workers.
        thread: "training" or "worker".
        share: Of a step, an interval: [low, high]. Of a worker's lines: of its own time.
        samples: Of stacks, that met it.
    """

    site: str
    function: str
    part: str
    thread: str
    share: list[float]
    samples: int

    @property
    def middle(self) -> float:
        """Of the interval."""
        return sum(self.share) / 2


@dataclass(frozen=True, slots=True)
class OutsideLine:
    """A line that start-up or shutdown goes to.

    Attributes:
        site: The user's file:line; None where none is on the stack (exit handlers).
        function: Its name; without a line the outermost function, with its package.
        seconds: With all that it calls, but for what has a line of its own.
        called_by: The library's function that called it, None where the user's code did.
        called_from: The user's lines that lead to it, innermost first.
    """

    site: str | None
    function: str
    seconds: float
    called_by: str | None = None
    called_from: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ImportTime:
    """What importing a package takes, with all that it imports itself.

    Attributes:
        package: As the user's code imports it; "standard library" for Python's own.
        site: The user's line with most of it.
    """

    package: str
    site: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class OutsideLoop:
    """What start-up or shutdown goes to, most time first, by samples of the main thread.

    Attributes:
        exit_s: Of shutdown, what comes after the exit handlers; None in start-up and if unknown.
    """

    lines: list[OutsideLine] = field(default_factory=list)
    imports: list[ImportTime] = field(default_factory=list)
    exit_s: float | None = None

    @property
    def imports_s(self) -> float:
        return sum(package.seconds for package in self.imports)


@dataclass(frozen=True, slots=True)
class PythonInModel:
    """Python code inside forward, loss and backward that is none of torch's operators.

    By looks at the training thread, once it has settled: torch's operators let others run Python
    meanwhile, other code (Python's own, NumPy's, a parser's) does not.

    Attributes:
        looks: At these parts.
        held: Of them, those that such code kept waiting for 0.1 ms or longer.
        seconds: Of the training phase, by ledger key, about: what lets others run more often is not
            counted.
        lines: Where it was, most looks first; shares are of those that tell it.
        behind: Where no line is known: the operator that comes behind it, at which most of those
            looks were let through.
        called_by_backward: Where no line is known: most of it is in hooks or custom Functions,
            which had ended by the time of the look.
    """

    looks: int
    held: int
    seconds: dict[str, float]
    lines: list[HotLine]
    behind: HotLine | None = None
    called_by_backward: bool = False

    @property
    def total_s(self) -> float:
        """Of all parts."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class ElementReads:
    """Values of host tensors that Python code inside the model reads one by one.

    Attributes:
        part: Ledger key: forward or loss.
        site: The line that reads most of them.
        per_pass: How many, in a pass that reads many.
        share: Of the part: the time from one read to the next, where that is short.
        seconds: Of the training phase, about.
    """

    part: str
    site: str
    per_pass: float
    share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LineCost:
    """What timing lines took: such a run is slower than the script alone, and gives no verdict.

    Attributes:
        functions: Whose lines were to be timed.
        processes: Those that reached one.
        hits: Timed lines reached, of all processes.
        overhead_ns: Added to each, as measured in the run; None where it was not.
        added_s: All together, summed over processes.
        traces_callees: Code that timed lines call was slowed, too: before Python 3.12, all that
            runs below a timed function is traced. How much that took is not known.
    """

    functions: int
    processes: int
    hits: int
    overhead_ns: float | None
    added_s: float | None
    traces_callees: bool = False


@dataclass(frozen=True, slots=True)
class Compilation:
    """What one line made torch compile, on the thread that trains.

    Attributes:
        site: The user's file:line that called what was compiled.
        count: How often, the parts of it that come later (its backward) not counted.
        seconds: All together, of the whole run.
        again: How many of them were of code that had been compiled before, in training.
        again_s: What those took, the evaluation's left out.
        most_versions: Of one piece of code.
        again_for: What changed then, most often first: number, shape; without what is unknown.
        again_idle_s: Of `again_s`, in which a device was not surely at work; None without one.
    """

    site: str
    count: int
    seconds: float
    again: int
    again_s: float
    most_versions: int
    again_idle_s: float | None = None
    again_for: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Collective:
    """Calls of torch.distributed by one line of the training loop.

    Attributes:
        site: The user's file:line.
        function: Its name, such as "all_reduce".
        count: Of calls.
        seconds: All together; waiting for other ranks is in it.
    """

    site: str
    function: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class UnsharedData:
    """A loader of which each of several ranks takes as many samples as all there are.

    Attributes:
        site: The user's file:line that built it, on all ranks.
        samples: Of the dataset, the same number on all ranks.
        ranks: So many.
    """

    site: str
    samples: int
    ranks: int


@dataclass(frozen=True, slots=True)
class OptimizerUse:
    """An optimizer, or several of one class that a line builds, in the training phase.

    Attributes:
        name: Of its class, such as "AdamW".
        site: The user's line that built it; None where that is not known.
        tensors: Parameters of one of them.
        groups: Of its param_groups; `settings`: with settings of their own.
        calls: Of step() outside of backward, by all of its class.
        spent_s: In all of these.
        is_torchs: One of torch.optim.
    """

    name: str
    site: str | None
    tensors: int
    groups: int
    settings: int = 1
    calls: int = 0
    spent_s: float = 0.0
    is_torchs: bool = True

    @property
    def seconds(self) -> float:
        return self.spent_s


@dataclass(frozen=True, slots=True)
class Operators:
    """The matrix products and convolutions of one forward pass on a device.

    Attributes:
        convolutions_2d: Of convolutions, those of pictures.
        lower: Of all, those in float16 or bfloat16, as autocast makes them.
        opaque: Compiled or recomputed parts whose products are not seen.
        mixes: Of "autocast" and "GradScaler", those that the user's files call.
    """

    matmuls: int = 0
    convolutions: int = 0
    convolutions_2d: int = 0
    lower: int = 0
    opaque: int = 0
    mixes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Numerics:
    """In what the model computes, as settings tell at the first update.

    Attributes:
        parameters: The type of most of them: "float32".
        products: On a device, torch's float32 matmul precision: "highest" is without TF32; else,
            and where it is not known, "unknown".
        sites: Lines of the user's that seem to make it float64, where it is that.
        capability: Compute capability of an NVIDIA device, [major, minor]; None: another device.
        convolutions_tf32: Whether cuDNN may use TF32; None: unknown.
        operators: None: unknown.
    """

    parameters: str
    products: str
    sites: list[str] = field(default_factory=list)
    capability: list[int] | None = None
    convolutions_tf32: bool | None = None
    operators: Operators | None = None

    @property
    def major(self) -> int:
        """Of the compute capability; 0 without one. From 7 on there are tensor cores."""
        return self.capability[0] if self.capability else 0

    @property
    def may_use_tf32(self) -> bool:
        """Whether TF32 is off and would speed up float32 matmuls on this device."""
        seen = self.operators
        is_off = self.products == "highest" and self.parameters == "float32"
        return self.major >= TF32_FROM and is_off and seen is not None and seen.matmuls > 0


def hottest(
    lines: Sequence[HotLine], part: str, leaving_out: Collection[str] = ()
) -> HotLine | None:
    """Returns the line that most of a part goes to, of those that are not left out."""
    lines_of_part = (line for line in lines if line.part == part and line.site not in leaving_out)
    return next(lines_of_part, None)


class LineTime(NamedTuple):
    """A line: its number, how often it was reached, and for how long in all, in ns."""

    line: int
    hits: int
    time: int


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text, each line ended by a newline.

    Attributes:
        has_changed: The file differs from it now.
    """

    lines: tuple[str, ...]
    has_changed: bool = False


@dataclass(frozen=True, slots=True)
class FunctionTimes:
    """A function's lines.

    Attributes:
        file, line, name: Where it begins, `name` qualified.
        why: Why it was timed: "profile", "dataset", ...
        source: Its file as it ran, None where that is lost.
        rows: In order of line, without those that were never reached; of all processes.
        unseen: Why there are no rows, in words.
    """

    file: str
    line: int
    name: str
    why: str
    source: Source | None
    rows: tuple[LineTime, ...]
    by_process: tuple[tuple[ProcessName, tuple[LineTime, ...]], ...] = ()
    unseen: str = "never called"

    @property
    def time(self) -> int:
        return sum(row.time for row in self.rows)


@dataclass(frozen=True, slots=True)
class LineProfile:
    """Line times of a run, functions in the order in which they were chosen.

    Attributes:
        cost: What timing took, None where nothing was timed.
        damage: One sentence per thing that is lost.
    """

    functions: tuple[FunctionTimes, ...]
    cost: LineCost | None = None
    cwd: str | None = None
    damage: tuple[str, ...] = ()

    def site(self, function: FunctionTimes) -> str:
        return site_name([function.file, function.line], self.cwd)

    def processes(self) -> list[ProcessName]:
        """Returns those that reached a timed line, main first."""
        names = {name for function in self.functions for name, _ in function.by_process}
        return sorted(names, key=lambda name: name.order)

    def timings(self) -> dict[Place, list[tuple[int, int, int]]]:
        """Returns the rows as line_profiler keeps them, which knows one text of each file."""
        summed: dict[Place, dict[int, tuple[int, int]]] = {}
        for function in self.functions:
            add_rows(
                summed.setdefault((function.file, function.line, function.name), {}), function.rows
            )
        return {
            place: [(line, *times) for line, times in sorted(pairs.items())]
            for place, pairs in summed.items()
        }


def arranged(profile: LineProfile, *, by_time: bool = False, top: int | None = None) -> LineProfile:
    """Returns the `top` slowest functions, or all; by time the slowest is last, as in kernprof."""
    functions = list(profile.functions)
    if top is not None:
        slowest = sorted(range(len(functions)), key=lambda at: -functions[at].time)[:top]
        functions = [functions[at] for at in sorted(slowest)]
    if by_time:
        functions.sort(key=lambda function: function.time)
    return replace(profile, functions=tuple(functions))


def of_process(profile: LineProfile, process: ProcessName) -> LineProfile:
    reached = [
        replace(function, rows=rows, by_process=((process, rows),))
        for function in profile.functions
        for name, rows in function.by_process
        if name == process
    ]
    return replace(profile, functions=tuple(reached))


def block(function: FunctionTimes) -> tuple[str, ...] | None:
    """Returns the function's own lines, from its first on; None where its text is lost.

    As long as kernprof makes it, or longer where a timed line lies behind.
    """
    if function.source is None:
        return None
    lines = function.source.lines[max(function.line - 1, 0) :]
    length = len(lines)
    if function.name != MODULE_CODE:
        try:
            length = len(inspect.getblock(lines))
        except (SyntaxError, tokenize.TokenError, ValueError):
            length = 1
    last = max((row.line for row in function.rows), default=0)
    return lines[: max(length, last - function.line + 1)]


def add_rows(total: dict[int, tuple[int, int]], rows: Iterable[LineTime]) -> None:
    """Adds hits and times of rows to those by line."""
    for line, hits, time in rows:
        before = total.get(line, (0, 0))
        total[line] = (before[0] + hits, before[1] + time)
