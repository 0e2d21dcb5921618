"""How a loader is built: packages that do it for the user, and loading whole batches."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainprof.analysis.run.metadata import Sites, integer, integers, words
from trainprof.analysis.summary.loader import LoaderCall
from trainprof.record.files import contents_of

_KEPT: Final = "persistent_workers"
_LARGEST_BYTES: Final = 1 << 20
_PACKAGES: Final = re.compile(r"(.*/(?:site|dist)-packages)/")


@dataclass(frozen=True, slots=True)
class BuilderSettings:
    """A call of the user's that passes the arguments of loaders to a package.

    Attributes:
        call: What is called; subclasses end in the same name.
        prefix: Of each argument's name there.
        arguments: Of a DataLoader, which it takes.
        keeps_workers: persistent_workers=True is its default.
        evaluates, copies, checks, quiet, fuses: The change that evaluates less often, copies with
            non_blocking, does not check each step's loss, logs less, fuses its AdamW.
        compiles: The prefix of the arguments that compile the model: PREFIX itself is True,
            PREFIX_mode is as torch.compile's.
        defined_in: The file that has the names of its arguments, from the folder of packages.
    """

    call: str
    prefix: str
    arguments: tuple[str, ...]
    evaluates: str | None = None
    keeps_workers: bool = False
    copies: str | None = None
    compiles: str | None = None
    checks: str | None = None
    quiet: str | None = None
    fuses: str | None = None
    defined_in: str | None = None

    def name_of(self, argument: str) -> str:
        """Returns what an argument of a DataLoader is called there."""
        return f"{self.prefix}{argument}"

    def named(self, change: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns arguments of a DataLoader by their names there; None where one has none."""
        if any(name not in self.arguments for name in change):
            return None
        # torch refuses persistent_workers=True without workers.
        are_gone = self.keeps_workers and change.get("num_workers") == 0
        wanted = {**change, _KEPT: False} if are_gone else change
        return {self.name_of(name): value for name, value in wanted.items()}

    def without(self, lacking: Collection[str]) -> BuilderSettings:
        """Returns it without the arguments that an installed version does not have."""
        changes: dict[str, Any] = {
            name: None
            for name in _CHANGES
            if not set(lacking).isdisjoint(_names_in(getattr(self, name)))
        }
        known = (name for name in self.arguments if self.name_of(name) not in lacking)
        return replace(self, arguments=tuple(known), **changes)

    def lacking(self, packages: Path) -> list[str]:
        """Returns which of its arguments the version in a folder of packages does not have."""
        file = packages / (self.defined_in or "")
        text = None if self.defined_in is None else contents_of(file, _LARGEST_BYTES)
        if text is None:
            return []
        defined = set(re.findall(r"^\s+(\w+)\s*[:=]", text.decode("utf-8", "replace"), re.M))
        changes = (name for change in _CHANGES for name in _names_in(getattr(self, change)))
        return [x for x in (*map(self.name_of, self.arguments), *changes) if x not in defined]


# What is said of other arguments than a DataLoader's.
_CHANGES: Final = ("evaluates", "copies", "compiles", "checks", "quiet", "fuses")


def _names_in(change: str | None) -> list[str]:
    """Returns the arguments that a change names; the first is PREFIX of what compiles."""
    return re.findall(r"(\w+)=", change or "") or ([change] if change else [])


_HUGGING_FACE: Final = BuilderSettings(
    "TrainingArguments",
    "dataloader_",
    ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory"),
    # With eval_strategy="epoch" it ignores eval_steps.
    evaluates='eval_strategy="steps" with a larger eval_steps',
    copies='accelerator_config={"non_blocking": True}',
    compiles="torch_compile",
    checks="logging_nan_inf_filter=False",
    quiet="disable_tqdm=True, logging_steps=500",
    fuses='optim="adamw_torch_fused"',
    defined_in="transformers/training_args.py",
)
# By top-level package; of other packages only the name is reported.
_KNOWN: Final = {
    "transformers": _HUGGING_FACE,
    "sentence_transformers": replace(_HUGGING_FACE, call="SentenceTransformerTrainingArguments"),
    "ignite": BuilderSettings(
        "auto_dataloader",
        "",
        ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory"),
    ),
    "timm": BuilderSettings(
        "create_loader",
        "",
        ("num_workers", "persistent_workers", "pin_memory"),
        keeps_workers=True,
        defined_in="timm/data/loader.py",
    ),
}


