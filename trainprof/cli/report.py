"""`trainprof report`: renders a saved run on stdout, or as a file."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from trainprof.cli import options
from trainprof.cli.options import FORMATS, Format, at_least, choosing, parse_format, reporting
from trainprof.cli.output import Working, is_terminal, json_text, page_of, write, write_bytes
from trainprof.cli.pictures import PICTURES, Picture, write_picture
from trainprof.cli.saved_runs import RUN_HELP, RunDamaged, find_run, unreadable
from trainprof.record.errors import TrainprofError
from trainprof.record.files import read_run_json
from trainprof.record.run_directory import RunDirectory, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainprof.analysis.summary.loader import Loader
    from trainprof.analysis.summary.run_summary import RunSummary
    from trainprof.findings.rule import Rule

_LOADERS_NAMED: Final = 10
# More steps than any run has; the numbers fit an int64.
_STEPS: Final = re.compile(r"([0-9]{1,15}):([0-9]{1,15})")
_EPOCH: Final = "Only this epoch, counted from 1."
_ONLY_STEPS: Final = "Only steps A to B, counted from 1."
_LOADER: Final = "Only this loader: its id, or its line such as train.py:84."
_WHY: Final = "The measurements behind a finding: its number on the page, or its id."
_EXPLAIN: Final = "What a finding means; needs no RUN."
_FORMAT: Final = f"Format of the output.  [default: {Format.TERMINAL.value}]"
_HTML: Final = "Write report.html into the run: charts, flame graph, all details."
_TRACE: Final = "Write trace.json.gz into the run, for ui.perfetto.dev."
_OUTPUT: Final = "Write this file instead, with --html, --trace or their formats."
_PATCH: Final = "Print the changes to your files as a diff; no file is changed."


class LoaderNotFound(TrainprofError):
    slug: ClassVar[str] = "loader-not-found"


class RuleNotFound(TrainprofError):
    slug: ClassVar[str] = "rule-not-found"


def _format(text: str) -> str:
    return text.lower() if text.lower() in PICTURES else parse_format(text, PICTURES).value


def report(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help=RUN_HELP)] = None,
    format: Annotated[
        str,
        reporting(
            "--format",
            parser=_format,
            metavar="|".join((*FORMATS, *PICTURES)),
            show_default=False,
            help=_FORMAT,
        ),
    ] = Format.TERMINAL.value,
    html: Annotated[bool, reporting("--html", help=_HTML)] = False,
    trace: Annotated[bool, reporting("--trace", help=_TRACE)] = False,
    output: Annotated[
        Path | None, reporting("-o", "--output", metavar="FILE", help=_OUTPUT)
    ] = None,
    epoch: Annotated[int | None, choosing(parser=at_least(1), metavar="N", help=_EPOCH)] = None,
    steps: Annotated[str | None, choosing(metavar="A:B", help=_ONLY_STEPS)] = None,
    loader: Annotated[str | None, choosing(metavar="ID", help=_LOADER)] = None,
    why: Annotated[str | None, choosing(metavar="FINDING", help=_WHY)] = None,
    explain: Annotated[str | None, choosing(metavar="ID", help=_EXPLAIN)] = None,
    suggest_patch: Annotated[bool, choosing("--suggest-patch", help=_PATCH)] = False,
    rule: options.Rules = None,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Show a saved run again, as page, JSON or Markdown, or write it as a file."""
    if explain is not None:
        write(sys.stdout, _explained(_rule(explain), explain))
        return
    if loader is not None and (why is not None or suggest_patch):
        other = "--why" if why is not None else "--suggest-patch"
        raise typer.BadParameter(f"not together with {other}", param_hint="'--loader'")
    pictures = _pictures(format, html=html, trace=trace)
    others = {"--why": why, "--loader": loader, "--suggest-patch": suggest_patch or None}
    _check(pictures, output, [name for name, value in others.items() if value is not None])
    asked = None if why is None or why.isdecimal() else _rule(why)
    chosen_steps, rules = _step_range(steps), options.thresholds(rule)
    if run is None:
        raise typer.BadParameter("missing: name a run, such as latest", param_hint="'RUN'")
    directory, first_epoch = find_run(run), None if epoch is None else epoch - 1
    if epoch is None and chosen_steps is None and not rules:
        summary = summary_of(directory)
    else:
        summary = _rebuilt_summary(directory, first_epoch, chosen_steps, rules or None)
    if pictures:
        for picture in pictures:
            with Working(sys.stderr, f"drawing {directory.path.name}"):
                path = write_picture(
                    picture,
                    directory,
                    summary,
                    output=output,
                    epoch=first_epoch,
                    steps=chosen_steps,
                )
            write(sys.stdout, f"{path}\n")
    elif suggest_patch:
        _write_patches(directory, summary)
    elif why is not None:
        asked = asked or _numbered(summary, int(why))
        write(sys.stdout, _reasons(summary, asked, rules or _rules_of(directory)))
    else:
        index = None if loader is None else find_loader(summary, loader)
        text = rendered(summary, Format(format), verbose=verbose, loader=index)
        write(sys.stdout, text)


