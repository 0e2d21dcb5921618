"""Runs a `tune` search, from the directory to the summary."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import BASELINE
from trainprof.findings.saved import saved_summary
from trainprof.findings.summarize import context_of, summarize
from trainprof.launch.manifest import opening_manifest, script_sha256
from trainprof.launch.options import DEFAULT_INTERVAL_S, RunOptions
from trainprof.launch.placement import RUNS, create_run_directory, run_name
from trainprof.launch.target import Target, resolve
from trainprof.record.errors import TrainprofError
from trainprof.record.files import read_run_json
from trainprof.record.masking import masked_argv, masked_text
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.candidates import Plan, plan
from trainprof.tune.journal import (
    Asked,
    CannotResume,
    Journal,
    RememberingRunner,
    check_alike,
    check_ground,
    check_variables,
    ground_now,
    read_journal,
    variables_of_pace,
)
from trainprof.tune.measurements import Measurements, Progress
from trainprof.tune.results import summary_of_tune
from trainprof.tune.runner import SCRATCH, Script, ScriptRunner
from trainprof.tune.sandbox.sandbox import Sandbox, make_sandbox, remove_tree
from trainprof.tune.search import Search, too_short
from trainprof.tune.trial import WARM_UP, Measured, Trial
from trainprof.tune.trial_limits import (
    LEAST_LONG_STEPS,
    budget_of_a_change,
    duration,
    plan_sentence,
    steps_of_trials,
    trial_s,
)
from trainprof.tune.trial_reading import read, save_json

DEFAULT_BUDGET_S: Final = 600.0
_NEWEST: Final = 20  # runs that are searched for one of the same script
_MOST_STEPS: Final = 20_000  # of an earlier run; more take seconds to analyse


class StoppedTooEarly(TrainprofError):
    slug: ClassVar[str] = "stopped-too-early"


class AlreadyTuning(TrainprofError):
    slug: ClassVar[str] = "already-tuning"
    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Options of `tune`; None is the default, or the value of the run that is resumed.

    A run directory never supplies the command. Once allowed, numerics stay allowed.
    """

    script: Script
    output: Path | None = None
    budget_s: float | None = None
    trial_steps: int | None = None
    allow_numerics: bool = False
    interval_s: float | None = None
    is_sandboxed: bool = True


@dataclass(frozen=True, slots=True)
class TuneRun:
    """A `tune` run about to start or resume, for `budget_s` from now on; `plan` in a sentence."""

    directory: RunDirectory
    script: Script
    budget_s: float
    journal: Journal
    sandbox: Sandbox | None
    plan: str | None = None


def begin(options: TuneOptions) -> TuneRun:
    """Creates the directory of a new `tune` run.

    Raises:
        NoSandbox: If the kernel refuses the sandbox.
        CannotTune: If an earlier run of the script shows that the budget is too small.
    """
    target = resolve(options.script.words, options.script.module)
    sandbox = _sandbox(options, _existing(options.output))
    planned = _plan_ahead(options, target)
    now_ns = time.time_ns()
    # The script starts its ranks itself.
    environ = {name: value for name, value in os.environ.items() if name != "RANK"}
    directory = create_run_directory(options.output, f"tune-{target.stem}", environ, time_ns=now_ns)
    manifest = _manifest(options.script, target, name=run_name(directory), time_ns=now_ns)
    save_json(directory.manifest, {**manifest, "kind": "tune"})
    asked = _asked(options, target, manifest)
    journal = Journal(directory, asked)
    journal.save()
    return TuneRun(directory, options.script, asked.budget_s, journal, sandbox, planned)


def _plan_ahead(options: TuneOptions, target: Target) -> str:
    """Returns the plan by an earlier run of the script; CannotTune if the budget is too small."""
    budget_s, asked_steps = options.budget_s or DEFAULT_BUDGET_S, options.trial_steps
    budget, first = f"budget: {duration(budget_s)}", _earlier_run(target)
    if first is None:
        return f"plan: the first run measures how many trials fit ({budget})"
    takes_s = trial_s(first, asked_steps or steps_of_trials(first, budget_s)) or first.seconds
    least_s = trial_s(first, asked_steps or min(first.steps, LEAST_LONG_STEPS)) or takes_s
    if 2 * least_s > budget_s:
        took = f"an earlier run made {first.steps} steps in {duration(first.seconds)}"
        raise too_short(budget_s, took, budget_of_a_change(takes_s, takes_s))
    runs = RunDirectory(Path(RUNS))
    plan = _planned(runs, first, None, allow_numerics=options.allow_numerics)
    names = [candidate.name for candidate in plan.candidates]
    return plan_sentence(names, bool(plan.sites), takes_s, budget)


