from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from trainprof.cli.app import app, options_with_value, our_part, separated

COMMAND = typer.main.get_command(app)
VALUED = options_with_value(COMMAND.commands["run"])  # type: ignore[attr-defined]


def test_which_options_take_a_value_comes_from_the_command() -> None:
    assert {"-o", "--output", "-m", "--interval", "--max-steps", "--max-time"} <= VALUED
    assert not {"-q", "--quiet", "-v", "--progress", "--debug", "--help"} & VALUED


@pytest.mark.parametrize(
    ("ours", "script"),
    [
        ([], ["x.py"]),
        (["-q"], ["x.py", "-q", "--help", "-o", "d"]),
        (["-o", "d"], ["x.py", "--", "y"]),
        (["-od"], ["x.py"]),
        (["--output=d", "--interval", "2"], ["x.py"]),
        (["-qv", "--max-steps", "5"], ["x.py", "-m", "mod"]),
        (["-qo", "d"], ["x.py"]),
        (["-m", "mod"], ["--help"]),
        (["-q", "-m", "mod"], ["--", "-o", "d"]),
        (["-qm", "mod"], ["-q"]),
        (["-mmod"], ["-q"]),
        (["-o", "-m", "-m", "mod"], ["x"]),
        (["--no-such-option"], ["x.py", "--no-such-option"]),
        ([], ["-"]),
    ],
)
def test_the_line_is_drawn_before_what_is_the_scripts(ours: list[str], script: list[str]) -> None:
    words = separated([*ours, *script], VALUED)
    assert words == [*ours, "--", *script]
    assert our_part(words) == ours


def test_a_line_already_drawn_is_kept() -> None:
    assert separated(["-q", "--", "x.py", "--", "-o"], VALUED) == ["-q", "--", "x.py", "--", "-o"]


@pytest.mark.parametrize("arguments", [[], ["-q"], ["-o"], ["--help"], ["-m"], ["-m", "mod"]])
def test_without_a_script_part_nothing_is_lost(arguments: list[str]) -> None:
    assert [word for word in separated(arguments, VALUED) if word != "--"] == arguments


@given(st.lists(st.text(max_size=5)))
def test_what_follows_the_script_is_never_ours(script_arguments: list[str]) -> None:
    words = separated(["-q", "x.py", *script_arguments], VALUED)
    assert words == ["-q", "--", "x.py", *script_arguments]
