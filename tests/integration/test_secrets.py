"""Secrets that a script is given: nowhere in what is written of its runs, nor in what is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.processes import PYTHON, run
from support.styles import without_compiler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process names as Linux has them")

# Spelled in parts, lest somebody's scanner takes this file for a leak.
PASSWORDS = {option: f"hunter2{option.strip('-')}" for option in ("--db-pass", "--pw", "-p")}
TOKENS = {
    "JWT": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJl",
    "Google": "AIza" + "Sy" + "x1" * 17,
    "GitLab": "glpat" + "-x1y2z3x1y2z3x1y2z3x1",
    "Telegram": "123456789" + ":AAH" + "x" * 32,
    "Hugging Face": "hf_" + "abcdefgh12345678",
    "PEM": "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIBx1y2z3\n-----END RSA PRIVATE KEY-----",
    "Slack": "https://hooks.slack.com/" + "services/T0x1/B0y2/z3x1y2",
}
NAMED = "s3same-0pen"  # secret by its name alone
IN_NAME = "ghp_" + "x1y2z3x1y2"
WORDS = [
    *(word for pair in PASSWORDS.items() for word in pair),
    *("--auth", f"me:{NAMED}", "--cookie", f"sid={NAMED}", "--tokens", f"a{NAMED}", f"b{NAMED}"),
    f"--dsn=host=db password={NAMED}",
    f'{{"password": "{NAMED}", "n": 1}}',
    f"api_key: {NAMED}",
    f"Authorization: Bearer {NAMED}",
    *TOKENS.values(),
    "--lr=0.125",
]
# What no output may have in it; of a key a line is enough.
PLANTED = [NAMED, IN_NAME, "MIIBx1y2z3", "T0x1/B0y2", *PASSWORDS.values()]
PLANTED += [token for name, token in TOKENS.items() if name not in ("PEM", "Slack")]

SCRIPT = without_compiler(f"""
import os, sys
import torch
from torch.utils.data import DataLoader

# A process's name, as setproctitle would set it.
with open("/proc/self/comm", "w") as comm:
    comm.write("{IN_NAME}")


def train():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(torch.ones(32, 4), batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


train()
if os.environ.get("FAILS"):
    print(*sys.argv, os.environ["MY_SECRET"], sep="\\n")
    print(*sys.argv, os.environ["MY_SECRET"], sep="\\n", file=sys.stderr)
    raise ValueError(f"no access for {{os.environ['MY_SECRET']}} with {{sys.argv}}")
""")


def trainprof(directory: Path, *words: str, **variables: str) -> str:
    """Returns all that trainprof wrote to stdout and stderr."""
    env = {"MY_SECRET": NAMED, **variables}
    done = run((*PYTHON, "-m", "trainprof"), *words, cwd=directory, env=env)
    return (done.stdout + done.stderr).decode()


def leaks(text: str) -> list[str]:
    return [secret for secret in PLANTED if secret in text]


def leaks_below(directory: Path) -> dict[str, list[str]]:
    """Returns what of the planted is in names and texts of files, by file."""
    files = sorted(path for path in directory.rglob("*") if not path.is_dir())
    assert files
    texts = {str(path): path.read_bytes().decode("latin-1") for path in files if path.is_file()}
    return {name: lost for name, text in texts.items() if (lost := leaks(f"{name} {text}"))}


@pytest.fixture(name="script")
def planted_script(tmp_path: Path) -> Path:
    path = tmp_path / f"train-{IN_NAME}.py"
    path.write_text(SCRIPT)
    (tmp_path / f"beside-{IN_NAME}.py").touch()
    return path


def test_a_run_holds_no_secret_of_its_command_environment_or_files(script: Path) -> None:
    place = script.parent
    shown = trainprof(place, "run", "--interval", "0.1", script.name, *WORDS)
    assert "16 steps" in shown
    runs = place / "trainprof-runs"
    for format in ("terminal", "markdown", "json"):
        page = trainprof(place, "report", "latest", "--format", format, "-v")
        assert "16" in page
        shown += page
    assert leaks(shown) == []
    assert leaks_below(runs) == {}


def test_a_trial_that_fails_tells_why_without_a_secret(script: Path) -> None:
    shown = trainprof(
        script.parent, "tune", "--unsandboxed", "-o", "tuned", script.name, *WORDS, FAILS="1"
    )
    assert "no access for ***" in shown
    assert leaks(shown) == []
    assert leaks_below(script.parent / "tuned") == {}
