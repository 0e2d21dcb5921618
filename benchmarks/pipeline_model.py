"""How well the pipeline model predicts other numbers of workers: out of sample, and with errors.

    python benchmarks/pipeline_model.py [--batches 120] [--only sleep] [--recorded 0 --recorded 1]

Each load is recorded with 0 and with 1 worker; what the model predicts from each recording for 2
and 4 workers stands beside what runs with 2 and 4 workers took. Where a recording does not tell
something (what receiving costs, without workers) the interval is wide, or misses what it cannot
know. Each figure is of one run: other processes on the machine make it wander, and where the main
process computes longer in one run than in the other (the column "computing") no model of the
loader can know.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

from trainprof.analysis.loading.fetches import FetchTable, fetch_table
from trainprof.analysis.machine.processes import samples_by_pid, ticks_of
from trainprof.analysis.pipeline.bounds import (
    Interval,
    PipelineInputs,
    Prediction,
    Rates,
    bound_of,
    measured_rates,
    predict,
)
from trainprof.analysis.pipeline.fit import pipeline_inputs
from trainprof.analysis.run.metadata import number
from trainprof.analysis.run.recording import Recording, read_recording
from trainprof.analysis.run.training_process import training_processes
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.analysis.timeline.timeline import build_timeline
from trainprof.record.run_directory import RunDirectory

# A load: ms asleep and on a core per batch; the same of the computing (asleep as where a device
# computes); objects in a batch; million numbers in a batch.
LOADS = {
    "sleep": (24.0, 0.0, 4.0, 0.0, 0, 0.0),
    "cpu": (0.0, 16.0, 0.0, 4.0, 0, 0.0),
    "mixed": (12.0, 8.0, 2.0, 4.0, 0, 0.0),
    "unpickle": (2.0, 0.0, 3.0, 0.0, 40_000, 0.0),
    "large": (4.0, 2.0, 3.0, 0.0, 0, 4.0),
    "compute": (6.0, 1.0, 10.0, 10.0, 0, 0.0),
    "uneven": (16.0, 4.0, 8.0, 0.0, 0, 0.0),
}
RECORDED, ASKED_FOR = (0, 1), (2, 4)

SCRIPT = """
    import random, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    workers, batches = int(sys.argv[1]), int(sys.argv[2])
    asleep, running, idle, compute, objects, millions = map(float, sys.argv[3:9])
    spread = 0.8 if sys.argv[9] == "uneven" else 0.1
    torch.set_num_threads(1)

    def burn(ms):
        until = time.thread_time() + ms / 1e3
        while time.thread_time() < until:
            pass

    class Planted(Dataset):
        def __len__(self):
            return batches

        def __getitem__(self, index):
            share = random.Random(index).uniform(1 - spread, 1 + spread)
            time.sleep(asleep * share / 1e3)
            burn(running * share)
            if objects:
                return [{"number": k} for k in range(int(objects))]
            return torch.ones(max(1, int(millions * 1e6)))

    def only(samples):
        return samples[0] if objects else torch.stack(samples)

    if __name__ == "__main__":
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in DataLoader(Planted(), num_workers=workers, collate_fn=only):
            time.sleep(idle / 1e3)
            burn(compute)
            loss = model(torch.ones(1, 1)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run: what the model takes from it, and what it took."""

    inputs: PipelineInputs
    rates: Rates
    epoch_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--only", choices=LOADS, action="append")
    parser.add_argument("--recorded", type=int, action="append")
    parser.add_argument("--asked-for", type=int, action="append")
    arguments = parser.parse_args()
    recorded, asked_for = arguments.recorded or RECORDED, arguments.asked_for or ASKED_FOR
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.batches} batches")
    print(
        f"{'load':<10}{'from':>5}{'for':>5}{'step predicted, ms':>24}{'measured':>10}{'error':>8}"
        f"{'wait predicted, ms':>24}{'measured':>10}{'computing, ms':>17}  bound"
    )
    with tempfile.TemporaryDirectory(prefix="trainprof-pipeline-") as scratch:
        for load in arguments.only or LOADS:
            runs = {
                workers: run(Path(scratch), load, workers, arguments.batches)
                for workers in sorted({*recorded, *asked_for})
            }
            for start in recorded:
                for workers in sorted({start, *asked_for}):
                    report(load, runs[start].inputs, runs[workers], workers)


def run(scratch: Path, load: str, workers: int, batches: int) -> Run:
    """Records a load with some workers."""
    script, directory = scratch / "planted.py", scratch / f"{load}-{workers}"
    script.write_text(textwrap.dedent(SCRIPT))
    words = [*map(str, (workers, batches, *LOADS[load])), load]
    command = [sys.executable, "-m", "trainprof", "run", "-o", str(directory), str(script), *words]
    subprocess.run(command, capture_output=True, check=True, cwd=scratch)
    recording = read_recording(RunDirectory(directory))
    inputs, epoch_s = inputs_of(recording)
    rates = measured_rates(inputs)
    assert rates is not None
    return Run(inputs, rates, epoch_s)


def inputs_of(recording: Recording) -> tuple[PipelineInputs, float]:
    """Returns what the model takes from a run with one loader, and how long its pass was."""
    process = training_processes(recording)[0]
    events = process.events
    timeline = build_timeline(process, int(events.start[0]), int(events.end.max()))
    (p,) = [p for p in timeline.loaders if p.role == TRAINING]
    tables = [fetch_table(timeline.all_events, process.details, process.pid, 0)]
    tables += [fetch_table(x.events, x.details, x.pid or 0, p.loader) for x in process.workers]
    pid = process.pid or 0
    inputs = pipeline_inputs(
        timeline,
        FetchTable.joined(tables),
        process.metadata,
        p.loader,
        cores=number(recording.section("host").get("usable_cores"), float(os.cpu_count() or 1)),
        details=process.details,
        samples=samples_by_pid(ticks_of(recording.process_lines), [pid])[pid],
    )
    assert inputs is not None
    return inputs, float((p.end - p.start).mean() / 1e9)


def report(load: str, inputs: PipelineInputs, measured: Run, workers: int) -> None:
    """Prints a row; one for the recording's own setting says how well it is reproduced."""
    prediction: Prediction = predict(inputs, replace(inputs.setting, workers=workers))
    error = prediction.step_s.mid / measured.rates.step_s - 1
    step, wait = measured.rates.step_s, measured.rates.wait_s
    bound = bound_of(inputs, prediction.pipeline, prediction.parts_s)
    computing = [x.compute_s.mean() * 1e3 for x in (inputs, measured.inputs)]
    print(
        f"{load:<10}{inputs.setting.workers:>5}{workers:>5}{written(prediction.step_s):>24}"
        f"{step * 1e3:>10.2f}{error:>+8.0%}{written(prediction.wait_s):>24}{wait * 1e3:>10.2f}"
        f"{computing[0]:>9.2f} {computing[1]:>7.2f}"
        f"  {bound.name}{'' if is_in(step, prediction.step_s) else '  MISSED'}",
        flush=True,
    )


def written(interval: Interval) -> str:
    low, mid, high = (x * 1e3 for x in (interval.low, interval.mid, interval.high))
    return f"{mid:.2f} [{low:.2f}, {high:.2f}]"


def is_in(value: float, interval: Interval) -> bool:
    return interval.low <= value <= interval.high


if __name__ == "__main__":
    main()
