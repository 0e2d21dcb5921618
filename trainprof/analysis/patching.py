"""A finding's change of arguments as edits of the user's files, where that is mechanical."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trainprof.analysis.call_arguments import set_arguments, with_argument_last
from trainprof.analysis.call_search import (
    call_at,
    calls_at,
    calls_of,
    constructor_call,
    has_call_at,
    name_of,
    names_given,
)
from trainprof.analysis.finding import OPTIMIZER_BUILDERS, OTHER_OPTIMIZERS, Finding
from trainprof.analysis.loader_builder import settings_of
from trainprof.analysis.loader_figures import Loader, LoaderCall
from trainprof.analysis.source_text import Edit, NotMechanical, applied, parsed

# Arguments of a loader; `non_blocking` is one of the copying call instead.
LOADER_ARGUMENTS: Final = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory")
_DATA_LOADER: Final = "DataLoader"
# Of torch's own, in order.
_TAKEN: Final = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "*",
    "**",
)
_COPYING: Final = ("to", "cuda")
_NON_BLOCKING: Final = "non_blocking"


@dataclass(slots=True)
class Changes:
    """What is to be edited for a finding.

    Attributes:
        edits: By file.
        minds: What else to say of them.
    """

    edits: dict[str, list[Edit]] = field(default_factory=dict)
    minds: list[str] = field(default_factory=list)

    def add(self, path: str, edits: list[Edit]) -> None:
        self.edits[path] = [*self.edits.get(path, []), *edits]


def changes_of(finding: Finding, loader: Loader | None, source_of: Callable[[str], str]) -> Changes:
    """Returns a finding's change, written into the user's files.

    Those are two where the loader is built in another file than the one that copies.

    Args:
        finding: With arguments to change.
        loader: That it is about, None where that is not known.
        source_of: Returns the text of a file.

    Raises:
        NotMechanical: If the change is more than setting arguments, or its place is not known.
    """
    if "fused" in finding.change:
        return _of_optimizers(finding, source_of)
    found = Changes()
    of_call, of_loader = copy_and_loader(finding.change)
    if loader is None and of_call and of_loader:
        found.minds.append(f"not in it: {_told(of_loader)}, for it is not known which loader it is")
        of_loader = {}
    at_site = of_call if loader is not None or of_call else of_loader
    if at_site:
        path, _ = _place_of(finding.site)
        found.add(path, edits_of(replace(finding, change=at_site), source_of(path)))
    if loader is None or not of_loader:
        return found
    path, _ = _place_of(loader.site)
    at_call, at_constructor = _by_place(loader, of_loader, source_of)
    if at_call:
        wanted = replace(finding, change=at_call, site=loader.site)
        known: dict[str, Any] = {"loader_class": loader.kind, "built_by": loader.built_by}
        found.add(path, edits_of(wanted, source_of(path), call=loader.call, **known))
    if at_constructor and loader.call is not None:
        path, line = _place_of(loader.call.constructors[0])
        source = source_of(path)
        found.add(path, _checked(source, _in_constructor(source, line, at_constructor)))
        found.minds.append(f"it counts for every {_last_name(loader.kind)} that is made")
    return found


def _of_optimizers(finding: Finding, source_of: Callable[[str], str]) -> Changes:
    """Returns the change of every optimizer that a finding names; what cannot be is to be minded.

    Raises:
        NotMechanical: If none can be changed so.
    """
    told = finding.evidence.get(OTHER_OPTIMIZERS)
    others = [str(one).partition(" ") for one in told] if isinstance(told, list) else []
    builders = finding.evidence.get(OPTIMIZER_BUILDERS)
    builders = builders if isinstance(builders, dict) else {}
    first = (str(finding.evidence.get("optimizer", "")), finding.site)
    found = Changes()
    failed: list[NotMechanical] = []
    for name, site in [first, *((name, site) for name, _, site in others)]:
        one = replace(finding, site=site, evidence={"optimizer": name})
        try:
            if site in builders:
                raise NotMechanical(f"{builders[site]} builds it, by settings of its own")
            path, _ = _place_of(site)
            known = found.edits.get(path, [])
            found.add(path, [edit for edit in edits_of(one, source_of(path)) if edit not in known])
        except NotMechanical as error:
            failed.append(error)
            found.minds.append(f"not in it: {name} at {site}: {error}")
    if not found.edits:
        raise failed[0]
    return found


def edits_of(
    finding: Finding,
    source: str,
    *,
    loader_class: str = _DATA_LOADER,
    built_by: str | None = None,
    loader_line: int | None = None,
    call: LoaderCall | None = None,
) -> list[Edit]:
    """Returns a finding's change, as far as it is of one file.

    Args:
        finding: With arguments to change at its site.
        source: Text of the file.
        loader_class: What builds the loader.
        built_by: The package that calls it, and has to be told its arguments.
        loader_line: Where the loader is built; None: at the finding's site.
        call: How it is built, as far as that is known.

    Raises:
        NotMechanical: If the change is more than setting arguments, or the call is not found.
    """
    _, line = _place_of(finding.site if finding.change else None, finding)
    optimizer = str(finding.evidence.get("optimizer", ""))
    builder = _Builder(loader_class, built_by, call)
    of_loader = line if loader_line is None else loader_line
    return _checked(source, _edits(source, line, finding.change, builder, optimizer, of_loader))


def copy_and_loader(change: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments of the call that copies, and those of the loader."""
    of_loader = {name: value for name, value in change.items() if name in LOADER_ARGUMENTS}
    return {name: value for name, value in change.items() if name not in of_loader}, of_loader


