"""Lines of code with their time, and what torch and others do there."""

from __future__ import annotations

import inspect
import tokenize
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from trainprof.record.names import site_name

if TYPE_CHECKING:
    from trainprof.analysis.run.process_name import ProcessName

# The part of lines in batch preparation, which is not a ledger key.
PREPARATION: Final = "batch preparation"
NS_S: Final = 1e-9
# Of a field's metadata: its key in summary.json, where that is not its name.
JSON_KEY: Final = "json_key"
MODULE_CODE: Final = "<module>"
# Compute capabilities (NVIDIA, CUDA C++ Programming Guide): of tensor cores, of TF32 and bfloat16.
TENSOR_CORES_FROM: Final = 7
TF32_FROM: Final = 8

# File, line, qualified name.
Place = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class HotLine:
    """A function of your code that part of the run goes to, by stack samples.

    Attributes:
        part: Ledger key of the training thread's time.
        site: The function's line with most samples, innermost of your code.
        function: Its name.
        called_from: The lines of your code that called it, innermost first.
        samples: Of stacks; 0 where `share` was computed from that of another part.
        share: Of the part, all of the function's lines.
        line_share: The same for that line; None in older runs.
        seconds: That share of the part's time; None where unknown.
        is_at_least: It may be more: most samples came late, while the GIL was held.
        is_line_known: Whether samples separate its line from the function's others. True in older
            runs.
        is_likely: Most of the part seems to go to it; `share` is of samples that came late.
        waits_share: Of its function's samples, those waiting for another thread or process; None in
            older runs, and where not computed.
        is_end: Most of the part ends there, where Python releases the GIL: what takes long is there
            or before it. `share` is of the samples due in the part.
        torch_share: Of its function's samples, or of what the line calls, those in torch's
            operators; None where unknown, and outside of Python between the parts of a step.
        other_lines: The function's other lines with much of the part, and their shares of it.
        library_call: The library's function that most samples of the line are in:
            "PIL.Image (Image.rotate)". None in older runs, and without one.
    """

    part: str
    site: str
    function: str
    called_from: list[str]
    samples: int = field(metadata={JSON_KEY: "looks"})
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
    """A line of your code with its self time in a step.

    Attributes:
        site: file:line.
        function: Its name.
        part: Ledger key, or "fetch" for batch preparation in workers.
        thread: "training" or "worker".
        share: Of a step, an interval: [low, high]. Of a worker's lines: of the worker's time.
        samples: Stack samples at it.
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
        site: Your file:line; None where none is on the stack (exit handlers).
        function: Its name; without a line the outermost function, with its package.
        seconds: With its callees, except those with a line here.
        called_by: The library's function that called it, None where your code did.
        called_from: Your lines that lead to it, innermost first.
    """

    site: str | None
    function: str
    seconds: float
    called_by: str | None = None
    called_from: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ImportTime:
    """The time of importing a package, with all that it imports.

    Attributes:
        package: As your code imports it; "standard library" for Python's modules.
        site: Your line with most of it.
    """

    package: str
    site: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class OutsideLoop:
    """What start-up or shutdown goes to, most time first, by samples of the main thread.

    Attributes:
        exit_s: The part of shutdown after the exit handlers; None in start-up and if unknown.
    """

    lines: list[OutsideLine] = field(default_factory=list)
    imports: list[ImportTime] = field(default_factory=list)
    exit_s: float | None = None

    @property
    def imports_s(self) -> float:
        return sum(package.seconds for package in self.imports)


