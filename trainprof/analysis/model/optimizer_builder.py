"""How an optimizer gets an argument: in the user's line, or through the package that builds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainprof.analysis.loading.loader_builder import builder_of, settings_of

_FUSED: Final = "fused"
# What the setting of a package, as loader_builder.py has it, is for.
_FUSED_BY_SETTING: Final = "AdamW"
# How Hugging Face's take one that is built already.
_HANDED_OVER: Final = "Trainer(..., optimizers=({optimizer}, None))"
# Packages that hand arguments on to the optimizer, in a call of the user's.
_IN_POLICY: Final = "policy_kwargs=dict(optimizer_kwargs=dict({argument}={value!r}))"
_HANDED_ON: Final = {"stable_baselines3": _IN_POLICY, "sb3_contrib": _IN_POLICY}
# In place of these arguments, and not beside them, stands what ActorCriticPolicy has by itself.
_POLICY_FORGETS: Final = (
    "where optimizer_kwargs= is given, PPO and A2C leave out their own eps=1e-5 for Adam: give it "
    "too"
)


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
        """Returns how an argument of its class is passed to it, in words."""
        own = f"torch.optim.{self.name}(..., {argument}={value!r})"
        if self.built_by is None:
            return own
        handed_on = _HANDED_ON.get(self.built_by)
        if handed_on is not None:
            return f"{handed_on.format(argument=argument, value=value)}, for {self.name}"
        settings = settings_of(self.built_by)
        if settings is not None and settings.fuses is not None:
            is_fused = argument == _FUSED and value is True and self.name == _FUSED_BY_SETTING
            by_setting = f"{settings.call}(..., {settings.fuses})"
            return by_setting if is_fused else _HANDED_OVER.format(optimizer=own)
        return (
            f"{argument}={value!r} for {self.name}, by the settings of {self.built_by}, which "
            "builds it"
        )


def builder_in(note: Mapping[str, Any]) -> str | None:
    built = note.get("built")
    return builder_of(built) if isinstance(built, dict) else None


def with_argument(calls: Iterable[OptimizerCall], argument: str) -> list[str]:
    """Returns how each of them is given it, duplicates once."""
    return list(dict.fromkeys(call.with_argument(argument) for call in calls))


def minded_of(calls: Iterable[OptimizerCall]) -> list[str]:
    """Returns cautions about packages that pass arguments on to their optimizers."""
    handed_on = any(call.built_by in _HANDED_ON and call.name == "Adam" for call in calls)
    return [_POLICY_FORGETS] if handed_on else []