def _place_of(site: str | None, finding: Finding | None = None) -> tuple[str, int]:
    """Returns the file and the line of a place.

    Raises:
        NotMechanical: If it is not known, or a finding has nothing to change there.
    """
    path, _, line = (site or "").rpartition(":")
    if finding is not None and not line.isdigit():
        raise NotMechanical(f"{finding.id} is no matter of arguments: {finding.advice}")
    if not line.isdigit():
        raise NotMechanical("the line that is to change is not known")
    return path, int(line)


def _checked(source: str, edits: Iterator[Edit]) -> list[Edit]:
    """Returns edits of a file that leave it one that Python takes.

    Raises:
        NotMechanical: If they do not, or change nothing.
    """
    found = list(edits)
    if not found:
        raise NotMechanical("it is written so already: what the run was given came from elsewhere")
    parsed(applied(source, found), "with that the file would not parse")
    return found


@dataclass(frozen=True, slots=True)
class _Builder:
    """What builds a loader: a class, in the user's own code or in a package's."""

    loader_class: str
    package: str | None
    call: LoaderCall | None

    def edits(
        self, source: str, tree: ast.AST, line: int, change: Mapping[str, Any]
    ) -> Iterator[Edit]:
        """Yields the edits that give the loader arguments.

        Raises:
            NotMechanical: If it is not known where the package is told them.
        """
        if self.package is None:
            ends_at = None if self.call is None else self.call.ends_at
            names = dict.fromkeys((_last_name(self.loader_class), _DATA_LOADER))
            call = call_at(tree, line, names, ends_at)
            yield from set_arguments(source, call, change, _taken_by(self.call))
            return
        settings = settings_of(self.package)
        named = None if settings is None else settings.named(change)
        if settings is None or named is None:
            raise NotMechanical(f"{self.package} builds this loader, by settings of its own")
        endings = {
            name for node in ast.walk(tree) if (name := _called(node)).endswith(settings.call)
        }
        call = _only(tree, endings, settings.call, named)
        yield from set_arguments(source, call, named, prefix=settings.prefix)


def _edits(
    source: str,
    line: int,
    change: Mapping[str, Any],
    builder: _Builder,
    optimizer_class: str,
    loader_line: int,
) -> Iterator[Edit]:
    """Yields the edits of a change.

    Args:
        source: Of a file.
        line: Of the call that is to change; of an optimizer's step, where it is not known where
            that was built.
        change: Arguments.
        builder: Of the loader.
        optimizer_class: Whose `fused` is to change.
        loader_line: Of the call that builds the loader.
    """
    tree = parsed(source)
    if "fused" in change:
        call = _built(tree, line, optimizer_class, change)
        yield from set_arguments(source, call, change)
        return
    of_copy, of_loader = copy_and_loader(change)
    if of_copy:
        yield from _of_copy(source, tree, line)
    if of_loader:
        yield from builder.edits(source, tree, loader_line, of_loader)