def _earlier_run(target: Target) -> Measured | None:
    """Returns the newest recording of the same command and script that shows its pace."""
    command, digest = masked_argv(target.words), script_sha256(target)
    runs: list[Path] = []
    with contextlib.suppress(OSError):
        newest = sorted(Path(RUNS).iterdir(), key=lambda path: -path.lstat().st_mtime_ns)
        runs = [path for path in newest if not path.is_symlink()][:_NEWEST]
    for path in runs if digest is not None else ():
        directory = RunDirectory(path)
        manifest = read_run_json(directory.manifest)
        if not isinstance(manifest, dict) or "kind" in manifest:
            continue
        if (manifest.get("command"), manifest.get("script_sha256")) != (command, digest):
            continue
        summary = saved_summary(directory)
        if summary is None or summary.training.steps > _MOST_STEPS:
            continue
        run = read(Trial(WARM_UP), 1, directory, summary, relative_to=path.parent)
        if run.pace is not None:
            return replace(run, seconds=summary.run.wall_s)
    return None


def _manifest(script: Script, target: Target, *, name: str, time_ns: int) -> dict[str, Any]:
    return opening_manifest(
        target,
        RunOptions(words=script.words, module=script.module),
        os.environ,
        name=name,
        spawned_ns=time.perf_counter_ns(),
        spawned_time_ns=time_ns,
    )


def _asked(options: TuneOptions, target: Target, manifest: Mapping[str, Any]) -> Asked:
    cwd = manifest["cwd"]
    return Asked(
        words=tuple(masked_argv(options.script.words)),
        module=options.script.module,
        script_sha256=script_sha256(target),
        budget_s=options.budget_s or DEFAULT_BUDGET_S,
        trial_steps=options.trial_steps,
        allow_numerics=options.allow_numerics,
        interval_s=options.interval_s or DEFAULT_INTERVAL_S,
        cwd=None if cwd is None else masked_text(cwd),
        sources={**manifest["sources"], **manifest["settings"]},
        variables=variables_of_pace(os.environ),
        is_sandboxed=options.is_sandboxed,
    )


def _sandbox(options: TuneOptions, place: Path) -> Sandbox | None:
    return make_sandbox(place, options.script.words) if options.is_sandboxed else None


def _existing(output: Path | None) -> Path:
    path = Path(os.path.abspath(output or "new"))
    return next(parent for parent in path.parents if parent.is_dir())


def resumed(directory: RunDirectory, options: TuneOptions) -> TuneRun:
    """Returns an earlier `tune` run to resume, by default with the same budget again.

    Raises:
        JournalDamaged: If it is not a `tune` run.
        CannotResume: If the command, the options, the script or the machine changed.
    """
    journal = read_journal(directory)
    was = journal.asked
    filled = replace(
        options,
        trial_steps=options.trial_steps or was.trial_steps,
        interval_s=options.interval_s or was.interval_s,
        allow_numerics=options.allow_numerics or was.allow_numerics,
    )
    target = resolve(options.script.words, options.script.module)
    now = _asked(filled, target, _manifest(options.script, target, name="", time_ns=0))
    output = options.output or directory.path
    check_alike(
        {**_as_options(was), "--output": directory.path.resolve()},
        {**_as_options(now), "--output": output.resolve()},
    )
    digests = {**was.sources, target.name: was.script_sha256}
    files = {**now.sources, target.name: now.script_sha256}
    changed = [name for name, digest in digests.items() if files.get(name) != digest]
    if changed:
        raise CannotResume(
            f"{', '.join(changed)} changed since: new trials would not be comparable",
            hint="start a new search: trainprof tune SCRIPT",
        )
    check_variables(was.variables, now.variables)
    check_ground(journal.ground(), ground_now(target))
    if now.allow_numerics != was.allow_numerics:
        journal.asked = replace(was, allow_numerics=True)
        journal.save()
    budget_s = options.budget_s or was.budget_s
    return TuneRun(directory, options.script, budget_s, journal, _sandbox(options, directory.path))


