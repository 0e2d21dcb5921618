"""Chooses, from a file's text, the functions whose lines are worth timing.

Before the file runs: of a call that has begun, the first lines would be lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Final

MODULE: Final = "<module>"
PROFILE: Final = "profile"
TRAINING_LOOP: Final = "training loop"
MODULE_LEVEL: Final = "module level"
DATASET: Final = "dataset"

# How far calls are followed from a training loop, and how many functions are chosen at most.
MAX_DEPTH: Final = 3
MAX_CALLED: Final = 50

_BACKWARD: Final = frozenset({"backward", "manual_backward"})
_UPDATE: Final = frozenset({*_BACKWARD, "step"})
# What a framework's own loop calls for each batch: of modules, trainers and callbacks.
_HOOKS: Final = frozenset(
    {"training_step", "validation_step", "compute_loss"}
    | {"on_train_batch_start", "on_train_batch_end", "on_step_begin", "on_step_end"}
    | {"on_before_backward", "on_after_backward", "on_before_optimizer_step"}
)
_DATASET_METHODS: Final = ("__getitem__", "__getitems__", "__iter__")
# What a call of an object leads to, the first that its class has.
_CALLED: Final = ("__call__", "forward")
# Of torch's objects, and of Python's: a class of the user's with such a method says little.
_OTHERS_METHODS: Final = frozenset(
    {*_UPDATE, "zero_grad", "train", "eval", "to", "item", "forward", "parameters", "state_dict"}
    | {"load_state_dict", "append", "extend", "get", "items", "update", "keys", "values", "pop"}
    | {"add", "close", "write", "read", "join", "format", "copy", "mean", "sum", "size", "reset"}
    | {"max", "min", "log", "split", "index", "clone", "view", "save", "load", "exp", "abs", "sqrt"}
    | {"all", "any", "count", "find", "replace", "strip", "sort", "insert", "remove", "clear"}
    | {"numpy", "tolist", "cpu", "cuda", "detach", "reshape", "permute", "transpose", "squeeze"}
    | {"unsqueeze", "expand", "repeat", "type", "float", "norm", "dot", "std", "var", "argmax"}
    | {"topk", "gather", "softmax", "sigmoid", "run", "start", "stop", "set", "next", "fit"}
)
_PROFILER_METHODS: Final = frozenset(
    {"add_callable", "add_class", "add_function", "add_module", "wrap_callable"}
    | {"enable", "enable_by_count", "disable", "disable_by_count", "run", "runcall", "runctx"}
)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)

Place = tuple[str, int]


@dataclass(slots=True)
class Choice:
    """What one file's text says.

    Attributes:
        why: Why a function is chosen, by its qualified name and the first line of its code.
        candidates: Methods of datasets, by the same; timed, but named only if they run.
        wanted: Functions of other modules that chosen ones call: why, by module and name.
        names_profile: It has a `@profile` or the like: the user has chosen.
    """

    why: dict[Place, str] = field(default_factory=dict)
    candidates: dict[Place, str] = field(default_factory=dict)
    wanted: dict[tuple[str, str], str] = field(default_factory=dict)
    names_profile: bool = False


@dataclass(slots=True)
class _Function:
    node: _Definition | ast.Module
    name: str
    in_class: str | None
    # Its nodes without those of functions and classes inside it.
    own: list[ast.AST] = field(default_factory=list)

    @property
    def place(self) -> Place:
        if isinstance(self.node, ast.Module):
            return MODULE, 1
        return self.name, min(
            [self.node.lineno, *(decorator.lineno for decorator in self.node.decorator_list)]
        )


def choose(tree: ast.Module, *, package: str = "", called: dict[str, str] | None = None) -> Choice:
    """Returns the functions of a file that are to be timed.

    Args:
        tree: The file.
        package: Of the module, for its relative imports.
        called: Names in this module that functions chosen elsewhere call, with the reason.
    """
    return _Chooser(tree, package).choose(called or {})


def functions_in(code: CodeType, parent: str = "") -> Iterator[tuple[Place, CodeType]]:
    """Yields a module's code and that of every function in it, by their places."""
    if not parent:
        yield (MODULE, 1), code
    for thing in code.co_consts:
        if isinstance(thing, CodeType):
            name = parent + thing.co_name
            is_function = bool(thing.co_flags & _OPTIMIZED)
            if is_function:
                yield (name, thing.co_firstlineno), thing
            yield from functions_in(thing, f"{name}.<locals>." if is_function else f"{name}.")


_OPTIMIZED: Final = 0x1  # inspect.CO_OPTIMIZED: code of a function, not of a class


