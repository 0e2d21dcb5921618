"""The command line: the verbs, and the one place where errors end."""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final, NoReturn

import typer

from trainprof import __version__
from trainprof.cli.help import ProgramHelp, VerbHelp
from trainprof.cli.output import complain
from trainprof.record.errors import TrainprofError

PROGRAM: Final = "trainprof"
# What `lines` is where its SCRIPT is a saved run.
_SAVED_LINES: Final = "saved-lines"
# Module and function of each: the one asked for is imported alone.
VERBS: Final = {
    "run": "trainprof.cli.run:run",
    "lines": "trainprof.cli.lines:lines",
    "report": "trainprof.cli.report:report",
    "list": "trainprof.cli.list_runs:list_runs",
    "clean": "trainprof.cli.clean:clean",
    "compare": "trainprof.cli.compare:compare",
    "tune": "trainprof.cli.tune:tune",
    _SAVED_LINES: "trainprof.cli.lines:saved_lines",
}
# In the list of commands, and two examples.
_ABOUT: Final = {
    "run": (
        "Profile one run of a script",
        "trainprof run train.py --epochs 1",
        "trainprof run --max-steps 200 -m my.package",
    ),
    "lines": (
        "Time the lines of the training loop and of the loaders",
        "trainprof lines train.py",
        "trainprof lines -f augment train.py --epochs 1",
    ),
    "report": (
        "Show a saved run again",
        "trainprof report latest",
        "trainprof report latest --html",
    ),
    "list": ("List the saved runs", "trainprof list", "trainprof list --verbose"),
    "clean": (
        "Remove old and failed runs",
        "trainprof clean --failed",
        "trainprof clean --keep 10 --dry-run",
    ),
    "compare": (
        "Compare two runs: which one is faster, and why",
        "trainprof compare latest~1 latest",
        "trainprof compare --fail-if-slower 5 BASE OTHER",
    ),
    "tune": (
        "Measure which settings make a script faster",
        "trainprof tune train.py",
        "trainprof tune --budget 6m train.py --epochs 1",
    ),
    _SAVED_LINES: ("", "trainprof lines latest"),
}
# Those that take a script: what follows SCRIPT is not ours.
_SCRIPT_VERBS: Final = frozenset({"run", "lines", "tune"})
# Of those, the ones that exit as the script does: a failure before it starts is 125.
_LAUNCHING_VERBS: Final = frozenset({"run", "lines"})
_LAUNCH_FAILED: Final = 125
_USER_ERROR: Final = 2
_BROKEN_PIPE: Final = 141  # 128 + SIGPIPE, as a shell shows it
_MODULE_OPTION: Final = "-m"
_END_OF_OPTIONS: Final = "--"


