"""Experiment trackers, switched off in trials by variables of their own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import Final

# As the trackers document them; comet_ml.start and transformers each have one.
_VARIABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "wandb": {"WANDB_MODE": "offline"},
    "mlflow": {"MLFLOW_TRACKING_URI": "file://{cwd}/mlruns"},
    "comet_ml": {"COMET_START_ONLINE": "false", "COMET_MODE": "OFFLINE"},
    "neptune": {"NEPTUNE_MODE": "offline"},
    "clearml": {"CLEARML_OFFLINE_MODE": "1"},
    "swanlab": {"SWANLAB_MODE": "offline"},
}


def offline_variables(cwd: Path) -> dict[str, str]:
    """Returns what keeps trackers from sending anything, by name.

    Args:
        cwd: Where trials run: MLflow writes there.
    """
    switches = (one for variables in _VARIABLES.values() for one in variables.items())
    return {name: value.format(cwd=cwd) for name, value in switches}


def installed_trackers() -> list[str]:
    """Returns the trackers that this Python could import; none is imported."""
    return [name for name in _VARIABLES if _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        spec = util.find_spec(name)
    except (ImportError, ValueError):
        return False
    # A directory of that name, as trackers leave one where they log to, has no origin.
    return spec is not None and spec.origin is not None
