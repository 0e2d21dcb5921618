"""`trainprof report` on runs that were damaged, or made to harm who looks at them.

Whatever lies in a run directory, the answer is a report of what can be read, or one line and a
hint: no traceback, no hang, nothing from outside the run, nothing that acts on a terminal.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.events import ITEM_ON_CPU, US, FakeRun

from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.cli.app import run_command
from trainprof.findings.summarize import summarize
from trainprof.record.run_directory import RunDirectory
from trainprof.record.schema import (
    HEADER_BYTES,
    HEADER_PREFIX,
    MAGIC,
    RECORD,
    RECORD_BYTES,
    Kind,
    MemoryFigure,
    Topic,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="file systems as Linux has them")

FORMATS = ("terminal", "json", "markdown")
STEPS = 30
LOG = "events/4242-1000000000.events"
FILES = (
    "manifest.json",
    "summary.json",
    LOG,
    "samples/host.jsonl",
    "samples/processes.jsonl",
    "samples/gpus.jsonl",
)
SECONDS_PER_REPORT = 20
GIB = 1 << 30


def record_run(parent: Path) -> RunDirectory:
    """Writes a run of two epochs with every kind of file in it."""
    run = FakeRun()
    training = run.loader(41, num_workers=2, prefetch_factor=2, batch_size=4, dataset="Photos")
    validation, optimizer, site = run.loader(52), run.optimizer(), run.site(66)
    run.text(Topic.ENVIRONMENT, {"torch": "2.13.0", "device": None})
    for _ in range(2):
        run.train_pass(training, optimizer, STEPS // 2, samples=[4] * (STEPS // 2))
        run.leaf(Kind.SYNC, US, site=site, flags=ITEM_ON_CPU)
        run.leaf(Kind.TRANSFER, US, site=site, value=100, flags=1)
        run.leaf(Kind.CHECKPOINT_SAVE, US, site=site)
        run.evaluation_pass(validation, 3)
        for figure in MemoryFigure:
            run.record(Kind.DEVICE_MEMORY, run.now, run.now + US, value=GIB, flags=figure)
        run.record(Kind.FOUND_SYNC, run.now, run.now, site=site)
        run.record(Kind.SYNC_WINDOW, run.start, run.now, site=20, value=20)
    run.mark(Kind.PROCESS_END)
    host = {"name": "a machine", "usable_cores": 2.0, "memory_limit_bytes": None}
    times = {"started_at": "2026-11-21T03:40:12Z", "spawned_ns": run.start, "ended_ns": run.now}
    directory = run.write(
        parent,
        options={"interval_s": 0.5, "wait_threshold_s": 0.5},
        host=host,
        times=times,
        versions={"python": "3.11.7"},
        rank=None,
        world_size=None,
        faults=[],
    )
    moments = [run.start + (run.now - run.start) * part // 4 for part in range(5)]
    for name, sample in SAMPLES.items():
        lines = [json.dumps({"t_ns": t_ns, **sample(n)}) for n, t_ns in enumerate(moments)]
        (directory.samples / name).write_text("".join(f"{line}\n" for line in lines))
    directory.summary.write_text(json.dumps(to_jsonable(summarize(directory)), indent=1))
    return directory


SAMPLES: dict[str, Callable[[int], dict[str, Any]]] = {
    "host.jsonl": lambda n: {
        "cpu": {"user_ns": n * 10**6, "idle_ns": n * 10**7, "iowait_ns": n},
        "cores_busy_ns": [n * 10**6, n * 10**5],
        "context_switches": n * 100,
        "memory_total_bytes": 1 << 34,
        "memory_available_bytes": 1 << 33,
        "swap_used_bytes": 0,
        "disk_read_bytes": n * 4096,
        "disk_write_bytes": n,
        "network_received_bytes": n,
        "network_sent_bytes": n,
        "pressure": {"cpu": {"some_us": n}, "io": {"some_us": n}, "memory": {"some_us": n}},
        "interval_s": 0.5,
        "sampler_cpu_ns": n * 1000,
    },
    "processes.jsonl": lambda n: {
        "processes": [
            {
                "pid": pid,
                "ppid": 1,
                "started_ns": pid * 10,
                "name": "python",
                "state": "S",
                "user_ns": n * 10**6,
                "system_ns": n,
                "reaped_ns": 0,
                "rss_bytes": 10**8 + n,
                "pss_bytes": 10**8,
                "threads": 3,
            }
            for pid in (4242, 4243)
        ]
    },
    "gpus.jsonl": lambda n: {
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-0",
                "name": "Stub GPU",
                "power_limit_w": 700.0,
                "utilization_gpu_percent": 96,
                "utilization_memory_percent": 32,
                "memory_used_bytes": 10 << 30,
                "memory_total_bytes": 80 << 30,
                "power_w": 650.0,
                "temperature_c": 41,
                "energy_mj": n * 1000,
            }
        ]
    },
}


@dataclass(frozen=True)
class Reported:
    """What `trainprof report` answered."""

    status: int
    out: str
    err: str


class Run:
    """A run directory that is damaged, reported and mended again, many times."""

    def __init__(self, directory: RunDirectory) -> None:
        self.path = directory.path
        self._whole = {name: (self.path / name).read_bytes() for name in FILES}
        self._reports = 0

    def whole(self, name: str) -> bytes:
        return self._whole[name]

    def mend(self, *, without_summary: bool = False) -> None:
        """Makes every file what it was; without its summary a run is analysed anew."""
        for name, content in self._whole.items():
            path = self.path / name
            path.parent.mkdir(exist_ok=True)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            if not (without_summary and name == "summary.json"):
                path.write_bytes(content)

    def with_file(self, name: str, content: bytes) -> Reported:
        """Reports the run with one file replaced: as it is used, the summary being there or not."""
        self.mend(without_summary=name != "summary.json")
        (self.path / name).write_bytes(content)
        return self.report()

    @contextlib.contextmanager
    def without_times(self, times: object) -> Iterator[Path]:
        """Gives the manifest other times; yields where a worker's log may be written."""
        self.mend(without_summary=True)
        manifest = json.loads(self.whole("manifest.json")) | {"times": times}
        (self.path / "manifest.json").write_text(json.dumps(manifest))
        worker = self.path / "events/4243-1000000001.events"
        try:
            yield worker
        finally:
            worker.unlink(missing_ok=True)

    def report(self, *options: str) -> Reported:
        """Reports in the next format, and checks what holds for every answer."""
        format = FORMATS[self._reports % len(FORMATS)]
        verbose = ["--verbose"] if self._reports % 2 else []
        self._reports += 1
        return report(self.path, "--format", format, *verbose, *options)


