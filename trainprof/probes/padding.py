"""Looks at a few batches for how much of what a model is given is padding."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from trainprof.probes.graph_look import Autograd
from trainprof.probes.module_parts import is_training
from trainprof.probes.patcher import Patcher
from trainprof.probes.session import ModuleCall, Session
from trainprof.probes.step_looks import StepLooks
from trainprof.probes.user_texts import any_text, lines_with

# Steps that are looked at.
_MOST_LOOKS: Final = 32
# Of a script whose models are given no sequences.
_LOOKS_WITHOUT: Final = 8
# Of one step, and as many copies.
_MOST_CALLS: Final = 64
# What is looked at of a call's inputs, and what is kept of copies to a device.
_MOST_TENSORS: Final = 16
_MOST_NESTED: Final = 3
# A narrower table holds no sequences, one row has no others; a larger one takes too long.
_LEAST_WIDTH: Final = 16
_LEAST_ROWS: Final = 2
_MOST_ROWS: Final = 4_096
_MOST_NUMBERS: Final = 1 << 22
# Longer runs of one value at the end of a row are no chance.
_LEAST_RUN: Final = 2
# What pads is rare among what it pads: a wall, a black pixel and a flag that is not set are not.
_MOST_INSIDE: Final = 0.05
# Of what is filled, beyond the row of middle length; columns that end with zeros are all as long.
_LEAST_BEYOND: Final = 0.02
# From here on it is looked up who pads.
_WORTH_LINES: Final = 0.05
_MOST_LINES: Final = 3
_TO_A_LENGTH: Final = re.compile(
    r"""padding["']?\s*[=:]\s*["']max_length["']|pad_to_max_length\s*=\s*True"""
)
# With these a model leaves padding out of what it computes.
_LEFT_OUT: Final = re.compile(
    r"\bpack_(?:padded_)?sequence\b|\bPackedSequence\b|varlen|\bnested_tensor|\bunpad_"
)
# What a model is given by a name that ends so has to be padded along with what it reads.
_LABELS: Final = "labels"


@dataclass(frozen=True, slots=True)
class Fill:
    """What is in a batch of sequences, shape (rows, width).

    Attributes:
        filled: Places that are no padding.
        longest: Of one row, such places.
        is_left: Padding stands in front.
        is_mask: It was told of ones and zeros.
        is_doubtful: What rows end with may be no padding.
    """

    rows: int
    width: int
    filled: int
    longest: int
    is_left: bool = False
    is_mask: bool = False
    is_doubtful: bool = False

    @property
    def places(self) -> int:
        return self.rows * self.width


class PaddingProbe:
    """Tells how far rows of whole numbers that a model is trained on end, or begin, with one value.

    On a device they are looked at as they are copied there; what a model is given is told by its
    shape.
    """

    name = "padding"

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._has_found = False
        self._looks = self._without = 0
        self._calls = self._copies_seen = self._all_ns = self._reading_ns = 0
        self._copied: deque[Fill | None] = deque(maxlen=_MOST_TENSORS)
        self._rows = self._places = self._filled = self._longest = self._left = 0
        self._padded_rows = self._doubtful_rows = self._doubtful_places = 0
        self._has_labels = False
        self._facts: dict[str, Any] | None = None

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._autograd = Autograd(torch, session)
        self._whole = {torch.int64, torch.int32, torch.int16}
        self._loss = getattr(torch.nn.modules.loss, "_Loss", ())
        self._meets = patcher.guarded(self._meet)
        self._copies = patcher.guarded(self._note_copy)
        self._steps = StepLooks(session, lambda: self._set_looking(is_on=True), self._close)
        self._counts = patcher.guarded(self._steps.stepped)
        session.at_first_step.append(patcher.guarded(self._first_step))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._in_child)

    def _first_step(self, _: Any) -> None:
        self._steps.begin(self._counts)

    def _stop(self) -> None:
        self._session.watch_steps(self._counts, is_on=False)
        self._set_looking(is_on=False)

    def _set_looking(self, *, is_on: bool) -> None:
        self._has_found, self._calls, self._copies_seen = False, 0, 0
        self._session.tell_modules(self._meets, is_on)
        self._session.watch_copies(self._copies, is_on=is_on)
        self._copied.clear()

    def _close(self, _: Any) -> None:
        self._looks += self._has_found
        self._without += not self._has_found
        if self._has_found:
            began_ns = self._session.now()
            self._note()
            # To look up who pads takes some 30 ms, once: later looks are not put off for it.
            self._session.looked_since(began_ns)
        self._set_looking(is_on=False)
        if self._looks >= _MOST_LOOKS or (not self._looks and self._without >= _LOOKS_WITHOUT):
            self._stop()

    def _in_child(self) -> None:
        """In a forked child, which may train something of its own."""
        self._stop()
        self._begin_anew()
        self._steps.begin_anew()

    def _note_copy(self, source: Any) -> None:
        """Looks at what is copied to a device in a step that is looked at."""
        self._copies_seen += 1
        if self._copies_seen > _MOST_CALLS or not self._may_look():
            return
        began_ns = self._session.now()
        with self._autograd.unseen():
            if self._is_table(source):
                self._copied.append(self._fill_of(source))
        self._steps.spent(began_ns)

    def _may_look(self) -> bool:
        """Whether the script learns, and nothing of it would notice what is computed here."""
        return bool(self._torch.is_grad_enabled()) and self._autograd.may_compute()

    def _meet(self, call: ModuleCall) -> None:
        self._calls += 1
        if self._calls > _MOST_CALLS:
            self._steps.close()  # what comes now may be no training: its last step may have been
            return
        if not is_training(call.module) or isinstance(call.module, self._loss):
            return
        if not self._may_look():
            return
        began_ns = self._session.now()
        with self._autograd.unseen():
            fills = self._fills(call)
            self._has_labels |= any(x in fills for x in _shapes_of_labels(call, self._is_table))
        self._all_ns += call.took_ns
        self._reading_ns += call.took_ns if fills else 0
        for fill in fills.values():
            self._has_found = True
            if fill.is_doubtful:
                self._doubtful_rows += fill.rows
                self._doubtful_places += fill.places
                continue
            self._padded_rows += fill.rows if fill.longest < fill.width else 0
            self._rows += fill.rows
            self._places += fill.places
            self._filled += fill.filled
            self._longest += fill.rows * fill.longest
            self._left += fill.rows if fill.is_left else 0
        self._steps.spent(began_ns)

    def _fills(self, call: ModuleCall) -> dict[tuple[int, int], Fill]:
        """Returns what is in the tables that a module is given, by shape: one of those of each.

        Zeros and ones with nothing beside them that they could mask are what it is to learn: ranks
        (each one that is reached), the times that somebody was seen at.
        """
        found: dict[tuple[int, int], list[Fill]] = {}
        args, kwargs = call.inputs
        given = [x for x in _tensors_in([*args, kwargs]) if self._autograd.is_plain(x)]
        tables = [x for x in given if self._is_table(x)][:_MOST_TENSORS]
        most = max((table.numel() for table in tables), default=0)
        if any(x.is_floating_point() and x.numel() > most for x in given):
            return {}  # pictures, sounds: what is computed is not for the tables alone
        for table in tables:
            rows, width = table.shape
            if table.device.type == "cpu":
                fills = [self._fill_of(table)]
            else:
                # What predicts the next is given all but the last.
                fills = [
                    one
                    for one in tuple(self._copied)  # another thread may copy meanwhile
                    if one is not None and one.rows == rows and one.width - 1 <= width <= one.width
                ]
            for fill in fills:
                if fill is not None:
                    found.setdefault((rows, width), []).append(fill)
        # Fractions that are computed are what such a table is compared with.
        maskable = {
            tuple(x.shape[:2]) for x in given if x.is_floating_point() and not x.requires_grad
        }
        return {
            shape: _believed(fills)
            for shape, fills in found.items()
            if shape in maskable or not all(fill.is_mask for fill in fills)
        }

    def _is_table(self, tensor: Any) -> bool:
        if not self._autograd.is_plain(tensor) or tensor.dtype not in self._whole:
            return False
        if tensor.is_nested or tensor.layout is not self._torch.strided:
            return False
        if tensor.dim() != 2 or tensor.numel() > _MOST_NUMBERS:
            return False
        rows, width = tensor.shape
        return bool(_LEAST_ROWS <= rows <= _MOST_ROWS and width >= _LEAST_WIDTH)

    def _fill_of(self, table: Any) -> Fill | None:
        """Returns what is in a table of the host's; None where most rows are all one value.

        Nor where it cannot be read: inside torch.func's transforms, say.
        """
        try:
            with self._torch.no_grad():
                told = self._lengths_of_mask(table)
                if told is not None:
                    return _fill(*told, table, is_mask=True)
                return self._fill_of_ends(table)
        except RuntimeError:
            return None

    def _lengths_of_mask(self, table: Any) -> tuple[list[int], bool] | None:
        """Returns how many ones each row has, and whether the zeros stand in front of them.

        None of what does not hold zeros and ones alone; no lengths where the ones do not lie
        together at one end of all rows: features, and no mask.
        """
        is_one = table == 1
        value_of = self._autograd.value_of
        if value_of(((table != 0) & ~is_one).any()):
            return None
        before, after = is_one[:, :-1], is_one[:, 1:]
        begins = bool(value_of((after & ~before).any()))
        if begins and value_of((before & ~after).any()):
            return [], False
        found: list[int] = self._torch._C.TensorBase.tolist(is_one.sum(dim=1))
        return (found if any(found) else []), begins

    def _fill_of_ends(self, table: Any) -> Fill | None:
        """Returns what is between the values that rows end, or begin, with."""
        found = []
        for is_left in (False, True):
            turned = table.flip(1) if is_left else table
            lengths, padding = self._lengths(turned)
            is_doubtful = padding is not None and self._is_doubtful(turned, lengths, padding)
            fill = _fill(lengths, is_left, table, is_doubtful=is_doubtful)
            if fill is not None:
                found.append(fill)
        surely = [x for x in found if x.longest < x.width and not x.is_doubtful]
        return min(surely or found, key=lambda fill: fill.filled, default=None)

    def _lengths(self, table: Any) -> tuple[list[int], int | None]:
        """Returns how long each row is without the value that rows end with, and that value.

        No lengths where most rows are all one value, no value where no row ends with several.
        """
        width = int(table.shape[1])
        last = table[:, -1:]
        places = self._torch.arange(1, width + 1, device=table.device)
        to_list = self._torch._C.TensorBase.tolist
        found: list[int] = to_list(((table != last) * places).amax(dim=1))
        ends_with: list[int] = to_list(last.flatten())
        if sum(length == 0 for length in found) > len(found) // 2:
            return [], None
        runs = Counter(
            value
            for value, length in zip(ends_with, found, strict=True)
            if width - length >= _LEAST_RUN
        )
        padding = max(runs, key=lambda value: runs[value], default=None)
        lengths = [
            length if value == padding and width - length >= _LEAST_RUN else width
            for value, length in zip(ends_with, found, strict=True)
        ]
        return lengths, padding

    def _is_doubtful(self, table: Any, lengths: list[int], padding: int) -> bool:
        """Whether what rows end with may be of what they hold: columns of a table, an image's edge.

        So it is where rows are about as long as each other, and where they hold that value among
        others: anywhere, or where they are longer than most (the flags of few rows). Where the
        longest fills all there is, it does not matter.
        """
        if max(lengths) == table.shape[1]:
            return False
        middle = sorted(lengths)[(len(lengths) - 1) // 2]
        if _places_after(middle, lengths) < _LEAST_BEYOND * sum(lengths):
            return True
        for start in (0, middle):
            held = self._autograd.value_of((table[:, start:] == padding).sum())
            held -= sum(table.shape[1] - max(length, start) for length in lengths)
            if held > _MOST_INSIDE * _places_after(start, lengths):
                return True
        return False

    def _note(self) -> None:
        # Batches of texts may be about as long as each other by chance: of few nothing is counted.
        is_full = self._doubtful_rows >= self._padded_rows
        rows, places = (self._doubtful_rows, self._doubtful_places) if is_full else (0, 0)
        if self._facts is None and (
            self._longest + places < (1 - _WORTH_LINES) * (self._places + places)
        ):
            self._facts = self._who_pads()
        told = {
            "looks": self._looks,
            "rows": self._rows + rows,
            "places": self._places + places,
            "filled": self._filled + places,
            "longest": self._longest + places,
            "left": self._left,
            "has_labels": self._has_labels,
            "of_calls": self._reading_ns / max(self._all_ns, 1),
            **(self._facts or {}),
        }
        self._session.note_state({"padding": told})

    def _who_pads(self) -> dict[str, Any]:
        sites = self._session.sites
        lines = lines_with(sites.is_user_file, _TO_A_LENGTH)[:_MOST_LINES]
        is_left_out = any_text(sites.is_user_file, lambda text: _LEFT_OUT.search(text) is not None)
        return {"sites": [sites.of_line(*one) for one in lines], "is_left_out": is_left_out}


def _fill(
    lengths: list[int],
    is_left: bool,
    table: Any,
    *,
    is_mask: bool = False,
    is_doubtful: bool = False,
) -> Fill | None:
    if not lengths:
        return None
    width, filled = int(table.shape[1]), sum(lengths)
    is_padded = filled < len(lengths) * width
    return Fill(
        len(lengths), width, filled, max(lengths), is_padded and is_left, is_mask, is_doubtful
    )


def _places_after(start: int, lengths: list[int]) -> int:
    """Returns how many places rows have from `start` on, but for their last: it never pads."""
    return sum(max(length - start - 1, 0) for length in lengths)


def _believed(fills: list[Fill]) -> Fill:
    """Returns what is in tables of one shape, which lie beside each other.

    Masks and labels are as wide as what they are of: the one with least padding is it. What is
    doubtful is believed where a mask leaves out as much of it, or less.
    """
    doubtful = [fill for fill in fills if fill.is_doubtful]
    sure = [fill for fill in fills if not fill.is_doubtful]
    is_borne_out = any(
        mask.is_left == fill.is_left and mask.filled >= fill.filled
        for mask in sure
        for fill in doubtful
    )
    if doubtful and not is_borne_out and all(fill.is_mask for fill in sure):
        return doubtful[0]
    return max(sure, key=lambda fill: fill.filled)


def _tensors_in(values: list[Any], depth: int = 0) -> Iterator[Any]:
    """Goes through what is in plain containers; objects of the script's are left alone."""
    for value in values:
        kind = type(value)
        # By identity: a class of the script's may have an == of its own.
        if kind is list or kind is tuple or kind is dict:
            if depth < _MOST_NESTED and len(value) <= _MOST_TENSORS:
                inner = list(value.values()) if kind is dict else list(value)
                yield from _tensors_in(inner, depth + 1)
        else:
            yield value


def _shapes_of_labels(
    call: ModuleCall, is_table: Callable[[Any], bool]
) -> Iterator[tuple[int, int]]:
    """Goes through the shapes of the tables that a module is given as labels, by their names."""
    args, kwargs = call.inputs
    for named in (kwargs, *(one for one in args if type(one) is dict)):
        for name, value in list(named.items()):
            if type(name) is str and name.endswith(_LABELS) and is_table(value):
                rows, width = value.shape
                yield rows, width
