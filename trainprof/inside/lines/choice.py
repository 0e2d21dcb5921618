"""Chooses the functions whose lines are timed.

They are found in a file's text before it runs, and in a DataLoader's objects without running
their code.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.static_lookup import closed_over, of_class, of_object, own_function

MODULE: Final = "<module>"
PROFILE: Final = "profile"
TRAINING_LOOP: Final = "training loop"
MODULE_LEVEL: Final = "module level"
DATASET: Final = "dataset"

# Depth to which calls are followed from a training loop, and the most functions chosen.
MAX_DEPTH: Final = 3
MAX_CALLED: Final = 50

_BACKWARD: Final = frozenset({"backward", "manual_backward"})
_UPDATE: Final = frozenset({*_BACKWARD, "step"})
# Methods of modules, trainers and callbacks that a framework's loop calls for each batch.
_HOOKS: Final = frozenset(
    {"training_step", "validation_step", "compute_loss"}
    | {"on_train_batch_start", "on_train_batch_end", "on_step_begin", "on_step_end"}
    | {"on_before_backward", "on_after_backward", "on_before_optimizer_step"}
)
# Methods that a call of an object runs: the first that its class has.
_CALLED: Final = ("__call__", "forward")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)

Place = tuple[str, int]
# A qualified name in this file, or (module, qualified name).
_Target = str | tuple[str, str] | None


@dataclass(slots=True)
class Choice:
    """Why functions are timed: here by name and first line, `wanted` in other modules."""

    why: dict[Place, str] = field(default_factory=dict)
    wanted: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(slots=True)
class _Function:
    node: _Definition | ast.Module
    name: str
    in_class: str | None
    # Its nodes, without those of nested functions and classes.
    own: list[ast.AST] = field(default_factory=list)

    @property
    def place(self) -> Place:
        if isinstance(self.node, ast.Module):
            return MODULE, 1
        return self.name, min(
            [self.node.lineno, *(decorator.lineno for decorator in self.node.decorator_list)]
        )

    def calls(self, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Yields the calls in its code, or in one statement of it."""
        below = None if within is None else set(map(id, ast.walk(within)))
        for node in self.own:
            if isinstance(node, ast.Call) and (below is None or id(node) in below):
                yield node


def choose(tree: ast.Module, *, package: str = "", called: dict[str, str] | None = None) -> Choice:
    """Returns the functions to time in a file of `package`.

    `called` has the names in it that functions chosen elsewhere call, with the reason.
    """
    return _Chooser(tree, package).choose(called or {})


def functions_in(code: CodeType, parent: str = "") -> Iterator[tuple[Place, CodeType]]:
    """Yields the place and code of a module and of every function in it."""
    if not parent:
        yield (MODULE, 1), code
    for thing in code.co_consts:
        if isinstance(thing, CodeType):
            name = parent + thing.co_name
            is_function = bool(thing.co_flags & inspect.CO_OPTIMIZED)  # else a class body
            if is_function:
                yield (name, thing.co_firstlineno), thing
            yield from functions_in(thing, f"{name}.<locals>." if is_function else f"{name}.")