def report(path: Path, *options: str) -> Reported:
    reported = answer("report", str(path), *options)
    if reported.status == 0:
        assert_plain(reported.out)
        if "json" in options:
            json.loads(reported.out, parse_constant=lambda name: pytest.fail(name))
    return reported


def answer(*words: str) -> Reported:
    """Returns what a command answers: a page, or one line and a hint."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), not_for_ever():
        status = run_command([*words])
    reported = Reported(status, out.getvalue(), err.getvalue())
    if status == 2:
        assert_a_line_and_a_hint(reported)
    else:
        assert (status, reported.err) == (0, "")
    return reported


def assert_a_line_and_a_hint(reported: Reported) -> None:
    assert reported.out == ""
    message, hint = reported.err.splitlines()
    assert message.startswith("trainprof: ")
    assert hint.startswith("hint: ")
    # The command line's last resort for errors that nobody thought of.
    assert not re.match(r"trainprof: \w*(Error|Exception|Warning)\b", message), message


def assert_plain(text: str) -> None:
    """Nothing in it acts on a terminal, whatever stood in the run."""
    acting = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs")} - {"\n", "\u200b"}
    assert not acting, sorted(map(ascii, acting))


@contextlib.contextmanager
def not_for_ever() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"no report within {SECONDS_PER_REPORT} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS_PER_REPORT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(record_run(tmp_path_factory.mktemp("hostile")))


def steps_in(reported: Reported) -> int | None:
    steps = re.search(r"([\d,]+) steps?\b", reported.out)
    return int(steps[1].replace(",", "")) if steps else None


# -- damage -------------------------------------------------------------------------------------


def test_the_run_is_whole_to_begin_with(run: Run) -> None:
    for without_summary in (False, True):
        run.mend(without_summary=without_summary)
        assert steps_in(report(run.path)) == STEPS
        summary = json.loads(report(run.path, "--format", "json").out)
        assert summary["training"]["steps"] == STEPS
        assert summary["ledger"]["seconds"]["forward"] == pytest.approx(STEPS * 200e-6)
        assert summary["faults"] == []
        assert len(summary["system"]["gpus"]) == 1


@pytest.mark.proves("Damaged runs", "any file cut at any length")
@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere(run: Run, name: str) -> None:
    whole = run.whole(name)
    cuts = {*range(0, 40, 3), *range(0, len(whole), max(1, len(whole) // 25)), len(whole) - 1}
    for cut in sorted(cuts):
        reported = run.with_file(name, whole[:cut])
        assert reported.status == 0
        if name != LOG:  # what the log tells is there, whatever else is not
            assert "30 steps" in reported.out or '"steps": 30' in reported.out


@pytest.mark.proves("Damaged runs", "any file with bytes changed")
@pytest.mark.parametrize("name", FILES)
def test_a_file_with_bytes_changed(run: Run, name: str) -> None:
    chance = random.Random(name)
    for _ in range(50):
        data = bytearray(run.whole(name))
        if chance.random() < 0.3:
            start = chance.randrange(len(data))
            data[start : start + chance.randrange(1, 64)] = chance.randbytes(32)
        else:
            for _ in range(chance.randrange(1, 30)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        run.with_file(name, bytes(data))


def test_records_with_any_numbers_in_them(run: Run) -> None:
    chance = random.Random(0)
    extremes = [0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**9 + 5]
    for _ in range(60):
        data = bytearray(run.whole(LOG))
        places = range(HEADER_BYTES, len(data), RECORD_BYTES)
        for place in chance.choices(places, k=chance.randrange(1, 40)):
            field, size = chance.choice([(0, 1), (1, 1), (2, 2), (4, 4), (8, 8), (16, 8), (24, 8)])
            number = chance.choice(extremes) % (1 << 8 * size)
            data[place + field : place + field + size] = number.to_bytes(size, "little")
        run.mend(without_summary=True)
        (run.path / LOG).write_bytes(data)
        run.report(*chance.choice([[], [], ["--epoch", "1"], ["--steps", "2:9"]]))


EXTREMES = (0, -1, 2**63 - 1, -(2**63), 2**61, 10**15)


@pytest.mark.parametrize("times", [None, {}, {"spawned_ns": 2**63, "ended_ns": -1}])
def test_extreme_times_with_those_of_the_manifest_gone(run: Run, times: object) -> None:
    """Of the script's log and, beside it, of a worker's; runs are compared, too."""
    whole, chance = run.whole(LOG), random.Random(repr(times))
    for number in range(12):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 1, 40])):
            place = chance.randrange(HEADER_BYTES, len(data), RECORD_BYTES)
            extreme = chance.choice(EXTREMES).to_bytes(8, "little", signed=True)
            for field in chance.choice([(8,), (16,), (24,), (8, 16)]):
                data[place + field : place + field + 8] = extreme
        with run.without_times(times) as worker:
            if number % 2:
                worker.write_bytes(data.replace(b'"script"', b'"child" '))
            else:
                (run.path / LOG).write_bytes(data)
            assert run.report().status == 0
            compare_with_copy(run.path)


@pytest.mark.parametrize("kind", [Kind.FETCH, Kind.PROCESS_END, Kind.FETCH_CPU])
def test_a_worker_that_recorded_one_wild_time(run: Run, kind: Kind) -> None:
    """It has no header to tell the time by, and the manifest has no times."""
    header = HEADER_PREFIX.pack(MAGIC, 1, 0).ljust(HEADER_BYTES, b"\0")
    with run.without_times(None) as worker:
        for at_ns in (2**61, 2**62 - 1, 2**63 - 1):
            worker.write_bytes(header + RECORD.pack(kind, 0, 0, 1, at_ns, at_ns, 3))
            assert json.loads(report(run.path, "--format", "json").out)["run"]["wall_s"] < 1


def compare_with_copy(path: Path) -> None:
    """Compares a run with a copy of it; one without steps is refused."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    try:
        answer("compare", str(path), str(copy), "--verbose")
    finally:
        shutil.rmtree(copy)


