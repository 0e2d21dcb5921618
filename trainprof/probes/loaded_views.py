"""Files that hold far more than the tensors in them: views, saved with all behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trainprof.probes.elements import elements_of, is_container
from trainprof.probes.function_modes import FunctionModes
from trainprof.probes.session import Session

# From so many times as many on, and so many bytes more in a mean file, a line is told once it has
# loaded so many files, and again once it has loaded as many as are looked at. To open and unpickle
# a file takes some 180 us, whatever it holds: 64 KiB more in it cost nothing beside that.
_LARGER_TIMES: Final = 2
_LARGER_BYTES: Final = 1 << 20
_ENOUGH_FILES: Final = 4
_MOST_FILES: Final = 32
_MOST_LINES: Final = 32
_MOST_ELEMENTS: Final = 256
_MOST_NESTED: Final = 4
_PLAIN: Final = (str, bytes, int, float, bool, type(None))


@dataclass(slots=True)
class _Line:
    """What a line has loaded, in bytes of storages and of the tensors that lie in them."""

    files: int = 0
    held: int = 0
    used: int = 0

    def holds_more(self) -> bool:
        """Whether it has loaded much that is not used, in enough files."""
        return (
            self.files >= _ENOUGH_FILES
            and self.held > _LARGER_TIMES * self.used
            and self.held - self.used >= _LARGER_BYTES * self.files
        )


class LoadedViews:
    """Looks at the first files that each line loads."""

    def __init__(self, torch: Any, session: Session) -> None:
        self._tensors = getattr(torch, "Tensor", None), getattr(torch.nn, "Parameter", None)
        self._strided, self._session = torch.strided, session
        self._unseen = FunctionModes(torch).unseen
        self._lines: dict[int, _Line] = {}
        self._has_told = False

    def look(self, loaded: Any, site: int) -> None:
        """Takes in what a file gave at a line; 0 is none."""
        line = self._lines.get(site)
        if line is None:
            if not site or len(self._lines) >= _MOST_LINES:
                return
            line = self._lines[site] = _Line()
        if line.files >= _MOST_FILES:
            return
        line.files += 1
        with self._unseen():
            found = self._bytes_of(loaded)
        if found is None:  # who knows what else lies in its storages
            line.files, line.held, line.used = _MOST_FILES, 0, 0
            return
        line.held += found[0]
        line.used += found[1]
        is_due = line.files in (_ENOUGH_FILES, _MOST_FILES)
        if is_due and (self._has_told or line.holds_more()):
            self._tell()

    def _bytes_of(self, loaded: Any) -> tuple[int, int] | None:
        """Returns those of all storages, and those of the tensors in them; None: not known."""
        held: dict[int, int] = {}
        used: dict[int, int] = {}
        for count, one in enumerate(_elements(loaded)):
            if count >= _MOST_ELEMENTS or type(one) not in (*self._tensors, *_PLAIN):
                return None
            if type(one) in self._tensors:
                if not one.is_cpu or one.layout is not self._strided:
                    return None
                storage = one.untyped_storage()
                place = storage._cdata
                held[place] = storage.nbytes()
                used[place] = used.get(place, 0) + one.numel() * one.element_size()
        return sum(held.values()), sum(min(size, held[place]) for place, size in used.items())

    def _tell(self) -> None:
        self._has_told = True
        told = [
            {"site": site, "files": line.files, "held_bytes": line.held, "used_bytes": line.used}
            for site, line in self._lines.items()
            if line.holds_more()
        ]
        self._session.note_state({"loaded_views": told})


def _elements(loaded: Any, depth: int = 0) -> Iterator[Any]:
    """Yields what lies in containers, and what is none."""
    if is_container(loaded) and depth < _MOST_NESTED:
        for one in elements_of(loaded):
            yield from _elements(one, depth + 1)
    else:
        yield loaded