class _Chooser:
    def __init__(self, tree: ast.Module, package: str) -> None:
        self._package = package
        self._functions: dict[str, _Function] = {}
        self._bases: dict[str, list[str]] = {}
        self._imported: dict[str, tuple[str, str]] = {}
        self._classes_of: dict[str, str] = {}
        self._loaders: set[str] = set()
        self._choice = Choice()
        self._left = MAX_CALLED
        self._module = _Function(tree, MODULE, None)
        self._collect(tree, self._module, "", None)
        for function in (self._module, *self._functions.values()):
            for node in function.own:
                self._learn(node)

    def choose(self, called: dict[str, str]) -> Choice:
        functions = [self._module, *self._functions.values()]
        backwards = [f for f in functions if _has_call_of(_BACKWARD, f.calls())]
        names = {function.name for function in backwards}
        self._take((f, _why_loop(f)) for f in functions if self._trains(f, names))
        # A function with backward() that no loop in this file calls.
        self._take((function, _why_loop(function)) for function in backwards)
        resolved = ((self._resolve(name), why) for name, why in called.items())
        self._take((function, why) for function, why in resolved if function is not None)
        return self._choice

    def _collect(self, node: ast.AST, owner: _Function, prefix: str, in_class: str | None) -> None:
        """Assigns every node below `node` to the function whose code runs it."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Definition):
                name = prefix + child.name
                function = _Function(child, name, in_class)
                # Calls of a name reach its last definition.
                self._functions[name] = function
                self._collect(child, function, f"{name}.<locals>.", None)
            elif isinstance(child, ast.ClassDef):
                name = prefix + child.name
                self._bases[name] = [_plain_name(base) for base in child.bases]
                self._collect(child, _Function(ast.Module([], []), name, None), f"{name}.", name)
            else:
                owner.own.append(child)
                self._collect(child, owner, prefix, in_class)

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                self._imported[bound] = (alias.name if alias.asname else bound, "")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self._imported[alias.asname or alias.name] = (self._absolute(node), alias.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            built = _constructor(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if built.endswith("DataLoader"):
                    self._loaders.add(ast.unparse(target))
                elif built in self._bases or built in self._imported:
                    self._classes_of.setdefault(ast.unparse(target), built)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self._package.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _trains(self, function: _Function, backwards: set[str]) -> bool:
        """Returns whether it has a loop that trains, runs over a loader, or counts epochs."""
        for loop in function.own:
            if isinstance(loop, _LOOPS):
                calls = list(function.calls(loop))
                if _has_call_of(_UPDATE, calls) or self._is_over_loader(loop):
                    return True
                if any(self._target(call, function) in backwards for call in calls):
                    return True
        return function.in_class is not None and function.name.rpartition(".")[2] in _HOOKS

    def _is_over_loader(self, loop: ast.AST) -> bool:
        if not isinstance(loop, (ast.For, ast.AsyncFor)):
            return False
        return (
            any("epoch" in name.lower() for name in _names(loop.target))
            or any("loader" in name.lower() for name in _names(loop.iter))
            or any(ast.unparse(node) in self._loaders for node in ast.walk(loop.iter))
        )

    def _take(self, functions: Iterable[tuple[_Function, str]]) -> None:
        """Chooses functions and what they call, up to `MAX_DEPTH` calls deep."""
        chosen = [pair for pair in functions if pair[0].place not in self._choice.why]
        self._choice.why |= {function.place: why for function, why in chosen}
        for _ in range(MAX_DEPTH):
            reached = []
            for function, _ in chosen:
                why = f"called by {function.name}"
                for call in function.calls():
                    target = self._target(call, function)
                    if isinstance(target, tuple):
                        self._choice.wanted.setdefault(target, why)
                        continue
                    callee = self._functions.get(target or "")
                    if callee and callee.place not in self._choice.why and self._left:
                        self._left -= 1
                        self._choice.why[callee.place] = why
                        reached.append((callee, why))
            chosen = reached

    def _target(self, call: ast.Call, function: _Function) -> _Target:
        called = call.func
        if isinstance(called, ast.Name):
            return self._named(called.id, function) or self._target_of(called.id, "")
        if not isinstance(called, ast.Attribute):
            return None
        holder = ast.unparse(called.value)
        if holder in ("self", "cls") and function.in_class:
            method = self._method(function.in_class, called.attr)
            return method or self._target_of(ast.unparse(called), "")
        if holder in self._bases:
            return self._method(holder, called.attr)
        module, name = self._imported.get(holder, ("", ""))
        if module:
            return (module, f"{name}.{called.attr}" if name else called.attr)
        return self._target_of(ast.unparse(called), "") or self._target_of(holder, called.attr)

    def _named(self, name: str, function: _Function) -> _Target:
        scope = function.name
        while scope and scope != MODULE:
            if f"{scope}.<locals>.{name}" in self._functions:
                return f"{scope}.<locals>.{name}"
            scope = scope.rpartition(".<locals>.")[0]
        if name in self._functions:
            return name
        if name in self._bases:
            return self._method(name, "__init__")
        module, imported = self._imported.get(name, ("", ""))
        return (module, imported) if module and imported else None

    def _target_of(self, expression: str, method: str) -> _Target:
        """Returns a method of the user's class whose instance a name holds; "" is its call."""
        cls = self._classes_of.get(expression)
        if cls is None:
            return None
        if cls in self._imported:
            module, name = self._imported[cls]
            return (module, f"{name}.{method}".rstrip("."))
        return self._method(cls, *([method] if method else _CALLED))

    def _method(self, cls: str, *names: str, depth: int = 0) -> str | None:
        """Returns the first of these methods in a class or its bases in this file."""
        for name in names:
            if f"{cls}.{name}" in self._functions:
                return f"{cls}.{name}"
            bases = self._bases.get(cls, ()) if depth < MAX_DEPTH else ()
            for base in bases:
                inherited = self._method(base, name, depth=depth + 1)
                if inherited:
                    return inherited
        return None

    def _resolve(self, name: str) -> _Function | None:
        """Returns the function that another module calls by `name`, or by calling its instance."""
        if name in self._bases:
            return self._functions.get(self._method(name, *_CALLED, "__init__") or "")
        cls, _, method = name.rpartition(".")
        return self._functions.get(name) or self._functions.get(self._method(cls, method) or "")


def _why_loop(function: _Function) -> str:
    return MODULE_LEVEL if function.name == MODULE else TRAINING_LOOP


def _has_call_of(names: frozenset[str], calls: Iterable[ast.Call]) -> bool:
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in names for call in calls)


def _plain_name(base: ast.expr) -> str:
    """Returns `Base` of `module.Base[int]`."""
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def _constructor(value: ast.AST | None) -> str:
    """Returns `Net` for `Net(...)` and `Net(...).to(device)`, "" for anything but a call."""
    while isinstance(value, ast.Call):
        inner = value.func.value if isinstance(value.func, ast.Attribute) else None
        if not isinstance(inner, ast.Call):
            return ast.unparse(value.func)
        value = inner
    return ""


