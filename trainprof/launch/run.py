"""One profiled run, from the command to the script's end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from trainprof.inside.start import site_directory
from trainprof.launch.deadline import Deadline, Lingering, TimeToEnd, TrialWatch
from trainprof.launch.manifest import closed_manifest, kill_detail, opening_manifest, script_of
from trainprof.launch.options import RunOptions, script_environment
from trainprof.launch.outcome import Outcome
from trainprof.launch.placement import create_run_directory, run_name
from trainprof.launch.sources import needs_profile
from trainprof.launch.supervisor import Supervisor
from trainprof.launch.target import resolve
from trainprof.record.errors import TrainprofError
from trainprof.record.files import FEWEST_OPEN_FILES, too_few_open_files
from trainprof.record.last_stacks import read_last_stacks, stack_paths
from trainprof.record.limit_met import forget_limits
from trainprof.record.masking import masked_text, secret_values
from trainprof.record.names import ENV_DIRECTORY, MAX_TIME, NAME_TAKEN
from trainprof.record.run_directory import RunDirectory, write_json

if TYPE_CHECKING:
    from trainprof.launch.progress import ProgressThread
    from trainprof.sampling.descendants import Orphans
    from trainprof.sampling.sampler import Sampler

SAMPLER_STOP_TIMEOUT_S: Final = 0.5
PROGRESS_STOP_TIMEOUT_S: Final = 0.5
# The kill itself frees memory, which the last sample may have seen already.
SAMPLES_BEFORE_END: Final = 2
SAMPLE_TAIL_BYTES: Final = 1 << 16
# A second request to end within this time is part of the first.
ONE_END_NS: Final = 60_000_000_000


class CannotStart(TrainprofError):
    slug: ClassVar[str] = "cannot-start"
    exit_code: ClassVar[int] = 125


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run whose script has ended.

    Attributes:
        outcome: How the script ended; status 0 where it was ended at --max-time.
        faults: What failed in trainprof during the run.
        is_overdue: It was ended: at its time limit, or because it did not end by itself.
        left_running: Names of a trial's processes that were ended after the script.
        is_full: A trial was killed, or the file system that takes its files would be full.
    """

    directory: RunDirectory
    outcome: Outcome
    rank: int | None
    faults: tuple[str, ...]
    is_overdue: bool = False
    left_running: tuple[str, ...] = ()
    is_full: bool = False


