"""Puts what several ranks recorded into one summary."""

from __future__ import annotations

from dataclasses import replace

from trainprof.analysis.distributed.stragglers import stragglers, to_jsonable
from trainprof.analysis.machine.gpus import energy_of
from trainprof.analysis.run.one_process import Shown
from trainprof.analysis.run.ranks import across_ranks, common_evidence, rank_row
from trainprof.analysis.run.recording import Recording
from trainprof.analysis.run.training_process import TrainingProcess
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.verdict.headline import verdict
from trainprof.findings.diagnose import diagnose, ranked
from trainprof.findings.distributed import slow_rank
from trainprof.findings.rule import rule_in


def joined_ranks(ranks: list[tuple[Shown, Recording, TrainingProcess]]) -> RunSummary:
    rows = [rank_row(shown.summary, process, recording) for shown, recording, process in ranks]
    told = verdict(common_evidence([shown.evidence for shown, _, _ in ranks]))
    joined = across_ranks([shown.summary for shown, _, _ in ranks], rows, told)
    joined = _with_stragglers(joined, [shown for shown, _, _ in ranks])
    first = ranks[0][1]
    if joined.system is None or any(recording is not first for _, recording, _ in ranks):
        return joined
    # One sampler saw the GPUs of all ranks: their samples are to be counted by it together.
    energy = energy_of(joined.system.gpus, joined.training.samples)
    return replace(joined, system=replace(joined.system, energy=energy))


def _with_stragglers(joined: RunSummary, ranks: list[Shown]) -> RunSummary:
    """Adds which ranks the others waited for, and what is found of the worst."""
    steps = [one.steps for one in ranks if one.steps is not None]
    late = stragglers(steps) if len(steps) == len(ranks) else []
    if not late:
        return joined
    joined = replace(joined, stragglers=to_jsonable(late))
    worst = next(one for one in ranks if one.steps and one.steps.rank == late[0].rank)
    if worst.case is None:
        return joined
    own = replace(worst.summary, stragglers=joined.stragglers)
    found = diagnose(replace(worst.case, summary=own), [rule_in(slow_rank)]).findings
    told = joined.verdict
    if found and told.bottleneck in ("compute", "none"):
        share = percent(found[0].evidence["held_up_share"])
        waiting = f"ranks wait for another one in {share} of training, as a rule in backward"
        told = replace(told, headline=f"{told.headline}; {waiting}")
    return replace(joined, findings=ranked([*joined.findings, *found]), verdict=told)