class _Chooser:
    def __init__(self, tree: ast.Module, package: str) -> None:
        self._package = package
        self._functions: dict[str, _Function] = {}
        self._bases: dict[str, list[str]] = {}
        self._imported: dict[str, tuple[str, str]] = {}
        self._classes_of: dict[str, str] = {}
        self._loaders: set[str] = set()
        self._choice = Choice()
        self._module = _Function(tree, MODULE, None)
        self._collect(tree, self._module, "", None)
        for function in (self._module, *self._functions.values()):
            for node in function.own:
                self._learn(node)
        for function in self._functions.values():
            for node in function.own:
                self._learn_annotated(node)

    def choose(self, called: dict[str, str]) -> Choice:
        functions = [self._module, *self._functions.values()]
        self._choice.names_profile = any(
            self._is_profile(node) for function in functions for node in _marks(function)
        )
        chosen = self._training_loops(functions)
        for function in chosen:
            why = MODULE_LEVEL if function is self._module else TRAINING_LOOP
            self._choice.why.setdefault(function.place, why)
        for name, why in called.items():
            found = self._resolve(name)
            if found is not None and found.place not in self._choice.why:
                self._choice.why[found.place] = why
                chosen.append(found)
        self._follow(chosen)
        self._find_datasets()
        return self._choice

    def _collect(self, node: ast.AST, owner: _Function, prefix: str, in_class: str | None) -> None:
        """Assigns every node below `node` to the function whose code runs it."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Definition):
                name = prefix + child.name
                function = _Function(child, name, in_class)
                # The last definition of a name is the one that calls mean.
                self._functions[name] = function
                self._collect(child, function, f"{name}.<locals>.", None)
            elif isinstance(child, ast.ClassDef):
                name = prefix + child.name
                self._bases[name] = [_last_name(base) for base in child.bases]
                self._collect(child, _Function(ast.Module([], []), name, None), f"{name}.", name)
            else:
                owner.own.append(child)
                self._collect(child, owner, prefix, in_class)

    def _learn(self, node: ast.AST) -> None:
        """Takes note of what an import or an assignment makes known."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                self._imported[bound] = (alias.name if alias.asname else bound, "")
        elif isinstance(node, ast.ImportFrom):
            module = self._absolute(node)
            for alias in node.names:
                self._imported[alias.asname or alias.name] = (module, alias.name)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for one, value in _pairs(target, node.value):
                    self._learn_object(one, _constructor(value))
        elif isinstance(node, ast.AnnAssign):
            self._learn_object(node.target, _constructor(node.value))

    def _learn_annotated(self, node: ast.AST) -> None:
        """Takes note of names that are said to be of a class of this file, and of no other."""
        if isinstance(node, ast.AnnAssign):
            name, cls = ast.unparse(node.target), _last_name(node.annotation)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            name, cls = node.arg, _last_name(node.annotation)
        else:
            return
        if cls in self._bases:
            self._classes_of.setdefault(name, cls)

    def _learn_object(self, target: ast.expr, made: str) -> None:
        if made.rpartition(".")[2].endswith("DataLoader"):
            self._loaders.add(ast.unparse(target))
        elif made in self._bases or made in self._imported:
            self._classes_of.setdefault(ast.unparse(target), made)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self._package.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _is_profile(self, node: ast.AST) -> bool:
        """True for `profile`, of builtins or line_profiler, and its methods."""
        if isinstance(node, ast.Name):
            module, name = self._imported.get(node.id, ("", "profile"))
            if node.id == "profile":
                return not module or module.split(".")[0] == "line_profiler"
            return module.split(".")[0] == "line_profiler" and name == "profile"
        if isinstance(node, ast.Attribute):
            if node.attr == "profile" and isinstance(node.value, ast.Name):
                module = self._imported.get(node.value.id, (node.value.id, ""))[0]
                return module.split(".")[0] in ("builtins", "line_profiler")
            return node.attr in _PROFILER_METHODS and self._is_profile(node.value)
        return isinstance(node, ast.Call) and self._is_profile(node.func)

    def _training_loops(self, functions: list[_Function]) -> list[_Function]:
        """Returns functions with a loop that trains, runs over a loader, or counts epochs."""
        found, without_loop = [], []
        for function in functions:
            loops = [node for node in function.own if isinstance(node, _LOOPS)]
            if any(_updates(loop, function) or self._is_over_loader(loop) for loop in loops):
                found.append(function)
            elif _calls(function.own, _BACKWARD):
                without_loop.append(function)
            elif function.in_class and function.name.rpartition(".")[2] in _HOOKS:
                found.append(function)
        for step in without_loop:
            callers = [
                function
                for function in functions
                for loop in function.own
                if isinstance(loop, _LOOPS) and self._is_called_in(step, loop, function)
            ]
            new = [caller for caller in (callers or [step]) if caller not in found]
            found += list({id(caller): caller for caller in new}.values())
        return found

    def _is_over_loader(self, loop: ast.AST) -> bool:
        if not isinstance(loop, (ast.For, ast.AsyncFor)):
            return False
        if any("epoch" in name.lower() for name in _names(loop.target)):
            return True
        return any(
            "loader" in name.lower() or name in self._loaders for name in _names(loop.iter)
        ) or any(ast.unparse(node) in self._loaders for node in ast.walk(loop.iter))

    def _is_called_in(self, step: _Function, loop: ast.AST, function: _Function) -> bool:
        below = {id(node) for node in ast.walk(loop)}
        return any(
            self._target(node, function) == step.name
            for node in function.own
            if isinstance(node, ast.Call) and id(node) in below
        )

    def _follow(self, chosen: list[_Function]) -> None:
        """Chooses what chosen functions call, and what those call."""
        left = MAX_CALLED
        for _ in range(MAX_DEPTH):
            reached = []
            for function in chosen:
                why = f"called by {function.name}"
                for node in function.own:
                    if not isinstance(node, ast.Call):
                        continue
                    target = self._target(node, function)
                    if isinstance(target, tuple):
                        self._choice.wanted.setdefault(target, why)
                        continue
                    found = self._functions.get(target) if target else None
                    if found is None or found.place in self._choice.why or not left:
                        continue
                    left -= 1
                    self._choice.why[found.place] = why
                    reached.append(found)
            chosen = reached

    def _target(self, call: ast.Call, function: _Function) -> str | tuple[str, str] | None:
        """Returns what a call leads to: a qualified name of this module, or (module, name)."""
        called = call.func
        if isinstance(called, ast.Name):
            return self._named(called.id, function) or self._of_object(called.id, "")
        if not isinstance(called, ast.Attribute):
            return None
        holder = ast.unparse(called.value)
        if holder in ("self", "cls") and function.in_class:
            return self._method(function.in_class, called.attr) or self._of_object(
                f"{holder}.{called.attr}", ""
            )
        if holder in self._bases:
            return self._method(holder, called.attr)
        module, name = self._imported.get(holder, ("", ""))
        if module:
            return (module, f"{name}.{called.attr}" if name else called.attr)
        return (
            self._of_object(ast.unparse(called), "")
            or self._of_object(holder, called.attr)
            or self._only_method(called.attr)
        )

    def _only_method(self, name: str) -> str | None:
        """Returns the method that a call of nobody knows what means, if only one has the name."""
        if name in _OTHERS_METHODS:
            return None
        found = [f"{cls}.{name}" for cls in self._bases if f"{cls}.{name}" in self._functions]
        return found[0] if len(found) == 1 else None

    def _named(self, name: str, function: _Function) -> str | tuple[str, str] | None:
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

    def _of_object(self, expression: str, method: str) -> str | tuple[str, str] | None:
        """Returns a method, or "" for the call, of a name that holds a user class's object."""
        cls = self._classes_of.get(expression)
        if cls is None:
            return None
        if cls in self._imported:
            module, name = self._imported[cls]
            return (module, f"{name}.{method}".rstrip("."))
        if method:
            return self._method(cls, method)
        return next(filter(None, (self._method(cls, one) for one in _CALLED)), None)

    def _method(self, cls: str, name: str, depth: int = 0) -> str | None:
        if f"{cls}.{name}" in self._functions:
            return f"{cls}.{name}"
        if depth > MAX_DEPTH:
            return None
        bases = (self._method(base, name, depth + 1) for base in self._bases.get(cls, ()))
        return next(filter(None, bases), None)

    def _resolve(self, name: str) -> _Function | None:
        """Returns what another module means by `name`; a class's object may have been called."""
        if name in self._bases:
            found = next(filter(None, (self._method(name, one) for one in _CALLED)), None)
            return self._functions.get(found or f"{name}.__init__")
        cls, _, method = name.rpartition(".")
        return self._functions.get(name) or self._functions.get(self._method(cls, method) or "")

    def _find_datasets(self) -> None:
        for cls, bases in self._bases.items():
            if any(base.endswith("Dataset") for base in bases):
                for name in _DATASET_METHODS:
                    found = self._functions.get(f"{cls}.{name}")
                    if found is not None:
                        self._choice.candidates.setdefault(found.place, DATASET)


