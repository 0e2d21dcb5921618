"""A `tune` run from its directory to its summary."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
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
    check_read,
    check_variables,
    ground_now,
    variables_of_pace,
)
from trainprof.experiments.in_use import alone_in
from trainprof.experiments.journal import Asked, Journal, RememberingRunner, read_journal
from trainprof.experiments.masked_words import are_others, digest_of_masked
from trainprof.experiments.own_files import digests_of, edited
from trainprof.experiments.own_modules import own_of
from trainprof.experiments.own_variables import digests_of_variables, variables_read
from trainprof.experiments.prepared_files import notes_of_preparing
from trainprof.experiments.results import summary_of_tune
from trainprof.experiments.runner import Script, ScriptRunner
from trainprof.experiments.schedule import Earlier, earlier_run
from trainprof.experiments.search import Search
from trainprof.experiments.trial import Measured, TrialRunner
from trainprof.launch.manifest import opening_manifest, script_sha256
from trainprof.launch.masking import masked_argv
from trainprof.launch.options import DEFAULT_INTERVAL_S, RunOptions
from trainprof.launch.placement import RUNS, create_run_directory, run_name
from trainprof.launch.target import resolve
from trainprof.record.errors import TrainprofError
from trainprof.record.names import MASK
from trainprof.record.run_directory import RunDirectory, write_json
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
        agreed: What cannot be contained, as it was said and agreed to.
    """

    script: Script
    output: Path | None = None
    budget_s: float = DEFAULT_BUDGET_S
    trial_steps: int | None = None
    allow_numerics: bool = False
    interval_s: float = DEFAULT_INTERVAL_S
    agreed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """What is said along with an earlier `tune` run; None: nothing about it.

    Attributes:
        script: The same as before.
        output: Its directory.
        budget_s: Of time, from now on.
        trial_steps, interval_s: As before: else its trials would not be alike.
        allow_numerics: Changes of precision may be tried, from now on if not before.
    """

    script: Script | None = None
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
    """

    directory: RunDirectory
    options: TuneOptions
    journal: Journal


def begin(options: TuneOptions) -> TuneRun:
    """Makes the directory of a new `tune` run.

    Raises:
        TrainprofError: If there is no such script, or no directory can be made.
    """
    target = resolve(options.script.words, options.script.module)
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
    write_json(directory.manifest, {**manifest, "kind": "tune"})
    cwd = _here()
    own = None if cwd is None else own_of(target, cwd)
    asked = Asked(
        words=tuple(masked_argv(options.script.words)),
        module=options.script.module,
        script_sha256=script_sha256(target),
        budget_s=options.budget_s,
        trial_steps=options.trial_steps,
        allow_numerics=options.allow_numerics,
        interval_s=options.interval_s,
        cwd=None if cwd is None else str(cwd),
        sources=None if cwd is None or own is None else digests_of(target, cwd, own),
        variables=variables_of_pace(os.environ),
        masked=digest_of_masked(options.script.words),
        read=None if own is None else digests_of_variables(variables_read(own), os.environ),
        agreed=options.agreed,
    )
    journal = Journal(directory, asked)
    journal.save()
    return TuneRun(directory, options, journal)


def resumed(directory: RunDirectory, again: AskedAgain) -> TuneRun:
    """Returns an earlier `tune` run, to go on with the same script.

    Args:
        directory: Of the earlier one.
        again: What else is said; without a budget it gets as much again.

    Raises:
        JournalDamaged: If it is no `tune` run.
        CannotResume: If the script, the machine, torch or the environment is another by now, its
            arguments are not known, or its trials would not be like those before.
    """
    journal = read_journal(directory)
    asked = journal.asked
    _check_alike(directory, asked, again)
    cwd = _here()
    if asked.cwd is not None and cwd != Path(asked.cwd):
        raise CannotResume(
            f"it was begun in {asked.cwd}, and this is {cwd or 'a directory that is gone'}",
            hint=f"go there first (cd {shlex.quote(asked.cwd)}), or start anew without --resume",
        )
    given = again.script
    script = given if given is not None else Script(asked.words, asked.module)
    if tuple(masked_argv(script.words)) != asked.words or script.module != asked.module:
        raise CannotResume(
            "this is not the command that was tuned", hint="start anew: trainprof tune SCRIPT"
        )
    if given is None and any(MASK in word for word in asked.words):
        raise CannotResume(
            "the command held a secret, which was not written down",
            hint="give the command again behind --resume RUN",
        )
    if are_others(script.words, asked.masked):
        raise CannotResume(
            "a word of the command that is written down masked is another one by now: its trials "
            "would not be alike",
            hint="give it as it was, or start anew: trainprof tune SCRIPT",
        )
    target = resolve(script.words, script.module)
    if script_sha256(target) != asked.script_sha256:
        raise CannotResume(
            f"{target.name} was changed since: its trials would not be alike",
            hint="start anew: trainprof tune SCRIPT",
        )
    _check_unedited(asked, cwd)
    if asked.variables is not None:
        check_variables(asked.variables, variables_of_pace(os.environ))
    check_read(asked.read or {}, os.environ)
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
    )
    return TuneRun(directory, options, journal)


def _check_unedited(asked: Asked, cwd: Path | None) -> None:
    """Refuses where the script's own files are not what they were.

    Raises:
        CannotResume: With their names.
    """
    if asked.sources is None or cwd is None:
        return
    changed = edited(asked.sources, cwd)
    if not changed:
        return
    more = f" and {len(changed) - _FILES_NAMED} more" if len(changed) > _FILES_NAMED else ""
    were = "was" if len(changed) == 1 else "were"
    raise CannotResume(
        f"{', '.join(changed[:_FILES_NAMED])}{more} {were} changed since: its trials would not be "
        "alike",
        hint="start anew: trainprof tune SCRIPT",
    )


def _check_alike(directory: RunDirectory, asked: Asked, again: AskedAgain) -> None:
    """Refuses what would go unheard, or make later trials unlike earlier ones.

    Raises:
        CannotResume: With the one option that does not fit.
    """
    if again.output is not None and again.output.resolve() != directory.path.resolve():
        raise CannotResume(
            f"-o {again.output} beside --resume: it goes on in {_as_typed(directory.path)}",
            hint="leave -o out, or start anew without --resume",
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
                hint=f"leave {option} out, or start anew without --resume",
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
    real = runner or ScriptRunner(options.script, directory, interval_s=options.interval_s)
    result = _Result(directory, options.budget_s + run.journal.spent_s)
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
    with alone_in(directory):
        search.run()
    if result.summary is None:
        again = f"trainprof tune --resume {shlex.quote(_as_typed(directory.path))}"
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
    notes = notes_of_preparing(base)
    if base.left_running:
        names = ", ".join(base.left_running)
        notes.append(f"what the script leaves running is ended with each trial: {names}")
    return tuple(notes)


class _Result:
    """What is known so far, saved.

    Attributes:
        summary: None until the script as it is was measured.
    """

    def __init__(self, directory: RunDirectory, budget_s: float) -> None:
        self._directory = directory
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
        )
        write_json(self._directory.summary, to_jsonable(self.summary))

    def _of_first_baseline(self, found: Found) -> RunSummary:
        if self._base is None:
            first = found.of(BASELINE)[0]
            run = RunDirectory(self._directory.path / first.directory)
            self._base = saved_summary(run) or summarize(run)
        return self._base


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
