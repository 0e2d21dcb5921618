"""What was saved and loaded, from planted calls."""

from __future__ import annotations

import pytest
from support.events import LEARNS, MS, FakeRun

from trainprof.findings.summarize import summarize
from trainprof.record.schema import Kind, TransferFlag, Writer


def saving_run(save, *, every=1):
    """Sixty steps; after one in `every`, `save` is called with the run and a line."""
    run = FakeRun()
    loader, optimizer, line = run.loader(), run.optimizer(), run.site(77)
    run.iterate(loader)
    for step in range(60):
        run.next(loader)
        run.learn(optimizer)
        if step % every == every // 2:
            save(run, line)
    run.stop(loader)
    return run


def finding_of(summary):
    [finding] = [x for x in summary.findings if x.id == "slow_checkpoints"]
    return finding


def by_torch(run, line):
    run.leaf(Kind.CHECKPOINT_SAVE, 20 * MS, site=line, value=2 << 20)


def by_a_library(run, line):
    """One save with its files inside."""
    with run.span(Kind.CHECKPOINT_SAVE, site=line, flags=Writer.TRANSFORMERS):
        run.passes_time(5 * MS)
        file = {"site": line, "value": 1 << 20}
        run.leaf(Kind.CHECKPOINT_SAVE, 10 * MS, flags=Writer.SAFETENSORS, **file)
        run.leaf(Kind.CHECKPOINT_SAVE, 5 * MS, flags=Writer.TORCH, **file)


def of_an_unknown_file(run, line):
    with run.span(Kind.CHECKPOINT_SAVE, site=line, flags=Writer.ACCELERATE):
        run.leaf(Kind.CHECKPOINT_SAVE, 19 * MS, site=line)
        run.leaf(Kind.CHECKPOINT_SAVE, MS, site=line, value=1 << 20)


def with_copies_and_waits(run, line):
    with run.span(Kind.CHECKPOINT_SAVE, site=line, flags=Writer.TRANSFORMERS):
        run.leaf(Kind.TRANSFER, 10 * MS, site=line, flags=TransferFlag.D2H)
        run.leaf(Kind.SYNC, 5 * MS, site=line)
        run.passes_time(5 * MS)


@pytest.mark.parametrize(
    ("save", "size"),
    [
        (by_torch, 2 << 20),
        (by_a_library, 2 << 20),
        (of_an_unknown_file, None),
        (with_copies_and_waits, None),
    ],
)
def test_saves_are_counted_with_what_they_took_and_wrote(tmp_path, save, size):
    summary = saving_run(save, every=20).summary(tmp_path)
    finding = finding_of(summary)
    assert finding.site == "train.py:77"
    assert (finding.evidence["saves"], finding.evidence["loads"]) == (3, 0)
    assert finding.evidence["save_s"] == pytest.approx(60e-3)
    assert finding.evidence["saved_bytes"] == size
    assert summary.ledger.seconds["checkpoint"] == pytest.approx(60e-3)
    assert summary.ledger.seconds["transfer"] == 0


def test_what_took_longest_of_several_is_named_first(tmp_path):
    def save(run, line):
        run.leaf(Kind.CHECKPOINT_SAVE, MS, site=line, flags=Writer.TORCH)
        run.leaf(Kind.CHECKPOINT_SAVE, 2 * MS, site=line, flags=Writer.SAFETENSORS)
        run.leaf(Kind.CHECKPOINT_SAVE, MS // 8, site=line, flags=77)  # of a later version

    summary = saving_run(save).summary(tmp_path)
    evidence = finding_of(summary).evidence
    assert evidence["saved_by"] == "safetensors' serialize_file and torch.save"
    assert evidence["saves"] == 180
    assert (summary.verdict.bottleneck, summary.verdict.site) == ("checkpoint", "train.py:77")


def test_what_training_starts_from_ends_with_and_evaluates_with_is_no_part_of_it(tmp_path):
    run = FakeRun()
    loader, held_out, optimizer = run.loader(), run.loader(42), run.optimizer()
    line, other = run.site(77), run.site(12)
    run.leaf(Kind.CHECKPOINT_LOAD, 5000 * MS, site=other)
    for _ in range(2):
        run.iterate(loader)
        for step in range(40):
            run.next(loader)
            run.learn(optimizer)
            if step % 20 == 10:
                run.leaf(Kind.CHECKPOINT_SAVE, 20 * MS, site=line)
        run.stop(loader)
        run.iterate(held_out)
        for _ in range(20):
            run.next(held_out)
            run.forward(MS)
            with run.span(Kind.FORWARD):
                run.leaf(Kind.CHECKPOINT_SAVE, MS, site=other)
        run.stop(held_out)
    run.leaf(Kind.CHECKPOINT_LOAD, 10 * MS, site=other)
    run.train_pass(loader, optimizer, 20)
    run.leaf(Kind.CHECKPOINT_SAVE, 900 * MS, site=other, value=90 << 20)
    evidence = finding_of(run.summary(tmp_path)).evidence
    assert (evidence["saves"], evidence["loads"]) == (4, 1)
    assert evidence["save_s"] == pytest.approx(80e-3)


@pytest.mark.parametrize("in_loader", [True, False])
def test_what_a_dataset_loads_is_data_and_what_the_loop_loads_a_checkpoint(tmp_path, in_loader):
    run = FakeRun()
    loader, optimizer, line = run.loader(), run.optimizer(), run.site(30)
    run.iterate(loader)
    for number in range(60):
        asked = run.span(Kind.LOADER_NEXT, site=loader, value=number + 1)
        with asked, run.span(Kind.FETCH, value=8):
            if in_loader:
                run.leaf(Kind.CHECKPOINT_LOAD, 9 * MS, site=line)
            run.passes_time(MS)
        if not in_loader:
            run.leaf(Kind.CHECKPOINT_LOAD, 9 * MS, site=line)
        run.forward(5 * MS, flags=LEARNS)
        run.backward(5 * MS)
        run.update(optimizer)
    run.stop(loader)
    summary = summarize(run.write(tmp_path, host={"usable_cores": 4}))
    data_ms = 10 if in_loader else 1
    assert summary.ledger.seconds["checkpoint"] == pytest.approx(0 if in_loader else 60 * 9e-3)
    assert summary.ledger.seconds["data_wait"] == pytest.approx(59e-3 * data_ms)
    if in_loader:
        assert summary.verdict.bottleneck == "data"
        assert [finding.id for finding in summary.findings] == ["serial_loading"]
    else:
        finding = finding_of(summary)
        assert (finding.evidence["saves"], finding.evidence["loads"]) == (0, 60)
        assert finding.cautions == []


def test_a_part_of_the_run_names_steps_as_the_whole_does(tmp_path):
    run = FakeRun()
    loader, optimizer, line = run.loader(length=40), run.optimizer(), run.site(70)
    for _ in range(3):
        run.iterate(loader)
        for step in range(40):
            run.next(loader)
            run.learn(optimizer)
            if step == 9:
                run.leaf(Kind.CHECKPOINT_SAVE, 20 * MS, site=line, value=1 << 20)
        run.stop(loader)
    directory = run.write(tmp_path)
    for part, steps in (({}, [10, 50, 90]), ({"epoch": 2}, [90]), ({"steps": (45, 80)}, [50])):
        finding = finding_of(summarize(directory, **part))
        assert [row["step"] for row in finding.steps] == steps
