"""What is seen of files whose tensors are views, saved with all that lies behind them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder

from trainprof.probes.checkpoint import CheckpointProbe
from trainprof.record.schema import Topic

BATCH = torch.arange(64 * 20_000, dtype=torch.float32).view(64, 20_000)
BATCH_BYTES, ROW_BYTES = 64 * 20_000 * 4, 20_000 * 4
SMALL = torch.zeros(32, 512)  # opening such files is what costs


class Own:
    """Nobody knows what lies in it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def told(recorder: Recorder) -> list[Any]:
    notes = recorder.read().notes(Topic.ENVIRONMENT)
    return [note["loaded_views"] for note in notes if "loaded_views" in note]


def loaded(recorder: Recorder, path: Path, number: int, **named: Any) -> int:
    """Has the file loaded so often at one line, whose number is returned."""
    recorder.start(CheckpointProbe())
    for _ in range(number):
        torch.load(path, **named)
    return sys._getframe().f_lineno - 1


def test_a_view_that_was_saved_whole_is_told_with_its_line(
    recorder: Recorder, tmp_path: Path
) -> None:
    torch.save({"row": BATCH[3], "label": 4, "name": "x"}, tmp_path / "x")
    line = loaded(recorder, tmp_path / "x", 4)
    [[one]] = told(recorder)
    assert one == {
        "site": one["site"],
        "files": 4,
        "held_bytes": 4 * BATCH_BYTES,
        "used_bytes": 4 * ROW_BYTES,
    }
    [_, _, _, load] = recorder.read().events
    assert (load.site, load.line) == (one["site"], f"test_loaded_views.py:{line}")


def test_it_is_told_once_more_when_no_more_are_looked_at(
    recorder: Recorder, tmp_path: Path
) -> None:
    torch.save([BATCH[3]], tmp_path / "x")
    loaded(recorder, tmp_path / "x", 100)
    assert [one["files"] for [one] in told(recorder)] == [4, 32]


@pytest.mark.parametrize(
    "saved",
    [
        lambda: BATCH[3].clone(),
        lambda: SMALL[3],
        lambda: [BATCH[:40], BATCH[40:]],  # all of it is used
        lambda: [BATCH, BATCH[3]],
        lambda: BATCH[:40],  # more than half
        lambda: Own(BATCH[3]),
        lambda: [BATCH[3], Own(BATCH)],
        lambda: [BATCH[3], *range(1000)],
        lambda: BATCH[3].to_sparse(),
        lambda: {"state": [{"a": BATCH.clone()}]},
        lambda: None,
    ],
)
def test_what_is_used_or_not_known_is_not_told(
    recorder: Recorder, tmp_path: Path, saved: Callable[[], Any]
) -> None:
    torch.save(saved(), tmp_path / "x")
    loaded(recorder, tmp_path / "x", 40, weights_only=False)
    assert told(recorder) == []


def test_files_that_hold_little_more_are_not_told(recorder: Recorder, tmp_path: Path) -> None:
    """Of all that a line loads a mean one counts: what was told of its first ones is taken back."""
    torch.save(BATCH[3], tmp_path / "large")
    torch.save(SMALL[3], tmp_path / "small")
    recorder.start(CheckpointProbe())
    for name in ["large", *["small"] * 31]:
        torch.load(tmp_path / name)
    [[one], last] = told(recorder)
    assert (one["files"], last) == (4, [])


def test_a_file_that_is_mapped_is_not_read_whole(recorder: Recorder, tmp_path: Path) -> None:
    torch.save(BATCH[3], tmp_path / "x")
    loaded(recorder, tmp_path / "x", 40, mmap=True)
    assert told(recorder) == []


def test_a_few_files_and_those_that_fail_are_not_told(recorder: Recorder, tmp_path: Path) -> None:
    torch.save(BATCH[3], tmp_path / "x")
    loaded(recorder, tmp_path / "x", 3)
    for _ in range(40):
        with pytest.raises(FileNotFoundError):
            torch.load(tmp_path / "none")
    assert told(recorder) == []


def test_what_is_loaded_stays_the_same(same_with_us: Callable[..., Any], tmp_path: Path) -> None:
    torch.save({"row": BATCH[3]}, tmp_path / "x")

    def load() -> Any:
        found = [torch.load(tmp_path / "x")["row"] for _ in range(6)]
        return [(one.tolist(), one.untyped_storage().nbytes(), one._version) for one in found]

    assert same_with_us(load, CheckpointProbe())[0] == "returned"
