"""`trainprof report`: renders a saved run on stdout."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from trainprof.cli import options
from trainprof.cli.options import Format, FormatOption, at_least
from trainprof.cli.output import is_terminal, json_text, page_of, write, write_bytes
from trainprof.record.errors import TrainprofError
from trainprof.record.files import read_run_json
from trainprof.record.run_directory import MANIFEST_SCHEMA_VERSION, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainprof.analysis.summary.loader import Loader
    from trainprof.analysis.summary.run_summary import RunSummary
    from trainprof.findings.rule import Rule

RUNS: Final = Path("trainprof-runs")
_LOADERS_NAMED: Final = 10
# No run comes near so many steps, and they fit an int64.
_STEPS: Final = re.compile(r"([0-9]{1,15}):([0-9]{1,15})")


class RunNotFound(TrainprofError):
    slug: ClassVar[str] = "run-not-found"


class LoaderNotFound(TrainprofError):
    slug: ClassVar[str] = "loader-not-found"


class RuleNotFound(TrainprofError):
    slug: ClassVar[str] = "rule-not-found"


class RunDamaged(TrainprofError):
    slug: ClassVar[str] = "run-damaged"


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="A run directory, a run's name under trainprof-runs, or latest."
        ),
    ] = None,
    format: FormatOption = Format.TERMINAL,
    epoch: Annotated[
        int | None,
        typer.Option(parser=at_least(1), metavar="N", help="Only this epoch, counted from 1."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only steps A to B, counted from 1.")
    ] = None,
    loader: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Only this loader, in full: its id, or its place such as train.py:84.",
        ),
    ] = None,
    why: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The numbers that a finding of the run rests on."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="ID", help="What a finding means; needs no RUN.")
    ] = None,
    suggest_patch: Annotated[
        bool,
        typer.Option(
            "--suggest-patch",
            help="A diff of your files for what can be changed mechanically; writes nothing.",
        ),
    ] = False,
    rule: options.Rules = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show all there is.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of ours.")] = False,
) -> None:
    """Render a saved run, complete or cut off."""
    if explain is not None:
        write(sys.stdout, _explained(_rule(explain), explain))
        return
    if loader is not None and (why is not None or suggest_patch):
        beside = "--why" if why is not None else "--suggest-patch"
        raise typer.BadParameter(f"it does not go with {beside}", param_hint="'--loader'")
    asked = None if why is None else _rule(why)
    chosen_steps, rules = _step_range(steps), options.thresholds(rule)
    if run is None:
        raise typer.BadParameter("missing: name a run, such as latest", param_hint="'RUN'")
    directory = find_run(run)
    if epoch is None and chosen_steps is None and not rules:
        summary = summary_of(directory)
    else:
        chosen_epoch = None if epoch is None else epoch - 1
        summary = _rebuilt_summary(directory, chosen_epoch, chosen_steps, rules or None)
    if suggest_patch:
        _write_patches(directory, summary)
    elif asked is not None:
        write(sys.stdout, _reasons(summary, asked, rules or _rules_of(directory)))
    else:
        index = None if loader is None else find_loader(summary, loader)
        write(sys.stdout, rendered(summary, format, verbose=verbose, loader=index))


def _write_patches(directory: RunDirectory, summary: RunSummary) -> None:
    """Writes a diff with its remarks, which `git apply` and `patch -p1` pass over.

    They go to stderr, too, where a program reads it. Files need not be in the encoding of stdout:
    their bytes go there as they are.
    """
    from trainprof.cli.patches import patches

    remarks, diffs = patches(directory, summary)
    if not is_terminal(sys.stdout):
        write(sys.stderr, "".join(f"trainprof: {remark}\n" for remark in remarks))
    head = "".join(f"# {remark}\n" for remark in remarks or ["nothing to change was found"])
    write_bytes(sys.stdout, head.encode() + diffs)


def find_run(name: str) -> RunDirectory:
    """Returns the run that `name` means: a directory, `latest`, or a name under trainprof-runs.

    Else it raises RunNotFound; RunDamaged of a directory that is none, or of a newer trainprof.
    """
    if not name:
        raise RunNotFound("no run named", hint=_known_runs())
    is_path = os.sep in name
    candidates = [Path(name)] if is_path else [Path(name), RUNS / name]
    try:
        return _first_run([path for path in candidates if path.is_dir()], name)
    except OSError as error:
        raise unreadable(name, error) from error


def _first_run(directories: list[Path], name: str) -> RunDirectory:
    if not directories:
        raise RunNotFound(f"no run at {name}", hint=_known_runs())
    for path in directories:
        directory = RunDirectory(path.resolve())
        if directory.manifest.exists() or directory.events.is_dir() or directory.ranks.is_dir():
            _check_version(directory)
            return directory
    path = directories[0]
    raise RunDamaged(f"{path} is not a run directory: no manifest.json", hint=_known_runs())


def find_loader(summary: RunSummary, name: str) -> int:
    """Returns which of the summary's loaders `name` means, else raises LoaderNotFound.

    By an id, or a place as reports show it, or its end: train.py:84 for src/train.py:84.
    """
    matches: tuple[Callable[[Loader], bool], ...] = (
        lambda loader: str(loader.id) == name,
        lambda loader: loader.site == name,
        lambda loader: loader.site.endswith(f"/{name}"),
    )
    for is_it in matches:
        matching = [index for index, loader in enumerate(summary.loaders) if is_it(loader)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            ids = ", ".join(str(summary.loaders[index].id) for index in matching)
            several = f"several loaders were built at {name}"
            raise LoaderNotFound(several, hint=f"name one by id: {ids}")
    known = ", ".join(f"{loader.id} ({loader.site})" for loader in summary.loaders[:_LOADERS_NAMED])
    raise LoaderNotFound(
        f"no loader {name!r} in this run",
        hint=f"loaders: {known}" if known else "no DataLoader was seen in it",
    )


def summary_of(directory: RunDirectory) -> RunSummary:
    """Returns the summary that the run left, else one of what was recorded; or RunDamaged."""
    from trainprof.findings.saved import saved_summary

    return saved_summary(directory) or _rebuilt_summary(directory, None, None, None)


def _rebuilt_summary(
    directory: RunDirectory,
    epoch: int | None,
    steps: tuple[int, int] | None,
    rules: dict[str, float] | None,
) -> RunSummary:
    from trainprof.findings.summarize import summarize

    if directory.trials.is_dir():
        known = f"{directory.path}/trials/baseline"
        raise RunDamaged(
            f"{directory.path} is a `tune` run: only its whole result is shown, once there is one",
            hint=f"name one of its trials, such as {known}, or go on with: "
            f"trainprof tune --resume {shlex.quote(str(directory.path))} SCRIPT",
        )
    try:
        return summarize(directory, epoch=epoch, steps=steps, rules=rules)
    except OSError as error:
        raise unreadable(str(directory.path), error) from error


def unreadable(name: str, error: OSError) -> RunDamaged:
    return RunDamaged(
        f"{name} cannot be read: {error.strerror or error}", hint="check its permissions"
    )


def rendered(
    summary: RunSummary, format: Format, *, verbose: bool, loader: int | None = None
) -> str:
    """Returns a run as it is written to stdout, or one of its loaders in full."""
    if format is Format.JSON:
        from trainprof.analysis.summary.json_text import to_jsonable

        plain = to_jsonable(summary)
        return json_text(plain if loader is None else plain["loaders"][loader])
    if format is Format.MARKDOWN:
        from trainprof.report import markdown, tune

        if loader is not None:
            return markdown.render_loader(summary, loader)
        return (markdown.render if summary.tuning is None else tune.render_markdown)(summary)
    from trainprof.report.page import loading, page

    shown = page_of(sys.stdout, verbose=verbose)
    if loader is not None:
        return loading.render_loader(summary, loader, shown)
    return page.render(summary, shown)


def _rule(name: str) -> Rule:
    import difflib

    from trainprof.findings.catalogue import GONE, RULES, rule_named

    rule = rule_named(name)
    if rule is None and name in GONE:
        raise RuleNotFound(f"{name} is no finding any more", hint=GONE[name])
    if rule is None:
        known = [known_rule.id for known_rule in RULES]
        near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise RuleNotFound(f"there is no finding {name!r}", hint=hint)
    return rule


def _explained(rule: Rule, asked: str) -> str:
    from trainprof.report.page.finding_page import render_rule

    page = render_rule(rule, page_of(sys.stdout))
    return page if asked == rule.id else f"{asked} went into {rule.id}.\n\n{page}"


def _reasons(summary: RunSummary, rule: Rule, settings: dict[str, float]) -> str:
    from trainprof.report.page.finding_page import render_why

    return render_why(summary, rule, page_of(sys.stdout), settings)


def _rules_of(directory: RunDirectory) -> dict[str, float]:
    """Returns the thresholds that a run was started with."""
    from trainprof.findings.catalogue import rule_settings

    manifest = read_run_json(directory.manifest)
    recorded = manifest.get("options") if isinstance(manifest, dict) else None
    return rule_settings(recorded.get("rules") if isinstance(recorded, dict) else None)


def _step_range(text: str | None) -> tuple[int, int] | None:
    """Returns A:B, counted from 1 as reports do, as a 0-based range without its end."""
    if text is None:
        return None
    match = _STEPS.fullmatch(text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last:
        raise typer.BadParameter(
            f"{text!r} is not A:B, two step numbers from 1 on, the first not above the second",
            param_hint="'--steps'",
        )
    return first - 1, last


def _check_version(directory: RunDirectory) -> None:
    manifest = read_run_json(directory.manifest)
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version > MANIFEST_SCHEMA_VERSION:
        raise RunDamaged(
            f"{directory.path} has format {version}; this trainprof reads up to "
            f"{MANIFEST_SCHEMA_VERSION}",
            hint="upgrade trainprof",
        )


def _known_runs() -> str:
    try:
        paths = [path for path in RUNS.iterdir() if not path.is_symlink()]
        runs = [RunDirectory(path) for path in paths]
        names = sorted(x.path.name for x in runs if x.manifest.exists() or x.ranks.is_dir())
    except OSError:
        names = []
    if not names:
        return f"there are no runs in {RUNS.absolute()}; make one with: trainprof run SCRIPT"
    return f"runs in {RUNS}: {', '.join(names[-5:])}"
