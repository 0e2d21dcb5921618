"""The memory that torch keeps is given back to the device again and again in training.

What it means: torch keeps the memory of tensors that are gone, to use it for the next ones. After
torch.cuda.empty_cache() it has none, and asks the device for all of it again in the forward and
backward that follow, which takes far longer than the tensors it is for. The call itself waits until
the device has done what it was given. It frees nothing that the script could not have used anyway.

How it is measured: the time in such calls in training in which the device had surely nothing to do,
evaluation left out. What asking again takes lies in the time for which the device waits for the
host: with all of that, or three times what the calls take where that is more (asking again was seen
to take 0.4 to 2.4 times as long as giving back), the gain is told as "up to".

When it is wrong: where another process needs the memory of the same device meanwhile, or where
memory is so short that its pieces no longer fit: then torch would have to do the same by itself.

What to do: leave the call out, or make it once, after what took much memory. Where memory runs out,
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps against pieces that do not fit. Hugging
Face's Trainer makes it every torch_empty_cache_steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import number_of, span
from trainprof.analysis.finding import Finding

ID: Final = "emptied_cache"
KEYS: Final[tuple[str, ...]] = ("other",)
THRESHOLDS: Final = {
    "share": Threshold(
        0.03, "of training, the device idle in the calls (the least gain that is told)"
    ),
}
# What asking for the memory again took, times the calls: 0.4 for a transformer, 1.8 and 2.4 for two
# ResNets (22 to 62 pieces of memory a step, H200).
_ASKING_TIMES: Final = 3.0
# Calls for each step.
_IN_MOST_STEPS: Final = 0.5


def find(case: Case) -> Finding | None:
    told = case.summary.emptied_caches
    spent_s = sum(one.idle_s for one in told)
    if not told or not case.is_on_device or case.settled_s <= 0:
        return None
    if spent_s < case.threshold(ID, "share", THRESHOLDS["share"].value) * case.settled_s:
        return None
    calls = sum(one.count for one in told)
    steps = max(case.summary.training.steps, 1)
    gain = outside_steps(case, spent_s)
    # What asking for it again takes lies there, as far as that is known.
    # The device is idle then for what the host does; nobody knows for how long.
    asking_s = min(_ASKING_TIMES * spent_s, max(case.idle_for_host_s() - spent_s, 0.0))
    again_s = max(case.launching_s() or 0.0, asking_s)
    most = outside_steps(case, spent_s + again_s)
    return plain_finding(
        ID,
        f"in {steps} steps torch gives the memory that it keeps back to the device "
        f"{number_of(calls, 'time')}, in which the device does nothing for {span(spent_s)}, "
        f"{case.of_settled(spent_s)}, and asks for it again each time",
        replace(gain, training=most.training, run=most.run),
        site=told[0].site,
        advice="leave empty_cache() out: torch uses the memory of tensors that are gone again",
        evidence={
            "in_calls_s": sum(one.seconds for one in told),
            "idle_in_calls_s": spent_s,
            "idle_in_calls_share": spent_s / case.settled_s,
            "calls": calls,
            "calls_here": told[0].count,
            # What else is slow may come of calls in all steps; of rarer ones only so much does.
            "kept_s": None if calls >= _IN_MOST_STEPS * steps else spent_s,
        },
        cautions=["another process on the same device may need that memory meanwhile"],
    )