@pytest.mark.proves("Damaged runs", "files emptied, and swapped with each other")
def test_files_emptied_and_swapped(run: Run) -> None:
    for name in FILES:
        assert run.with_file(name, b"").status == 0
    for name, other in itertools.combinations(FILES, 2):
        run.mend(without_summary="summary.json" not in (name, other))
        (run.path / name).write_bytes(run.whole(other))
        (run.path / other).write_bytes(run.whole(name))
        assert run.report().status == 0


def make_directory(path: Path) -> None:
    path.mkdir()
    (path / "inner").touch()


def make_socket(path: Path) -> None:
    room = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(f"/proc/self/fd/{room}/{path.name}")  # its name may not be long
    os.close(room)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "a directory": make_directory,
    "a fifo": os.mkfifo,
    "a socket": make_socket,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.proves("Damaged runs", "a directory, fifo, socket or link in the place of any file")
@pytest.mark.parametrize("kind", NO_FILES)
def test_something_else_in_the_place_of_a_file(run: Run, kind: str) -> None:
    for name in FILES:
        run.mend(without_summary=name != "summary.json")
        (run.path / name).unlink()
        NO_FILES[kind](run.path / name)
        assert run.report().status == 0


@pytest.mark.parametrize("room", ["events", "samples"])
def test_something_else_in_the_place_of_a_room(run: Run, room: str) -> None:
    for make in (Path.touch, *NO_FILES.values()):
        run.mend(without_summary=True)
        shutil.rmtree(run.path / room)
        make(run.path / room)
        assert run.report().status == 0
        if (run.path / room).is_dir():
            shutil.rmtree(run.path / room)
        else:
            (run.path / room).unlink()


