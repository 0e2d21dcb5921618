"""The finished summary of a run: its numbers, with findings and verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainprof.analysis.run.evidence import Evidence
from trainprof.analysis.run.one_process import ProcessNumbers
from trainprof.analysis.run.ranks import common_faults
from trainprof.analysis.run.recording import manifest_of_first
from trainprof.analysis.run.run_numbers import RunNumbers, first_process, run_numbers
from trainprof.analysis.summary.finding import IN_NOISE, SOME_RANKS, Finding, PassedOver
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.catalogue import RULES, rule_settings, with_usual
from trainprof.findings.combined_speedup import together
from trainprof.findings.diagnose import Diagnosis, diagnose, ranked
from trainprof.findings.distributed import slow_rank
from trainprof.findings.gain import least_gain
from trainprof.findings.loading.script_option import ScriptFiles, with_flag
from trainprof.findings.loop import slow_validation
from trainprof.findings.run_context import RunContext, context_of_process
from trainprof.findings.verdict import verdict, with_finding
from trainprof.record.run_directory import RunDirectory


def summarize(
    directory: RunDirectory,
    *,
    epoch: int | None = None,
    steps: tuple[int, int] | None = None,
    rules: Mapping[str, float] | None = None,
) -> RunSummary:
    """Returns the summary of a run, or of one training epoch or some steps of it.

    Args:
        epoch: 0-based.
        steps: 0-based, the end excluded.
        rules: Thresholds of findings by name, instead of those of the run.

    Raises:
        NothingThere: If the run lacks that epoch or those steps.
    """
    run = run_numbers(directory, epoch=epoch, steps=steps)
    judged = [_judged(rank, rules) for rank in run.ranks]
    first = judged[0]
    settings = _settings(run.ranks[0], rules)
    files = ScriptFiles.of(manifest_of_first(directory))
    summary = replace(
        run.summary,
        findings=[with_flag(finding, files) for finding in first.findings],
        passed_over=first.passed_over,
        findings_from=first.findings_from,
        rules=[rule.id for rule in RULES],
        together=first.together,
        faults=first.faults,
        verdict=verdict(_with_evaluation_call(run.evidence, settings)),
    )
    if not run.summary.ranks:
        return _with_headline(summary)
    in_all_ranks = [
        finding
        for finding in summary.findings
        if all(
            any((x.id, x.site) == (finding.id, finding.site) for x in rank.findings)
            for rank in judged[1:]
        )
    ]
    # The other findings delay some of the ranks only.
    others = [PassedOver(x, SOME_RANKS) for x in summary.findings if x not in in_all_ranks]
    summary = replace(
        summary,
        findings=in_all_ranks,
        passed_over=[*first.passed_over, *others],
        findings_from=max((x.findings_from for x in judged if x.findings_from), default=None),
        together=None,
        faults=common_faults(rank.faults for rank in judged),
    )
    return _with_headline(_with_slow_rank(summary, run, rules))


def _with_headline(summary: RunSummary) -> RunSummary:
    return replace(summary, verdict=with_finding(summary.verdict, summary.findings))


def context_of(directory: RunDirectory) -> RunContext | None:
    """Returns what the findings of a run rest on, of the first rank.

    None where lines were timed, or devices synchronized.
    """
    numbers = first_process(directory)
    return _context(numbers, _settings(numbers, None))


def _settings(numbers: ProcessNumbers, rules: Mapping[str, float] | None) -> dict[str, float]:
    return with_usual(rule_settings(numbers.rules if rules is None else rules))


def _context(numbers: ProcessNumbers, settings: Mapping[str, float]) -> RunContext | None:
    """None where lines were timed or devices synchronized: that slows some parts more."""
    if numbers.evidence.has_timed_lines or numbers.evidence.was_synchronized:
        return None
    return context_of_process(numbers, settings)


def _judged(numbers: ProcessNumbers, rules: Mapping[str, float] | None) -> RunSummary:
    """Returns a training process's summary with its findings."""
    summary, context = numbers.summary, _context(numbers, _settings(numbers, rules))
    if context is None:
        return summary
    faults = list(summary.faults)

    def failed(rule: str, error: Exception) -> None:
        faults.append(f"rule {rule} failed: {type(error).__name__}: {error}")

    diagnosis = diagnose(context, failed=failed)
    return replace(
        summary,
        findings=[_shown_by(finding, numbers) for finding in diagnosis.findings],
        passed_over=[
            replace(passed, finding=_shown_by(passed.finding, numbers))
            for passed in diagnosis.passed_over
        ],
        faults=faults,
        together=together(context, diagnosis.findings),
        findings_from=max([least_gain(context.noise), *_bars(diagnosis)]),
    )


def _bars(diagnosis: Diagnosis) -> list[float]:
    """Returns the gains that findings stayed under: with few steps a part may be noisier."""
    return [x.least_gain for x in diagnosis.passed_over if x.why == IN_NOISE and x.least_gain]


def _shown_by(finding: Finding, numbers: ProcessNumbers) -> Finding:
    """Returns a finding of a part with step numbers of the whole run."""
    steps = [{**step, "step": step["step"] + numbers.first_step} for step in finding.steps]
    return replace(finding, steps=steps)


def _with_evaluation_call(evidence: Evidence, settings: Mapping[str, float]) -> Evidence:
    """Removes the line that calls evaluation, if evaluation mostly waits for its loader."""
    loading_share = slow_validation.RULE.threshold(settings, "loading_share")
    is_waiting = evidence.evaluation_wait_share >= loading_share
    return replace(evidence, evaluation_call=None) if is_waiting else evidence


def _with_slow_rank(
    summary: RunSummary, run: RunNumbers, rules: Mapping[str, float] | None
) -> RunSummary:
    """Adds the finding of the rank that the others wait for longest."""
    worst = run.worst_rank()
    context = None if worst is None else _context(worst, _settings(worst, rules))
    if worst is None or context is None:
        return summary
    own = replace(worst.summary, stragglers=summary.stragglers)
    diagnosis = diagnose(replace(context, summary=own), [slow_rank.RULE])
    return replace(
        summary,
        findings=ranked([*summary.findings, *diagnosis.findings]),
        passed_over=[*summary.passed_over, *diagnosis.passed_over],
    )