def _by_place(
    loader: Loader, change: Mapping[str, Any], source_of: Callable[[str], str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns which arguments go into the call that builds a loader, and which into its base's.

    A class of the user's own may not take all that torch's loader does: what it calls torch's
    constructor with then stands in its own.

    Raises:
        NotMechanical: If neither takes one.
    """
    call, kind = loader.call, _last_name(loader.kind)
    if loader.built_by is not None or (call is None and kind == _DATA_LOADER):
        return dict(change), {}
    if call is None:
        raise NotMechanical(f"what {kind} takes is not known of this run")
    if call.constructors and change.get("num_workers") == 0:
        raise NotMechanical(
            f"{kind} has a constructor of its own, which may set what torch refuses without workers"
        )
    if all(name in call.takes for name in change):
        return dict(change), {}
    takes_others = "**" in call.takes
    handed_on: list[str | None] = [None] if takes_others else []
    if len(call.constructors) == 1:
        path, line = _place_of(call.constructors[0])
        base = constructor_call(parsed(source_of(path)), line)
        handed_on = [] if base is None else [keyword.arg for keyword in base[0].keywords]
    may_pass = takes_others and None in handed_on
    at_call = {
        name: value
        for name, value in change.items()
        if name in call.takes or (may_pass and name not in handed_on)
    }
    rest = {name: value for name, value in change.items() if name not in at_call}
    if rest and len(call.constructors) != 1:
        how = f", built through {len(call.constructors)} constructors" if call.constructors else ""
        raise NotMechanical(f"{kind}{how}, takes no {' and no '.join(rest)}")
    return at_call, rest


def _in_constructor(source: str, line: int, change: Mapping[str, Any]) -> Iterator[Edit]:
    """Yields the edits that have a constructor give its base arguments.

    Raises:
        NotMechanical: If it is not known where it calls its base's.
    """
    found = constructor_call(parsed(source), line)
    if found is None:
        raise NotMechanical(f"the constructor on line {line} does not call its base's in one place")
    call, hands_self = found
    yield from set_arguments(source, call, change, ("self", *_TAKEN) if hands_self else _TAKEN)


def _taken_by(call: LoaderCall | None) -> tuple[str, ...]:
    return _TAKEN if call is None else tuple(call.takes)


def _last_name(kind: str) -> str:
    return kind.rpartition(".")[2]


def _called(node: ast.AST) -> str:
    return name_of(node.func) if isinstance(node, ast.Call) else ""


def _of_copy(source: str, tree: ast.AST, line: int) -> Iterator[Edit]:
    """Yields the edits that have a line's copies not block.

    Raises:
        NotMechanical: If it holds none, or several that differ.
    """
    calls = calls_at(tree, line, _COPYING)
    told = {tuple(map(ast.dump, (*call.args, *call.keywords))) for call in calls}
    if len(told) > 1:
        raise NotMechanical(
            f"line {line} holds {len(calls)} copies, and it is not known which it is"
        )
    for call in calls:
        yield from _unblocked(source, call)


def _unblocked(source: str, call: ast.Call) -> Iterator[Edit]:
    name = name_of(call.func)
    by_place = [one for one in call.args[1:] if not _is_type(one)]
    by_place += [one for one in call.args[:1] if isinstance(one, ast.Starred)]
    if by_place or any(keyword.arg is None for keyword in call.keywords):
        raise NotMechanical(f"line {call.lineno} may say by position how .{name}() is to copy")
    if any(keyword.arg == _NON_BLOCKING for keyword in call.keywords):
        yield from set_arguments(source, call, {_NON_BLOCKING: True})
    else:
        yield with_argument_last(source, call, f"{_NON_BLOCKING}=True")


def _is_type(node: ast.expr) -> bool:
    """Whether an argument is a type of numbers, as torch.float16 is."""
    return isinstance(node, ast.Attribute) and (
        node.attr == "dtype" or name_of(node.value) == "torch"
    )


def _built(tree: ast.AST, line: int, optimizer_class: str, change: Mapping[str, Any]) -> ast.Call:
    """Returns the call that builds an optimizer: on a line, else the only one there is."""
    names = names_given(tree, optimizer_class)
    if has_call_at(tree, line, names):
        return call_at(tree, line, (optimizer_class,))
    if not has_call_at(tree, line, ("step",)):
        told = f"line {line} builds {optimizer_class} in another way than by its name alone"
        raise NotMechanical(f"{told}: give it {_told(change)} there")
    return _only(tree, names, optimizer_class, change)


def _only(tree: ast.AST, names: set[str], name: str, change: Mapping[str, Any]) -> ast.Call:
    """Returns the call of one of some names, which is made in one place."""
    calls = calls_of(tree, names)
    if len(calls) == 1:
        return calls[0]
    if calls:
        lines = " and ".join(str(call.lineno) for call in calls)
        raise NotMechanical(f"{name} is called on lines {lines}, and it is not known which it is")
    raise NotMechanical(
        f"this file does not call {name} by its name: set {_told(change)} where that is done"
    )


def _told(change: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in change.items())
