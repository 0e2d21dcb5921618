"""Training in children and in several processes: each is counted apart, none mixed with another."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.machine import attempts
from support.package import PACKAGE
from support.processes import TRAINPROF, Ended, can_be_read, run
from support.side_by_side import (
    DEADLINE_S,
    LOOP,
    Pair,
    Project,
    check_same,
    environment,
    prove_both,
    run_ours,
    run_plain,
)
from support.styles import PREAMBLE, WITH_COMPILER, Style, check_counts, missed_costs

REPORT = (sys.executable, "-m", "trainprof", "report", "--format", "json", "run")

TRAIN = LOOP.replace("make_loader()", "make_loader(batches)")
TRAINED = PREAMBLE + "import sys\nbatches = int(sys.argv[1])\n" + TRAIN + "\ntell()\n"

CHILDREN = f"""{PREAMBLE}
import multiprocessing, os, subprocess, sys

def train(batches):
{"".join("    " + line + chr(10) for line in TRAIN.splitlines())}
    tell()
    sys.stdout.flush()

if __name__ == "__main__":
    print("parent", flush=True)
    subprocess.run([sys.executable, "child.py", "4"], check=True)
    for method, batches in (("fork", 2), ("spawn", 6), ("forkserver", 3)):
        child = multiprocessing.get_context(method).Process(target=train, args=(batches,))
        child.start()
        child.join()
        print(method, child.exitcode, flush=True)
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    train(5)
"""
# Batches of an epoch, by how the child was started.
BATCHES = {"subprocess": 4, "fork": 2, "spawn": 6, "forkserver": 3, "os.fork": 5}


def trained(method: str) -> pytest.MarkDecorator:
    return pytest.mark.proves("Children", f"trained in: {method}")


@pytest.mark.proves("Children", "several trainings one after another, each counted apart")
@trained("os.fork without exec")
@trained("multiprocessing, forkserver")
@trained("multiprocessing, spawn")
@trained("multiprocessing, fork")
@trained("subprocess")
def test_children_that_train_are_reported_and_kept_apart(tmp_path: Path) -> None:
    """The parent does not train; costs that miss are measured again, as in `styles.prove`."""
    project = Project(("train.py",), {"train.py": CHILDREN, "child.py": TRAINED})
    plain = run_plain(project, tmp_path)
    expected = sorted((2 * batches for batches in BATCHES.values()), reverse=True)
    style = Style("", expected[0], expected[0], 2)
    for attempt in attempts():
        pair = run_ours(project, tmp_path / str(attempt), plain)
        assert pair.ours.status == plain.status == 0, (plain.stderr, pair.ours.stderr)
        assert pair.ours.stderr == plain.stderr
        assert untimed(pair.ours.stdout) == untimed(plain.stdout)
        summary = pair.summary()
        check_counts(style, summary)
        assert summary["run"]["exit"]["reason"] == "completed"
        assert summary["ranks"] == []
        apart = summary["trained_apart"]
        assert [row["steps"] for row in apart] == expected[1:]
        assert [row["exit"]["reason"] for row in apart] == ["completed"] * len(apart)
        truths = {truth["counts"]["forward"]: truth for truth in truths_in(pair.ours.stdout)}
        missed = {
            # All train alike, and are looked at alike: the summary tells what it took of one.
            method: missed_costs(
                style, {**row, "overhead": summary["overhead"]}, truths[row["steps"]]
            )
            for method, batches in BATCHES.items()
            for row in ({"steps": expected[0], **summary}, *apart)
            if row["steps"] == 2 * batches
        }
        assert missed.keys() == BATCHES.keys()
        if not any(missed.values()):
            break
    assert not any(missed.values()), missed


def report_in(cwd: Path) -> dict[str, Any]:
    return dict(json.loads(run(REPORT, cwd=cwd, env=environment()).stdout))


def truths_in(stdout: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines() if line[:1] == b"{"]


def untimed(stdout: bytes) -> list[bytes | dict[str, int]]:
    """Returns the lines, and of those that tell times the counts alone."""
    return [
        json.loads(line)["counts"] if line[:1] == b"{" else line for line in stdout.splitlines()
    ]


POOLS = """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing, sys
from joblib import Parallel, delayed

