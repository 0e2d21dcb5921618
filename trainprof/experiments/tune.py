"""A `tune` run from its directory to its summary."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from trainprof.analysis.saved_summary import saved_summary
from trainprof.analysis.summarize import case_of, summarize
from trainprof.analysis.summary import RunSummary
from trainprof.analysis.summary_json import to_jsonable
from trainprof.analysis.tuning import BASELINE
from trainprof.experiments.candidates import Plan, plan
from trainprof.experiments.found import Found, Progress
from trainprof.experiments.ground import (
    CannotResume,
    check_ground,
    check_variables,
    ground_now,
    variables_of_pace,
)
from trainprof.experiments.in_use import alone_in
from trainprof.experiments.journal import Asked, Journal, RememberingRunner, read_journal
from trainprof.experiments.results import summary_of_tune
from trainprof.experiments.runner import SCRATCH, Script, ScriptRunner
from trainprof.experiments.sandbox.files import notes_of_files
from trainprof.experiments.sandbox.sandbox import Sandbox, make_sandbox, remove_tree
from trainprof.experiments.saving import save_json
from trainprof.experiments.schedule import Earlier, earlier_run
from trainprof.experiments.search import Search
from trainprof.experiments.trial import Measured, TrialRunner
from trainprof.launch.manifest import opening_manifest, script_sha256
from trainprof.launch.options import DEFAULT_INTERVAL_S, RunOptions
from trainprof.launch.placement import RUNS, create_run_directory, run_name
from trainprof.launch.target import resolve
from trainprof.record.errors import TrainprofError
from trainprof.record.masking import masked_argv, masked_text
from trainprof.record.run_directory import RunDirectory
from trainprof.record.run_file import read_run_json

DEFAULT_BUDGET_S: Final = 600.0
_FILES_NAMED: Final = 3


class StoppedTooEarly(TrainprofError):
    slug: ClassVar[str] = "stopped-too-early"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What `tune` is asked to do.

    Attributes:
        script: To be run.
        output: The directory, None: a new one under trainprof-runs.
        budget_s: Of time, from now on.
        trial_steps: After which a trial is stopped, None: as the budget suggests.
        allow_numerics: Changes of precision may be tried.
        interval_s: The sampler's.
        is_sandboxed: Trials are kept from the user's files.
    """

    script: Script
    output: Path | None = None
    budget_s: float = DEFAULT_BUDGET_S
    trial_steps: int | None = None
    allow_numerics: bool = False
    interval_s: float = DEFAULT_INTERVAL_S
    is_sandboxed: bool = True


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """What is said along with an earlier `tune` run; None: nothing about it.

    Attributes:
        script: The same as before: a run directory never supplies what is executed.
        is_sandboxed: As before.
        output: Its directory.
        budget_s: Of time, from now on.
        trial_steps, interval_s: As before: else its trials would not be alike.
        allow_numerics: Changes of precision may be tried, from now on if not before.
    """

    script: Script
    is_sandboxed: bool = True
    output: Path | None = None
    budget_s: float | None = None
    trial_steps: int | None = None
    interval_s: float | None = None
    allow_numerics: bool = False


@dataclass(frozen=True, slots=True)
class TuneRun:
    """A `tune` run that is about to begin, or to go on.

    Attributes:
        directory: Of it.
        options: As asked for; of one that goes on, with what it was begun with.
        journal: What was done before.
        sandbox: Keeps trials from the user's files, None: nothing does.
    """

    directory: RunDirectory
    options: TuneOptions
    journal: Journal
    sandbox: Sandbox | None


def begin(options: TuneOptions) -> TuneRun:
    """Makes the directory of a new `tune` run.

    Raises:
        NoSandbox: If trials cannot be kept from the user's files, and are to be.
        TrainprofError: If there is no such script, or no directory can be made.
    """
    target = resolve(options.script.words, options.script.module)
    sandbox = _sandbox(options, _existing(options.output))
    now_ns = time.time_ns()
    directory = create_run_directory(
        options.output, f"tune-{target.stem}", _without_rank(os.environ), time_ns=now_ns
    )
    manifest = opening_manifest(
        target,
        RunOptions(words=options.script.words, module=options.script.module),
        os.environ,
        name=run_name(directory),
        spawned_ns=time.perf_counter_ns(),
        spawned_time_ns=now_ns,
    )
    save_json(directory.manifest, {**manifest, "kind": "tune"})
    cwd = _here()
    asked = Asked(
        words=tuple(masked_argv(options.script.words)),
        module=options.script.module,
        script_sha256=script_sha256(target),
        budget_s=options.budget_s,
        trial_steps=options.trial_steps,
        allow_numerics=options.allow_numerics,
        interval_s=options.interval_s,
        cwd=None if cwd is None else str(cwd),
        sources={**manifest["sources"], **manifest["settings"]},
        variables=variables_of_pace(os.environ),
        is_sandboxed=options.is_sandboxed,
    )
    journal = Journal(directory, asked)
    journal.save()
    return TuneRun(directory, options, journal, sandbox)