def _as_options(asked: Asked) -> dict[str, object]:
    module = () if asked.module is None else ("-m", asked.module)
    return {
        "the command": shlex.join((*module, *asked.words)),
        "the working directory": asked.cwd or "unknown",
        "--trial-steps": asked.trial_steps or "unset",
        "--interval": f"{asked.interval_s:g}",
        "--unsandboxed": "unset" if asked.is_sandboxed else "set",
    }


def tune(
    run: TuneRun,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    announce: Callable[[str], None] = lambda sentence: None,
) -> RunSummary:
    """Runs the search; `on_progress` and `announce` as Search has them.

    Returns the summary. A preliminary one is saved after each trial.

    Raises:
        CannotTune: If the baseline cannot be measured.
        CannotResume: If the machine or the libraries differ from those of earlier trials.
        StoppedTooEarly: On Ctrl-C before the baseline was measured.
        AlreadyTuning: If another process uses the directory.
    """
    directory, asked = run.directory, run.journal.asked
    typed = Path(_as_typed(directory.path))
    runner = ScriptRunner(run.script, directory, interval_s=asked.interval_s, sandbox=run.sandbox)
    base: RunSummary | None = None
    summary: RunSummary | None = None

    def keep(measurements: Measurements) -> None:
        nonlocal base, summary
        if measurements.plan is None:
            return
        if base is None:
            first = RunDirectory(directory.path / measurements.of(BASELINE)[0].directory)
            base = saved_summary(first) or summarize(first)
        summary = summary_of_tune(
            base,
            measurements,
            name=run_name(directory),
            directory=str(typed),
            budget_s=run.budget_s + spent_s,
            command=_command(run.script),
            is_sandboxed=asked.is_sandboxed,
        )
        save_json(directory.summary, to_jsonable(summary))

    spent_s = run.journal.spent_s
    search = Search(
        RememberingRunner(runner, run.journal),
        lambda base, free_s: _planned(directory, base, free_s, allow_numerics=asked.allow_numerics),
        budget_s=run.budget_s,
        trial_steps=asked.trial_steps,
        steps_budget_s=asked.budget_s,
        directory=typed,
        is_known=run.journal.knows,
        on_progress=on_progress,
        announce=announce,
        keep=keep,
    )
    try:
        with alone_in(directory):
            search.run()
    finally:
        remove_tree(directory.path / SCRATCH)
    if summary is None:
        bare = () if asked.is_sandboxed else ("--unsandboxed",)
        command = _command(run.script)
        again = shlex.join(("trainprof", "tune", "--resume", str(typed), *bare, *command))
        raise StoppedTooEarly(
            "stopped without a result: the baseline was not measured yet",
            hint=f"continue with: {again}",
        )
    return summary


@contextlib.contextmanager
def alone_in(directory: RunDirectory) -> Iterator[None]:
    """Locks the directory of a `tune` run; AlreadyTuning if another process holds it."""
    descriptor = os.open(directory.tune_lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyTuning(
                f"another `trainprof tune` is running in {directory.path}",
                hint="wait for it, or stop it with Ctrl-C",
            ) from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def _planned(
    directory: RunDirectory, base: Measured, free_s: float | None, *, allow_numerics: bool
) -> Plan:
    context = context_of(RunDirectory(directory.path / base.directory))
    if context is None:
        return Plan((), (), notes=_notes_of(base))
    planned = plan(
        context,
        allow_numerics=allow_numerics,
        # The recording's steps include checkpoints.
        free_step_s=None if free_s is None else free_s + base.saves_s,
        starts=base.starts_share(),
        saves=base.saves_share(),
    )
    return replace(planned, notes=(*planned.notes, *_notes_of(base)))


def _notes_of(base: Measured) -> tuple[str, ...]:
    if not base.left_running:
        return ()
    names = ", ".join(base.left_running)
    return (f"processes that the script leaves running are ended with each trial: {names}",)


def _command(script: Script) -> list[str]:
    module = () if script.module is None else ("-m", script.module)
    return masked_argv((*module, *script.words))


def _as_typed(path: Path) -> str:
    here = os.getcwd().rstrip(os.sep) + os.sep
    return str(path).removeprefix(here)
