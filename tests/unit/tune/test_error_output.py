"""The one line that tells why a script failed, and whether the sandbox is behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainprof.tune.trial_output import last_words, refusal_in

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("ValueError: no")
"""


@pytest.mark.parametrize(
    ("written", "exception", "told"),
    [
        (f"{TRACEBACK}ValueError: 3 is odd\n", "ValueError", "ValueError: 3 is odd"),
        (f"{TRACEBACK}ValueError: first\nsecond line\n\n", "ValueError", "ValueError: first"),
        (f"{TRACEBACK}ValueError\nbye\n", "ValueError", "ValueError"),
        (f"{TRACEBACK}torch.cuda.OutOfMemoryError: 2 GiB\n", "OutOfMemoryError", "2 GiB"),
        (f"{TRACEBACK}_pickle.PicklingError: <lambda>\n", "PicklingError", "<lambda>"),
        (
            f"{TRACEBACK}KeyError: Caught KeyError in DataLoader worker process 0.\n"
            f"Original {TRACEBACK}KeyError: 'x'\n",
            "KeyError",
            "KeyError: 'x'",
        ),
        (f"{TRACEBACK}RuntimeError: of another\n", "ValueError", None),
        (f"{TRACEBACK}RuntimeError: caught by it\nbye\n", None, "RuntimeError: caught by it"),
        ("usage: s.py [-h]\ns.py: error: no such option\n", None, "s.py: error: no such option"),
        ("  \n\n", None, None),
        ("", "ValueError", None),
        (f"ValueError: {'x' * 300}\n", "ValueError", f"ValueError: {'x' * 145}..."),
        ("x" * (1 << 17) + "\nValueError: late\n", "ValueError", "ValueError: late"),
    ],
)
def test_the_line_that_tells(
    tmp_path: Path, written: str, exception: str | None, told: str | None
) -> None:
    (tmp_path / "stderr").write_text(written)
    found = last_words(tmp_path, exception)
    assert found == told if told is None else (found or "").endswith(told)


def test_what_is_not_text_or_not_there_does_no_harm(tmp_path: Path) -> None:
    assert last_words(tmp_path, None) is None
    (tmp_path / "stderr").write_bytes(b"\xff\xfe\nValueError: \xff\n")
    assert last_words(tmp_path, "ValueError") == "ValueError: \ufffd"


MESSAGES = {
    18: "Invalid cross-device link",
    28: "No space left on device",
    30: "Read-only file system",
    75: "Value too large for defined data type",
}
SAID = {18: "EXDEV", 28: "ENOSPC", 30: "EROFS", 75: "EOVERFLOW"}


@pytest.mark.parametrize("number", MESSAGES)
@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno {number}] {message}: 'runs/last' -> 'runs/old'",
        "OSError: [Errno {number}] another language's words",
        "safetensors_rust.SafetensorError: Error: I/O error: {message} (os error {number})",
        "Error: another language's words (os error {number})",
        "mv: cannot move 'a' to 'b': {message}",
        "RuntimeError: unable to write to file </data/x>: {message} ({number})",
    ],
)
def test_a_refusal_is_known_by_what_python_rust_and_c_say(number: int, line: str) -> None:
    line = line.format(number=number, message=MESSAGES[number])
    why = refusal_in(f"Traceback (most recent call last):\n{line}\n")
    assert why is not None
    assert f"({SAID[number]})" in why


@pytest.mark.parametrize(
    "errors",
    [
        "",
        "FileNotFoundError: [Errno 2] No such file or directory: 'a'",
        "PermissionError: [Errno 13] Permission denied: 'a'",
        "BlockingIOError: [Errno 180] no such number",
        "Error: (os error 2)",
        "ValueError: epoch 18, batch 28, class 30 of 75",
    ],
)
def test_other_errors_are_the_scripts_own(errors: str) -> None:
    assert refusal_in(errors) is None
