"""Trackers that a Trainer or accelerate logs to, named or not, from text that is never run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from trainprof.experiments import trackers
from trainprof.experiments.uncontained import find_uncontained
from trainprof.launch.target import resolve

TRAINER = "from transformers import TrainingArguments, HfArgumentParser\n"
ACCELERATE = "from accelerate import Accelerator\nfrom accelerate.utils import LoggerType\n"


@pytest.fixture
def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, tuple[str, ...]], None]:
    """Installs packages that fail where they are imported, and a version of transformers."""

    def install(transformers: str, names: tuple[str, ...]) -> None:
        packages = tmp_path / "installed"
        for name in names:
            (packages / name).mkdir(parents=True)
            (packages / name / "__init__.py").write_text("raise SystemExit('imported')\n")
        monkeypatch.syspath_prepend(str(packages))
        importlib.invalidate_caches()

        def version(name: str) -> str:
            if not transformers:
                raise metadata.PackageNotFoundError(name)
            return transformers

        monkeypatch.setattr(trackers.metadata, "version", version)
        for variable in ("WANDB_DISABLED", "WANDB_MODE", "COMET_MODE"):
            monkeypatch.delenv(variable, raising=False)

    return install


def found(directory: Path, code: str, *words: str) -> list[tuple[str, str, str]]:
    (directory / "train.py").write_text(code)
    told = find_uncontained(resolve([str(directory / "train.py"), *words]), directory)
    return [(one.name, one.site, one.sentence) for one in told]


def names(directory: Path, code: str, *words: str) -> list[str]:
    return [name for name, _, _ in found(directory, code, *words)]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("TrainingArguments('o', report_to='all')", trackers.SENDS),
        ("TrainingArguments('o', report_to=['tensorboard', 'all'])", trackers.SENDS),
        (
            "TrainingArguments('o', report_to=args.report_to)",
            trackers.MAY_SEND.format(argument="report_to"),
        ),
        (
            "TrainingArguments('o', report_to=name if name else 'none')",
            trackers.MAY_SEND.format(argument="report_to"),
        ),
        ("config = {'report_to': 'wandb'}", trackers.SENDS),
        ("Accelerator(log_with='all')", trackers.SENDS),
        ("Accelerator(log_with=LoggerType.WANDB)", trackers.SENDS),
        ("Accelerator(log_with=args.with_what)", trackers.MAY_SEND.format(argument="log_with")),
        ("more['log_with'] = args.with_what", trackers.MAY_SEND.format(argument="log_with")),
    ],
)
def test_what_is_named_or_may_be_is_told_whatever_the_version(
    tmp_path: Path,
    machine: Callable[[str, tuple[str, ...]], None],
    code: str,
    sentence: str,
) -> None:
    machine("5.24.0", ("wandb",))
    assert found(tmp_path, f"{TRAINER}{ACCELERATE}{code}\n") == [("wandb", "train.py:4", sentence)]


@pytest.mark.parametrize(
    "code",
    [
        "TrainingArguments('o')",
        "TrainingArguments('o', report_to=None)",
        "TrainingArguments('o', **more)",
        "Seq2SeqTrainingArguments('o')",
        "from transformers import TrainingArguments as Arguments; Arguments('o')",
        "HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()",
        "import trl; trl.SFTConfig('o')",
    ],
)
def test_of_what_says_nothing_the_version_tells(
    tmp_path: Path, machine: Callable[[str, tuple[str, ...]], None], code: str
) -> None:
    machine("4.57.1", ("wandb", "mlflow"))
    told = found(tmp_path, f"{TRAINER}{code}\n")
    assert [(name, site) for name, site, _ in told] == [
        ("mlflow", "train.py:2"),
        ("wandb", "train.py:2"),
    ]
    assert {sentence for _, _, sentence in told} == {trackers.UNASKED}


@pytest.mark.parametrize("version", ["5.0.0", "5.24.0", "none", ""])
def test_a_trainer_that_logs_to_none_unasked_is_left_alone(
    tmp_path: Path, machine: Callable[[str, tuple[str, ...]], None], version: str
) -> None:
    machine(version, ("wandb",))
    assert found(tmp_path, f"{TRAINER}TrainingArguments('o')\nHfArgumentParser(x)\n") == []


@pytest.mark.parametrize(
    "code",
    [
        "TrainingArguments('o', report_to='none')",
        "TrainingArguments('o', report_to=[])",
        "TrainingArguments('o', report_to=['tensorboard'])",
        "given = TrainingArguments('o')\ngiven.report_to = []",
        "TrainingArguments('o', **dict(report_to='none'))",
        "TrainingArguments('o', **{'report_to': 'none'})",
        "import os\nos.environ['WANDB_DISABLED'] = 'true'\nTrainingArguments('o')",
        "import os\nos.environ.setdefault('WANDB_MODE', 'disabled')\nTrainingArguments('o')",
        "Accelerator()",
        "Accelerator(log_with=None)",
        "Accelerator(log_with='tensorboard')",
        "Accelerator(log_with=[LoggerType.TENSORBOARD])",
        "SFTConfig('o')",
        "HfArgumentParser(ModelArguments)",
    ],
)
def test_what_says_no_is_no_alarm(
    tmp_path: Path, machine: Callable[[str, tuple[str, ...]], None], code: str
) -> None:
    machine("4.57.1", ("wandb",))
    assert found(tmp_path, f"{TRAINER}{ACCELERATE}{code}\n") == []


@pytest.mark.parametrize(
    "code",
    [
        "TrainingArguments('o')",
        "TrainingArguments('o', report_to='all')",
        "TrainingArguments('o', report_to=args.report_to)",
        "Accelerator(log_with=args.with_what)",
    ],
)
def test_where_no_tracker_is_installed_there_is_none_to_log_to(
    tmp_path: Path, machine: Callable[[str, tuple[str, ...]], None], code: str
) -> None:
    machine("4.57.1", ())
    # What wandb leaves where it logs to is no package.
    (tmp_path / "installed" / "wandb" / "run-1").mkdir(parents=True)
    assert found(tmp_path, f"{TRAINER}{ACCELERATE}{code}\n") == []


def test_a_tracker_that_the_library_does_not_know_is_not_told(
    tmp_path: Path, machine: Callable[[str, tuple[str, ...]], None]
) -> None:
    machine("4.57.1", ("aim", "neptune"))
    assert names(tmp_path, f"{TRAINER}TrainingArguments('o')\n") == ["neptune"]
    assert names(tmp_path, f"{ACCELERATE}Accelerator(log_with='all')\n") == ["aim"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--report_to", "wandb"), ["wandb"]),
        (("--report_to=wandb",), ["wandb"]),
        (("--report_to", "tensorboard", "mlflow", "--lr", "1"), ["mlflow"]),
        (("--report_to", "all"), ["wandb"]),
        (("--report_to", "none"), []),
        (("--report_to",), []),
        ((), ["wandb"]),
    ],
)
def test_the_command_tells_the_trainers_own_parser(
    tmp_path: Path,
    machine: Callable[[str, tuple[str, ...]], None],
    words: tuple[str, ...],
    told: list[str],
) -> None:
    machine("4.57.1", ("wandb",))
    code = f"{TRAINER}HfArgumentParser((ModelArguments, TrainingArguments))\n"
    assert names(tmp_path, code, *words) == told


def test_the_environment_keeps_a_tracker_out(
    tmp_path: Path,
    machine: Callable[[str, tuple[str, ...]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine("4.57.1", ("wandb",))
    monkeypatch.setenv("WANDB_DISABLED", "true")
    assert names(tmp_path, f"{TRAINER}TrainingArguments('o')\n") == []
    # Who names it is asked.
    assert names(tmp_path, f"{TRAINER}TrainingArguments('o', report_to='wandb')\n") == ["wandb"]


@pytest.mark.parametrize(
    ("text", "told"),
    [("report_to: none\n", []), ("report_to: null\n", ["wandb"]), ("lr: 1\n", ["wandb"])],
)
def test_settings_tell_the_trainers_own_parser(
    tmp_path: Path,
    machine: Callable[[str, tuple[str, ...]], None],
    text: str,
    told: list[str],
) -> None:
    machine("4.57.1", ("wandb",))
    (tmp_path / "conf.yaml").write_text(text)
    code = f"{TRAINER}HfArgumentParser(TrainingArguments).parse_yaml_file(name)\n"
    assert names(tmp_path, code, str(tmp_path / "conf.yaml")) == told
    # Arguments that are made in the script say for themselves.
    code = f"{TRAINER}TrainingArguments('o')\n"
    assert names(tmp_path, code, str(tmp_path / "conf.yaml")) == ["wandb"]
