"""Making batches takes more of the CPU than there is: more workers would not help.

What it means: reading, decoding and augmenting keep the cores busy that the run may use, together
with training where that runs on the CPU too. Whoever makes the batches, they do not come faster.

How it is measured: the recorded making of each batch (its time on a core, from the kernel) played
through torch's pipeline with more workers on the same cores: the step hardly changes.

When it is wrong: where other programs held the cores during this run; where the workers' libraries
started threads of their own that hinder each other (OpenCV, MKL: one thread each is enough).

What to do: make samples cheaper: the named function first. Decode smaller pictures, do on the
device what it does well, store what is computed again and again (resized pictures, tokens), or ask
for more cores.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.changed_inputs import without_running
from trainprof.analysis.diagnosis.cheaper_samples import cheaper_samples
from trainprof.analysis.diagnosis.crowding import crowding_of
from trainprof.analysis.diagnosis.gains import Gain, larger, of_batches, of_inputs, outside_steps
from trainprof.analysis.diagnosis.loader_cautions import ranks_of
from trainprof.analysis.diagnosis.loader_change import (
    WAITED_FROM,
    fewer_workers,
    finding,
    made_anew,
    of_cause,
)
from trainprof.analysis.diagnosis.waiting import CPU
from trainprof.analysis.diagnosis.wording import span, waited_of_batch
from trainprof.analysis.finding import Finding
from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.pipeline import Rates
from trainprof.analysis.verdict_level import percent

ID: Final = "saturated_cpu"
KEYS: Final[tuple[str, ...]] = ("data_wait", "first_batch")
THRESHOLDS: Final = WAITED_FROM
# Of the cores: a run that keeps fewer busy does not crowd them by itself.
_BUSY: Final = 0.9


def find(case: Case) -> Finding | None:
    fed = of_cause(case, ID, CPU)
    if fed is None or fed.inputs is None or fed.measured is None:
        return None
    gain = of_inputs(case, fed, without_running(fed.inputs))
    if gain is None:
        return None
    # Receiving and computing are slow for the same reason: the whole wait may go, and what
    # computing takes longer beside workers.
    gain = larger(gain, outside_steps(case, fed.wait_share * case.training_s))
    crowding = None if case.is_on_device else crowding_of(fed.inputs)
    beside_s = 0.0 if crowding is None else crowding.saved_s
    quicker = of_batches(case, fed, fed.measured.wait_s + beside_s)
    # What was seen in the run goes ahead of what the model says of it.
    is_seen = beside_s > 0 and quicker is not None and quicker.likely >= gain.likely
    gain = gain if quicker is None else larger(gain, quicker)
    longer_s = _longer_beside_s(case, fed, fed.measured, gain)
    line = fed.hot_line()
    return finding(
        case,
        fed,
        ID,
        _title(case, fed, fed.measured, longer_s, is_seen=is_seen),
        gain,
        advice=cheaper_samples(line, fed.loader),
        cautions=_cautions(case, fed),
        also=[*fewer_workers(fed), *made_anew(case, fed)],
        site=line.site if line and not line.is_likely else None,
    )


def _longer_beside_s(case: Case, fed: LoaderCase, rates: Rates, gain: Gain) -> float:
    """Returns what of a gain is no wait, s a batch: what is computed faster without workers.

    0 on a device, and where other loaders feed steps as well: nobody knows it of one of them.
    """
    if case.is_on_device or fed.steps_share < 1 or gain.likely <= 1:
        return 0.0
    return max((1 - 1 / gain.likely) * rates.step_s - rates.wait_s, 0.0)


def _title(case: Case, fed: LoaderCase, rates: Rates, longer_s: float, *, is_seen: bool) -> str:
    """Returns what was measured; with what computing takes longer beside workers, if it counts."""
    cores, ranks = case.cores(), ranks_of(fed)
    waits = f"waits {waited_of_batch(rates, fed.wait_share)}, {percent(fed.wait_share)} of training"
    if not fed.loader.num_workers:
        which = "cores" if cores is None else "core" if cores == 1 else f"{cores:.3g} cores"
        who = "training computes" if ranks < 2 else f"{ranks} ranks compute"
        return (
            f"the training process makes its batches itself (num_workers=0) and {waits}; workers "
            f"would want the {which} that {who} on, and not help"
        )
    have = "" if cores is None else f" on {cores:.3g} core{'' if cores == 1 else 's'}"
    have += f" for {ranks} ranks" if have and ranks > 1 else ""
    if longer_s >= LEAST_GAIN * rates.step_s:
        by = "" if is_seen else "by the model "
        waits += f", and {by}computing takes about {span(longer_s)} longer beside the workers"
    return (
        f"making batches needs more of the CPU than there is{have}: training {waits}; more workers "
        "would not help"
    )


def _cautions(case: Case, fed: LoaderCase) -> list[str]:
    cpu = case.summary.system.cpu if case.summary.system else {}
    used, cores = cpu.get("tree_percent"), case.cores()
    if cores is not None and fed.inputs is not None and fed.inputs.ranks > 1:
        cores = min(cores, fed.inputs.cores)  # one that has a sampler of its own sees no other
    busiest = used.get("p95") if isinstance(used, dict) else None
    if cores is None or not isinstance(busiest, (int, float)) or busiest / 100 > _BUSY * cores:
        return []
    return [
        f"this run rarely kept over {busiest / 100:.1f} of {cores:.3g} cores busy: other programs "
        "may have taken them"
    ]
