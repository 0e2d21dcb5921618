"""Training in children and in several processes: each is counted apart, none mixed with another."""

from __future__ import annotations

import json
import os
import select
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.processes import run
from support.side_by_side import (
    DEADLINE_S,
    LOOP,
    TRAINING,
    Pair,
    Project,
    check_same,
    environment,
    prove_both,
    run_both,
)
from support.styles import PREAMBLE, WITH_COMPILER

REPORT = (sys.executable, "-m", "trainprof", "report")

CHILD_BY_SUBPROCESS = """
import subprocess, sys
import torch
print("parent", flush=True)
sys.exit(subprocess.run([sys.executable, "child.py", *sys.argv[1:]]).returncode)
"""

CHILD_BY_MULTIPROCESSING = f"""
import multiprocessing, sys

def train():
{"".join("    " + line + chr(10) for line in LOOP.splitlines())}
    tell()
    sys.stdout.flush()

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""

CHILD_BY_FORK = f"""
import os, sys
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
{LOOP}
"""

POOLS = """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing, os, subprocess, sys
from joblib import Parallel, delayed

def square(x):
    return (torch.ones(2) * x).sum().item() ** 2

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            print(method, list(pool.map(square, range(4))))
    print(Parallel(n_jobs=2)(delayed(square)(x) for x in range(4)))
"""
POOLS += "".join(f"    {line}\n" for line in [*LOOP.splitlines(), "tell()"])

CHILDREN = {
    "subprocess": Project(
        ("train.py", "a"), {"train.py": CHILD_BY_SUBPROCESS, "child.py": TRAINING}
    ),
    **{
        f"multiprocessing, {method}": Project(
            ("train.py", method), {"train.py": PREAMBLE + CHILD_BY_MULTIPROCESSING}
        )
        for method in ("fork", "spawn", "forkserver")
    },
    "os.fork without exec": Project(
        ("train.py",), {"train.py": PREAMBLE + CHILD_BY_FORK + "\ntell()\n"}
    ),
}


@pytest.mark.parametrize(
    "project",
    [
        pytest.param(project, id=name, marks=pytest.mark.proves("Children", f"trained in: {name}"))
        for name, project in CHILDREN.items()
    ],
)
def test_a_child_that_trains_is_what_is_reported(project: Project, tmp_path: Path) -> None:
    summary = prove_both(project, tmp_path)
    assert summary["run"]["exit"]["reason"] == "completed"
    assert (summary["ranks"], summary["trained_apart"]) == ([], [])


@pytest.mark.proves("Children", "process pools and joblib beside the training")
def test_pools_beside_the_training(tmp_path: Path) -> None:
    prove_both(Project(("train.py",), {"train.py": PREAMBLE + POOLS}), tmp_path)


SWEEP = """
import subprocess, sys
for batches in (2, 6, 4):
    subprocess.run([sys.executable, "child.py", str(batches)], check=True)
"""
SWEPT = PREAMBLE + LOOP.replace("make_loader()", "make_loader(int(sys.argv[1]))") + "\ntell()\n"


@pytest.mark.proves("Children", "several trainings one after another, each counted apart")
def test_trainings_of_one_script_are_kept_apart(tmp_path: Path) -> None:
    project = Project(("train.py",), {"train.py": SWEEP, "child.py": "import sys\n" + SWEPT})
    pair = run_both(project, tmp_path)
    assert pair.ours.status == pair.plain.status == 0, pair.ours.stderr
    summary = pair.summary()
    assert summary["training"]["steps"] == 12
    assert [row["steps"] for row in summary["trained_apart"]] == [8, 4]
    assert [row["exit"]["reason"] for row in summary["trained_apart"]] == ["completed"] * 2
    truths = [json.loads(line) for line in pair.ours.stdout.splitlines() if line[:1] == b"{"]
    for row, truth in zip(summary["trained_apart"], (truths[2], truths[0]), strict=True):
        check_cost(row, truth)
    page = run(REPORT, "run", cwd=pair.run.parent, env=environment()).stdout.decode()
    assert "the busiest of 3 training processes" in " ".join(page.split())


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
    pair = run_both(Project(("train.py",), {"train.py": PREAMBLE + HOGWILD}), tmp_path)
    check_same(pair)
    summary = pair.summary()
    assert summary["faults"] == summary["ranks"] == []
    assert summary["training"]["steps"] == summary["training"]["iterations"] == 6
    [other] = summary["trained_apart"]
    assert (other["steps"], other["rank"], other["exit"]["reason"]) == (4, None, "completed")
    check_cost(summary, truth_of_rank(pair, 1))
    check_cost(other, truth_of_rank(pair, 0))


REINFORCEMENT = """
model = make_model(0.001)
optimizer = torch.optim.Adam(model.parameters())
for update in range(12):
    with torch.no_grad(), timed("rollout"):
        state, seen = torch.zeros(1, 8), []
        for move in range(5):
            seen.append((state, model(state)))
            state = torch.tanh(state + 0.1)
    states = torch.cat([s for s, _ in seen])
    for repeat in range(2):
        with timed("forward"):
            p = model(states)
        loss = mse(p, torch.ones_like(p))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
