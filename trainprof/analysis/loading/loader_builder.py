"""How a loader is built: packages that do it for the user, and loading whole batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.run.metadata import Sites, integer, words
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
    takes, lines = words(metadata.get("takes")), metadata.get("constructors")
    if not takes:
        return None
    ends_at, own = metadata.get("call_ends_at"), metadata.get("built_by") is None
    constructors = (
        [line for line in lines if isinstance(line, int)] if isinstance(lines, list) else []
    )
    return LoaderCall(
        ends_at=_place(ends_at) if own else None,
        takes=takes,
        constructors=[sites[line] for line in constructors],
    )


def _place(place: Any) -> list[int] | None:
    numbers = [integer(number) for number in place] if isinstance(place, list) else []
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) == 2 else None


# Those that a loader makes for itself, of its dataset alone.
TORCHS_SAMPLERS: Final = ("RandomSampler", "SequentialSampler")
# Whose the classes are of samplers that nobody but the user can have made, where no package did.
_OF_OTHERS: Final = ("torch", "other")


def whole_batches(metadata: Mapping[str, Any]) -> str | None:
    """Returns the arguments with which torch asks a dataset for a batch at once, as for samples.

    None where batches are made up by a rule of the user's own, or by a package for them, where a
    package made the sampler, and where the dataset takes no list of indices, nor could as tensors.
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
    """Returns what draws a loader's samples, as one writes it beside its arguments.

    `sampler` is the one that the call has: torch makes none but its own two. None where it may have
    none, and of older runs that do not tell.
    """
    sampler, origin = metadata.get("sampler"), metadata.get("sampler_from")
    if sampler in TORCHS_SAMPLERS and origin in ("torch", None):
        if metadata.get("samples_plainly") is True:
            return f"{sampler}(dataset)"
        if metadata.get("samples_by_generator") is True:
            return f"{sampler}(dataset, generator=...)"
    return "sampler" if origin in _OF_OTHERS else None
