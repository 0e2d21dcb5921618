"""Keeps the journal of a `tune` run for --resume: its trials, options, machine and environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from trainprof.analysis.run.recording import manifest_of_first
from trainprof.analysis.summary.tune import BASELINE, BROKEN, INTERRUPTED
from trainprof.compare.comparability import GPU, TORCH, ground_of, ground_of_host
from trainprof.compare.compared_run import ComparedRun
from trainprof.findings.saved import saved_summary
from trainprof.findings.summarize import summarize
from trainprof.launch.manifest import host_now
from trainprof.launch.sources import installed_torch
from trainprof.launch.target import Target
from trainprof.record.errors import TrainprofError
from trainprof.record.files import read_run_file
from trainprof.record.run_directory import RunDirectory
from trainprof.tune.trial import (
    WARM_UP,
    Limits,
    Measured,
    Trial,
    TrialRunner,
    label_of,
    was_cut_early,
)
from trainprof.tune.trial_reading import read, save_json

FILE: Final = "tune.json"
LARGEST_BYTES: Final = 1 << 24
_LARGEST_NUMBER: Final = 1e12
# Raised by values of unexpected shape or size.
_DAMAGES: Final = (
    *(LookupError, ValueError, TypeError),
    *(AttributeError, ArithmeticError, RecursionError),
)
SCHEMA_VERSION: Final = 1
# Variables of OpenMP, MKL, OpenBLAS, glibc, tokenizers, CUDA and torch that change the speed.
_OF_PACE: Final = frozenset(
    (
        *("OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_PLACES", "OMP_PROC_BIND", "OMP_WAIT_POLICY"),
        *("GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY", "KMP_BLOCKTIME"),
        *("MKL_NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
        *("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM", "LD_PRELOAD", "CUDA_LAUNCH_BLOCKING"),
        *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    )
)
_BEGINNINGS: Final = ("MALLOC_", "PYTORCH_")
_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
# Their number counts: a batch system assigns other devices each time.
_NUMBER_OF_DEVICES: Final = f"the number of devices in {_DEVICES}"
_UNSET: Final = "unset"


class JournalDamaged(TrainprofError):
    slug: ClassVar[str] = "journal-damaged"
    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of a `tune` run as TuneOptions has them, with secrets in `words` masked.

    `sources`: digests of config files and of modules next to the script, by name. `variables`: of
    its environment, as `variables_of_pace` has them.
    """

    words: tuple[str, ...]
    module: str | None
    script_sha256: str | None
    budget_s: float
    trial_steps: int | None
    allow_numerics: bool
    interval_s: float
    cwd: str | None
    sources: Mapping[str, str]
    variables: Mapping[str, str]
    is_sandboxed: bool


@dataclass
class Journal:
    """The runs that have ended, saved in the directory of the `tune` run."""

    directory: RunDirectory
    asked: Asked
    done: list[dict[str, Any]] = field(default_factory=list)

    @property
    def spent_s(self) -> float:
        return sum(float(entry["seconds"]) for entry in self.done)

    def save(self) -> None:
        content = {"schema_version": SCHEMA_VERSION, **asdict(self.asked), "done": self.done}
        save_json(self.directory.path / FILE, content)

    def add(self, run: Measured) -> None:
        """Records a run that will not be repeated."""
        self.done.append(
            {
                "name": run.trial.name,
                "number": run.number,
                "overrides": dict(run.trial.overrides),
                "directory": run.directory,
                "outcome": run.outcome,
                "detail": run.detail,
                "failed_after": run.failed_after,
                "left_running": list(run.left_running),
                "seconds": run.seconds,
            }
        )
        self.save()

    def knows(self, trial: Trial, number: int) -> bool:
        """Whether an earlier run exists, with its directory."""
        return self._entry_of(trial, number) is not None

    def remembered(self, trial: Trial, number: int) -> Measured | None:
        """Returns an earlier run, read from its directory, or None."""
        entry = self._entry_of(trial, number)
        if entry is None:
            return None
        directory = self._directory_of(trial, number)
        run = read(
            trial,
            number,
            directory,
            saved_summary(directory) or summarize(directory),
            outcome=str(entry["outcome"]),
            detail=entry["detail"],
            failed_after=entry["failed_after"],
            relative_to=self.directory.path,
        )
        return replace(
            run, seconds=float(entry["seconds"]), left_running=tuple(entry["left_running"])
        )

    def ground(self) -> dict[str, str]:
        """Returns the machine and libraries of its runs; {} if unknown."""
        ground: dict[str, str] = {}
        for entry in self.done:
            directory = self._directory_of(Trial(entry["name"]), entry["number"])
            summary = saved_summary(directory)
            if summary is not None:
                manifest = manifest_of_first(directory)
                run = ComparedRun(summary, None, manifest, str(directory.path))
                ground = ground_of(run) | ground
        return ground

    def _entry_of(self, trial: Trial, number: int) -> dict[str, Any] | None:
        is_there = self._directory_of(trial, number).path.is_dir()
        asked = (trial.name, number, dict(trial.overrides))
        for entry in self.done if is_there else ():
            if (entry["name"], entry["number"], entry["overrides"]) == asked:
                return entry
        return None

    def _directory_of(self, trial: Trial, number: int) -> RunDirectory:
        # The path follows from the name: the recorded path is not trusted.
        return RunDirectory(self.directory.trials / label_of(trial, number))


