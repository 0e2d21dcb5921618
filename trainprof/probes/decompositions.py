"""Whether what is trained takes matrices apart: in float64 that is meant, and mostly needed."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from trainprof.probes.graph_look import Autograd
from trainprof.probes.patcher import COMPILER, Patcher
from trainprof.probes.session import BackwardWatch, Session
from trainprof.record.schema import Topic

# Backward passes that are looked at, each for so many nodes of its graph: some 1 us a node.
_MOST_PASSES: Final = 16
_MOST_NODES: Final = 2_048
# torch's nodes for what loses its digits in float32 where a matrix is close to singular, and for
# logarithms of large factorials.
_NODES: Final = re.compile(
    r"(?:Linalg(?:Cholesky|Det|Eig|Inv|Lstsq|Lu|Pinv|Qr|Slogdet|Solve|Svd)|Cholesky|Geqrf|Ormqr"
    r"|Lu|TriangularSolve|Lgamma|Digamma|Polygamma|Mvlgamma)\w*"
)
# The same in Python code whose operators have no nodes.
_NAMES: Final = re.compile(
    r"(?:\w*cholesky\w*|det|slogdet|logdet|eig\w*|inv|inv_ex|inverse|lstsq|lu|lu_\w+|pinv|pinverse|qr"
    r"|solve\w*|svd\w*|\w+_solve|mvlgamma|lgamma|digamma|polygamma)"
)
_METHODS: Final = ("forward", "backward", "setup_context")
# Their own functions work on matrices by iteration; their manuals ask for float64.
_LIBRARIES: Final = ("gpytorch", "linear_operator", "botorch")


class Decompositions:
    """Looks at some backward passes of a model in float64, until one is met, and tells it.

    The forward of a function with a backward of its own leaves no nodes: of those in a graph, and
    of the optimizer, the code is asked for the names that it uses. What is computed elsewhere
    without gradients is not seen.
    """

    def __init__(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._watch = BackwardWatch(patcher.guarded(self._begins), patcher.guarded(_nothing))
        self._has_begun = False
        self._passes = 0
        patcher.at_fault(self._stop)

    def look(self, optimizer: Any) -> None:
        """Begins with the first optimizer whose parameters are float64."""
        if self._has_begun:
            return
        self._has_begun = True
        if any(name in sys.modules for name in _LIBRARIES) or _has_some(_all_codes(optimizer)):
            self._tell()
            return
        try:
            self._autograd = Autograd(self._torch, self._session)
        except AttributeError:  # this torch lacks what looks at graphs ask
            return
        self._session.watch_backward(self._watch, is_on=True)

    def _stop(self) -> None:
        self._session.watch_backward(self._watch, is_on=False)

    def _tell(self) -> None:
        self._session.log.note(Topic.ENVIRONMENT, {"decomposes_in_float64": True})

    def _begins(self, outputs: Any, *_: Any) -> None:
        if COMPILER in sys.modules and self._session.compiler.is_compiling():
            return
        begun_ns = self._session.now()
        self._passes += 1
        with self._autograd.unseen():
            plain = [one for one in outputs if self._autograd.is_plain(one)]
            is_met = self._is_in([node for one in plain if (node := one.grad_fn) is not None])
        if is_met:
            self._tell()
        if is_met or self._passes >= _MOST_PASSES:
            self._stop()
        self._session.looked_since(begun_ns)

    def _is_in(self, roots: list[Any]) -> bool:
        """Whether a graph has such a node, as far as it is gone through."""
        known: set[type] = set()
        seen: set[Any] = set()
        stack = list(roots)
        while stack and len(seen) < _MOST_NODES:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if type(node) not in known:
                known.add(type(node))
                if self._is_one(node):
                    return True
            stack.extend(found for found, _ in node.next_functions if found is not None)
        return False

    def _is_one(self, node: Any) -> bool:
        if not isinstance(node, self._autograd.opaque):
            return _NODES.fullmatch(type(node).__name__) is not None
        written = vars(type(node)).get("_forward_cls")
        codes = (_code_in(written, name) for name in _METHODS)
        return _has_some(code for code in codes if code is not None)


def _all_codes(thing: Any) -> Iterator[CodeType]:
    """Goes through the functions of a thing's class that are no other library's, as torch's."""
    for base in type(thing).__mro__[:-1]:
        if base.__module__.partition(".")[0] != "torch":
            for name in vars(base):
                if (code := _code_in(base, name)) is not None:
                    yield code


def _code_in(owner: Any, name: str) -> CodeType | None:
    """Returns the code of a class's function, without having anything of the class run."""
    bases = owner.__mro__ if isinstance(owner, type) else ()
    found = next((vars(base)[name] for base in bases if name in vars(base)), None)
    found = getattr(found, "__func__", found)
    # torch puts its hooks around an optimizer's step.
    found = inspect.unwrap(found) if type(found) is FunctionType else None
    return found.__code__ if type(found) is FunctionType else None


def _has_some(codes: Iterable[CodeType]) -> bool:
    """Whether code, or code inside it, uses the name of such an operator."""
    return any(
        any(_NAMES.fullmatch(name) for name in code.co_names)
        or _has_some(one for one in code.co_consts if isinstance(one, CodeType))
        for code in codes
    )


def _nothing() -> None:
    return None
