"""What was saved and loaded, from planted calls."""

from __future__ import annotations

from pathlib import Path

from support.events import LEARNS, MS, FakeRun

from trainprof.record.schema import Kind


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
    assert finding.title.endswith(": a checkpoint of 2 MiB takes 20.0 ms")
    assert finding.evidence["saves"] == 4