COLLATE: Final = "collate"
SAMPLER: Final = "sampler"
Chosen = tuple[FunctionType, str]

_DATASET_METHODS: Final = ("__getitem__", "__getitems__", "__iter__", "__next__")
_SAMPLER_METHODS: Final = ("__iter__", "__next__")
# Attributes with a wrapped dataset (Subset, ConcatDataset) or a per-sample function (torchvision).
_INNER: Final = ("dataset", "datasets", "transform", "target_transform", "transforms")
_MAX_INNER: Final = 16


class LoaderFunctions:
    """The user's functions that one loader runs: in its dataset, collate function and samplers."""

    def __init__(
        self, is_user_code: Callable[[CodeType], bool], dataset: Any, collate: Any, *samplers: Any
    ) -> None:
        self._is_user_code = is_user_code
        self._chosen: dict[int, Chosen] = {}
        # Holds the objects, so that no id is reused.
        self._seen: dict[int, Any] = {}
        self._owners: dict[int, Any] = {}

        self._add_object(dataset, _DATASET_METHODS, DATASET)
        self._called(collate, COLLATE)
        own = own_function(collate, self._is_user_code)
        if own is not None:
            self._add(own[0], COLLATE, own[1])
        for sampler in samplers:
            inner = (of_object(sampler, name) for name in ("sampler", "batch_sampler"))
            for thing in (sampler, *inner):
                self._add_object(thing, _SAMPLER_METHODS, SAMPLER)

    def all(self) -> list[Chosen]:
        """Returns functions and why they are timed, with the user's functions that they call."""
        latest = list(self._chosen.values())
        for _ in range(MAX_DEPTH):
            before = len(self._chosen)
            for function, _ in latest:
                for called, owner in self._calls(function):
                    if len(self._chosen) < MAX_CALLED:
                        self._called(called, f"called by {function.__qualname__}", owner)
            latest = list(self._chosen.values())[before:]
        return list(self._chosen.values())

    def _add_object(self, thing: Any, methods: tuple[str, ...], why: str) -> None:
        if thing is None or id(thing) in self._seen or len(self._seen) > _MAX_INNER:
            return
        self._seen[id(thing)] = thing
        for name in methods:
            self._add(_method(type(thing), name), why, thing)
        if why is not DATASET:
            return
        for name in _INNER:
            for part in _as_list(of_object(thing, name)):
                if name.startswith("dataset"):
                    self._add_object(part, methods, why)
                else:
                    self._called(part, f"called by {type(thing).__qualname__}")

    def _called(self, thing: Any, why: str, owner: Any = None) -> None:
        while _is(thing, functools.partial, staticmethod, classmethod):
            thing = thing.func if _is(thing, functools.partial) else thing.__func__
        if _is(thing, MethodType):
            thing, owner = thing.__func__, thing.__self__
        if _is(thing, FunctionType):
            self._add(thing, why, owner)
        elif _is(thing, type):
            self._add(_method(thing, "__init__"), why, None)
        elif thing is not None and not _is(thing, ModuleType) and id(thing) not in self._seen:
            self._seen[id(thing)] = thing
            for name in _CALLED:
                self._add(_method(type(thing), name), why, thing)
            for part in _as_list(of_object(thing, "transforms")):  # torchvision's Compose
                self._called(part, why)

    def _add(self, function: Any, why: str, owner: Any) -> None:
        if not _is(function, FunctionType):
            return
        function = inspect.unwrap(function)
        if not _is(function, FunctionType) or id(function.__code__) in self._chosen:
            return
        if self._is_user_code(function.__code__):
            self._chosen[id(function.__code__)] = (function, why)
            self._owners[id(function.__code__)] = owner

    def _calls(self, function: FunctionType) -> Iterator[tuple[Any, Any]]:
        owner = self._owners.get(id(function.__code__))
        modules = []
        for name in _names_in(function.__code__):
            thing = function.__globals__.get(name)
            if _is(thing, ModuleType):
                modules.append(thing)
            elif _is(thing, FunctionType, type):
                yield thing, None
            if owner is not None:
                method = _method(type(owner), name)
                if _is(method, FunctionType, staticmethod, classmethod):
                    yield method, owner
                held = of_object(owner, name)
                if callable(held):
                    yield held, None
            for module in modules:
                thing = vars(module).get(name)
                if _is(thing, FunctionType, type):
                    yield thing, None
        yield from ((value, None) for _, value in closed_over(function))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for thing in code.co_consts:
        if isinstance(thing, CodeType):
            yield from _names_in(thing)


def _is(thing: Any, *types: type) -> bool:
    """Is `isinstance` by the real type: a proxy's `__class__` may run user code."""
    return issubclass(type(thing), types)


def _method(cls: type, name: str) -> Any:
    """Returns a class's attribute without binding it, and a property's getter."""
    attribute = of_class(cls, name)
    return attribute.fget if _is(attribute, property) else attribute


def _as_list(held: Any) -> list[Any]:
    return list(held[:_MAX_INNER]) if _is(held, list, tuple) else [held]