class UnknownVerb(TrainprofError):
    slug = "unknown-verb"
    exit_code = _USER_ERROR


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def trainprof(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Find out what slows a PyTorch training script down, without changing it."""


def main() -> NoReturn:
    """Runs the command line and exits with its status."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status; `run` itself exits as the script did."""
    verb = [word for word in arguments[:1] if word in VERBS]
    command = built_verbs(*verb, *([_SAVED_LINES] if verb == ["lines"] else []))
    words, is_launching = _split(command, arguments)
    is_debug = "--debug" in our_part(words)
    failed = _LAUNCH_FAILED if is_launching else _USER_ERROR
    try:
        _check_verb(words[0])
        status = command.main(args=words, prog_name=PROGRAM, standalone_mode=False)
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        # Keeps the interpreter from flushing into the closed pipe at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE
    except Exception as error:
        if is_debug:
            traceback.print_exc()
        return _complain_of(error, failed, arguments, is_debug=is_debug)


@functools.cache
def built_verbs(*names: str) -> Any:
    """Returns trainprof's command with these verbs, or with all.

    Importing and building all of them takes as long as a small report.
    """
    app = typer.Typer(
        name=PROGRAM,
        cls=ProgramHelp,
        callback=trainprof,
        epilog="trainprof run train.py --epochs 1\ntrainprof report latest --why 1",
        rich_markup_mode=None,  # rich would double the start-up
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb in names or VERBS:
        short_help, *examples = _ABOUT[verb]
        app.command(
            verb,
            cls=VerbHelp,
            short_help=short_help,
            epilog="\n".join(examples),
            hidden=verb == _SAVED_LINES,
        )(_function_of(verb))
    return typer.main.get_command(app)


def _function_of(verb: str) -> Callable[..., object]:
    module, _, name = VERBS[verb].partition(":")
    function: Callable[..., object] = getattr(importlib.import_module(module), name)
    if verb not in _LAUNCHING_VERBS:
        return function
    from trainprof.cli.options import runs_a_script

    if verb == "run":
        return runs_a_script(function)
    from trainprof.cli.lines import ScriptOrRun

    return runs_a_script(function, ScriptOrRun)


def _split(command: Any, arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Separates the script's part from ours; True where the verb exits as the script does."""
    words = list(arguments) or ["--help"]
    if words[0] not in _SCRIPT_VERBS:
        return words, False
    valued = options_with_value(command.commands[words[0]])
    if words[0] == "lines":
        from trainprof.cli.lines import names_saved_run

        script = script_word(words[1:], valued)
        if script is not None and names_saved_run(script):
            return [_SAVED_LINES, *words[1:]], False
    return [words[0], *separated(words[1:], valued)], words[0] in _LAUNCHING_VERBS


def _check_verb(word: str) -> None:
    if word.startswith("-") or word in VERBS:
        return
    if os.path.exists(word) or word.endswith(".py"):
        hint: str | None = f"run a script with: {PROGRAM} run {word}"
    else:
        hint = _nearest(word, VERBS.keys() - {_SAVED_LINES}) or f"see {PROGRAM} --help"
    raise UnknownVerb(f"unknown command {word!r}", hint=hint)


def _nearest(word: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else None


def _complain_of(error: Any, failed: int, arguments: Sequence[str], *, is_debug: bool) -> int:
    if isinstance(error, TrainprofError):
        complain(str(error), error.hint)
        # 125 to 127 belong to `run` and `lines`: for other verbs it is a user error.
        return error.exit_code if failed == _LAUNCH_FAILED else min(error.exit_code, _USER_ERROR)
    usage = getattr(error, "format_message", None)
    if usage is not None:  # click's own errors; its classes moved between typer's versions
        verb = [arguments[0]] if arguments and arguments[0] in VERBS else []
        hint = f"see {' '.join([PROGRAM, *verb])} --help"
        if hasattr(error, "possibilities"):  # NoSuchOption
            context, option = error.ctx, error.option_name
            known = [name for parameter in context.command.params for name in parameter.opts]
            complain(f"unknown option {option}", _nearest(option, known) or hint)
        else:
            complain(usage(), hint)
        return failed
    complain(
        f"{type(error).__name__}: {error}",
        hint=None if is_debug else "--debug shows the traceback",
    )
    return failed


def options_with_value(command: Any) -> frozenset[str]:
    """Returns the names, with dashes, of a click command's options that take a value."""
    return frozenset(
        name
        for parameter in command.params
        if not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False)
        for name in parameter.opts
        if name.startswith("-")
    )


def separated(arguments: Sequence[str], valued: frozenset[str]) -> list[str]:
    """Returns the arguments behind the verb with `--` ahead of the script's part.

    That part begins with SCRIPT, or behind `-m MODULE`. `valued` are our options with a value.
    """
    position, mark = _script_part(arguments, valued)
    if position is None or mark == _END_OF_OPTIONS:
        return list(arguments)
    return [*arguments[:position], _END_OF_OPTIONS, *arguments[position:]]


def script_word(arguments: Sequence[str], valued: frozenset[str]) -> str | None:
    """Returns SCRIPT, or None behind `--` or `-m`, where it cannot be a saved run."""
    position, mark = _script_part(arguments, valued)
    return arguments[position] if position is not None and mark is None else None


def _script_part(arguments: Sequence[str], valued: frozenset[str]) -> tuple[int | None, str | None]:
    """Returns where the script's part begins, and the `--` or `-m` ahead of it."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == _END_OF_OPTIONS:
            return position + 1, _END_OF_OPTIONS
        if word == "-" or not word.startswith("-"):
            return position, None
        option, takes_next = _option(word, valued)
        position += 2 if takes_next else 1
        if option == _MODULE_OPTION:
            return position, _MODULE_OPTION
    return None, None


def our_part(arguments: Sequence[str]) -> list[str]:
    """Returns the separated arguments up to the `--`."""
    words = list(arguments)
    return words[: words.index(_END_OF_OPTIONS)] if _END_OF_OPTIONS in words else words


def _option(word: str, valued: frozenset[str]) -> tuple[str, bool]:
    """Returns the last option in `word` (`-qm` has two), and whether its value is the next word."""
    if word.startswith("--"):
        name, has_value, _ = word.partition("=")
        return name, not has_value and name in valued
    for at, letter in enumerate(word[1:], start=1):
        name = f"-{letter}"
        if name in valued:
            return name, at == len(word) - 1
    return word, False
