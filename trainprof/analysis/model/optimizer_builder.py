"""How to pass an argument to an optimizer: in the user's line, or through the package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.loading.loader_builder import builder_of, settings_of

_FUSED: Final = "fused"
# The class that a package's setting in loader_builder.py fuses.
_FUSED_BY_SETTING: Final = "AdamW"
# How Hugging Face's Trainer takes an optimizer.
_HANDED_OVER: Final = "Trainer(..., optimizers=({optimizer}, None))"
# Packages that pass arguments of the user's call to the optimizer.
_IN_POLICY: Final = "policy_kwargs=dict(optimizer_kwargs=dict({argument}={value!r}))"
_HANDED_ON: Final = {"stable_baselines3": _IN_POLICY, "sb3_contrib": _IN_POLICY}
# These arguments replace the defaults of ActorCriticPolicy.
_POLICY_FORGETS: Final = "with optimizer_kwargs=, PPO and A2C drop their eps=1e-5 for Adam: add it"


@dataclass(frozen=True, slots=True)
class OptimizerCall:
    """Where one of torch's optimizers is built.

    Attributes:
        name: Of its class, such as "AdamW".
        site: The user's line, None where it is not known.
        built_by: The installed package that calls the class; None where the user's line does.
    """

    name: str
    site: str | None = None
    built_by: str | None = None

    def with_argument(self, argument: str, value: object = True) -> str:
        """Returns how to pass it an argument, as code where possible."""
        own = f"torch.optim.{self.name}(..., {argument}={value!r})"
        if self.built_by is None:
            return own
        handed_on = _HANDED_ON.get(self.built_by)
        if handed_on is not None:
            return handed_on.format(argument=argument, value=value)
        settings = settings_of(self.built_by)
        if settings is not None and settings.fuses is not None:
            is_fused = argument == _FUSED and value is True and self.name == _FUSED_BY_SETTING
            by_setting = f"{settings.call}(..., {settings.fuses})"
            return by_setting if is_fused else _HANDED_OVER.format(optimizer=own)
        return f"set {argument}={value!r} in {self.built_by}, which builds this {self.name}"


def builder_in(note: Mapping[str, Any]) -> str | None:
    built = note.get("built")
    return builder_of(built) if isinstance(built, dict) else None


def with_argument(calls: Iterable[OptimizerCall], argument: str) -> list[str]:
    """Returns how to pass it to each of them, duplicates once."""
    return list(dict.fromkeys(call.with_argument(argument) for call in calls))


def policy_cautions(calls: Iterable[OptimizerCall]) -> list[str]:
    """Returns a caution about packages that pass arguments to their optimizers."""
    handed_on = any(call.built_by in _HANDED_ON and call.name == "Adam" for call in calls)
    return [_POLICY_FORGETS] if handed_on else []