def run(
    options: RunOptions,
    *,
    at_start: Callable[[RunDirectory], None] | None = None,
    at_end: Callable[[RunDirectory, Outcome], None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> FinishedRun:
    """Runs the target under observation; once it has started, nothing of ours stops it.

    `at_start` is called just before the script starts; `at_end` after its end, while signals are
    still held back; `progress` with live lines, where `options` asks for them. TrainprofError if
    the script was not started.
    """
    target = resolve(options.words, options.module)
    environ = dict(os.environ)
    directory = create_run_directory(
        options.output,
        target.stem,
        environ,
        time_ns=time.time_ns(),
        replaces=options.replaces_output,
    )
    _note_in_outer_run(environ, directory)
    console = directory.console if options.keeps_console else None
    if console is not None:
        console.mkdir(mode=0o700)
    recording = Recording(directory, options, progress)
    with Supervisor(target) as supervisor, _orphans(directory, options, supervisor) as orphans:
        spawned_ns, spawned_time_ns = time.perf_counter_ns(), time.time_ns()
        manifest = opening_manifest(
            target, options, environ, run_name(directory), spawned_ns, spawned_time_ns
        )
        _write_first(directory, manifest)
        if at_start is not None:
            at_start(directory)
        child_options = {
            **options.child_options(spawned_ns=spawned_ns, cwd=manifest["cwd"]),
            "throttle_file": recording.throttle_file(),
            "profile": needs_profile(script_of(target, environ)),
        }
        environment = script_environment(
            {**environ, **options.environment},
            directory=str(directory.path),
            options=child_options,
            site_directory=site_directory(),
        )
        pid = supervisor.spawn(environment, console, before=options.before)
        watch = None if options.trial is None else TrialWatch(pid, manifest["cwd"] or os.sep)
        deadline = _deadline(pid, directory, options, watch, recording.keep_stacks)
        recording.start(pid, manifest, environment)
        reap = None if orphans is None else lambda: orphans.reap(pid)
        outcome = supervisor.wait(reap, recording.keep_stacks)
        is_overdue = deadline.cancel()
        is_at_limit = is_overdue and options.trial is None
        recording.finish(outcome, limit=MAX_TIME if is_at_limit else None)
        if is_at_limit:  # as where it ends at a step
            outcome = replace(outcome, status=0, signal=None)
        left_running = () if orphans is None else recording.ended(orphans)
        if console is not None:
            recording.mask(console, secret_values(target.words, environ))
        if at_end is not None:
            at_end(directory, outcome)
    is_full = watch is not None and watch.is_full
    faults = tuple(recording.faults)
    return FinishedRun(
        directory, outcome, manifest["rank"], faults, is_overdue, left_running, is_full
    )


@contextmanager
def _orphans(
    directory: RunDirectory, options: RunOptions, supervisor: Supervisor
) -> Iterator[Orphans | None]:
    """Watches the processes that a trial starts; those of other runs are left alone."""
    if options.trial is None:
        yield None
        return
    from trainprof.sampling.descendants import Orphans

    with Orphans(str(directory.path), helpers=supervisor.helpers) as orphans:
        yield orphans


def _deadline(
    pid: int,
    directory: RunDirectory,
    options: RunOptions,
    watch: TrialWatch | None,
    before_end: Callable[[], None],
) -> Deadline:
    if watch is None:
        more_time = TimeToEnd(directory)
        return Deadline(pid, options.max_time_s, more_time=more_time, before_end=before_end)
    lingering = Lingering(directory)
    return Deadline(
        pid,
        options.ended_after_s,
        lingers=lambda: watch.must_end() or lingering.is_over(),
        before_end=before_end,
    )


def _note_in_outer_run(environ: Mapping[str, str], directory: RunDirectory) -> None:
    """Notes in the run of a trainprof that we run under where this script is recorded."""
    outer = RunDirectory(Path(environ.get(ENV_DIRECTORY, "")))
    if not outer.path.is_absolute():
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        descriptor = os.open(outer.inner_runs, flags, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(json.dumps(str(directory.path)) + "\n")


def _write_first(directory: RunDirectory, manifest: dict[str, Any]) -> None:
    try:
        write_json(directory.manifest, manifest)
    except OSError as error:
        raise CannotStart(
            f"{directory.path} cannot be written: {error.strerror}",
            hint="choose another directory with -o",
        ) from error


@dataclass(slots=True)
class Recording:
    """The supervisor's own record of a run: samples and manifest. Its failures become faults."""

    directory: RunDirectory
    options: RunOptions
    progress: Callable[[str], None] | None = None
    faults: list[str] = field(default_factory=list)
    _manifest: dict[str, Any] = field(default_factory=dict)
    _sampler: Sampler | None = None
    _progress_thread: ProgressThread | None = None
    _oom_kills_before: int | None = None
    _stacks: dict[str, Any] | None = None

    def throttle_file(self) -> str | None:
        """Returns the kernel's file on throttling by a CPU quota, None without a quota."""
        with self._guarded("CPU quota"):
            from trainprof.sampling import machine

            return machine.throttle_file()
        return None

    def start(self, pid: int, manifest: dict[str, Any], environment: Mapping[str, str]) -> None:
        """Starts sampling, and adds to the manifest what would have delayed the start."""
        self._manifest = {**manifest, "script_pid": pid}
        limit = too_few_open_files()
        if limit is not None:
            # Short: the page shows the first words only.
            self.faults.append(
                f"recording off: ulimit -n is {limit}, below {FEWEST_OPEN_FILES}: the script may "
                "need all of them"
            )
        with self._guarded("sampler"):
            from trainprof.sampling.sampler import Sampler

            self._sampler = Sampler(
                self.directory, pid, self.options.interval_s, script_environ=environment
            )
            self._sampler.start()
        with self._guarded("limits"):
            from trainprof.sampling import machine

            self._oom_kills_before = machine.out_of_memory_kills()
            self._manifest["host"] = {
                **manifest["host"],
                "usable_cores": machine.usable_cores(),
                "physical_cores": machine.physical_cores(),
                "core_numbers": machine.core_numbers(),
                "core_of": machine.core_of(),
                "memory_limit_bytes": machine.memory_limit_bytes(),
                "is_virtual": machine.is_virtual(),
            }
        with self._guarded("manifest"):
            write_json(self.directory.manifest, self._manifest)
        if self.options.progress and self.progress is not None:
            with self._guarded("progress"):
                self._start_progress(pid, self.progress)

    def _start_progress(self, pid: int, write: Callable[[str], None]) -> None:
        from trainprof.launch.progress import LiveLog, Progress, ProgressThread

        progress = Progress(
            LiveLog(self.directory.events, pid),
            self._manifest["times"]["spawned_ns"],
            int(self.options.wait_threshold_s * 1e9),
            self._manifest["cwd"] or "",
        )
        self._progress_thread = ProgressThread(progress, write)
        self._progress_thread.start()

    def keep_stacks(self) -> None:
        """Keeps the stacks of the script's processes as it is asked to end.

        A second request within ONE_END_NS keeps the first stacks: the script is ending by then.
        """
        now = time.perf_counter_ns()
        if self._stacks is None or now - self._stacks["at_ns"] > ONE_END_NS:
            with self._guarded("stack samples"):
                self._stacks = {"at_ns": now, "processes": read_last_stacks(self.directory.events)}

    def finish(self, outcome: Outcome, *, limit: str | None = None) -> None:
        """Ends sampling and closes the manifest; `limit` is the option that ended the script."""
        if outcome.signal is not None:
            self.keep_stacks()
        ended_time_ns = time.time_ns() - (time.perf_counter_ns() - outcome.ended_ns)
        if self._sampler is not None:
            with self._guarded("sampler"):
                self._sampler.stop(timeout_s=SAMPLER_STOP_TIMEOUT_S)
        if self._progress_thread is not None:
            with self._guarded("progress"):
                self._progress_thread.stop(timeout_s=PROGRESS_STOP_TIMEOUT_S)
        detail = None
        if outcome.signal == signal.SIGKILL:
            with self._guarded("out-of-memory check"):
                detail = self._kill_detail(outcome)
        with self._guarded("recording"):
            self._report_taken_name()
        with self._guarded("manifest"):
            closed = closed_manifest(
                self._manifest,
                outcome,
                ended_time_ns=ended_time_ns,
                detail=detail,
                limit=limit,
                stacks=self._stacks,
                faults=list(self.faults),
                not_sampled=self._sampler.not_observed if self._sampler is not None else {},
            )
            write_json(self.directory.manifest, closed)
            for path in stack_paths(self.directory.events):
                path.unlink(missing_ok=True)
            forget_limits(str(self.directory.path))

    def ended(self, orphans: Orphans) -> tuple[str, ...]:
        """Ends processes that a trial left behind, and returns their names."""
        with self._guarded("what was left running"):
            return orphans.end()
        return ()

    def _report_taken_name(self) -> None:
        note = self.directory.path / NAME_TAKEN
        if note.exists():
            self.faults.append(f"recording off: your module has our name: {note.read_text()}")
            note.unlink()

    def mask(self, console: Path, known: list[str]) -> None:
        """Masks secrets in what the script of a trial wrote."""
        with self._guarded("masking of the console"):
            mask_console(console, known)

    def _kill_detail(self, outcome: Outcome) -> str | None:
        from trainprof.sampling import machine

        after = machine.out_of_memory_kills()
        before = self._oom_kills_before
        return kill_detail(
            oom_kills=0 if before is None or after is None else after - before,
            available_share=available_share(self.directory, before_ns=outcome.ended_ns),
        )

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.faults.append(f"{what}: {type(error).__name__}: {error}")


def available_share(directory: RunDirectory, *, before_ns: int) -> float | None:
    """Returns the smallest share of memory available in the last samples before a time."""
    shares = []
    for sample in _last_samples(directory):
        total, available = sample.get("memory_total_bytes"), sample.get("memory_available_bytes")
        if total and available is not None and sample["t_ns"] <= before_ns:
            shares.append(available / total)
    return min(shares[-SAMPLES_BEFORE_END:], default=None)


def _last_samples(directory: RunDirectory) -> list[dict[str, Any]]:
    path = directory.samples / "host.jsonl"
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - SAMPLE_TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    samples = []
    for line in lines:
        try:
            sample = json.loads(line)
        except ValueError:
            continue  # the first and the last line may be cut
        if isinstance(sample, dict) and isinstance(sample.get("t_ns"), int):
            samples.append(sample)
    return samples


# Longer output loses its start: the end shows how the script ended.
MOST_BYTES: Final = 8 << 20
_LEFT_OUT: Final = "[trainprof kept the end]\n"


def mask_console(console: Path, known: Sequence[str]) -> None:
    """Masks secrets in a console's `stdout` and `stderr`, once nothing writes them any longer."""
    for name in ("stdout", "stderr"):
        with (console / name).open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - MOST_BYTES, 0))
            text = file.read(MOST_BYTES).decode("utf-8", "surrogateescape")
            masked = masked_text(text, known)
            if size > MOST_BYTES:  # a secret may be cut where the end begins
                masked = _LEFT_OUT + masked.partition("\n")[2]
            if masked != text:
                file.seek(0)
                file.write(masked.encode("utf-8", "surrogateescape"))
                file.truncate()