def _sandbox(options: TuneOptions, place: Path) -> Sandbox | None:
    """Returns the sandbox of all trials, None where none is asked for.

    Raises:
        NoSandbox: If there is none to be had.
    """
    return make_sandbox(place, options.script.words) if options.is_sandboxed else None


def _existing(output: Path | None) -> Path:
    """Returns the nearest directory that exists above the one that is to be made."""
    path = Path(os.path.abspath(output or "new"))
    return next(parent for parent in path.parents if parent.is_dir())


def resumed(directory: RunDirectory, again: AskedAgain) -> TuneRun:
    """Returns an earlier `tune` run, to go on with the same script.

    Args:
        directory: Of the earlier one.
        again: What else is said; without a budget it gets as much again.

    Raises:
        JournalDamaged: If it is no `tune` run.
        CannotResume: If the script, the machine, torch or the environment is another by now, or
            its trials would not be like those before.
        NoSandbox: If trials cannot be kept from the user's files, and were so before.
    """
    journal = read_journal(directory)
    asked = journal.asked
    _check_alike(directory, asked, again)
    cwd = _here()
    if asked.cwd is None or cwd is None or masked_text(str(cwd)) != masked_text(asked.cwd):
        raise CannotResume(
            f"it was begun in {asked.cwd or 'a directory that is not recorded'}, and this is "
            f"{cwd or 'a directory that is gone'}",
            hint="go there first (cd), or start again without --resume",
        )
    script = again.script
    if tuple(masked_argv(script.words)) != asked.words or script.module != asked.module:
        module = () if asked.module is None else ("-m", asked.module)
        raise CannotResume(
            "this is not the command that was tuned",
            hint=f"that was: {shlex.join((*module, *asked.words))}",
        )
    target = resolve(script.words, script.module)
    if script_sha256(target) != asked.script_sha256:
        raise CannotResume(
            f"{target.name} was changed since: its trials would not be alike",
            hint="start again: trainprof tune SCRIPT",
        )
    now = opening_manifest(
        target,
        RunOptions(words=script.words, module=script.module),
        os.environ,
        name="",
        spawned_ns=0,
        spawned_time_ns=0,
    )
    _check_unedited(asked, {**now["sources"], **now["settings"]})
    if asked.variables is not None:
        check_variables(asked.variables, variables_of_pace(os.environ))
    check_ground(journal.ground(), ground_now(target))
    if again.allow_numerics and not asked.allow_numerics:
        journal.asked = asked = replace(asked, allow_numerics=True)
        journal.save()
    options = TuneOptions(
        script=script,
        budget_s=again.budget_s if again.budget_s is not None else asked.budget_s,
        trial_steps=asked.trial_steps,
        allow_numerics=asked.allow_numerics,
        interval_s=asked.interval_s,
        is_sandboxed=asked.is_sandboxed,
    )
    return TuneRun(directory, options, journal, _sandbox(options, directory.path))


def _check_unedited(asked: Asked, now: Mapping[str, str]) -> None:
    """Refuses where the script's own files are not what they were.

    Args:
        asked: How it was begun.
        now: Digests of the files beside the script and of its settings, by name.

    Raises:
        CannotResume: With their names.
    """
    changed = [name for name, digest in (asked.sources or {}).items() if now.get(name) != digest]
    if not changed:
        return
    more = f" and {len(changed) - _FILES_NAMED} more" if len(changed) > _FILES_NAMED else ""
    were = "was" if len(changed) == 1 else "were"
    raise CannotResume(
        f"{', '.join(changed[:_FILES_NAMED])}{more} {were} changed since: its trials would not be "
        "alike",
        hint="start again: trainprof tune SCRIPT",
    )


def _check_alike(directory: RunDirectory, asked: Asked, again: AskedAgain) -> None:
    """Refuses what would go unheard, or make later trials unlike earlier ones.

    Raises:
        CannotResume: With the one option that does not fit.
    """
    if again.output is not None and again.output.resolve() != directory.path.resolve():
        raise CannotResume(
            f"-o {again.output} beside --resume: it goes on in {_as_typed(directory.path)}",
            hint="leave -o out, or start again without --resume",
        )
    if again.is_sandboxed != asked.is_sandboxed:
        raise CannotResume(
            f"its trials were begun {'in a sandbox' if asked.is_sandboxed else '--unsandboxed'}",
            hint=f"{'leave out' if asked.is_sandboxed else 'add'} --unsandboxed, or start again "
            "without --resume",
        )
    steps = "as many as the budget lets them" if asked.trial_steps is None else asked.trial_steps
    for option, wanted, was, told in (
        ("--trial-steps", again.trial_steps, asked.trial_steps, steps),
        ("--interval", again.interval_s, asked.interval_s, f"{asked.interval_s:g}"),
    ):
        if wanted is not None and wanted != was:
            raise CannotResume(
                f"{option} {wanted:g} beside --resume: its trials were begun with {told}, and "
                "would not be alike",
                hint=f"leave {option} out, or start again without --resume",
            )