@dataclass
class RememberingRunner:
    """Runs trials that have no earlier run, on the same machine and libraries."""

    runner: TrialRunner
    journal: Journal
    ground: Mapping[str, str] = field(default_factory=dict)

    def run(self, trial: Trial, number: int, limits: Limits) -> Measured:
        """Runs a trial or returns its earlier run; CannotResume if the machine differs."""
        known = self.journal.remembered(trial, number)
        if known is not None:
            self.ground = {**known.ground, **self.ground}
            return known
        measured = self.runner.run(trial, number, limits)
        check_ground(self.ground, measured.ground)
        is_lost = measured.outcome == INTERRUPTED or was_cut_early(measured, limits)
        # A failed baseline is repeated: a full disk or a busy device may be temporary.
        is_lost |= measured.outcome in BROKEN and trial.name in (WARM_UP, BASELINE)
        if not is_lost:
            self.journal.add(measured)
        return measured


def read_journal(directory: RunDirectory) -> Journal:
    """Returns the journal of a `tune` run; JournalDamaged if it is missing or damaged."""
    path: Path = directory.path / FILE
    try:
        content = json.loads(read_run_file(path, LARGEST_BYTES))
        asked, done = _asked(content), [_entry(entry) for entry in content["done"]]
    except OSError as error:
        raise JournalDamaged(
            f"{directory.path} is not a `tune` run: {FILE}: {error.strerror or error}",
            hint="give the directory that `trainprof tune` printed",
        ) from error
    except _DAMAGES as error:
        raise JournalDamaged(
            f"{path} is damaged", hint="start a new search: trainprof tune SCRIPT"
        ) from error
    return Journal(directory, asked, done)


def _asked(content: Mapping[str, Any]) -> Asked:
    if content["schema_version"] != SCHEMA_VERSION:
        raise ValueError("another version")
    steps = content["trial_steps"]
    return Asked(
        words=tuple(str(word) for word in content["words"]),
        module=_text(content["module"]),
        script_sha256=_text(content["script_sha256"]),
        budget_s=_positive(content["budget_s"]),
        trial_steps=None if steps is None else int(_positive(steps)),
        allow_numerics=bool(content["allow_numerics"]),
        interval_s=_positive(content["interval_s"]),
        cwd=_text(content["cwd"]),
        sources=_texts(content["sources"]),
        variables=_texts(content["variables"]),
        is_sandboxed=bool(content["is_sandboxed"]),
    )


def _positive(value: Any) -> float:
    """Returns a finite number over 0 in the range of durations."""
    number = float(value)
    if not 0 < number < _LARGEST_NUMBER:
        raise ValueError(f"{value} out of range")
    return number


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _texts(content: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in dict(content).items()}


def _entry(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": str(content["name"]),
        "number": int(content["number"]),
        "overrides": dict(content["overrides"]),
        "directory": str(content["directory"]),
        "outcome": str(content["outcome"]),
        "detail": _text(content["detail"]),
        "failed_after": _text(content["failed_after"]),
        "left_running": [str(name) for name in content["left_running"]],
        "seconds": _positive(content["seconds"]),
    }


class CannotResume(TrainprofError):
    slug: ClassVar[str] = "cannot-resume"
    exit_code: ClassVar[int] = 2


def ground_now(target: Target) -> dict[str, str]:
    """Returns the machine and libraries of a run, as far as known before one."""
    ground, torch = ground_of_host(host_now()), installed_torch(target)
    return ground if torch is None else {**ground, TORCH: torch}


def variables_of_pace(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of an environment that change the speed, and the number of devices."""
    variables = {
        name: value
        for name, value in environ.items()
        if name in _OF_PACE or name.startswith(_BEGINNINGS)
    }
    if _DEVICES in environ:
        devices = [device for device in environ[_DEVICES].split(",") if device.strip()]
        variables[_NUMBER_OF_DEVICES] = str(len(devices))
    return variables


def check_variables(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises CannotResume if variables that change the speed differ."""
    # If unset, a script sees all devices, possibly the same number.
    both = before.keys() & now.keys()
    names = [x for x in {**before, **now} if x != _NUMBER_OF_DEVICES or x in both]
    check_alike(*({x: side.get(x, _UNSET) for x in names} for side in (before, now)))


def check_ground(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises CannotResume if the machine or libraries differ, as `ground_of` has them."""
    # One of the GPUs is enough: samples show late which one was used.
    one_gpu = [set(side.get(GPU, "").split(", ")) for side in (before, now)]
    is_same = bool(one_gpu[0] & one_gpu[1])
    check_alike(before, {x: value for x, value in now.items() if x != GPU or not is_same})


def check_alike(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Raises CannotResume with all known differences."""
    changed = [
        f"{what} was {before[what]} and is {value}"
        for what, value in now.items()
        if what in before and before[what] != value
    ]
    if changed:
        raise CannotResume(
            f"{', '.join(changed)}: new trials would not be comparable",
            hint="resume with the same setup, or start a new search: trainprof tune SCRIPT",
        )