def square(x):
    return x**2

def square_by_torch(x):
    import torch
    return (torch.ones(2) * x).sum().item() ** 2

if __name__ == "__main__":  # without which every child would import torch
    with open("training.py") as file:
        training = compile(file.read(), "training.py", "exec")
    exec(training)
    for method, function in (
        ("fork", square_by_torch), ("spawn", square_by_torch), ("forkserver", square)
    ):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            print(method, list(pool.map(function, range(4))))
    print(Parallel(n_jobs=2)(delayed(square)(x) for x in range(4)))
    train()
    tell()
"""
POOLED = PREAMBLE + "def train():\n" + "".join(f"    {line}\n" for line in LOOP.splitlines())


@pytest.mark.proves("Children", "process pools and joblib during training")
def test_pools_beside_the_training(tmp_path: Path) -> None:
    prove_both(Project(("train.py",), {"train.py": POOLS, "training.py": POOLED}), tmp_path)


# What `tell` prints of a process that timed nothing.
TIMED_NOTHING = b'{"seconds": {}, "counts": {}}\n'

HOGWILD = """
import torch.multiprocessing as mp

def train(number, model):
    torch.manual_seed(number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in make_loader(4 + 2 * number):
        with timed("forward"):
            p = model(x)
        optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
    with open(f"truth-{number}.json", "w") as file:
        json.dump({"seconds": truth, "counts": counts}, file)

if __name__ == "__main__":
    model = make_model().share_memory()
    mp.spawn(train, (model,), nprocs=2)
    print("trained", {})
    tell()
"""


@pytest.mark.proves("Distributed", "hogwild: processes that share a model, each counted apart")
def test_hogwild_processes_are_kept_apart(tmp_path: Path) -> None:
    project = Project(("train.py",), {"train.py": PREAMBLE + HOGWILD})
    for attempt in attempts():  # the machine is not ours alone
        directory = tmp_path / str(attempt)
        directory.mkdir()
        pair = run_ours(project, directory, Ended(b"trained {}\n" + TIMED_NOTHING, b"", 0))
        check_same(pair)
        summary = pair.summary()
        assert summary["faults"] == summary["ranks"] == []
        assert summary["training"]["steps"] == summary["training"]["iterations"] == 6
        [other] = summary["trained_apart"]
        assert (other["steps"], other["rank"], other["exit"]["reason"]) == (4, None, "completed")
        costs = [(summary, truth_of_rank(pair, 1)), (other, truth_of_rank(pair, 0))]
        if all(is_its_own(*cost) for cost in costs):
            break
    for cost in costs:
        check_cost(*cost)


RANKS = """
import gc, os, sys
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

class Items(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        return torch.full((8,), index / 48), torch.ones(1)

def train(rank, wrap, workers=0, fails=None):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = make_model(0.004 * (1 + rank))
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Items()
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=workers)
    for epoch in range(2):
        for x, y in loader:
            with timed("forward"):
                p = model(x)
            loss = mse(p, y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        if rank == fails:
            raise KeyError("planted")
    if rank == 0:
        print(loss.item().hex(), flush=True)
    with open(f"truth-{rank}.json", "w") as file:
        json.dump({"seconds": truth, "counts": counts}, file)
    # gloo's threads end with the last reference to the group. That must not be DDP's: it goes while
    # Python's lock is held, which a thread that lets go of a finished reduction waits for.
    del model, optimizer, loss, p
    gc.collect()
    dist.destroy_process_group()

def data_parallel(model):
    return nn.parallel.DistributedDataParallel(model)
"""

UNDER_TORCHRUN = """
if __name__ == "__main__":
    dist.init_process_group("gloo")
    fails = int(sys.argv[2]) if len(sys.argv) > 2 else None
    train(dist.get_rank(), data_parallel, int(sys.argv[1]), fails)
"""

SPAWNED = """
import torch.multiprocessing as mp

def fully_sharded(model):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)

def work(rank, wrap, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    train(rank, wrap)

if __name__ == "__main__":
    wraps = {"ddp": data_parallel, "fsdp": fully_sharded}
    mp.spawn(work, (wraps[sys.argv[1]], os.path.abspath("store")), nprocs=2)
"""

TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
# What DDP asks of torch's compiler, which is not there.
DDP_ASKS = """
class Nothing:
    def __getattr__(self, name):
        return self

    def __call__(self, *arguments, **options):
        return self

torch._dynamo.utils = torch._dynamo.trace_rules = Nothing()
"""
DDP_SCRIPT = PREAMBLE + DDP_ASKS + RANKS


def truth_of_rank(pair: Pair, rank: int) -> dict[str, Any]:
    return dict(json.loads((pair.run.parent / f"truth-{rank}.json").read_text()))


def check_cost(row: dict[str, Any], truth: dict[str, Any]) -> None:
    """Asserts that the ledger's forward is what that process timed, and of no other one."""
    assert is_its_own(row, truth), (row["ledger"]["seconds"], truth)


def is_its_own(row: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether the ledger's forward is what that process timed.

    A collection that falls into a forward is gc in the ledger, and forward for the script.
    """
    planted_s, seconds = truth["seconds"]["forward"], row["ledger"]["seconds"]
    slack_s = 0.02 * planted_s + 2e-4 * truth["counts"]["forward"] + 2e-3
    return bool(planted_s - seconds["gc"] - slack_s < seconds["forward"] < planted_s + slack_s)


def check_ranks(summary: dict[str, Any], pair: Pair) -> None:
    """Asserts counts and a planted cost for each of two ranks, and that the whole is their mean."""
    assert summary["faults"] == summary["trained_apart"] == []
    assert (summary["run"]["rank"], summary["run"]["world_size"]) == (None, 2)
    rows = summary["ranks"]
    assert [row["rank"] for row in rows] == [0, 1]
    assert [row["steps"] for row in rows] == [12, 12]
    assert [row["exit"]["reason"] for row in rows] == ["completed", "completed"]
    assert {row["host"] for row in rows} == {os.uname().nodename}
    assert len({row["pid"] for row in rows}) == 2
    for row in rows:
        check_cost(row, truth_of_rank(pair, row["rank"]))
        assert row["step_s"]["n"] > 0
        whole = row["ledger"]
        assert sum(whole["seconds"].values()) == pytest.approx(whole["wall_s"], rel=0.005)
    for key, seconds in summary["ledger"]["seconds"].items():
        assert seconds == pytest.approx(sum(row["ledger"]["seconds"][key] for row in rows) / 2)
    training = summary["training"]
    assert (training["steps"], training["iterations"], training["epochs"]) == (12, 12, 2)
    assert training["samples"] == 2 * 48
    assert summary["evaluation"]["iterations"] == 0
    [loader] = summary["loaders"]
    assert (loader["role"], loader["iterations"], loader["fetch"]["n"]) == ("training", 12, 12)


def run_ranks(project: Project, tmp_path: Path, plain: Ended, plain_cwd: Path) -> Pair:
    """Runs ranks under trainprof; asserts that status and output, and what was timed, are the same.

    Every project computes the same, to the bit, however its ranks are started. Costs that miss are
    measured again.
    """
    for attempt in attempts():  # the machine is not ours alone
        pair = run_ours(project, tmp_path / str(attempt), plain)
        assert pair.ours.status == plain.status == 0, (plain.stderr, pair.ours.stderr)
        assert (pair.ours.stdout, pair.ours.stderr) == (plain.stdout, plain.stderr)
        for rank in (0, 1):
            timed = json.loads((plain_cwd / f"truth-{rank}.json").read_text())
            assert truth_of_rank(pair, rank)["counts"] == timed["counts"]
        if are_their_own(pair):
            break
    return pair


def are_their_own(pair: Pair) -> bool:
    """Whether each of two ranks has what it timed itself."""
    truths = [truth_of_rank(pair, rank) for rank in (0, 1)]
    return all(is_its_own(*cost) for cost in zip(rows_of(pair), truths, strict=True))


def rows_of(pair: Pair) -> list[dict[str, Any]]:
    """Returns what was measured of each rank: by one trainprof, or by one of its own each."""
    ranks = pair.run / "ranks"
    if ranks.is_dir():
        return [replace(pair, run=ranks / str(rank)).summary() for rank in (0, 1)]
    return list(pair.summary()["ranks"])


@pytest.mark.proves("Distributed", "torchrun --no-python trainprof run: a directory for each rank")
@pytest.mark.proves("Distributed", "trainprof run torchrun: DDP, gloo, two ranks")
def test_torchrun_under_trainprof_and_above_it(tmp_path: Path) -> None:
    words, files = ("train.py", "0"), {"train.py": DDP_SCRIPT + UNDER_TORCHRUN}
    project = Project(words, files, command=TORCHRUN)
    plain, plain_cwd = run_plain(project, tmp_path), tmp_path / "plain" / "all"

    with_workers = replace(project, words=("train.py", "1"))
    pair = run_ranks(with_workers, tmp_path / "under trainprof", plain, plain_cwd)
    summary = pair.summary()
    check_ranks(summary, pair)
    assert summary["run"]["exit"]["status"] == 0

    trainprof = (*TRAINPROF, "-o", "run", *words)
    above = replace(project, ours=(*TORCHRUN, "--no-python", *trainprof))
    pair = run_ranks(above, tmp_path / "above trainprof", plain, plain_cwd)
    for rank, own in enumerate(rows_of(pair)):
        assert (own["run"]["rank"], own["run"]["world_size"]) == (rank, 2)
        assert (own["training"]["steps"], own["ranks"]) == (12, [])
        manifest = json.loads((pair.run / "ranks" / str(rank) / "manifest.json").read_bytes())
        assert manifest["local_world_size"] == 2
        check_cost(own, truth_of_rank(pair, rank))
    check_ranks(report_in(pair.run.parent), pair)


@pytest.mark.proves("Distributed", "mp.spawn: fully_shard")
@pytest.mark.proves("Distributed", "mp.spawn: DDP, gloo")
def test_ranks_by_multiprocessing_spawn(tmp_path: Path) -> None:
    ddp = Project(("train.py", "ddp"), {"train.py": DDP_SCRIPT + SPAWNED})
    plain, plain_cwd = run_plain(ddp, tmp_path), tmp_path / "plain" / "all"
    # Sharding needs torch's compiler.
    fsdp = Project(("train.py", "fsdp"), {"train.py": WITH_COMPILER + RANKS + SPAWNED})
    for project in (ddp, fsdp):
        pair = run_ranks(project, tmp_path / project.words[1], plain, plain_cwd)
        check_ranks(pair.summary(), pair)


@pytest.mark.proves("Distributed", "a rank that fails: its row says how it ended")
def test_a_rank_that_fails_is_named(tmp_path: Path) -> None:
    """torchrun then ends the other one, by SIGTERM or after it has failed too; its status is 1."""
    files = {"train.py": DDP_SCRIPT + UNDER_TORCHRUN}
    project = Project(("train.py", "0", "1"), files, command=TORCHRUN)
    pair = run_ours(project, tmp_path, Ended(b"", b"", 1))
    assert pair.ours.status == pair.plain.status
    assert b"KeyError: 'planted'" in pair.ours.stderr
    assert PACKAGE.encode() not in pair.ours.stderr
    summary = pair.summary()
    failed = summary["ranks"][1]
    assert (failed["steps"], failed["exit"]["reason"]) == (6, "exception")
    assert failed["exit"]["detail"] == "KeyError"
    assert summary["run"]["exit"]["status"] == 1


ONE_IS_LATE = """
if __name__ == "__main__":
    import time
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = data_parallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        while True:
            for x, y in DataLoader(Items(), batch_size=4):
                if rank == 1:
                    time.sleep(0.1)
                optimizer.zero_grad(); mse(model(x), y).backward(); optimizer.step()
    finally:
        del model, optimizer
        gc.collect()
        dist.destroy_process_group()
"""


def test_ranks_end_at_the_same_step_when_the_time_is_over(tmp_path: Path) -> None:
    """Nearly all of a step one rank is ahead of its forward, the other waits in its backward."""
    for limit in ("9s", "30s"):
        cwd = tmp_path / limit
        cwd.mkdir()
        (cwd / "train.py").write_text(DDP_SCRIPT + ONE_IS_LATE)
        ours = (*TRAINPROF, "-o", "run", "--max-time", limit)
        ended = run((*ours, *TORCHRUN), "train.py", cwd=cwd, env=environment())
        assert ended.status == 0, ended.stderr
        summary = report_in(cwd)
        if summary["ranks"]:  # imports alone take longer where the machine is busy
            break
    assert summary["faults"] == []
    first, second = summary["ranks"]
    assert first["steps"] == second["steps"] > 0
    for row in (summary["run"], first, second):
        assert (row["exit"]["reason"], row["exit"]["detail"]) == ("limit", "--max-time")


FAILS_AT_FIRST = """
if __name__ == "__main__" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad(); model(torch.ones(1, 8)).sum().backward(); optimizer.step()
    sys.exit(3)
"""


@pytest.mark.proves("Distributed", "torchrun --max-restarts: a restarted rank is one rank")
def test_a_restarted_rank_is_one_rank(tmp_path: Path) -> None:
    """The first attempt ends before a group is formed: gloo's own restarts are not reliable."""
    files = {"train.py": DDP_SCRIPT + FAILS_AT_FIRST + UNDER_TORCHRUN}
    command = (*TORCHRUN, "--max-restarts", "1")
    project = Project(("train.py", "0"), files, command=command)
    for attempt in attempts():  # the machine is not ours alone
        pair = run_ours(project, tmp_path / str(attempt), Ended(b"", b"", 0))
        assert pair.ours.status == 0, pair.ours.stderr
        assert re.fullmatch(rb"0x1\.[0-9a-f]+p-\d+\n", pair.ours.stdout)  # the loss, once
        if are_their_own(pair):
            break
    check_ranks(pair.summary(), pair)


DAEMON = f"""
import os, signal, sys
if os.fork():
    print("detached")
    tell()
    sys.exit(0)
os.setsid()
if os.fork():
    os._exit(0)
signal.alarm(120)  # nobody else would end it
for descriptor in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
go = os.open("go", os.O_RDONLY)
os.read(go, 1)
{LOOP}
with open("timed", "w") as file:
    json.dump({{"seconds": truth, "counts": counts}}, file)
"""


def timed_by_daemon(cwd: Path) -> dict[str, Any]:
    """Lets the daemon begin, and returns what it timed."""
    go, timed = (os.open(cwd / name, os.O_RDWR) for name in ("go", "timed"))
    try:
        os.write(go, b"x")
        assert can_be_read(timed, DEADLINE_S), "the daemon wrote nothing"
        return dict(json.loads(os.read(timed, 65536)))
    finally:
        os.close(go)
        os.close(timed)


@pytest.mark.proves("Children", "a daemon that trains after the script has ended")
def test_a_daemon_is_found_by_a_later_report(tmp_path: Path) -> None:
    """The daemon begins only when both supervisor and script are gone, and tells by a pipe."""
    project = Project(("train.py",), {"train.py": PREAMBLE + DAEMON})
    for attempt in attempts():  # the machine is not ours alone
        folder = tmp_path / str(attempt)
        cwd = project.write(folder / "ours" / "all")
        os.mkfifo(cwd / "go")
        os.mkfifo(cwd / "timed")
        pair = run_ours(project, folder, Ended(b"detached\n" + TIMED_NOTHING, b"", 0))
        check_same(pair)
        assert pair.summary()["training"]["steps"] == 0
        truth = timed_by_daemon(cwd)
        later = report_in(cwd)
        assert (later["training"]["steps"], later["training"]["epochs"]) == (12, 2)
        if is_its_own(later, truth):
            break
    check_cost(later, truth)
