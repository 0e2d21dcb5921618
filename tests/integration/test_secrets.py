"""Secrets that a script is given are in nothing that is written or shown; nobody else may look."""

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
    *("--api-key", NAMED, f"--wandb_token={NAMED}", f"PASSWORD={NAMED}"),
    *(f"https://me:{NAMED}@host/x", f"postgres://u:{NAMED}@h:5432/d?sslmode=on"),
    *(f"https://host/x?token={NAMED}&n=1", f"s3://b/k?X-Amz-Signature={NAMED}#part"),
    *("--url", f"https://host/?a=1&api_key={NAMED}", f"--hub=https://h/?sig={NAMED}"),
    *TOKENS.values(),
    "--lr=0.125",
]
# What no output may have in it; of a key a line is enough, and a log holds texts in pieces.
PLANTED = [NAMED[:8], IN_NAME, "MIIBx1y2z3", "T0x1/B0y2", *PASSWORDS.values()]
PLANTED += [token for name, token in TOKENS.items() if name not in ("PEM", "Slack")]

SCRIPT = without_compiler(f"""
import os, subprocess, sys
import torch
from torch.utils.data import DataLoader

# A process's name, as setproctitle would set it.
with open("/proc/self/comm", "w") as comm:
    comm.write("{IN_NAME}")

def train():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(torch.ones(32, 4), batch_size=2, num_workers=1):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

train()
torch.save({{}}, os.environ["MY_SECRET"] + ".pt")
sleeps = "import time; time.sleep(0.3)"
subprocess.run([sys.executable, "-c", sleeps, "--token", os.environ["MY_SECRET"]])
if os.environ.get("IS_LOUD"):
    print(*sys.argv, os.environ["MY_SECRET"], sep="\\n")
    print(*sys.argv, os.environ["MY_SECRET"], sep="\\n", file=sys.stderr)
raise ValueError(f"no access for {{os.environ['MY_SECRET']}} with {{sys.argv}}")
""")


def trainprof(directory: Path, *words: str, **variables: str) -> str:
    """Returns all that trainprof wrote to stdout and stderr, but for the script's traceback."""
    env = {"MY_SECRET": NAMED, "DATABASE_URL": f"x://u:{NAMED}@h/d", **variables}
    set_mask = "import os, sys; os.umask(0); os.execv(sys.executable, sys.argv[1:])"
    command = (*PYTHON, "-c", set_mask, *PYTHON, "-m", "trainprof")
    done = run(command, *words, cwd=directory, env=env)
    text = (done.stdout + done.stderr).decode()
    before, _, rest = text.partition("Traceback ")
    return before + rest.partition("\nValueError: ")[2].partition("\n")[2]


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


@pytest.mark.proves("Privacy", "directories 0700 and files 0600, whatever the umask")
@pytest.mark.proves("Privacy", "no secret of environment, arguments, URLs, children, exceptions")
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
    run_directory = (runs / "latest").resolve()
    assert len(list((run_directory / "events").iterdir())) >= 2
    for path in (run_directory, *run_directory.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_trial_that_fails_tells_why_without_a_secret(script: Path) -> None:
    shown = trainprof(
        script.parent, "tune", "--unsandboxed", "-o", "tuned", script.name, *WORDS, IS_LOUD="1"
    )
    assert "no access for ***" in shown
    assert leaks(shown) == []
    assert leaks_below(script.parent / "tuned") == {}