print(loss.item().hex())
truth["forward"] += truth.pop("rollout")
tell()
"""


@pytest.mark.proves("Distributed", "reinforcement learning: rollouts without a loader")
def test_rollouts_and_updates(tmp_path: Path) -> None:
    """Two updates for each rollout; what the policy computes is forward in both."""
    project = Project(("train.py",), {"train.py": PREAMBLE + REINFORCEMENT})
    pair = run_both(project, tmp_path)
    check_same(pair)
    summary = pair.summary()
    assert (summary["training"]["steps"], summary["training"]["epochs"]) == (24, 0)
    assert (summary["loaders"], summary["evaluation"]["iterations"]) == ([], 0)
    assert summary["ledger"]["seconds"]["forward"] > 12 * 7 * 0.001


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
    dist.destroy_process_group()
    # gloo's threads end with the group. One that still lets go of a finished reduction when the
    # interpreter is ending aborts the process, with plain python too.
    del model, optimizer, loss, p
    gc.collect()

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
TORCHRUN_SCRIPT = WITH_COMPILER + RANKS + UNDER_TORCHRUN
SPAWN_SCRIPT = WITH_COMPILER + RANKS + SPAWNED


def truth_of_rank(pair: Pair, rank: int) -> dict[str, Any]:
    found = json.loads((pair.run.parent / f"truth-{rank}.json").read_text())
    assert isinstance(found, dict)
    return found


def check_cost(row: dict[str, Any], truth: dict[str, Any]) -> None:
    """Asserts that the ledger's forward is what that process timed, and of no other one.

    A collection that falls into a forward is gc in the ledger, and forward for the script.
    """
    planted_s, seconds = truth["seconds"]["forward"], row["ledger"]["seconds"]
    slack_s = 0.02 * planted_s + 2e-4 * truth["counts"]["forward"] + 2e-3
    assert planted_s - seconds["gc"] - slack_s < seconds["forward"] < planted_s + slack_s


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
    for key, found in summary["ledger"]["seconds"].items():
        mean = sum(row["ledger"]["seconds"][key] for row in rows) / 2
        assert found == pytest.approx(mean)
    training = summary["training"]
    assert (training["steps"], training["iterations"], training["epochs"]) == (12, 12, 2)
    assert training["samples"] == 2 * 48
    assert summary["evaluation"]["iterations"] == 0
    [loader] = summary["loaders"]
    assert (loader["role"], loader["iterations"], loader["fetch"]["n"]) == ("training", 12, 12)


def check_same_ranks(pair: Pair) -> None:
    """Asserts the same status, output and numbers of what was timed."""
    assert pair.ours.status == pair.plain.status == 0, (pair.plain.stderr, pair.ours.stderr)
    assert (pair.ours.stdout, pair.ours.stderr) == (pair.plain.stdout, pair.plain.stderr)
    plain = replace(pair, run=pair.run.parents[2] / "plain" / "all" / "run")
    for rank in (0, 1):
        assert truth_of_rank(pair, rank)["counts"] == truth_of_rank(plain, rank)["counts"]


@pytest.mark.proves("Distributed", "trainprof run torchrun: DDP, gloo, two ranks")
@pytest.mark.parametrize("workers", ["0", "1"])
def test_torchrun_under_trainprof(workers: str, tmp_path: Path) -> None:
    project = Project(("train.py", workers), {"train.py": TORCHRUN_SCRIPT}, command=TORCHRUN)
    pair = run_both(project, tmp_path)
    check_same_ranks(pair)
    summary = pair.summary()
    check_ranks(summary, pair)
    assert summary["run"]["exit"]["status"] == 0
    page = run(REPORT, "-v", "run", cwd=pair.run.parent, env=environment()).stdout.decode()
    assert "mean of 2 ranks" in " ".join(page.split())


@pytest.mark.proves("Distributed", "torchrun --no-python trainprof run: a directory for each rank")
def test_trainprof_under_torchrun(tmp_path: Path) -> None:
    words = ("train.py", "0")
    trainprof = (sys.executable, "-m", "trainprof", "run", "-q", "-o", "run")
    project = Project(
        words,
        {"train.py": TORCHRUN_SCRIPT},
        command=TORCHRUN,
        ours=(*TORCHRUN, "--no-python", *trainprof, *words),
    )
    pair = run_both(project, tmp_path)
    check_same_ranks(pair)
    for rank in (0, 1):
        own = replace(pair, run=pair.run / "ranks" / str(rank)).summary()
        assert (own["run"]["rank"], own["run"]["world_size"]) == (rank, 2)
        assert (own["training"]["steps"], own["ranks"]) == (12, [])
        check_cost(own, truth_of_rank(pair, rank))
    whole = run(REPORT, "--format", "json", "run", cwd=pair.run.parent, env=environment())
    check_ranks(json.loads(whole.stdout), pair)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("ddp", marks=pytest.mark.proves("Distributed", "mp.spawn: DDP, gloo")),
        pytest.param("fsdp", marks=pytest.mark.proves("Distributed", "mp.spawn: fully_shard")),
    ],
)
def test_ranks_by_multiprocessing_spawn(strategy: str, tmp_path: Path) -> None:
    project = Project(("train.py", strategy), {"train.py": SPAWN_SCRIPT})
    pair = run_both(project, tmp_path)
    check_same_ranks(pair)
    check_ranks(pair.summary(), pair)


@pytest.mark.proves("Distributed", "a rank that fails: its row says how it ended")
def test_a_rank_that_fails_is_named(tmp_path: Path) -> None:
    """torchrun then ends the other one, by SIGTERM or after it has failed too."""
    project = Project(("train.py", "0", "1"), {"train.py": TORCHRUN_SCRIPT}, command=TORCHRUN)
    pair = run_both(project, tmp_path)
    assert pair.ours.status == pair.plain.status == 1
    assert b"KeyError: 'planted'" in pair.ours.stderr
    assert b"trainprof" not in pair.ours.stderr
    summary = pair.summary()
    failed = summary["ranks"][1]
    assert (failed["steps"], failed["exit"]["reason"]) == (6, "exception")
    assert failed["exit"]["detail"] == "KeyError"
    assert summary["run"]["exit"]["status"] == 1


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
    project = Project(
        ("train.py", "0"),
        {"train.py": WITH_COMPILER + RANKS + FAILS_AT_FIRST + UNDER_TORCHRUN},
        command=(*TORCHRUN, "--max-restarts", "1"),
    )
    pair = run_both(project, tmp_path)
    assert pair.ours.status == pair.plain.status == 0, pair.ours.stderr
    assert pair.ours.stdout == pair.plain.stdout
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
with open("told", "w") as file:
    json.dump({{"seconds": truth, "counts": counts}}, file)
"""


