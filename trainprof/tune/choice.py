"""Which of the changes that were measured to take, to put together and to repeat."""

from __future__ import annotations

from collections.abc import Sequence

from trainprof.analysis.statistics.speedup import FASTER, SLOWER, UNKNOWN
from trainprof.analysis.summary.levels import LEAST_GAIN
from trainprof.analysis.summary.tune import BROKEN, CEILING
from trainprof.tune.candidate import Candidate, together
from trainprof.tune.candidates import Plan
from trainprof.tune.cautions import against
from trainprof.tune.loader_candidates import WORKERS
from trainprof.tune.measured import Found
from trainprof.tune.trial import Trial, workers_of


def best(found: Found) -> Trial | None:
    """Returns the fastest setting; of those that are nearly as fast the one that changes least.

    None where none was visibly faster, by as much as is worth a change, with nothing against it.
    """
    faster: list[tuple[float, Trial]] = []
    for trial in _ok_trials(found):
        speed = found.speedup(trial) if trial.overrides else None
        if speed is None or speed.verdict != FASTER or speed.mid is None:
            continue
        if against(found, trial):
            continue
        if any(one.outcome in BROKEN for one in found.of(trial.name)):
            continue
        if speed.mid >= 1 + LEAST_GAIN:
            faster.append((speed.mid, trial))
    if not faster:
        return None
    most = max(speed for speed, _ in faster)
    near = [trial for speed, trial in faster if speed >= most / (1 + LEAST_GAIN)]
    return min(near, key=_size)


def winners(found: Found, plan: Plan) -> list[Candidate]:
    """Returns of each subject the change that was fastest, where that was visible.

    Without those that something else speaks against.
    """
    fastest: dict[str, tuple[float, Candidate]] = {}
    for candidate in plan.candidates:
        speed = found.speedup(candidate.trial())
        if speed is None or speed.mid is None or speed.mid < 1 + LEAST_GAIN:
            continue
        if speed.verdict != FASTER and speed.verdict != UNKNOWN:
            continue
        if against(found, candidate.trial()):
            continue
        # More of the same has to be worth it.
        known = fastest.get(candidate.subject)
        if known is None or speed.mid > known[0] * (1 + LEAST_GAIN):
            fastest[candidate.subject] = (speed.mid, candidate)
    return [one for _, one in sorted(fastest.values(), key=lambda pair: -pair[0])]


def untried_together(found: Found) -> list[str]:
    """Returns the changes that were visibly faster, as one; [] if each was tried beside one."""
    fastest = winners(found, found.plan) if found.plan is not None else []
    tried = [set(run.trial.overrides) for run in found.runs if run.trial.overrides]
    is_tried = all(any(set(one.overrides) < names for names in tried) for one in fastest)
    return [] if len(fastest) < 2 or is_tried else [together(fastest).name]


def variants(found: Found, taken: Sequence[Candidate], plan: Plan) -> list[list[Candidate]]:
    """Returns the changes, and those with one of them replaced by more of the same.

    That of which alone there was as much to be had.
    """
    all_of_them = [list(taken)]
    for index, one in enumerate(taken):
        speed = speed_of(found, one) or 0.0
        for other in plan.candidates:
            near = (speed_of(found, other) or 0.0) * (1 + LEAST_GAIN) >= speed
            if other.subject == one.subject == WORKERS and other is not one and near:
                all_of_them.append([*taken[:index], other, *taken[index + 1 :]])
    return all_of_them


def contenders(found: Found, at_most: int) -> list[Trial]:
    """Returns what was measured fastest, and the ceiling.

    Args:
        found: So far.
        at_most: So many changes, fastest first.
    """
    trials = _ok_trials(found)
    changed = []
    for trial in trials:
        speed = found.speedup(trial) if trial.overrides else None
        if speed is None or (speed.mid or 0.0) < 1 + LEAST_GAIN / 2:
            continue
        if not against(found, trial):
            changed.append((speed.mid or 0.0, trial))
    changed.sort(key=lambda pair: -pair[0])
    fastest = [trial for _, trial in changed[:at_most]]
    ceiling = found.alike(CEILING)
    may_tell = ceiling.other and not ceiling.is_too_short
    return [*fastest, *(one for one in trials if one.name == CEILING and may_tell)]


def is_decided(found: Found, trial: Trial) -> bool:
    """Whether repeated runs tell it from the baseline, by less than what it gains."""
    speed = found.speedup(trial)
    runs = [one for one in found.of(trial.name) if one.is_ok]
    if speed is None or len(runs) < 2 or speed.low is None or speed.high is None:
        return False
    width, gain = speed.high - speed.low, abs((speed.mid or 1.0) - 1)
    if speed.verdict in (FASTER, SLOWER):
        return width <= max(gain, LEAST_GAIN)
    return speed.high < 1 + LEAST_GAIN


def speed_of(found: Found, candidate: Candidate) -> float | None:
    """Returns how many times as fast as the baseline a change was, None where that is not known."""
    speed = found.speedup(candidate.trial())
    return None if speed is None else speed.mid


def _ok_trials(found: Found) -> list[Trial]:
    """Returns each trial that was measured, once."""
    return list({one.trial.name: one.trial for one in found.runs if one.is_ok}.values())


def _size(trial: Trial) -> tuple[int, int]:
    return len(trial.overrides), workers_of(trial.overrides)
