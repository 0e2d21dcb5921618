"""Settings of torch and of optimizers in a trial: where torch allows them, and who else chooses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder, read_recordings, run_hooked
from support.trials import end_of_process, faults, start_trial, trial_note

from trainprof.inside.catalogue import default_probes
from trainprof.launch.options import TrialOptions
from trainprof.record.schema import Topic

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = benchmark


def test_the_number_of_threads_stays(recorder: Recorder) -> None:
    start_trial(recorder, settings={"torch_threads": 3})
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 3
    with pytest.raises(RuntimeError, match="positive"):
        torch.set_num_threads(0)
    assert trial_note(recorder)["applied"] == {"torch_threads": 3}
    assert faults(recorder) == []


SCRIPT = """\
import os
import torch
from torch.utils.data import DataLoader, Dataset

class Asking(Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.get_num_threads()

if __name__ == "__main__":
    torch.set_num_threads(2)
    print(torch.get_num_threads())
    for method in ("fork", "spawn"):
        loader = DataLoader(Asking(), num_workers=1, multiprocessing_context=method)
        print([batch.item() for batch in loader], flush=True)
    os._exit(3)
"""


def test_workers_keep_their_threads_and_a_note_survives_a_crash(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    trial = TrialOptions(settings={"torch_threads": 3}).to_json()
    done = run_hooked(["script.py"], tmp_path, tmp_path / "run", options={"trial": trial})
    assert done.returncode == 3
    # Python's own may report what the crash has left behind.
    assert "Traceback" not in done.stderr
    assert done.stdout == "3\n[1, 1]\n[1, 1]\n"
    main = read_recordings(tmp_path / "run" / "events")[0]
    assert main.notes(Topic.TRIAL) == [{"applied": {"torch_threads": 3}, "refused": {}}]


@pytest.mark.parametrize(
    ("asked", "chosen", "why"),
    [
        ({"torch_threads": 0}, None, "positive"),
        ({"float32_matmul_precision": "high"}, None, None),
        ({"float32_matmul_precision": "high"}, "highest", "'highest'"),
        ({"fused": True}, None, "no optimizer was built"),
    ],
)
def test_what_torch_refuses_or_the_script_chooses_is_noted(
    recorder: Recorder, asked: dict[str, Any], chosen: str | None, why: str | None
) -> None:
    start_trial(recorder, settings=asked)
    if chosen:
        torch.set_float32_matmul_precision(chosen)
    end_of_process(recorder)
    if "float32_matmul_precision" in asked:
        assert torch.get_float32_matmul_precision() == (chosen or "high")
    note = trial_note(recorder)
    assert note["applied"] == ({} if why else asked)
    assert note["refused"].keys() == (asked.keys() if why else set())
    assert all(str(why) in reason for reason in note["refused"].values())


@pytest.mark.parametrize("is_there", [False, True])
def test_cudnns_search(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: is_there)
    start_trial(recorder, settings={"cudnn_benchmark": True})
    assert torch.backends.cudnn.benchmark is is_there
    if is_there:
        assert trial_note(recorder)["applied"] == {"cudnn_benchmark": True}
        torch.backends.cudnn.benchmark = False
    end_of_process(recorder)
    assert trial_note(recorder)["applied"] == {}
    why = "sets it to False" if is_there else "no cuDNN"
    assert why in trial_note(recorder)["refused"]["cudnn_benchmark"]


# Autocast and memory formats

DEVICE = "xpu"  # of which torch has autocast without a device


def type_of_a_product() -> torch.dtype:
    """Returns the type that autocast gives matmuls on the device, float32 outside of it."""
    is_on = torch.is_autocast_enabled(DEVICE)
    return torch.get_autocast_dtype(DEVICE) if is_on else torch.float32


@pytest.mark.parametrize("asked", ["bfloat16", "float16"])
def test_autocast_that_is_off_is_turned_on(recorder: Recorder, asked: str) -> None:
    start_trial(recorder, settings={"autocast": asked})
    wanted = getattr(torch, asked)
    for off in (
        torch.autocast(DEVICE, enabled=False),
        torch.autocast(DEVICE, torch.float16, False),
        torch.autocast(device_type=DEVICE, enabled=False, cache_enabled=False),
    ):
        with off:
            assert type_of_a_product() is wanted
            with torch.autocast(DEVICE, enabled=False):  # in float32 on purpose
                assert type_of_a_product() is torch.float32
    with torch.autocast("cpu", enabled=False):
        assert not torch.is_autocast_enabled("cpu")
    # Small gradients of float16 are lost without.
    assert torch.amp.GradScaler("cpu", enabled=False).is_enabled() is (asked == "float16")
    assert trial_note(recorder)["applied"] == {"autocast": asked}
    assert (trial_note(recorder)["refused"], faults(recorder)) == ({}, [])


def test_an_error_of_autocast_looks_the_same(same_with_us: Callable[..., Any]) -> None:
    trial = TrialOptions(settings={"autocast": "bfloat16"}).to_json()
    for wrong in (lambda: torch.autocast(3), lambda: torch.autocast()):
        assert same_with_us(wrong, *default_probes(trial))[0] == "raised"


def test_channels_last_weights_make_channels_last_pictures(recorder: Recorder) -> None:
    start_trial(recorder, settings={"channels_last": True})
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(2)
    )
    pictures = torch.randn(2, 3, 8, 8)
    before = model(pictures)
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert model[0](pictures).is_contiguous(memory_format=torch.channels_last)
    assert {name: value.tolist() for name, value in model.state_dict().items()} == weights
    torch.testing.assert_close(model(pictures), before)
    model(pictures).sum().backward()
    optimizer.step()
    assert trial_note(recorder)["applied"] == {"channels_last": True}
    assert (trial_note(recorder)["refused"], faults(recorder)) == ({}, [])


@pytest.mark.parametrize(
    ("asked", "model", "why"),
    [
        ("channels_last", torch.nn.Linear(2, 2), "4-D weights"),
        (
            "channels_last",
            torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
            "already have",
        ),
        ("autocast", torch.nn.Linear(2, 2), "autocast context"),
    ],
)
def test_where_precision_and_format_have_nothing_to_change(
    recorder: Recorder, asked: str, model: torch.nn.Module, why: str
) -> None:
    start_trial(recorder, settings={asked: "bfloat16" if asked == "autocast" else True})
    SGD(model.parameters(), lr=0.1)
    end_of_process(recorder)
    assert trial_note(recorder)["applied"] == {}
    assert why in trial_note(recorder)["refused"][asked]


# Optimizers


def parameters(count: int = 2, **options: Any) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3, **options)) for _ in range(count)]


def step(optimizer: Any) -> list[list[float]]:
    updated = optimizer.param_groups[0]["params"]
    for p in updated:
        p.grad = torch.full_like(p, 0.5)
    optimizer.step()
    return [p.tolist() for p in updated]


def settings_of(optimizer: Any, name: str = "fused") -> list[Any]:
    return [optimizer.defaults.get(name), *(g.get(name) for g in optimizer.param_groups)]


@pytest.mark.parametrize(
    ("setting", "make"),
    [
        *[("fused", make) for make in (SGD, Adam, AdamW, torch.optim.Adagrad)],
        *[("foreach", make) for make in (SGD, Adam, torch.optim.RMSprop)],
    ],
)
def test_as_torchs_own_constructor_sets_it(recorder: Recorder, setting: str, make: Any) -> None:
    own = make(parameters(), lr=0.1, **{setting: True})
    start_trial(recorder, settings={setting: True})
    ours = make([{"params": parameters()}, {"params": parameters(1), "lr": 0.5}], lr=0.1)
    assert settings_of(ours, setting) == [True] * 3
    ours.add_param_group({"params": parameters(1)})
    assert settings_of(ours, setting) == [True] * 4
    scaling = [getattr(x, "_step_supports_amp_scaling", False) for x in (ours, own)]
    assert scaling == [setting == "fused"] * 2
    assert step(ours) == step(own)
    keys = [sorted(state) for state in ours.state.values()]
    assert keys[:2] == [sorted(state) for state in own.state.values()]
    assert trial_note(recorder)["applied"] == {setting: True}
    assert (trial_note(recorder)["refused"], faults(recorder)) == ({}, [])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Adam(parameters(), fused=False), "fused=False"),
        (lambda: Adam(parameters(), foreach=True), "foreach=True"),
        (lambda: Adam([{"params": parameters(), "fused": False}]), "fused=False"),
        (lambda: Adam(parameters(), differentiable=True), "differentiable"),
        (lambda: Adam(parameters(), capturable=True), "capturable"),
        (lambda: torch.optim.RMSprop(parameters()), "no option fused"),
    ],
)
def test_where_it_is_not_to_be(recorder: Recorder, make: Callable[[], Any], why: str) -> None:
    bare = settings_of(make())
    start_trial(recorder, settings={"fused": True})
    optimizer = make()
    assert settings_of(optimizer) == bare
    assert not getattr(optimizer, "_step_supports_amp_scaling", False)
    assert trial_note(recorder)["applied"] == {}
    assert why in trial_note(recorder)["refused"]["fused"]


@pytest.mark.parametrize("by_name", [False, True])
def test_a_state_that_is_loaded_does_not_undo_it(recorder: Recorder, by_name: bool) -> None:
    saved = Adam(parameters())
    step(saved)
    state = saved.state_dict()
    before = copy.deepcopy(state)
    start_trial(recorder, settings={"fused": True})
    optimizer, own = Adam(parameters()), Adam(parameters(), fused=True)
    for loaded in (optimizer, own):
        loaded.load_state_dict(state_dict=state) if by_name else loaded.load_state_dict(state)
    assert str(state) == str(before)
    assert settings_of(optimizer) == [True, True]
    assert step(optimizer) == step(own)


def test_an_error_of_the_constructor_looks_the_same(same_with_us: Callable[..., Any]) -> None:
    trial = TrialOptions(settings={"fused": True}).to_json()
    for wrong in (lambda: SGD([], lr=1), lambda: Adam(parameters(), lr=-1)):
        assert same_with_us(wrong, *default_probes(trial))[0] == "raised"
