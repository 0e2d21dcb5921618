"""A model is called once for each sample of a batch, where one call could have all of them.

What it means: a loop hands a batch to the model row by row. Each call has torch's operators given
out anew for a few numbers, forward and backward.

How it is measured: from time to time, the calls of each line are looked at for some steps, of
models that an optimizer has, with gradients. A line counts whose calls are all given parts of one
tensor along its first dimension, each another one, of the same shape, with nothing written to it in
between, eight and more ahead of each pass of backward. So all of the batch was there before the
first call (it is not so where an environment answers each of them), and all that they keep for
backward is held at once anyway. Calls that go on with what another one gave, or leave something in
the module, do not count, as with cells of recurrent networks; nor does a model with layers whose
first dimension may be that of a sequence. Only calls of no more than 2 ms count, on the CPU. Of
backward, their share of forwards is taken. Where forwards are computed again for want of memory,
nothing is said.

When it is wrong: where the model means a single sample by it: BatchNorm in training mode, which
takes its statistics from what one call is given, or code that decides by a sample's numbers. How
much is gained depends on the layers: of 64 calls one was 2 to 20 times as fast (convolutions to
linear layers, torch 2.13 on one core), those of large pictures are not. So what is told is the most
that it can be, and half of it is taken as likely.

What to do: call the model once for the whole batch, without the loop, and take the loss of all of
it. A mean over samples is what losses give by themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.calls_told import SampleCalls
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import of_python
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.unused_forward import with_gradients_s
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "forward_by_sample"
KEYS: Final[tuple[str, ...]] = ("forward", "backward")
THRESHOLDS: Final = {
    "share": Threshold(0.1, "of training: what could go at most"),
    "call_ms": Threshold(
        2.0,
        "of a call: longer ones gain nothing, measured of convolutions, linear and attention "
        "layers, torch 2.13 on one core",
        is_upper=True,
    ),
}
# Of what could go at most: half of it with convolutions, nearly all with linear layers.
_LIKELY_TO_GO: Final = 0.5


def find(case: Case) -> Finding | None:
    most_s = case.threshold(ID, "call_ms", THRESHOLDS["call_ms"].value) / 1e3
    told = [one for one in case.torch.sample_calls if one.each_s <= most_s]
    if not told or case.is_on_device or case.training_s <= 0:
        return None
    if case.recomputes_forwards:  # then rows may be there for memory's sake
        return None
    seconds = sum(_saved_s(case, one) for one in told)
    share = seconds / case.training_s
    most, likely = of_python(case, seconds), of_python(case, seconds * _LIKELY_TO_GO)
    if most is None or likely is None:
        return None
    if share < case.threshold(ID, "share", THRESHOLDS["share"].value):
        return None
    first = told[0]
    return plain_finding(
        ID,
        f"{first.name} is called here for one row of a batch at a time, {first.rows:,.0f} times: "
        f"forward and backward of that take {percent(share)} of training beyond one call's share",
        replace(most, likely=likely.likely, saved_s=likely.saved_s),
        site=first.site,
        advice="call it once for the whole batch, without the loop, and take the loss of all rows",
        cautions=[
            "in training mode BatchNorm then takes its statistics from the whole batch, not from "
            "each row",
            "how much it gives depends on the layers: large pictures gain little",
        ],
        also=[_also(one) for one in told[1:]],
        evidence={
            "calls_for_each_batch": first.rows,
            "call_s": first.each_s,
            "calls_s": first.seconds,
            "at_most_saved_s": seconds,
        },
    )


def _saved_s(case: Case, told: SampleCalls) -> float:
    """Returns what goes at most: all but one call's share, and of backward as much."""
    spent_s = with_gradients_s(case) + case.training.get("backward", 0.0)
    return told.share * (1 - 1 / told.rows) * spent_s


def _also(told: SampleCalls) -> str:
    where = told.site or "another line"
    return f"the same holds for {told.name} at {where}: {span(told.seconds)} in its calls"
