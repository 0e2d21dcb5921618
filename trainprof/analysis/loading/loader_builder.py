"""Packages that build loaders for the user, and how they are told the loaders' arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.run.metadata import integer, words
from trainprof.analysis.run.place_names import Sites
from trainprof.analysis.summary.loader import LoaderCall

_KEPT: Final = "persistent_workers"


@dataclass(frozen=True, slots=True)
class BuilderSettings:
    """A call of the user's in which a package is told the arguments of loaders.

    Attributes:
        call: What is called; heirs of it end in the same name.
        prefix: Of each argument's name there.
        arguments: Of a DataLoader, which it has.
        evaluates: Arguments by which it evaluates less often, as one says it.
        keeps_workers: It has persistent_workers=True unless it is told otherwise.
        copies: The argument that has it copy batches with non_blocking, as one writes it.
        compiles: The prefix of the arguments by which it compiles the model: PREFIX itself is
            True, PREFIX_mode is as torch.compile's.
        checks: The argument that has it look at no step's loss, as one writes it.
        quiet: Arguments by which it shows and logs less in its loop, as one says it.
        fuses: The argument that has it fuse the AdamW that it builds, as one writes it.
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

    def name_of(self, argument: str) -> str:
        """Returns what an argument of a DataLoader is called there."""
        return f"{self.prefix}{argument}"

    def named(self, change: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns arguments of a DataLoader by their names there; None where one has none."""
        if any(name not in self.arguments for name in change):
            return None
        # Without workers torch refuses to keep them.
        are_gone = self.keeps_workers and change.get("num_workers") == 0
        wanted = {**change, _KEPT: False} if are_gone else change
        return {self.name_of(name): value for name, value in wanted.items()}


_ALL: Final = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory")
_HF_CHECKS: Final = "logging_nan_inf_filter=False"
_HF_QUIET: Final = "disable_tqdm=True, a larger logging_steps"
_HF_FUSES: Final = 'optim="adamw_torch_fused"'
_HF_COMPILES: Final = "torch_compile"
# With eval_strategy="epoch" it does not look at eval_steps.
_HF_EVALUATES: Final = (
    'eval_strategy="steps" with a larger eval_steps, and save_strategy, save_steps to match for '
    "load_best_model_at_end"
)
_HF_COPIES: Final = 'accelerator_config={"non_blocking": True}'
# By top-level package. Of others only that they build the loader is said.
_KNOWN: Final = {
    "transformers": BuilderSettings(
        "TrainingArguments",
        "dataloader_",
        _ALL,
        evaluates=_HF_EVALUATES,
        copies=_HF_COPIES,
        compiles=_HF_COMPILES,
        checks=_HF_CHECKS,
        quiet=_HF_QUIET,
        fuses=_HF_FUSES,
    ),
    "sentence_transformers": BuilderSettings(
        "SentenceTransformerTrainingArguments",
        "dataloader_",
        _ALL,
        evaluates=_HF_EVALUATES,
        copies=_HF_COPIES,
        compiles=_HF_COMPILES,
        checks=_HF_CHECKS,
        quiet=_HF_QUIET,
        fuses=_HF_FUSES,
    ),
    "timm": BuilderSettings(
        "create_loader",
        "",
        ("num_workers", "persistent_workers", "pin_memory"),
        keeps_workers=True,
    ),
}


def settings_of(package: str | None) -> BuilderSettings | None:
    """Returns how a package is told the arguments of loaders, None where that is not known."""
    return None if package is None else _KNOWN.get(package)


def builder_of(metadata: Mapping[str, Any]) -> str | None:
    """Returns the package that has to be told the arguments, None where the user's line can be.

    Args:
        metadata: Of the loader, as inside/loading/loader_metadata.py describes them, or alike of an
            optimizer: `built_by`, and `built_at` and `site` as ids of lines. Where a package's
            own line had to be named, because none is the user's, that line is where they stand.
    """
    package = metadata.get("built_by")
    if not isinstance(package, str):
        return None
    is_named = metadata.get("built_at") == metadata.get("site")
    return None if is_named and package not in _KNOWN else package


def call_of(metadata: Mapping[str, Any], sites: Sites) -> LoaderCall | None:
    """Returns how a loader is built; None of a recording that does not tell."""
    takes, told = words(metadata.get("takes")), metadata.get("constructors")
    if not takes:
        return None
    ends_at, own = metadata.get("call_ends_at"), metadata.get("built_by") is None
    constructors = [one for one in told if isinstance(one, int)] if isinstance(told, list) else []
    return LoaderCall(
        ends_at=_place(ends_at) if own else None,
        takes=takes,
        constructors=[sites[one] for one in constructors],
    )


def _place(told: Any) -> list[int] | None:
    numbers = [integer(one) for one in told] if isinstance(told, list) else []
    known = [one for one in numbers if one is not None]
    return known if len(known) == len(numbers) == 2 else None
