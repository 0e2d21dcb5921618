"""What the verdict over one training process rests on."""

from __future__ import annotations

from collections.abc import Sequence

from trainprof.analysis.device.host_waits import dearest_in_training, idle_during_s
from trainprof.analysis.loading.loader_figures import cost_s
from trainprof.analysis.run.analysed import Analysed
from trainprof.analysis.summary.device import Device, SyncPoint, Transfer
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import Ledger, Training
from trainprof.analysis.timeline.checkpoints import checkpoints_of
from trainprof.analysis.timeline.iterations import TRAINING
from trainprof.analysis.timeline.ledger import Attribution, loop_seconds
from trainprof.analysis.verdict.device_headline import DeviceEvidence
from trainprof.analysis.verdict.headline import Evidence
from trainprof.findings.loop import slow_validation
from trainprof.findings.thresholds import rule_settings


def rule_settings_of(run: Analysed) -> dict[str, float]:
    """Returns the thresholds of rules that the user has set for a run, by "rule.name"."""
    return rule_settings(run.recording.section("options").get("rules"))


def _evaluation_call(run: Analysed, loader: Loader) -> str | None:
    """Returns where evaluation is called; None where its loader is what it mostly waits for."""
    waited_s = loader.evaluation_wait_s if loader.role == TRAINING else cost_s(loader)
    settings = rule_settings_of(run)
    usual = slow_validation.THRESHOLDS["loading_share"].value
    of_loading = settings.get(f"{slow_validation.ID}.loading_share", usual)
    return loader.called_at if waited_s < of_loading * loader.evaluation_s else None


def _evaluated_loader(loaders: list[Loader], spent_s: float, training: Training) -> Loader | None:
    """Returns the loader that evaluation goes over for longest; None where most is over none."""
    # Of inference alone its loader is all that can be named.
    if training.steps and not slow_validation.is_over_loaders(loaders, spent_s):
        return None
    evaluating = [x for x in loaders if x.evaluation_s > 0]
    return max(evaluating, key=lambda x: x.evaluation_s, default=None)


def evidence_of(
    run: Analysed,
    attribution: Attribution,
    account: Ledger,
    training: Training,
    loaders: list[Loader],
    device: Device | None,
    copies: list[Transfer],
    syncs: list[SyncPoint],
) -> Evidence:
    """Puts together what is known before any look at lines.

    Args:
        run: Of one training process.
        attribution: Of its events to keys of the ledger.
        account: The ledger.
        training: Of the run.
        loaders: All of them.
        device: None where none is used, or nothing is known of it.
        copies, syncs: With what each cost the device.
    """
    timeline, window = run.timeline, run.timeline.window
    places = account.other_by_place
    training_s = (window.loop_end - window.loop_start) / 1e9
    spent = loop_seconds(timeline.events, attribution, window)
    longest = _evaluated_loader(loaders, spent["evaluation"], training)
    return Evidence(
        wall_s=account.wall_s,
        startup_s=account.seconds["startup"],
        training_s=training_s,
        training=spent,
        has_device=run.metadata.device() is not None,
        steps=training,
        loaders=loaders,
        checkpoints=checkpoints_of(
            timeline.events,
            timeline.nesting,
            run.sites(),
            timeline.segments,
            (window.loop_start, window.loop_end),
        ),
        evaluation_site=longest.site if longest is not None else None,
        evaluation_call=_evaluation_call(run, longest) if longest is not None else None,
        other_place=max(places, key=lambda name: places[name]) if places else None,
        has_timed_lines=run.has_timed_lines(),
        was_synchronized=run.synchronized() is not None,
        device=DeviceEvidence.of(device, training_s) if device is not None else None,
        transfer_site=_dearest_site(copies),
        sync_site=_dearest_site(syncs),
    )


def _dearest_site(rows: Sequence[Transfer | SyncPoint]) -> str | None:
    """Returns the line that cost training most of them, None where the device felt none."""
    dearest, _ = dearest_in_training(rows)
    return dearest.site if dearest is not None and idle_during_s(dearest) > 0 else None