@dataclass(frozen=True, slots=True)
class PythonInModel:
    """Python code inside forward, loss and backward that is not in torch's operators.

    By steady stack samples of the training thread: torch's operators release the GIL, other code
    (Python, NumPy, a parser) holds it.

    Attributes:
        samples: Of stacks, in these parts.
        held: Of them, those that waited 0.1 ms or longer for the GIL.
        seconds: Of the training phase, by ledger key, an estimate: code that releases the GIL more
            often is not counted.
        lines: Where it was, most samples first; shares are of the samples that show a line.
        behind: If no line is known: the operator after it, where most of those samples succeeded.
        called_by_backward: If no line is known: most of it is in hooks or custom Functions, which
            had returned by the time of the sample.
    """

    samples: int = field(metadata={JSON_KEY: "looks"})
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
    """Values of CPU tensors that Python code inside the model reads one by one.

    Attributes:
        part: Ledger key: forward or loss.
        site: The line that reads most of them.
        per_pass: Their number in a forward or loss that reads thousands.
        share: Of the part: the time from one read to the next, where that is short.
        seconds: Of the training phase, an estimate.
    """

    part: str
    site: str
    per_pass: float
    share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class LineCost:
    """The cost of timing lines: such a run is slower than the script alone, and has no verdict.

    Attributes:
        functions: Number of functions with timed lines.
        processes: Those that reached one.
        hits: Timed lines reached, of all processes.
        overhead_ns: Added to each, as measured in the run, or None.
        added_s: The sum over processes.
        traces_callees: Code called by timed lines was slowed by an unknown time, too: before
            Python 3.12, all that runs below a timed function is traced.
    """

    functions: int
    processes: int
    hits: int
    overhead_ns: float | None
    added_s: float | None
    traces_callees: bool = False


@dataclass(frozen=True, slots=True)
class Compilation:
    """Compilations by torch.compile for one line, on the training thread.

    Attributes:
        site: Your file:line that called the compiled code.
        count: Their number, without later parts (the backward).
        seconds: Their sum over the whole run.
        again: Recompilations in training.
        again_s: Their time, without evaluation's.
        most_versions: Of one piece of code.
        again_for: What changed then, most often first: number, shape; without what is unknown.
        again_idle_s: Of `again_s`, in which a GPU may have been idle; None without one.
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
        site: Your file:line.
        function: Its name, such as "all_reduce".
        count: Of calls.
        seconds: Their sum, with waiting for other ranks.
    """

    site: str
    function: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class UnsharedData:
    """A loader of which each of several ranks draws the whole dataset.

    Attributes:
        site: Your file:line that built it, on all ranks.
        samples: Of the dataset, the same number on all ranks.
        ranks: Number of ranks.
    """

    site: str
    samples: int
    ranks: int


@dataclass(frozen=True, slots=True)
class OptimizerUse:
    """An optimizer, or several of one class that a line builds, in the training phase.

    Attributes:
        name: Of its class, such as "AdamW".
        site: Your line that built it, or None.
        tensors: Parameters of one of them.
        groups: Number of its param_groups.
        settings: Number of different settings among those.
        calls: Of step() outside of backward, by all of its class.
        spent_s: In all of these calls.
        is_torchs: It is one of torch.optim.
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
        lower: Of all, those in float16 or bfloat16, as with autocast.
        opaque: Compiled or recomputed parts, whose products are hidden.
        mixes: Of "autocast" and "GradScaler", those that your files call.
    """

    matmuls: int = 0
    convolutions: int = 0
    convolutions_2d: int = 0
    lower: int = 0
    opaque: int = 0
    mixes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Numerics:
    """Number formats of the model's computation, from settings at the first update.

    Attributes:
        parameters: The type of most of them: "float32".
        products: On a GPU, torch's float32 matmul precision ("highest" is without TF32), or
            "unknown".
        sites: Lines of your code that seem to make it float64, if it is.
        capability: Compute capability of an NVIDIA GPU, [major, minor]; None: another device.
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
        """Whether TF32 is off and would speed up float32 matmuls on this GPU."""
        seen = self.operators
        is_off = self.products == "highest" and self.parameters == "float32"
        return self.major >= TF32_FROM and is_off and seen is not None and seen.matmuls > 0


def hottest(
    lines: Sequence[HotLine], part: str, leaving_out: Collection[str] = ()
) -> HotLine | None:
    """Returns the line that most of a part goes to, without those left out."""
    lines_of_part = (line for line in lines if line.part == part and line.site not in leaving_out)
    return next(lines_of_part, None)


class LineTime(NamedTuple):
    """A line: its number, hits, and total time, ns."""

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
        source: Its file as it ran, or None.
        rows: In order of line, of all processes, without lines never reached.
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
    """Line times of a run, functions in the order of selection.

    Attributes:
        cost: Of timing, None where nothing was timed.
        damage: One sentence per lost part.
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
        """Returns the rows as line_profiler keeps them, with one text per file."""
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
    """Returns the function's lines, as kernprof shows them; None where its text is lost.

    More lines where a timed line comes after those.
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
