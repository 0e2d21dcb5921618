"""Trackers are offline in trials by variables of their own, and none is imported to find it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

from trainprof.experiments.trackers import installed_trackers, offline_variables

NAMES = ["wandb", "mlflow", "comet_ml", "neptune", "clearml", "swanlab"]


def test_each_tracker_has_a_variable_that_keeps_it_offline() -> None:
    assert offline_variables(Path("/work dir")) == {
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": "file:///work dir/mlruns",
        "COMET_START_ONLINE": "false",
        "COMET_MODE": "OFFLINE",
        "NEPTUNE_MODE": "offline",
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "offline",
    }


class PlantedFinder:
    """Finds the trackers that it is given, and fails for some."""

    def __init__(self, there: set[str], failing: dict[str, Exception]) -> None:
        self._there = there
        self._failing = failing

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name in self._failing:
            raise self._failing[name]
        return ModuleSpec(name, None, origin=f"/{name}.py") if name in self._there else None


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)

    def planted(*there: str, failing: dict[str, Exception] | None = None) -> None:
        monkeypatch.setattr(sys, "meta_path", [PlantedFinder(set(there), failing or {})])

    return planted


@pytest.mark.parametrize("there", [[], ["wandb"], ["mlflow", "swanlab"], NAMES])
def test_those_that_are_installed_are_found(plant: Callable[..., None], there: list[str]) -> None:
    plant(*reversed(there), "numpy")
    assert installed_trackers() == there


@pytest.mark.parametrize("error", [ImportError("damaged"), ValueError("no spec")])
def test_one_that_cannot_be_looked_for_is_not_there(
    plant: Callable[..., None], error: Exception
) -> None:
    plant("wandb", "mlflow", failing={"wandb": error})
    assert installed_trackers() == ["mlflow"]


def test_none_is_imported_and_a_directory_of_logs_is_no_tracker(
    plant: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant()
    (tmp_path / "wandb/run-1").mkdir(parents=True)
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow/__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    assert installed_trackers() == ["mlflow"]
    assert "mlflow" not in sys.modules
