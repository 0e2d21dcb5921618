"""The pipeline model against torch's own code, a brute-force scheduler, and sums by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.torch_pipeline import PlayedIterator

from trainprof.analysis.pipeline.model import Pipeline, simulate


def constant(batches, *, fetch, compute, receive=0.0, **more) -> Pipeline:
    """An epoch in which every batch costs the same; its fetches run all the time."""
    return Pipeline(
        asleep_s=np.zeros(batches),
        running_s=np.full(batches, fetch),
        compute_s=np.full(batches, compute),
        receive_s=np.full(batches, receive),
        **more,
    )


def steady_step(p: Pipeline) -> float:
    """The mean step over whole cycles of the workers, behind the start and before the end."""
    steps = simulate(p).step_s[2 * p.ahead : -p.ahead]
    return float(steps[: len(steps) // p.workers * p.workers].mean())


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Any pass; times are drawn by a generator, so that no two things happen at once."""
    generator = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    count = draw(st.integers(1, 40))

    def times(name: str) -> np.ndarray:
        scale = draw(st.sampled_from([0.0, 0.1, 1.0, 4.0]), label=name)
        return scale * generator.exponential(size=count)

    def time(name: str) -> float:
        return draw(st.sampled_from([0.0, 0.05, 1.0]), label=name) * float(generator.random())

    return Pipeline(
        asleep_s=times("asleep"),
        running_s=times("running") + generator.random(count) / 100,
        compute_s=times("compute"),
        receive_s=times("receive"),
        compute_cores=draw(st.sampled_from([0.0, 0.4, 1.0, 2.0])),
        sampler_s=time("sampler"),
        turnaround_s=time("turnaround"),
        workers=draw(st.integers(1, 5)),
        prefetch=draw(st.integers(1, 3)),
        spawn_s=time("spawn"),
        boot_s=time("boot"),
    )


# Against torch


@given(pipelines())
@settings(max_examples=150, deadline=None)
def test_torchs_own_iterator_hands_out_the_same_batches_at_the_same_times(p):
    truth = PlayedIterator(p)
    truth.play()
    flow = simulate(p)
    assert flow.called_s == pytest.approx(truth.called)
    assert flow.handed_s == pytest.approx(truth.handed)
    assert flow.ended_s == pytest.approx(truth.now)
    assert flow.blocked_s == pytest.approx(truth.blocked)
    assert flow.receive_s == pytest.approx(truth.received)


# Against brute force


@dataclass
class _Job:
    """What somebody has still to do: sleep, then run on some cores."""

    sleep_s: float
    run_s: float
    cores: float = 1.0

    @property
    def runs(self) -> bool:
        return self.sleep_s <= 0


@dataclass
class _BruteForce:
    """A pass on shared cores, every instant worked out anew from what everybody has left to do."""

    p: Pipeline
    now: float = 0.0
    main: _Job | None = None
    fetching: dict[int, tuple[int, _Job]] = field(default_factory=dict)
    queues: list[list[int]] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    called: list[float] = field(default_factory=list)
    handed: list[float] = field(default_factory=list)

    def play(self) -> _BruteForce:
        p, kept, sent = self.p, set(), 0
        self.queues = [[] for _ in range(p.workers)]

        def send() -> None:
            nonlocal sent
            self.work(_Job(0.0, p.sampler_s))
            self.queues[sent % p.workers].append(sent)
            sent += 1

        self.work(_Job(p.workers * p.spawn_s, 0.0))
        for _ in range(min(p.ahead, len(p))):
            send()
        for number in range(len(p)):
            self.called.append(self.now)
            while number not in kept:
                while not self.arrived:
                    self.advance()
                batch = self.arrived.pop(0)
                self.work(_Job(0.0, p.receive_s[batch]))
                kept.add(batch)
            if sent < len(p):
                send()
            self.handed.append(self.now)
            share = min(p.compute_cores, 1.0)
            compute = p.compute_s[number]
            self.work(_Job(compute * (1 - share), compute * share, max(p.compute_cores, 1.0)))
        return self

    def work(self, job: _Job) -> None:
        """Lets the main process do a job to its end."""
        self.main = job
        while job.sleep_s > 0 or job.run_s > 0:
            self.advance()
        self.main = None

    def advance(self) -> None:
        """Goes on to the next instant at which somebody has done with sleeping or running."""
        p = self.p
        for worker, queue in enumerate(self.queues):
            ready = (worker + 1) * p.spawn_s + p.boot_s
            if queue and worker not in self.fetching:
                batch = queue.pop(0)
                asleep = max(ready - self.now, 0.0) + p.turnaround_s + p.asleep_s[batch]
                self.fetching[worker] = (batch, _Job(asleep, p.running_s[batch]))
        jobs = [job for _, job in self.fetching.values()]
        jobs += [] if self.main is None else [self.main]
        wanted = sum(job.cores for job in jobs if job.runs)
        wanted += p.others
        rate = min(1.0, p.cores / wanted) if wanted else 1.0
        lengths = [job.run_s / rate if job.runs else job.sleep_s for job in jobs]
        passed = min(lengths)
        self.now += passed
        for job, length in zip(jobs, lengths, strict=False):
            left = 0.0 if length == passed else 1 - passed / length
            if job.runs:
                job.run_s *= left
            else:
                job.sleep_s *= left
        for worker, (batch, job) in list(self.fetching.items()):
            if job.runs and job.run_s <= 0:
                del self.fetching[worker]
                self.arrived.append(batch)


@given(pipelines(), st.sampled_from([1.0, 1.5, 2.0, 3.0]), st.sampled_from([0.0, 0.7, 4.0]))
@settings(max_examples=150, deadline=None)
def test_shared_cores_give_what_brute_force_gives(p, cores, others):
    p = replace(p, cores=cores, compute_cores=min(p.compute_cores, cores), others=others)
    truth, flow = _BruteForce(p).play(), simulate(p)
    assert flow.called_s == pytest.approx(truth.called, abs=1e-6)
    assert flow.handed_s == pytest.approx(truth.handed, abs=1e-6)
    assert flow.ended_s == pytest.approx(truth.now, abs=1e-6)


# Sums by hand


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("compute", [0.5, 3.0, 20.0])
def test_the_slower_of_the_main_process_and_the_workers_together_sets_the_step(workers, compute):
    p = constant(200, fetch=12.0, compute=compute, receive=1.0, sampler_s=0.25, workers=workers)
    assert steady_step(p) == pytest.approx(max(compute + 1.25, 12.0 / workers))


def test_without_workers_everything_comes_in_turn():
    p = constant(10, fetch=4.0, compute=3.0, receive=99.0, sampler_s=0.5)
    flow = simulate(p)
    assert flow.step_s == pytest.approx([7.5] * 10)
    assert flow.wait_s == pytest.approx([4.5] * 10)
    assert flow.blocked_s == pytest.approx([4.0] * 10)


def test_another_process_takes_its_part_of_the_cores():
    p = constant(50, fetch=4.0, compute=3.0, sampler_s=0.5, cores=1.0, others=1.0)
    assert simulate(p).step_s == pytest.approx([15.0] * 50)
    with_room = replace(p, cores=2.0)
    assert simulate(with_room).step_s == pytest.approx([7.5] * 50)
    by_a_worker = constant(200, fetch=9.0, compute=0.0, workers=1, cores=1.0, others=2.0)
    assert steady_step(by_a_worker) == pytest.approx(27.0)