def test_a_newer_schema_is_named(run: Run) -> None:
    run.mend(without_summary=True)
    newer = json.loads(run.whole("manifest.json")) | {"schema_version": 7}
    (run.path / "manifest.json").write_text(json.dumps(newer))
    refused = report(run.path)
    assert refused.status == 2
    assert "this trainprof reads formats up to 1" in refused.err

    run.mend(without_summary=True)
    (run.path / LOG).write_bytes(MAGIC + (9).to_bytes(4, "little") + run.whole(LOG)[12:])
    shown = " ".join(report(run.path, "--verbose").out.split())
    assert "log version 9; this trainprof reads up to 1" in shown

    newer = json.loads(run.whole("summary.json")) | {"schema_version": 2, "run": "otherwise"}
    assert run.with_file("summary.json", json.dumps(newer).encode()).status == 0
    assert steps_in(report(run.path)) == STEPS


# -- JSON with anything in it -------------------------------------------------------------------

ODD_INTEGERS = [-1, 0, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400]
ODD_NUMBERS = [*ODD_INTEGERS, 0.5, -1e308, 1e308, 5e-324]
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(ODD_NUMBERS),
    st.floats(),
    st.integers(),
    st.text(max_size=20),
    st.sampled_from(["\x1b]0;x\x07", "\u202egnp", "[red]x[/red]", "a\nb", "\ud800"]),
    st.recursive(
        st.none() | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    ),
)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path to everything in a JSON value; of lists, to the first two items."""
    yield above
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value[:2])
    for key, inner in items:
        yield from places(inner, (*above, key))


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copied = value.copy()
    copied[place[0]] = changed(value[place[0]], place[1:], new)
    return copied


def with_odd_values(
    whole: Any, examples: int, check: Callable[[Any, tuple[Any, ...]], None]
) -> None:
    """Calls `check` with the JSON value, something odd in one place, and that place."""

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(st.sampled_from(list(places(whole))), ODD_VALUES)
    def check_each(place: tuple[Any, ...], new: Any) -> None:
        check(changed(whole, place, new), place)

    check_each()


@pytest.mark.proves("Damaged runs", "anything in any field of the manifest and the summary")
@pytest.mark.parametrize("name", ["manifest.json", "summary.json"])
def test_anything_in_any_field(run: Run, name: str) -> None:
    def check(odd: Any, place: tuple[Any, ...]) -> None:
        reported = run.with_file(name, json.dumps(odd).encode())
        is_newer = name == "manifest.json" and place == ("schema_version",)
        assert reported.status == 0 or is_newer

    with_odd_values(json.loads(run.whole(name)), 150, check)


@pytest.mark.parametrize("name", ["host", "processes", "gpus"])
def test_anything_in_any_field_of_a_sample(run: Run, name: str) -> None:
    """In the second line, and in all of them."""
    file = f"samples/{name}.jsonl"
    lines = [json.loads(line) for line in run.whole(file).splitlines()]

    def check(odd: Any, _: tuple[Any, ...]) -> None:
        for damaged in ([lines[0], odd, *lines[2:]], [odd] * len(lines)):
            text = "".join(f"{json.dumps(line)}\n" for line in damaged)
            assert run.with_file(file, text.encode()).status == 0

    with_odd_values(lines[1], 20, check)


@pytest.mark.parametrize("topic", [Topic.LOADER, Topic.SITE, Topic.ENVIRONMENT, "header"])
def test_anything_in_what_a_log_says_of_itself(run: Run, topic: Topic | str) -> None:
    metadata: Any = {
        Topic.LOADER: {"kind": "DataLoader", "num_workers": 2, "prefetch_factor": 2, "site": 1},
        Topic.SITE: ["/work/train.py", 41, "main"],
        Topic.ENVIRONMENT: {"torch": "2", "device": "cuda", "rank": 0, "world_size": 1},
        "header": {"pid": 4242, "role": "script", "perf_ns": 1, "ancestors": [1], "rank": "0"},
    }[topic]

    def check(odd: Any, _: tuple[Any, ...]) -> None:
        log = FakeRun()
        loader = log.text(topic, odd) if topic is Topic.LOADER else log.loader(41)
        if isinstance(topic, Topic):
            log.text(topic, odd)
        log.train_pass(loader, log.optimizer(), 25)
        data = log.log_bytes()
        if topic == "header":
            text = json.dumps(odd).encode()[: HEADER_BYTES - HEADER_PREFIX.size]
            head = HEADER_PREFIX.pack(MAGIC, 1, len(text)) + text
            data = head.ljust(HEADER_BYTES, b"\0") + data[HEADER_BYTES:]
        assert run.with_file(LOG, data).status == 0

    with_odd_values(metadata, 40, check)


@pytest.mark.parametrize("name", ["manifest.json", "summary.json", "samples/host.jsonl"])
@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        '{"schema_version": 1, "run": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"schema_version": NaN, "t_ns": Infinity, "times": -Infinity}',
        '{"schema_version": 1, "schema_version": 99e999}',
        '{"t_ns": ' + "9" * 5000 + "}",
        "\ufeff{}",
        "\x00" * 5000,
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
def test_json_that_is_hard_to_read(run: Run, name: str, text: str) -> None:
    assert run.with_file(name, (text + "\n").encode()).status == 0


# -- sizes --------------------------------------------------------------------------------------


@pytest.mark.proves("Damaged runs", "files that claim to be huge: within 1 GB of memory")
def test_huge_files_take_no_huge_memory(tmp_path: Path) -> None:
    directory = record_run(tmp_path)
    wide = "[],"
    try:
        os.truncate(directory.path / LOG, 1 << 40)
        os.truncate(directory.samples / "gpus.jsonl", 1 << 36)
    except OSError as error:
        pytest.skip(f"no sparse files here: {error.strerror}")
    directory.manifest.write_text("[" + wide * (6 << 20) + "0]")
    directory.summary.write_text('{"schema_version": 1, "run": [' + wide * (8 << 20) + "0]}")
    line = '{"t_ns": 1000000001, "processes": [' + wide * 300_000 + "0]}\n"
    (directory.samples / "processes.jsonl").write_text(line * 10)
    command = [sys.executable, "-m", "trainprof", "report", str(directory.path)]
    with (tmp_path / "out").open("wb") as out, subprocess.Popen(command, stdout=out) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert "30 steps" in (tmp_path / "out").read_text()
    assert usage.ru_maxrss * 1024 < GIB


# -- names --------------------------------------------------------------------------------------

HOSTILE = "\x1b]0;owned\x07\x1b[31m[red]x[/red]\r\n\u202egnp.exe\udc80|`a`<b>@team\x9b2J\u2066"
ENCODABLE = HOSTILE.replace("\udc80", "")


@pytest.mark.proves("Damaged runs", "names with escapes, markup, line ends, bidi, no UTF-8")
def test_hostile_names_are_plain_text(tmp_path: Path) -> None:
    log = FakeRun()
    place = log.site(41, file=f"/work/{HOSTILE}.py")
    metadata = {"kind": HOSTILE, "site": place, "num_workers": 0, "dataset": HOSTILE}
    loader, optimizer = log.text(Topic.LOADER, metadata), log.optimizer(ENCODABLE)
    log.train_pass(loader, optimizer, STEPS, wait=10**7)
    log.leaf(Kind.SYNC, US, site=place, flags=1)
    log.leaf(Kind.TRANSFER, US, site=place, value=1, flags=1)
    log.text(Topic.PROBE_FAILED, {"probe": HOSTILE, "error": HOSTILE})
    number = log.text(Topic.EXCEPTION, ENCODABLE)
    log.mark(Kind.PROCESS_END, value=number)
    directory = log.write(
        tmp_path,
        name=HOSTILE,
        command=[HOSTILE, HOSTILE],
        versions={HOSTILE: HOSTILE},
        faults=[HOSTILE],
        exit={"status": 1, "signal": None, "reason": "exception", "detail": HOSTILE},
    )
    moved = directory.path.rename(tmp_path / os.fsdecode(b"run\x1b[31m\xff\n"))
    for options in ([], ["--verbose"]):
        terminal = report(moved, *options)
        # As it stands there, and not as colour.
        assert "[red]x[/red]" in terminal.out
        assert "owned" not in terminal.out
    markdown = report(moved, "--format", "markdown")
    assert r"\[red\]x\[/red\]" in markdown.out
    for acting in ("<b>", "`a`", "|`", "@team"):
        assert acting not in markdown.out
    assert json.loads(report(moved, "--format", "json").out)["training"]["steps"] == STEPS


# -- what is read -------------------------------------------------------------------------------

audited: list[tuple[str, tuple[Any, ...]]] | None = None


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    if audited is not None:
        audited.append((event, arguments))


@pytest.fixture(scope="module")
def _auditing() -> None:
    sys.addaudithook(audit)  # for ever: there is no way to take one away


@pytest.mark.usefixtures("_auditing")
@pytest.mark.proves("Damaged runs", "no pickle is loaded, nothing outside the run is read")
def test_nothing_outside_the_run_is_read_and_nothing_executed(tmp_path: Path) -> None:
    global audited
    outside = record_run(tmp_path / "outside")
    text = (outside.path / LOG).read_bytes().replace(b"train.py", b"s3cret.p")
    (outside.path / LOG).write_bytes(text)
    for path in (outside.manifest, outside.summary, outside.samples / "processes.jsonl"):
        path.write_text(path.read_text().replace("train.py", "s3cret").replace("python", "s3cret"))
    inside = record_run(tmp_path / "inside")
    evil = b"cos\nsystem\n(S'touch pwned'\ntR."
    (inside.events / "evil.pickle").write_bytes(evil)
    (inside.events / "1-1.events").write_bytes(evil)
    (inside.path / "trainprof.py").write_text("raise SystemExit(9)")
    for format in FORMATS:  # what is imported lazily is there afterwards
        report(inside.path, "--format", format, "-v")
    for name in (*FILES, "events", "samples"):
        target = inside.path / name
        kept = target.rename(tmp_path / "kept")
        target.symlink_to(outside.path / name)
        summary = inside.summary.exists() and name != "summary.json"
        if summary:
            inside.summary.rename(tmp_path / "summary")
        audited = []
        try:
            shown = "".join(report(inside.path, "--format", format, "-v").out for format in FORMATS)
        finally:
            seen, audited = audited, None
        assert "s3cret" not in shown
        assert (steps_in(Reported(0, shown, "")) or 0) == (0 if name in (LOG, "events") else STEPS)
        opened = [arguments[0] for event, arguments in seen if event == "open"]
        assert opened
        for path in opened:
            assert not str(path).startswith(str(outside.path)), path
        events = {event for event, _ in seen}
        assert not events & {"pickle.find_class", "import", "os.system", "subprocess.Popen"}
        target.unlink()
        kept.rename(target)
        if summary:
            (tmp_path / "summary").rename(inside.summary)


# -- the command itself -------------------------------------------------------------------------


def test_a_directory_of_garbage_is_refused_or_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random.Random(name).randbytes(5000))
    shown = report(tmp_path, "--verbose").out
    assert "manifest.json is damaged" in shown
    assert "is not an event log" in shown
    monkeypatch.chdir(tmp_path)
    for name in ("nothing here", "a\0b", "x" * 5000, "\x1b[31m", "manifest.json"):
        assert report(Path(name)).status == 2