def _marks(function: _Function) -> Iterator[ast.AST]:
    """Yields where `profile` may stand: decorators, calls, `with`."""
    if not isinstance(function.node, ast.Module):
        yield from function.node.decorator_list
    for node in function.own:
        if isinstance(node, ast.Call):
            yield node.func
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from (item.context_expr for item in node.items)


def _updates(loop: ast.AST, function: _Function) -> bool:
    own = {id(node) for node in function.own}
    return _calls([node for node in ast.walk(loop) if id(node) in own], _UPDATE)


def _calls(nodes: list[ast.AST], names: frozenset[str]) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
        for node in nodes
    )


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields what is assigned to what: `a, b = A(), B()` is two assignments."""
    if (
        isinstance(target, (ast.Tuple, ast.List))
        and isinstance(value, (ast.Tuple, ast.List))
        and len(target.elts) == len(value.elts)
    ):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, other)
    else:
        yield target, value


def _last_name(node: ast.AST) -> str:
    """Returns the name by which a base class is known: `Dataset` of `data.Dataset[int]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _constructor(value: ast.AST | None) -> str:
    """Returns `Net` of `Net(...)` and of `Net(...).to(device)`; "" of anything else."""
    while isinstance(value, ast.Call):
        if isinstance(value.func, ast.Name):
            return value.func.id
        if not isinstance(value.func, ast.Attribute):
            return ""
        if not isinstance(value.func.value, ast.Call):
            return ast.unparse(value.func)
        value = value.func.value
    return ""