def told_by_daemon(cwd: Path) -> dict[str, Any]:
    """Lets the daemon begin, and returns what it timed."""
    go, told = (os.open(cwd / name, os.O_RDWR) for name in ("go", "told"))
    try:
        os.write(go, b"x")
        assert select.select([told], [], [], DEADLINE_S)[0], "the daemon told nothing"
        found = json.loads(os.read(told, 65536))
    finally:
        os.close(go)
        os.close(told)
    assert isinstance(found, dict)
    return found


@pytest.mark.proves("Children", "a daemon that trains after the script has ended")
def test_a_daemon_is_found_by_a_later_report(tmp_path: Path) -> None:
    """The daemon begins only when both supervisor and script are gone, and tells by a pipe."""
    project = Project(("train.py",), {"train.py": PREAMBLE + DAEMON})
    for name in ("plain", "ours"):
        cwd = project.write(tmp_path / name / "all")
        os.mkfifo(cwd / "go")
        os.mkfifo(cwd / "told")
    pair = run_both(project, tmp_path)
    check_same(pair)
    assert pair.summary()["training"]["steps"] == 0
    for cwd in (pair.run.parents[2] / "plain" / "all", pair.run.parent):
        truth = told_by_daemon(cwd)
    told = run(REPORT, "--format", "json", "run", cwd=pair.run.parent, env=environment())
    later = json.loads(told.stdout)
    assert (later["training"]["steps"], later["training"]["epochs"]) == (12, 2)
    check_cost(later, truth)
