"""What findings about a loader have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trainprof.analysis.loading.loader_builder import settings_of
from trainprof.analysis.pipeline.bounds import Interval, Prediction, Setting
from trainprof.analysis.summary.finding import LOADER_ID, Finding, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.findings.gain import Gain, plain_finding, setting_gain
from trainprof.findings.loading.loader_cautions import cautions_of, needed_first
from trainprof.findings.loading.waiting import WAIT_SHARE, collate_share
from trainprof.findings.wording import inside, is_nameless, share_of, span

if TYPE_CHECKING:
    from trainprof.analysis.summary.code import HotLine
    from trainprof.analysis.summary.loader import Loader
    from trainprof.findings.run_context import Feeder, RunContext

# Of batch preparation: from here on the dataset takes most of it.
_OF_DATASET: Final = 0.5
MOST_CAUTIONS: Final = 2
# Batches to a step: above it a step of the optimizer has several.
_ONE_A_STEP: Final = 1.5
WAITED_FROM: Final = {
    "wait_share": Threshold(WAIT_SHARE, "XProf: below it a program is not input-bound"),
}


def feeder_with_cause(context: RunContext, rule: str, cause: str) -> Feeder | None:
    """Returns the costliest loader for whose batches training waits because of `cause`."""
    least = context.settings[f"{rule}.wait_share"]
    known = (x for x in context.feeding if x.cause is not None and x.cause.name == cause)
    return next((feeder for feeder in known if feeder.wait_share >= least), None)


def waits_words(context: RunContext, feeder: Feeder) -> str:
    """Returns what is waited of a batch's time: "each 95.0 ms step waits 81.0 ms for its batch"."""
    assert feeder.measured is not None
    return f"each {step_words(context, feeder)} waits {span(feeder.measured.wait_s)} for its batch"


def step_words(context: RunContext, feeder: Feeder) -> str:
    """Returns the time of a batch: "95.0 ms step", or "iteration" where a step has several."""
    assert feeder.measured is not None
    per_step = feeder.loader.iterations / max(context.summary.training.steps, 1)
    unit = "step" if per_step <= _ONE_A_STEP else "iteration"
    return f"{span(feeder.measured.step_s)} {unit}"


def gain_of_cause(context: RunContext, feeder: Feeder) -> Gain | None:
    """Returns what the setting that a loader's cause names would gain; None without one."""
    cause = feeder.cause
    if cause is None or cause.setting is None or cause.prediction is None:
        return None
    prediction = _no_faster_than_others(context, feeder, cause.prediction)
    return setting_gain(context, feeder, cause.setting, prediction)


def _no_faster_than_others(
    context: RunContext, feeder: Feeder, prediction: Prediction
) -> Prediction:
    """Returns steps no shorter than the workers of other loaders need, which feed the same steps.

    Those prepare their batches while training waits for this loader: one wait hides another.
    """
    if feeder.steps_share < 1:
        return prediction
    others = [x for x in context.feeding if x is not feeder and x.steps_share == 1 and x.inputs]
    prepared_s = [
        float(x.inputs.fetch_s.mean()) / x.inputs.setting.workers
        for x in others
        if x.inputs is not None and x.inputs.setting.workers
    ]
    least_s = max(prepared_s, default=0.0)
    return replace(
        prediction, step_s=Interval(*(max(s, least_s) for s in prediction.step_s.ends()))
    )


def with_workers(feeder: Feeder, setting: Setting) -> dict[str, Any]:
    """Returns the arguments that make a loader's workers those of a setting."""
    change: dict[str, Any] = {"num_workers": setting.workers}
    if setting.is_persistent and not feeder.loader.persistent_workers:
        change["persistent_workers"] = True
    return change