def settings_of(package: str | None, lacking: Collection[str] = ()) -> BuilderSettings | None:
    """Returns the call of the user's that has a package's settings.

    Args:
        lacking: Arguments that its installed version does not have, as `Loader` has them.
    """
    settings = _KNOWN.get(package or "")
    return settings.without(lacking) if settings is not None and lacking else settings


def lacking_arguments(metadata: Mapping[str, Any], sites: Mapping[int, Any]) -> list[str]:
    """Returns which arguments the installed version of a loader's builder does not have.

    Args:
        sites: [file, line, function] by number, absolute where a package's.
    """
    settings, place = settings_of(builder_of(metadata)), sites.get(metadata.get("built_at") or 0)
    file = place[0] if isinstance(place, list) and place and isinstance(place[0], str) else ""
    packages = _PACKAGES.match(file)
    return [] if settings is None or packages is None else settings.lacking(Path(packages[1]))


def builder_of(metadata: Mapping[str, Any]) -> str | None:
    """Returns the package that takes the arguments, None where the user's own line does.

    `built_at` and `site` are equal where a package's line is named because none is the user's.
    """
    package = metadata.get("built_by")
    if not isinstance(package, str):
        return None
    is_named = metadata.get("built_at") == metadata.get("site")
    return None if is_named and package not in _KNOWN else package


def call_of(metadata: Mapping[str, Any], sites: Sites) -> LoaderCall | None:
    """Returns how a loader is built; None of an older recording."""
    takes, ends_at = words(metadata.get("takes")), metadata.get("call_ends_at")
    if not takes:
        return None
    is_place = isinstance(ends_at, list) and len(ends_at) == len(integers(ends_at)) == 2
    return LoaderCall(
        ends_at=ends_at if is_place and metadata.get("built_by") is None else None,
        takes=takes,
        constructors=[sites[line] for line in integers(metadata.get("constructors"))],
    )


# Those that torch creates itself, from the dataset alone.
TORCHS_SAMPLERS: Final = ("RandomSampler", "SequentialSampler")
# Where the class of a sampler that only the user can have passed is from.
_OF_OTHERS: Final = ("torch", "other")


def whole_batches(metadata: Mapping[str, Any]) -> str | None:
    """Returns the arguments with which torch fetches a whole batch at once.

    None where a package or another rule of the user's forms the batches or the sampler, and where
    the dataset neither takes a list of indices nor could become tensors.
    """
    size, drawn = integer(metadata.get("batch_size")), _drawn(metadata)
    is_plain = metadata.get("batch_sampler") == "BatchSampler" and builder_of(metadata) is None
    is_plain &= metadata.get("is_taken_over") is not True
    is_plain &= metadata.get("refuses_lists") is not True or metadata.get("is_stackable") is True
    if metadata.get("is_asked_one_by_one") is not True or not is_plain or not size or drawn is None:
        return None
    drops_last = metadata.get("drop_last") is True
    return f"sampler=BatchSampler({drawn}, {size}, drop_last={drops_last}), batch_size=None"


def _drawn(metadata: Mapping[str, Any]) -> str | None:
    """Returns what draws a loader's samples, as an argument; None where that is unknown.

    `sampler` is that of the present call: torch creates only its own two.
    """
    sampler, origin = metadata.get("sampler"), metadata.get("sampler_from")
    if sampler in TORCHS_SAMPLERS and origin in ("torch", None):
        if metadata.get("samples_plainly") is True:
            return f"{sampler}(dataset)"
        if metadata.get("samples_by_generator") is True:
            return f"{sampler}(dataset, generator=...)"
    return "sampler" if origin in _OF_OTHERS else None
