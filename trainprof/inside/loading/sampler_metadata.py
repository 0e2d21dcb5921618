"""How a loader's sampler draws, and who may have made it; nothing of it is called."""

from __future__ import annotations

from typing import Any, Final

from trainprof.inside.patching.static_lookup import of_class

_TORCHS: Final = "torch"
_LOADERS: Final = "loader"
_ANOTHERS: Final = "other"


def sampling(loader: Any) -> dict[str, Any]:
    """Says how samples are drawn.

    `sampler_from`: whose class does it: torch's, one of the package that the loader's class is of,
    which may make it by itself, or another's.
    `samples_plainly`: by a sampler that is made of the dataset alone.
    `samples_by_generator`: by one that is made of the dataset and the loader's own generator alone.
    `sampler_takes_epoch`: training tells it the epoch's number.
    """
    sampler = getattr(loader, "sampler", None)
    held = getattr(sampler, "__dict__", {})
    generator = held.get("generator")
    draws_all = held.get("_num_samples") is None and held.get("replacement") is not True
    is_loaders = generator is not None and generator is getattr(loader, "generator", None)
    takes_epoch = of_class(type(sampler), "set_epoch") is not None
    return {
        "sampler_from": None if sampler is None else _origin(sampler, loader),
        "samples_plainly": draws_all and generator is None,
        "samples_by_generator": draws_all and is_loaders,
        "sampler_takes_epoch": takes_epoch,
    }


def _origin(sampler: Any, loader: Any) -> str:
    package = _package_of(sampler)
    if package == _TORCHS:
        return _TORCHS
    return _LOADERS if package == _package_of(loader) else _ANOTHERS


def _package_of(thing: Any) -> str:
    return str(type(thing).__module__).partition(".")[0]