def tune(
    run: TuneRun,
    *,
    tell: Callable[[Progress], None] = lambda progress: None,
    announce: Callable[[str], None] = lambda sentence: None,
    runner: TrialRunner | None = None,
) -> RunSummary:
    """Runs trials until it is known what helps, or the time is over.

    Args:
        run: From `begin` or `resumed`.
        tell: Called before and after each run of a trial.
        announce: Called with a sentence on what fits into the budget, before the first run and
            after the baseline.
        runner: In place of the one that runs the script.

    Returns:
        The summary, which is saved too: after each trial as far as it is known.

    Raises:
        CannotTune: If the script as it is cannot be measured.
        CannotResume: If a trial ran on another machine, or with other libraries, than earlier ones.
        StoppedTooEarly: If Ctrl-C came before it was.
        AlreadyTuning: If another process is at work in the same directory.
        TrainprofError: If nothing could be started.
    """
    options, directory = run.options, run.directory
    real = runner or ScriptRunner(
        options.script, directory, interval_s=options.interval_s, sandbox=run.sandbox
    )
    result = _Result(
        directory,
        options.budget_s + run.journal.spent_s,
        _command(options.script),
        is_sandboxed=options.is_sandboxed,
    )
    search = Search(
        RememberingRunner(real, run.journal),
        lambda base, free_s: _planned(directory, base, free_s, options),
        budget_s=options.budget_s,
        trial_steps=options.trial_steps,
        steps_budget_s=run.journal.asked.budget_s,
        directory=Path(_as_typed(directory.path)),
        is_known=run.journal.knows,
        tell=tell,
        announce=announce,
        earlier=_earlier(run),
        keep=result.save,
    )
    try:
        with alone_in(directory):
            search.run()
    finally:
        remove_tree(directory.path / SCRATCH)
    if result.summary is None:
        bare = () if options.is_sandboxed else ("--unsandboxed",)
        place = _as_typed(directory.path)
        again = shlex.join(
            ("trainprof", "tune", "--resume", place, *bare, *_command(options.script))
        )
        raise StoppedTooEarly(
            "stopped before the script as it is was measured: nothing is known yet",
            hint=f"begin again with: {again}",
        )
    return result.summary


def _earlier(run: TuneRun) -> Earlier | None:
    manifest = read_run_json(run.directory.manifest)
    script = manifest.get("script") if isinstance(manifest, dict) else None
    return earlier_run(Path(RUNS), script, run.journal.asked.script_sha256)


def _planned(
    directory: RunDirectory, base: Measured, free_s: float | None, options: TuneOptions
) -> Plan:
    case = case_of(RunDirectory(directory.path / base.directory))
    if case is None:
        return Plan((), (), notes=_notes_of(base))
    found = plan(
        case,
        allow_numerics=options.allow_numerics,
        # As the recording has them, where steps that save are among the others.
        free_step_s=None if free_s is None else free_s + base.saves_s,
        starts=base.starts_share(),
        saves=base.saves_share(),
    )
    return replace(found, notes=(*found.notes, *_notes_of(base)))


def _notes_of(base: Measured) -> tuple[str, ...]:
    """Returns what the script as it is does besides that makes each trial longer, or disturbs."""
    notes = notes_of_files((base,), base)
    if base.left_running:
        names = ", ".join(base.left_running)
        notes.append(f"what the script leaves running is ended with each trial: {names}")
    return tuple(notes)


class _Result:
    """What is known so far, saved.

    Attributes:
        summary: None until the script as it is was measured.
    """

    def __init__(
        self,
        directory: RunDirectory,
        budget_s: float,
        command: Sequence[str],
        *,
        is_sandboxed: bool,
    ) -> None:
        self._directory = directory
        self._command = command
        self._is_sandboxed = is_sandboxed
        self._budget_s = budget_s
        self._base: RunSummary | None = None
        self.summary: RunSummary | None = None

    def save(self, found: Found) -> None:
        if found.plan is None:
            return
        self.summary = summary_of_tune(
            self._of_first_baseline(found),
            found,
            name=run_name(self._directory),
            directory=_as_typed(self._directory.path),
            budget_s=self._budget_s,
            command=self._command,
            is_sandboxed=self._is_sandboxed,
        )
        save_json(self._directory.summary, to_jsonable(self.summary))

    def _of_first_baseline(self, found: Found) -> RunSummary:
        if self._base is None:
            first = found.of(BASELINE)[0]
            run = RunDirectory(self._directory.path / first.directory)
            self._base = saved_summary(run) or summarize(run)
        return self._base


def _command(script: Script) -> list[str]:
    """Returns the command as it was given, with secrets masked."""
    module = () if script.module is None else ("-m", script.module)
    return masked_argv((*module, *script.words))


def _here() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # somebody removed it
        return None


def _as_typed(path: Path) -> str:
    here = os.getcwd().rstrip(os.sep) + os.sep
    return str(path).removeprefix(here)


def _without_rank(environ: Mapping[str, Any]) -> dict[str, str]:
    """A `tune` run starts its ranks itself."""
    return {name: value for name, value in environ.items() if name != "RANK"}