def loader_finding(
    context: RunContext,
    feeder: Feeder,
    rule: str,
    title: str,
    gain: Gain,
    *,
    alters: dict[str, Any] | None = None,
    is_of_making: bool = True,
    **said: Any,
) -> Finding:
    """Returns a finding about a loader, with the numbers that all of them rest on.

    Args:
        alters: Arguments that the advice names, where they are more than those of `change`.
        is_of_making: It is about batch preparation, and says which line takes that.
        said: Other fields of the finding; its site is the loader's if they have none.
    """
    measured, loader = feeder.measured, feeder.loader
    made_s = loader.fetch.wall_s if loader.fetch else None
    evidence = {
        LOADER_ID: loader.id,
        "built_by": loader.built_by,
        "wait_share": feeder.wait_share,
        "wait_total_s": loader.wait_total_s,
        "wait_per_batch_s": None if measured is None else measured.wait_s,
        "batch_s": None if measured is None else measured.step_s,
        "making_a_batch_s": None if made_s is None else made_s.mean,
        "workers": loader.num_workers,
        "cores": context.cores(),
        **said.pop("evidence", {}),
    }
    altered = cautions_of(feeder, alters or said.get("change") or {})
    said["site"], line = said.get("site") or loader.site, feeder.likely_line()
    said["cautions"] = [*said.get("cautions", ()), *altered][:MOST_CAUTIONS]
    if is_of_making and line is None:
        said["also"] = [*said.get("also", ()), *_of_dataset(loader)]
    elif is_of_making and line is not None and line.site != said["site"]:
        said["costliest"] = _costliest(line)
    return plain_finding(rule, title, gain, evidence=evidence, **said)


def advised(loader: Loader, change: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns a change in words, and its arguments; {} where something has to be done first."""
    first = needed_first(loader, change)
    words = "".join(f"{x}, then " for x in first)
    return f"{words}{call_with(loader, change)}", {} if first else change


def call_with(loader: Loader, change: dict[str, Any]) -> str:
    """Returns the call that gives a loader arguments, or the package that has to pass them."""
    if loader.built_by is None:
        return _own_call(loader, change)
    settings = settings_of(loader.built_by, loader.builder_lacks)
    named = None if settings is None else settings.named(change)
    if settings is None or named is None:
        return f"set {_arguments(change)} in {loader.built_by}, which builds this loader"
    return f"{settings.call}(..., {_arguments(named)})"


def _arguments(change: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in change.items())


def _costliest(line: HotLine) -> str:
    """Returns the line that takes most of batch preparation, and its function."""
    name = "" if is_nameless(line) else f" {line.function}()"
    return f"{share_of_preparation(line)}: {line.site}{name}{inside(line)}"


def share_of_preparation(line: HotLine) -> str:
    """Returns what the function of a line takes of batch preparation."""
    if line.is_likely:
        return "most of batch preparation, it seems"
    return f"{share_of(replace(line, line_share=None))} of batch preparation"


def _of_dataset(loader: Loader) -> list[str]:
    """Returns what dataset[i] takes of batch preparation, if that is most, and how to time it."""
    fetch = loader.fetch
    share = 1 - collate_share(fetch)
    if fetch is None or not fetch.dataset_s or not fetch.samples or share < _OF_DATASET:
        return []
    each = span(fetch.dataset_s / fetch.samples)
    words = f"dataset[i] takes {percent(share)} of batch preparation, {each} a sample"
    if loader.runs_own_code is not False:
        return [words, "run trainprof lines to time its lines"]
    mostly = "" if loader.library_call is None else f", mostly in {loader.library_call}"
    timed = loader.dataset_function
    return [f"{words}{mostly}", *([f"run trainprof lines -f {timed} to time it"] if timed else [])]


def _own_call(loader: Loader, given: Mapping[str, Any]) -> str:
    """Returns the call by which the user's code gives a loader arguments, as it writes them.

    A loader class of the user's may lack arguments that torch's has: its constructor passes those
    to its base's.
    """
    lacking = {name: given[name] for name in not_taken(loader, given)}
    taken = {name: value for name, value in given.items() if name not in lacking}
    words = [f"{loader.kind}(..., {_arguments(taken)})"] if taken else []
    words += [f"{_arguments(lacking)} {by_base(loader)}"] if lacking else []
    return " and ".join(words)


def not_taken(loader: Loader, names: Collection[str]) -> list[str]:
    """Returns which arguments a loader's class does not take; none where that is not known."""
    takes = loader.call.takes if loader.call is not None else ["**"]
    return [] if "**" in takes else [name for name in names if name not in takes]


def by_base(loader: Loader) -> str:
    """Returns where a loader's base class gets what its own class does not take."""
    if loader.call is None or not loader.call.constructors:
        return f"in the base class, as {loader.kind}(...) does not take it"
    return f"in super().__init__() at {loader.call.constructors[-1]}"
