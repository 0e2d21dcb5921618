"""Whose time looped optimizers have, and what that makes of the finding about them."""

from __future__ import annotations

import pytest
from support.events import MS, US, FakeRun

from trainprof.analysis.model.torch_settings import torch_settings
from trainprof.analysis.run.metadata import Metadata
from trainprof.analysis.summary.finding import OTHER_OPTIMIZERS
from trainprof.record.schema import Kind, Topic

NAMES = {1: "Adam#1", 2: "Adam#2", 3: "Muon#3", 4: "Adam#4"}
FEW = {1: "Adam#1", 3: "Muon#3"}
FUSED = {"torch_threads": 1, "optimizer": 2}


def looped(number, line=60, name="Adam"):
    optimizer = {"class": name, "tensors": 30, "built": line, "site": 0}
    known = {} if number is None else {"optimizer": number}
    return {"torch_threads": 1, "looped_optimizer": optimizer} | known


@pytest.mark.parametrize(
    ("notes", "names", "expected"),
    [
        pytest.param([looped(1), looped(2, 61)], NAMES, [3.0, 4.0], id="each"),
        pytest.param([looped(1)], NAMES, [12.0], id="nothing is recorded of later ones"),
        pytest.param([FUSED, looped(1)], NAMES, [3.0], id="one of its class is fused"),
        pytest.param([looped(None)], NAMES, [12.0], id="an older run: by its class"),
        pytest.param([looped(None), looped(None, 61)], NAMES, [0.0, 0.0], id="not known"),
        # Of very many some have no names.
        pytest.param([looped(1)], {**FEW, 9: "Adam#"}, [12.0], id="more of its class"),
        pytest.param([looped(1)], {**FEW, 8: "Muon#", 9: "Adam#"}, [3.0], id="more of both"),
    ],
)
def test_whose_time_it_is(notes, names, expected):
    texts = {topic: {} for topic in Topic}
    texts[Topic.ENVIRONMENT] = dict(enumerate(notes))
    texts[Topic.OPTIMIZER] = dict(names)
    texts[Topic.SITE] = {line: ["/work/train.py", line, "<module>"] for line in (60, 61)}
    metadata = Metadata(texts)
    spent_s = {1: 3.0, 2: 4.0, 3: 50.0, 4: 5.0}
    settings = torch_settings(metadata, metadata.sites("/work"), spent_s)
    assert [optimizer.spent_s for optimizer in settings.looped] == expected


def train(tmp_path, *, clip_ns, own_ns, fusable_ns):
    """Optimizers that could be fused, built by lines from 60 on, and one of the script's."""
    run = FakeRun()
    loader, muon = run.loader(), run.optimizer("Muon#9")
    adams = [run.optimizer(f"Adam#{number}") for number in range(len(fusable_ns))]
    for line, adam in enumerate(adams, 60):
        optimizer = {"class": "Adam", "tensors": 40, "built": run.site(line), "site": run.site(90)}
        note = {"torch_threads": 1, "optimizer": adam, "looped_optimizer": optimizer}
        run.text(Topic.ENVIRONMENT, note)
    run.text(Topic.ENVIRONMENT, {"torch_threads": 1, "optimizer": muon})
    run.iterate(loader)
    for _ in range(80):
        run.next(loader, 10 * US)
        run.forward()
        run.backward()
        run.leaf(Kind.CLIP_GRADIENTS, clip_ns)
        run.update(muon, own_ns)
        for adam, ns in zip(adams, fusable_ns, strict=True):
            run.update(adam, ns)
    run.stop(loader)
    return run.summary(tmp_path).findings


def test_calls_of_step_and_groups_of_parameters_are_counted(tmp_path):
    """Of three optimizers that a line builds, two are recorded; a fourth steps in backward."""
    run = FakeRun()
    loader = run.loader()
    adams = [run.optimizer(f"AdamW#{number}") for number in range(4)]
    update = {"class": "AdamW", "tensors": 5, "groups": 4, "settings": 2, "built": run.site(60)}
    for adam in adams[:2]:
        note = {"torch_threads": 1, "optimizer": adam, "update": {**update, "is_torchs": True}}
        run.text(Topic.ENVIRONMENT, note)
    run.iterate(loader)
    for _ in range(80):
        run.next(loader, 10 * US)
        run.forward()
        with run.span(Kind.BACKWARD):
            run.update(adams[3], MS)
        for adam in adams[:3]:
            run.update(adam, 2 * MS)
    run.stop(loader)
    [used] = run.summary(tmp_path).optimizers
    assert (used.site, used.tensors, used.groups, used.settings) == ("train.py:60", 5, 4, 2)
    assert (used.calls, used.spent_s) == (3 * 80, pytest.approx(80 * 7e-3))


def test_an_optimizer_is_not_blamed_for_anothers_time_nor_for_clipping(tmp_path):
    assert train(tmp_path, clip_ns=900 * US, own_ns=2 * MS, fusable_ns=(50 * US,)) == []


def test_optimizers_are_reported_with_the_time_of_their_own_steps(tmp_path):
    [finding] = train(tmp_path, clip_ns=100 * US, own_ns=200 * US, fusable_ns=(400 * US, 600 * US))
    assert (finding.id, finding.site) == ("slow_optimizer", "train.py:61")
    assert finding.evidence["optimizer_s"] == pytest.approx(80 * 1e-3)
    assert finding.evidence[OTHER_OPTIMIZERS] == ["Adam train.py:60"]
