"""Which package has to pass a loader's arguments, and which its installed version has."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from trainprof.analysis.loading.loader_builder import builder_of, lacking_arguments, settings_of


@pytest.mark.parametrize(
    ("metadata", "builder"),
    [
        ({"site": 3, "built_at": 5, "built_by": "planted"}, "planted"),
        # Where no line is the user's, the package's own is named: there they can be changed.
        ({"site": 3, "built_at": 3, "built_by": "planted"}, None),
        ({"site": 3, "built_at": 3, "built_by": "transformers"}, "transformers"),
        ({"site": 3, "built_at": 0, "built_by": None}, None),
        ({"site": 3}, None),  # an older run
        ({"site": 3, "built_by": ["nonsense"]}, None),
    ],
)
def test_who_builds_a_loader(metadata, builder):
    assert builder_of(metadata) == builder


INSTALLED = Path(sysconfig.get_path("purelib"))
OLD = """
class TrainingArguments:
    evaluation_strategy: str = "no"
    dataloader_num_workers: int = 0
    dataloader_pin_memory: bool = True
    logging_nan_inf_filter: bool = True
    disable_tqdm: bool = None
    optim: str = "adamw_torch"
"""


@pytest.mark.parametrize("package", ["transformers", "timm"])
def test_the_installed_version_has_all_arguments(package):
    settings = settings_of(package)
    if not (INSTALLED / settings.defined_in).exists():
        pytest.skip(f"{package} is not installed")
    assert settings.lacking(INSTALLED) == []


def lacking_in(folder, text):
    file = folder / "site-packages" / "transformers" / "training_args.py"
    file.parent.mkdir(parents=True)
    if text is not None:
        file.write_text(text)
    metadata = {"site": 3, "built_at": 5, "built_by": "transformers"}
    return lacking_arguments(metadata, {5: [str(file.with_name("trainer.py")), 10, "train"]})


def test_what_an_old_version_does_not_have_is_not_named(tmp_path):
    lacking = lacking_in(tmp_path, OLD)
    settings = settings_of("transformers", lacking)
    assert settings.named({"num_workers": 2}) == {"dataloader_num_workers": 2}
    assert settings.named({"num_workers": 2, "persistent_workers": True}) is None
    assert (settings.evaluates, settings.copies, settings.compiles) == (None, None, None)
    assert settings.checks == "logging_nan_inf_filter=False"


def test_without_its_source_all_arguments_are_named(tmp_path):
    assert lacking_in(tmp_path, None) == []
    for place in (None, [], [3], ["train.py", 3]):
        metadata = {"site": 3, "built_at": 5, "built_by": "transformers"}
        assert lacking_arguments(metadata, {5: place}) == []
