"""Puts the body of torch's function into our wrapper, so that a call needs no second frame.

The woven function has the file, name and line numbers of torch's: tracebacks, warnings and the
recursion limit are as without us.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import itertools
import sys
import textwrap
import tokenize
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final

_OURS: Final = "_trainprof_"


class NotWoven(Exception):
    """The function cannot be woven; the wrapper is used unchanged."""


def weave(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `wrapper` with the body of `original` in place of each `return original(...)`.

    Args:
        wrapper: Has the parameters of `original`, or `*args, **kwargs` that it only passes on. It
            calls `original`, by that name, in return statements only. Its `except` clauses, which
            hide our frame, are dropped.
        original: A plain function without closure, decorator or yield, else NotWoven is raised; so
            it is if the source is not that of the running code.
    """
    if not isinstance(original, FunctionType) or not isinstance(wrapper, FunctionType):
        raise NotWoven("not plain functions")
    theirs, ours = _definition(original), _definition(wrapper)
    _check_is_running(theirs, original)
    if ast.dump(_bare(ours.args)) not in (ast.dump(_bare(theirs.args)), _ANY_ARGUMENTS):
        raise NotWoven("other parameters")
    for node in ast.walk(ours):
        ast.copy_location(node, theirs)
    parameters = {node.arg for node in ast.walk(theirs.args) if isinstance(node, ast.arg)}
    body = [*theirs.body, ast.copy_location(ast.Return(value=None), theirs.body[-1])]
    woven = _Weaver(body, parameters).visit(ours)
    woven.name, woven.args = theirs.name, _bare(theirs.args)
    code = _compile(woven, original, free=_free(woven))
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    closure = (_cell(name[len(_OURS) :], cells, wrapper.__globals__) for name in code.co_freevars)
    function = FunctionType(
        code, original.__globals__, original.__name__, original.__defaults__, tuple(closure)
    )
    function.__kwdefaults__ = original.__kwdefaults__
    return function


class _Weaver(ast.NodeTransformer):
    """Prefixes our names, replaces `return original(...)`, and drops our `except` clauses."""

    def __init__(self, body: list[ast.stmt], parameters: set[str]) -> None:
        self._body = body
        self._parameters = parameters

    def visit_Return(self, node: ast.Return) -> Any:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if not isinstance(called, ast.Name) or called.id != "original":
            return self.generic_visit(node)
        return copy.deepcopy(self._body)

    def visit_Try(self, node: ast.Try) -> Any:
        node.handlers = []
        self.generic_visit(node)
        return node if node.finalbody else node.body

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id not in self._parameters:
            node.id = _OURS + node.id
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.Nonlocal:
        node.names = [_OURS + name for name in node.names]
        return node


def _source(code: CodeType) -> list[str]:
    """Returns a function's lines; unlike inspect.getsourcelines it keeps no file in linecache."""
    with tokenize.open(code.co_filename) as file:
        return inspect.getblock(list(itertools.islice(file, code.co_firstlineno - 1, None)))


def _definition(function: FunctionType) -> ast.FunctionDef:
    """Returns a function's syntax tree, with line and column numbers of its file."""
    if hasattr(function, "__wrapped__"):
        raise NotWoven("a wrapper of other code")
    try:
        lines, first = _source(function.__code__), function.__code__.co_firstlineno
        (node,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise NotWoven(f"no source: {error}") from error
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        raise NotWoven("not a plain definition")
    indent = len(lines[0]) - len(lines[0].lstrip())
    for part in ast.walk(node):
        if isinstance(part, (ast.stmt, ast.expr)):  # for the carets in tracebacks
            part.col_offset += indent
            part.end_col_offset = (part.end_col_offset or 0) + indent
    return ast.increment_lineno(node, first - 1)


def _check_is_running(definition: ast.FunctionDef, function: FunctionType) -> None:
    running = function.__code__
    if running.co_freevars or inspect.isgeneratorfunction(function):
        raise NotWoven("a closure or a generator")
    plain = copy.deepcopy(definition)
    plain.args = _bare(plain.args)
    compiled = _compile(plain, function)
    for name in ("co_code", "co_names", "co_varnames"):
        if getattr(compiled, name) != getattr(running, name):
            raise NotWoven("the source is not that of the running code")


def _bare(arguments: ast.arguments) -> ast.arguments:
    """Returns the parameters without annotations and defaults."""
    bare = copy.deepcopy(arguments)
    bare.defaults = []
    bare.kw_defaults = [None] * len(bare.kwonlyargs)
    for node in ast.walk(bare):
        if isinstance(node, ast.arg):
            node.annotation = None
            node.lineno = node.end_lineno = 1
    return bare


def _free(woven: ast.FunctionDef) -> list[str]:
    """Returns our names that are not local variables of the function."""
    names = [node for node in ast.walk(woven) if isinstance(node, ast.Name)]
    outer = {
        name for node in ast.walk(woven) if isinstance(node, ast.Nonlocal) for name in node.names
    }
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)} - outer
    return sorted({node.id for node in names if node.id.startswith(_OURS)} - own)


_ANY_ARGUMENTS: Final = ast.dump(
    _bare(ast.arguments([], [], ast.arg("args"), [], [], ast.arg("kwargs"), []))
)


def _compile(
    definition: ast.FunctionDef, running: FunctionType, free: Sequence[str] = ()
) -> CodeType:
    """Returns the code of `definition` with the file and name of the running code.

    It adds imports of the modules used: with them Python compiles calls of module functions
    differently from method calls.
    """
    modules = [
        name
        for name in running.__code__.co_names
        if isinstance(running.__globals__.get(name), ModuleType)
    ]
    imports = "".join(f"import {name}\n" for name in modules)
    module = ast.parse(f"{imports}def {_OURS}({', '.join(free)}): pass")
    maker = module.body[-1]
    assert isinstance(maker, ast.FunctionDef)
    maker.body = [definition]
    compiled = compile(module, running.__code__.co_filename, "exec", dont_inherit=True)
    (maker_code,) = (thing for thing in compiled.co_consts if isinstance(thing, CodeType))
    (code,) = (thing for thing in maker_code.co_consts if isinstance(thing, CodeType))
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=running.__code__.co_qualname)
    return code.replace(co_firstlineno=running.__code__.co_firstlineno)


def _cell(name: str, cells: dict[str, CellType], namespace: dict[str, Any]) -> CellType:
    if name in cells:
        return cells[name]
    if name in namespace:
        return CellType(namespace[name])
    return CellType(getattr(builtins, name))
