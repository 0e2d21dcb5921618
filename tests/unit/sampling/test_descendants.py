"""What a trial's script leaves behind is ended with it, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from trainprof.record.names import ENV_DIRECTORY
from trainprof.sampling import descendants
from trainprof.sampling.descendants import Orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux takes care of orphans so")

SLEEPS = "import time; print(flush=True); time.sleep(600)"
IS_DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
# Its child goes on, in a session of its own, once it has begun. The script ends at once, for
# a `Popen` that is let go of takes care of a child that has ended.
SCRIPT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE,
                         start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
os._exit(0)
"""


@pytest.fixture(autouse=True)
def _little_grace(monkeypatch):
    monkeypatch.setattr(descendants, "OWN_END_S", 0.0)
    monkeypatch.setattr(descendants, "GRACE_S", 0.5)


@pytest.fixture
def other():
    """A process of ours that has nothing to do with the trial."""
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def orphan_of(*words, of_trial=True):
    """Runs a script that leaves a process behind, and returns that one's number."""
    variables = {ENV_DIRECTORY: "run"} if of_trial else {}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.parametrize("code", [SLEEPS, IS_DEAF])
def test_what_a_script_leaves_running_is_ended_and_named(tmp_path, other, code):
    server = tmp_path / "server.py"
    server.write_text(code)
    with Orphans("run") as watched:
        left = psutil.Process(orphan_of(str(server), "--token=abcdef0123456789"))
        assert left.ppid() == os.getpid()
        [name] = watched.end()
        assert name.startswith("python")
        assert name.endswith(" server.py")
        assert not left.is_running()
        assert watched.end() == ()
    assert other.poll() is None


def test_what_ends_by_itself_has_the_time_for_it(monkeypatch):
    monkeypatch.setattr(descendants, "OWN_END_S", 60.0)
    until_its_pipe_closes = "import sys; print(flush=True); sys.stdin.read()"
    with Orphans("run") as watched:
        script = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, "-c", until_its_pipe_closes],
            env={**os.environ, ENV_DIRECTORY: "run"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with script:
            left = psutil.Process(int(script.stdout.readline()))
            script.stdin.close()
        assert watched.end() == ()
        assert not left.is_running()


def test_one_that_has_ended_is_let_go_of_beside_one_that_others_wait_for():
    with subprocess.Popen([sys.executable, "-c", ""]) as before, Orphans("run") as watched:
        os.waitid(os.P_PID, before.pid, os.WEXITED | os.WNOWAIT)
        ended = orphan_of("-c", "print(flush=True)")
        os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
        watched.reap(script=0)
        assert not psutil.pid_exists(ended)
        assert before.wait() == 0


def test_alone_in_its_house_it_needs_no_mark():
    helpers = [process.pid for process in psutil.Process().children(recursive=True)]
    with Orphans("run", helpers=helpers) as watched:
        left = psutil.Process(orphan_of("-c", SLEEPS, of_trial=False))
        assert len(watched.end()) == 1
        assert not left.is_running()


@pytest.mark.parametrize("is_first", [True, False])
def test_what_others_may_have_left_to_us_is_ended_only_with_the_trials_mark(
    monkeypatch, request, is_first
):
    """As process 1 of a container, or where the shell had started something before us."""
    if is_first:
        monkeypatch.setattr(descendants, "_INIT", os.getpid())
    else:
        request.getfixturevalue("other")
    with Orphans("run") as watched:
        strangers = psutil.Process(orphan_of("-c", SLEEPS, of_trial=False))
        own = psutil.Process(orphan_of("-c", SLEEPS))
        assert len(watched.end()) == 1
        assert not own.is_running()
        assert strangers.is_running()
        strangers.kill()
        strangers.wait()