def _pictures(format: str, *, html: bool, trace: bool) -> list[Picture]:
    """Returns the files to write, each once."""
    wanted = {Picture.HTML: html, Picture.TRACE: trace}
    return [x for x in Picture if wanted.get(x) or format == x.value]


def _check(pictures: list[Picture], output: Path | None, others: list[str]) -> None:
    if output is not None and len(pictures) != 1:
        why = "takes one file" if pictures else "needs --html, --trace or --format html"
        raise typer.BadParameter(why, param_hint="'--output'")
    if pictures and others:
        names = ", ".join(picture.value for picture in pictures)
        raise typer.BadParameter(f"not together with {names}", param_hint=f"'{others[0]}'")


def _write_patches(directory: RunDirectory, summary: RunSummary) -> None:
    """Writes a diff with remarks, which `git apply` and `patch -p1` skip.

    Off a terminal the remarks go to stderr too. The diff is written as bytes: a file may have
    another encoding than stdout.
    """
    from trainprof.cli.patches import patches

    remarks, diffs = patches(directory, summary)
    if not is_terminal(sys.stdout):
        write(sys.stderr, "".join(f"trainprof: {remark}\n" for remark in remarks))
    head = "".join(f"# {remark}\n" for remark in remarks or ["no finding has a change to make"])
    write_bytes(sys.stdout, head.encode() + diffs)


def find_loader(summary: RunSummary, name: str) -> int:
    """Returns the index of the loader that `name` means, else raises LoaderNotFound.

    `name` is an id, a line as reports show it, or its end: train.py:84 for src/train.py:84.
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
            raise LoaderNotFound(several, hint=f"use an id: {ids}")
    known = ", ".join(f"{loader.id} ({loader.site})" for loader in summary.loaders[:_LOADERS_NAMED])
    raise LoaderNotFound(
        f"no loader {name!r} in this run",
        hint=f"its loaders: {known}" if known else "trainprof saw no DataLoader in it",
    )


def summary_of(directory: RunDirectory) -> RunSummary:
    """Returns the saved summary of a run; without one, analyses the run and saves it."""
    from trainprof.findings.saved import saved_summary

    saved = saved_summary(directory)
    if saved is not None:
        return saved
    summary = _rebuilt_summary(directory, None, None, None)
    if summary.run.exit.reason != "running":
        from trainprof.analysis.summary.json_text import to_jsonable

        with contextlib.suppress(OSError):  # of somebody else's run, or on a full disk
            write_json(directory.summary, to_jsonable(summary))
    return summary


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
            f"{directory.path} is an unfinished `tune` run: it has no result yet",
            hint=f"finish it: trainprof tune --resume {shlex.quote(str(directory.path))} SCRIPT; "
            f"or show a trial, such as {known}",
        )
    try:
        with Working(sys.stderr, f"analysing {directory.path.name}"):
            return summarize(directory, epoch=epoch, steps=steps, rules=rules)
    except OSError as error:
        raise unreadable(str(directory.path), error) from error


def rendered(
    summary: RunSummary, format: Format, *, verbose: bool, loader: int | None = None
) -> str:
    """Returns a run in a format, or one of its loaders in full."""
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

    typed, name = name, name.lower().replace("-", "_")
    rule = rule_named(name)
    if rule is None and name in GONE:
        raise RuleNotFound(f"{name} is not a finding any more", hint=GONE[name])
    if rule is None:
        known = [known_rule.id for known_rule in RULES]
        near = difflib.get_close_matches(name, known, n=1)
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        hint = f"did you mean {near[0]}?" if near else f"the nearest are {', '.join(nearest)}"
        raise RuleNotFound(f"unknown finding {typed!r}", hint=hint)
    return rule


def _numbered(summary: RunSummary, number: int) -> Rule:
    """Returns the rule of a finding by its number on the page."""
    if not 1 <= number <= len(summary.findings):
        numbered = (f"{at} {finding.id}" for at, finding in enumerate(summary.findings[:5], 1))
        known = ", ".join(numbered) or "none"
        raise RuleNotFound(f"this run has no finding {number}", hint=f"its findings: {known}")
    return _rule(summary.findings[number - 1].id)


def _explained(rule: Rule, asked: str) -> str:
    from trainprof.report.page.finding_page import render_rule

    page = render_rule(rule, page_of(sys.stdout))
    is_id = asked.lower().replace("-", "_") == rule.id
    return page if is_id else f"{asked} is now part of {rule.id}.\n\n{page}"


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
            f"{text!r} is not A:B, two step numbers from 1 on, A not above B",
            param_hint="'--steps'",
        )
    return first - 1, last
