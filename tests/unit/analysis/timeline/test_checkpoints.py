"""What was saved and loaded, from planted calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.events import LEARNS, MS, FakeRun

from trainprof.findings.summarize import summarize
from trainprof.record.schema import Kind, TransferFlag, Writer


def test_calls_in_training_are_counted_apart_with_what_they_wrote(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer = run.loader(), run.optimizer()
    line, before = run.site(77), run.site(12)
    run.leaf(Kind.CHECKPOINT_LOAD, 5000 * MS, site=before)  # what training starts from
    run.iterate(loader)
    for step in range(60):
        run.next(loader)
        run.forward(MS, flags=LEARNS)
        run.backward(MS)
        run.update(optimizer)
        if step % 20 == 10:
            run.leaf(Kind.CHECKPOINT_SAVE, 20 * MS, site=line, value=2 << 20)
    run.leaf(Kind.CHECKPOINT_SAVE, 20 * MS, site=line)  # of a file without a name
    run.leaf(Kind.CHECKPOINT_LOAD, 10 * MS, site=before)
    run.next(loader)
    run.stop(loader)
    run.passes_time(MS)
    run.leaf(Kind.CHECKPOINT_SAVE, 900 * MS, site=before, value=90 << 20)  # what is kept of it all
    [finding] = run.summary(tmp_path).findings
    assert (finding.id, finding.site) == ("slow_checkpoints", "train.py:77")
    assert finding.title.startswith("torch.save, 4 times, and torch.load, once, take 90.0 ms")
    assert finding.title.endswith(": a save of 2.00 MiB takes 20.0 ms")
    assert finding.evidence["saves"] == 4
    [caution] = finding.cautions
    assert "v.detach().clone()" in caution


def saving_run(save: Callable[[FakeRun, int], None], *, every: int = 1) -> FakeRun:
    """Sixty steps; after one in so many, `save` is called with the run and a line."""
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


def test_a_librarys_checkpoint_is_one_with_its_files_inside(tmp_path: Path) -> None:
    def save(run: FakeRun, line: int) -> None:
        with run.span(Kind.CHECKPOINT_SAVE, site=line, flags=Writer.TRANSFORMERS):
            run.passes_time(5 * MS)
            file = {"site": line, "value": 1 << 20}
            run.leaf(Kind.CHECKPOINT_SAVE, 10 * MS, flags=Writer.SAFETENSORS, **file)
            run.leaf(Kind.CHECKPOINT_SAVE, 5 * MS, flags=Writer.TORCH, **file)

    summary = saving_run(save, every=20).summary(tmp_path)
    [finding] = summary.findings
    title = "Trainer._save_checkpoint, 3 times, takes 60.0 ms"
    assert finding.title.startswith(title)
    assert finding.title.endswith(": a save of 2.00 MiB takes 20.0 ms")
    assert finding.cautions == []  # no tensors are in the script's hands
    assert summary.ledger.seconds["checkpoint"] == pytest.approx(60e-3)


def test_what_took_longest_of_several_is_named_first(tmp_path: Path) -> None:
    def save(run: FakeRun, line: int) -> None:
        run.leaf(Kind.CHECKPOINT_SAVE, MS, site=line, flags=Writer.TORCH)
        run.leaf(Kind.CHECKPOINT_SAVE, 2 * MS, site=line, flags=Writer.SAFETENSORS)
        run.leaf(Kind.CHECKPOINT_SAVE, MS // 8, site=line, flags=77)  # of a later version

    summary = saving_run(save).summary(tmp_path)
    [finding] = summary.findings
    both = "safetensors' serialize_file and torch.save"
    assert finding.title.startswith(f"{both}, 180 times in all, take")
    assert summary.verdict.headline.startswith(f"CHECKPOINTS: {both} at train.py:77 take")


def test_what_a_later_version_wrote_is_a_checkpoint_all_the_same(tmp_path: Path) -> None:
    def save(run: FakeRun, line: int) -> None:
        run.leaf(Kind.CHECKPOINT_SAVE, MS, site=line, flags=77)

    [finding] = saving_run(save).summary(tmp_path).findings
    assert finding.title.startswith("saving checkpoints, 60 times, takes 60.0 ms")


def test_what_is_copied_and_waited_for_in_a_checkpoint_is_part_of_it(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer, line = run.loader(), run.optimizer(), run.site(77)
    run.iterate(loader)
    for step in range(60):
        run.next(loader)
        run.learn(optimizer)
        run.leaf(Kind.TRANSFER, MS, site=line, flags=TransferFlag.D2H)
        if step % 20 == 10:
            with run.span(Kind.CHECKPOINT_SAVE, site=line, flags=Writer.TRANSFORMERS):
                run.leaf(Kind.TRANSFER, 20 * MS, site=line, flags=TransferFlag.D2H)
                run.leaf(Kind.SYNC, 5 * MS, site=line)
                run.passes_time(5 * MS)
    run.stop(loader)
    summary = run.summary(tmp_path)
    assert summary.ledger.seconds["checkpoint"] == pytest.approx(90e-3)
    assert summary.ledger.seconds["transfer"] == pytest.approx(60e-3)
    finding = next(one for one in summary.findings if one.id == "slow_checkpoints")
    assert "3 times, takes 90.0 ms" in finding.title
    assert finding.title.endswith("a save takes 30.0 ms")


@pytest.mark.parametrize("known", [1 << 20, 0])
def test_how_large_a_librarys_checkpoint_is_only_all_its_files_tell(
    tmp_path: Path, known: int
) -> None:
    def save(run: FakeRun, line: int) -> None:
        with run.span(Kind.CHECKPOINT_SAVE, site=line, flags=Writer.ACCELERATE):
            run.leaf(Kind.CHECKPOINT_SAVE, 9 * MS, site=line, value=known)
            run.leaf(Kind.CHECKPOINT_SAVE, MS, site=line, value=1 << 20)

    [finding] = saving_run(save, every=20).summary(tmp_path).findings
    assert finding.title.endswith(f": a save{' of 2.00 MiB' if known else ''} takes 10.0 ms")


def test_what_is_saved_in_an_evaluation_is_its_own(tmp_path: Path) -> None:
    run = FakeRun()
    loader, held_out, optimizer, line = run.loader(), run.loader(42), run.optimizer(), run.site(77)
    run.iterate(loader)
    for step in range(60):
        run.next(loader)
        run.learn(optimizer)
        if step % 20 == 10:
            run.leaf(Kind.CHECKPOINT_SAVE, 10 * MS, site=line)
    run.stop(loader)
    run.iterate(held_out)
    for _ in range(20):
        run.next(held_out)
        run.forward(MS)
        with run.span(Kind.FORWARD):
            run.leaf(Kind.CHECKPOINT_SAVE, MS, site=line)
    run.stop(held_out)
    run.iterate(loader)
    for _ in range(20):
        run.next(loader)
        run.learn(optimizer)
    run.stop(loader)
    found = run.summary(tmp_path).findings
    [finding] = [one for one in found if one.id == "slow_checkpoints"]
    assert finding.title.startswith("torch.save, 3 times, takes 30.0 ms")


def loading_run(*, in_loader: bool) -> FakeRun:
    """Each batch is loaded by torch.load: by the dataset, or by the loop itself."""
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
    return run


def test_what_a_dataset_loads_is_data_and_no_checkpoint(tmp_path: Path) -> None:
    run = loading_run(in_loader=True)
    summary = summarize(run.write(tmp_path, host={"usable_cores": 4}))
    assert summary.ledger.seconds["checkpoint"] == 0
    assert summary.ledger.seconds["data_wait"] == pytest.approx(59 * 10e-3)
    assert summary.ledger.seconds["first_batch"] == pytest.approx(10e-3)
    assert summary.verdict.bottleneck == "data"
    assert [one.id for one in summary.findings] == ["serial_loading"]


def test_what_the_loop_loads_is_not_to_be_saved_less_often(tmp_path: Path) -> None:
    summary = loading_run(in_loader=False).summary(tmp_path)
    finding = next(one for one in summary.findings if one.id == "slow_checkpoints")
    assert summary.ledger.seconds["checkpoint"] == pytest.approx(60 * 9e-3)
    assert finding.title.startswith("torch.load, 60 times, takes 540 ms")
    assert finding.advice.startswith("load once, ahead of the loop")
    assert "save" not in finding.advice
    assert finding.cautions == []


def test_a_checkpoint_that_is_saved_in_a_loaders_call_stays_one(tmp_path: Path) -> None:
    run = FakeRun()
    loader, optimizer, line = run.loader(), run.optimizer(), run.site(30)
    run.iterate(loader)
    for number in range(60):
        with run.span(Kind.LOADER_NEXT, site=loader, value=number + 1):
            run.leaf(Kind.CHECKPOINT_SAVE, 9 * MS, site=line)
        run.learn(optimizer)
    run.stop(loader)
    assert run.summary(tmp_path).ledger.seconds["checkpoint"] == pytest.approx(60 * 9e-3)


def test_a_part_of_the_run_names_steps_as_the_whole_does(tmp_path: Path) -> None:
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
    [finding] = summarize(directory).findings
    assert [one["step"] for one in finding.steps] == [10, 50, 90]
    for part, step in (({"epoch": 2}, 90), ({"steps": (45, 80)}, 50)):
        [finding] = summarize(directory, **part).findings
        assert finding.id == "slow_checkpoints"
        assert [one["step"] for one in finding.steps] == [step]
