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
from trainprof.findings.wording import around, place, share_of, span

if TYPE_CHECKING:
    from trainprof.analysis.summary.loader import Loader
    from trainprof.findings.run_context import Feeder, RunContext

# Of the making of batches: from here on it is the dataset that takes it.
_OF_DATASET: Final = 0.5
# What all of them have in common.
WAITED_FROM: Final = {
    "wait_share": Threshold(WAIT_SHARE, "XProf: below it a program is not input-bound"),
}


def feeder_with_cause(context: RunContext, rule: str, cause: str) -> Feeder | None:
    """Returns the costliest loader for whose batches training waits because of `cause`."""
    least = context.settings[f"{rule}.wait_share"]
    known = (x for x in context.feeding if x.cause is not None and x.cause.name == cause)
    return next((feeder for feeder in known if feeder.wait_share >= least), None)


def gain_of_cause(context: RunContext, feeder: Feeder) -> Gain | None:
    """Returns what the setting that a loader's cause names would give; None without one."""
    cause = feeder.cause
    if cause is None or cause.setting is None or cause.prediction is None:
        return None
    prediction = _no_faster_than_others(context, feeder, cause.prediction)
    return setting_gain(context, feeder, cause.setting, prediction)


def _no_faster_than_others(
    context: RunContext, feeder: Feeder, prediction: Prediction
) -> Prediction:
    """Returns steps no shorter than the workers of others take that are asked in the same steps.

    While training waits for this loader they make their batches: a wait hides another's.
    """
    if feeder.steps_share < 1:
        return prediction
    others = [x for x in context.feeding if x is not feeder and x.steps_share == 1 and x.inputs]
    made_s = [
        float(x.inputs.fetch_s.mean()) / x.inputs.setting.workers
        for x in others
        if x.inputs is not None and x.inputs.setting.workers
    ]
    least_s = max(made_s, default=0.0)
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
        alters: Arguments that the advice names, where it takes more than those of `change`.
        is_of_making: It is about the making of batches, and says which line that goes to.
        said: Other fields of the finding; its place is the loader's if they have none.
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
    goes_to = _where_it_goes(feeder) if is_of_making else []
    said["site"] = said.get("site") or loader.site
    said["cautions"] = [*said.get("cautions", ()), *altered]
    said["also"] = [*said.get("also", ()), *goes_to]
    return plain_finding(rule, title, gain, evidence=evidence, **said)


def advised(loader: Loader, change: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns a change in words, and its arguments; none where something is to be done first."""
    first = needed_first(loader, change)
    words = "".join(f"{x}, then " for x in first)
    return f"{words}{call_with(loader, change)}", {} if first else change


def call_with(loader: Loader, change: dict[str, Any]) -> str:
    """Returns the call that gives a loader arguments; where nobody knows it, who has to be told."""
    if loader.built_by is None:
        return _own_call(loader, change)
    settings = settings_of(loader.built_by)
    named = None if settings is None else settings.named(change)
    if settings is None or named is None:
        by_package = f"by the settings of {loader.built_by}, which builds it"
        return f"{_arguments(change)} for this loader, {by_package}"
    return f"{settings.call}(..., {_arguments(named)})"


def _arguments(change: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in change.items())


def _where_it_goes(feeder: Feeder) -> list[str]:
    """Returns which line the making of batches goes to."""
    line, fetch = feeder.likely_line(), feeder.loader.fetch
    share = 1 - collate_share(fetch)
    if line is not None and line.is_likely:
        return [f"most of making a batch seems to go to {place(line)}{around(line)}"]
    if line is not None:
        return [f"{share_of(line)} of making a batch goes to {place(line)}{around(line)}"]
    if fetch is None or fetch.dataset_s is None or share < _OF_DATASET or not fetch.samples:
        return []
    each = span(fetch.dataset_s / fetch.samples)
    of_it = f"{percent(share)} of making a batch is dataset[i], {each} a sample"
    if feeder.loader.runs_own_code is not False:
        return [f"{of_it}: trainprof lines shows which of its lines take it"]
    called, asked = feeder.loader.library_call, feeder.loader.dataset_function
    where = "" if called is None else f", mostly in {called}"
    timed = "" if asked is None else f"; a library's code: trainprof lines -f {asked} times it"
    return [f"{of_it}{where}{timed}"]


def _own_call(loader: Loader, given: Mapping[str, Any]) -> str:
    """Returns the call by which the user's own code gives a loader arguments, as it writes them.

    A class of the user's own may not take all that torch's does: what it lacks is given where its
    constructor calls its base's.
    """
    lacking = {name: given[name] for name in not_taken(loader, given)}
    taken = {name: value for name, value in given.items() if name not in lacking}
    words = [f"{loader.kind}(..., {_arguments(taken)})"] if taken else []
    words += [f"{_arguments(lacking)} {by_base(loader)}"] if lacking else []
    return ", and ".join(words)


def not_taken(loader: Loader, names: Collection[str]) -> list[str]:
    """Returns which arguments a loader's class does not take; none where that is not known."""
    takes = loader.call.takes if loader.call is not None else ["**"]
    return [] if "**" in takes else [name for name in names if name not in takes]


def by_base(loader: Loader) -> str:
    """Returns where a loader's base is given what its class does not take."""
    if loader.call is None or not loader.call.constructors:
        return f"for this loader, by another way than {loader.kind}(...), which does not take it"
    return f"where the constructor at {loader.call.constructors[-1]} calls its base's"
