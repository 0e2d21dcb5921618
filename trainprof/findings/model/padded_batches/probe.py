"""Samples a few batches for how much of a model's input is padding."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Final

from trainprof.inside.model.parameters import held_in, is_training, modules_of
from trainprof.inside.patching.function_modes import PlainTensors
from trainprof.inside.patching.patcher import Patcher
from trainprof.inside.patching.user_texts import any_text, lines_with
from trainprof.inside.session import Session
from trainprof.inside.signals import ModuleCall
from trainprof.record.notes import Note

# One in 8 steps, 24 of those, and in each up to 16 tables that are copied to a device.
_EVERY, _MOST_STEPS, _MOST_COPIES = 8, 24, 16
# Other tables contain no sequences, or take too long to read.
_LEAST_WIDTH, _LEAST_ROWS, _MOST_NUMBERS = 16, 2, 1 << 20
_TO_A_LENGTH: Final = re.compile(
    r"""padding["']?\s*[=:]\s*["']max_length["']|pad_to_max_length\s*=\s*True"""
)
# With these a model does not compute on padding.
_LEFT_OUT: Final = re.compile(r"\bpack_(?:padded_)?sequence\b|varlen|\bnested_tensor|\bunpad_")


@dataclass(frozen=True, slots=True)
class PaddingNote(Note):
    """Tokens in the input tables of some steps.

    Attributes:
        rows: Sequences.
        places: Tokens, padding included; `filled` without padding.
        longest: Tokens if each batch were as wide as its longest sequence.
        reading_ns: Time of models with such inputs; `all_ns`: of all models.
        sites: The line that asks for a fixed length.
        is_left_out: The script uses functions that skip padding.
    """

    KEY: ClassVar[str] = "padding"

    looks: int = 0  # sampled steps
    rows: int = 0
    places: int = 0
    filled: int = 0
    longest: int = 0
    reading_ns: int = 1
    all_ns: int = 1
    sites: tuple[int, ...] = ()
    is_left_out: bool = False


class PaddingProbe:
    """Counts padding in the inputs of trained models, by their mask or the padding index."""

    name = "padding"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session, self._plain = torch, session, PlainTensors(torch, session)
        self._to_list = torch._C.TensorBase.tolist  # the patched one would be recorded
        self._call, self._copy = patcher.guarded(self._meet), patcher.guarded(self._note_copy)
        self._step = patcher.guarded(self._has_stepped)
        self._taken, self._counts, self._texts = 0, Counter[str](), dict[str, Any]()
        self._set_sampling(is_on=False)
        session.on_first_step.subscribe(patcher.guarded(self._first_step))
        patcher.at_fault(self._stop)
        os.register_at_fork(after_in_child=self._stop)

    def _first_step(self, _: Any) -> None:
        self._session.on_step.switch(self._step, is_on=self._taken <= _EVERY * _MOST_STEPS)

    def _stop(self) -> None:
        self._session.on_step.unsubscribe(self._step)
        self._set_sampling(is_on=False)

    def _set_sampling(self, *, is_on: bool) -> None:
        self._sampled: Counter[str] = Counter()
        self._copied: list[Any] = []
        self._session.on_module_call.switch(self._call, is_on=is_on)
        self._session.on_h2d_copy.switch(self._copy, is_on=is_on)

    def _has_stepped(self, _: Any) -> None:
        began_ns = self._session.now()
        if self._sampled["rows"]:
            self._counts.update(self._sampled, looks=1)
            sites, is_own = self._session.sites, self._session.sites.is_user_file
            self._texts = self._texts or {
                "sites": [sites.site_at(*x) for x in lines_with(is_own, _TO_A_LENGTH)[:1]],
                "is_left_out": any_text(is_own, lambda text: bool(_LEFT_OUT.search(text))),
            }
            values: dict[str, Any] = {**self._counts, **self._texts}
            self._session.note(PaddingNote(**values))
        self._taken += 1
        if self._taken % _EVERY <= 1:
            self._set_sampling(is_on=self._taken % _EVERY == 0)
        if self._taken > _EVERY * _MOST_STEPS:
            self._stop()
        self._session.count_inspection(began_ns)

    def _note_copy(self, source: Any) -> None:
        with self._plain.unseen():
            if len(self._copied) < _MOST_COPIES and self._is_table(source):
                self._copied.append(source)

    def _meet(self, call: ModuleCall) -> None:
        is_learning = self._torch.is_grad_enabled() and is_training(call.module)
        if not is_learning or not self._plain.may_compute():
            return
        began_ns = self._session.now()
        self._sampled["all_ns"] += call.took_ns
        with self._plain.unseen(), self._torch.no_grad():
            kept = self._kept_places(call)
            if kept is not None:
                columns, (rows, width) = self._to_list(kept.sum(dim=0)), kept.shape
                self._sampled.update(
                    rows=rows,
                    places=rows * width,
                    filled=sum(columns),
                    longest=rows * sum(map(bool, columns)),
                    reading_ns=call.took_ns,
                )
        self._session.count_inspection(began_ns)

    def _kept_places(self, call: ModuleCall) -> Any:
        """Returns a mask of the input table without padding, None if unknown."""
        plain = [(name, x) for name, x in held_in(call.inputs) if self._plain.is_plain(x)]
        tables = [(name, x) for name, x in plain if self._is_table(x)]
        most = max((x.numel() for _, x in plain if x.is_floating_point()), default=0)
        pads = (module.__dict__.get("padding_idx") for module in modules_of(call.module))
        pad = next((index for index in pads if type(index) is int), None)
        is_mask = any(name == "attention_mask" for name, _ in tables)
        table = next((x for name, x in tables if not is_mask or name == "attention_mask"), None)
        # Models with larger float inputs (images, audio) compute mostly on those.
        if table is None or most > table.numel() or (pad is None and not is_mask):
            return None
        if table.device.type != "cpu":
            alike = (x for x in self._copied if x.shape == table.shape)
            same = (x for x in alike if (self._to_list(x.amax()) == 1) == is_mask)
            table = next(same, None)
        return None if table is None else table != (0 if is_mask else pad)

    def _is_table(self, tensor: Any) -> bool:
        if not self._plain.is_whole(tensor) or tensor.is_nested or tensor.dim() != 2:
            return False
        is_wide = tensor.shape[0] >= _LEAST_ROWS and tensor.shape[1] >= _LEAST_WIDTH
        return bool(is_wide and tensor.numel() <= _MOST_NUMBERS)
