"""Records torch's settings in training: threads, precision, anomaly detection, optimizers."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections import Counter
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

from trainprof.inside.patching.call_site import Birthplace
from trainprof.inside.patching.function_modes import FunctionModes
from trainprof.inside.patching.patcher import Arguments, Patcher, recorded_after
from trainprof.inside.patching.user_texts import any_text, lines_with
from trainprof.inside.process.usage import own_cores
from trainprof.inside.session import Session
from trainprof.record.schema import Topic

# Debugging a NaN takes a few backward passes in anomaly mode; more were left on by mistake.
_ANOMALOUS_PASSES: Final = 20
_DIMENSIONS_OF_CONVOLUTIONS: Final = 3  # at least, of their weights
# Backward passes after the first step whose graphs are measured.
_SIZED_PASSES: Final = 5
# Nodes inspected in the first graph on a device, at 1 us each; larger graphs repeat themselves.
_MOST_NODES: Final = 4_000
# Names of autograd nodes that tensor cores can compute, by their TF32 setting; and of nodes that
# hide their operators (torch.compile, torch.jit, CUDA graphs, reentrant checkpoints).
_MATMULS: Final = re.compile(
    r"(?:(?:Baddb|Addb|Add|B)?[mM]m|(?:Add)?[mM]v|Linear)Backward|ScaledDotProduct"
)
_CONVOLUTIONS: Final = re.compile(r"\w*Convolution|CudnnRnn")
_OPAQUE: Final = re.compile(r"\w*(?:Compiled|Checkpoint|Graphed|CppFunction)")
_LOWER: Final = ("float16", "bfloat16")
_DIMENSIONS_OF_IMAGES: Final = 4
_MIXES: Final = {name: re.compile(rf"\b{name}\(") for name in ("autocast", "GradScaler")}
# A script may build a new one for each task.
_MOST_OPTIMIZERS: Final = 8
# Lines that make all tensors, or a model, float64.
_DOUBLE: Final = (
    re.compile(r"\bset_default_(?:dtype|tensor_type)\(.*(?:float64|[dD]ouble)"),
    re.compile(
        r"^\s*[\w.]*(?:model|net)\w*(?:\s*=\s*.+)?\.(?:double\(\)|to\(.*(?:float64|double))", re.I
    ),
)
_MOST_LINES: Final = 3
# In float32 these fail for nearly singular matrices, or lose precision.
_DECOMPOSES: Final = re.compile(
    r"cholesky|gpytorch|botorch|linear_operator|solve(?:_\w+)?\(|gamma\("
    r"|\.(?:\w*det|eig\w*|inv\w*|lstsq|lu_\w+|p?inverse|pinv|qr|svd\w*)\("
)
# Cores that batch systems allot to a job, possibly without enforcing it.
_ALLOTTED: Final = ("SLURM_CPUS_PER_TASK", "NSLOTS", "LSB_DJOB_NUMPROC", "PBS_NCPUS", "NCPUS")
_WORKER: Final = "torch.utils.data._utils.worker"
_LIGHTNING: Final = ("lightning.pytorch", "pytorch_lightning")
# A step that uses these names delegates its update, at least in part.
_DELEGATES: Final = frozenset(("super", "step"))
_NOWHERE: Final = Birthplace(0)
# Keys of a parameter group that are not settings.
_OF_PARAMETERS: Final = ("params", "param_names")
# Torch's step hooks, of one optimizer and of all.
_STEP_HOOKS: Final = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_STEP_HOOKS_OF_ALL: Final = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


class TorchSettingsProbe:
    """Records settings at each optimizer's first step and in backward passes."""

    name = "torch_settings"

    def attach(self, torch: ModuleType, patcher: Patcher, session: Session) -> None:
        self._torch, self._session = torch, session
        self._passes = self._optimizers = 0
        # Operators per graph, and the sequence number of the last operator.
        self._graph_sizes, self._last_operator = list[int](), 0
        # Where living optimizers were built, by id.
        self._built: dict[int, Birthplace] = {}
        self._plain_types = (getattr(torch, "Tensor", None), torch.nn.Parameter)
        self._modes = FunctionModes(torch)
        loop = getattr(sys.modules.get(_WORKER), "_worker_loop", None)
        self._worker_code = getattr(loop, "__code__", None)
        make = recorded_after(session.now, patcher.guarded(self._note_threads))
        patcher.around_if_there(make, (torch, "set_num_threads"))
        session.on_parameters.subscribe(patcher.guarded(self._note_place))
        session.on_first_step.subscribe(patcher.guarded(self._first_step))
        session.on_anomalous_backward.subscribe(patcher.guarded(self._anomalous_backward))
        self._sizing = patcher.guarded(self._size_graph)

    def _size_graph(self, outputs: Any, *_: Any) -> None:
        """Counts operators since the last backward pass by autograd's sequence numbers."""
        if self._modes.would_notice():
            return
        with self._modes.unseen():
            numbered = getattr(getattr(outputs[0], "grad_fn", None), "_sequence_nr", None)
            if numbered is None:
                return
            number = numbered()
            if not self._graph_sizes and outputs[0].device.type != "cpu":
                self._note_operators(outputs[0].grad_fn)
        size, self._last_operator = number - self._last_operator, number
        self._graph_sizes.append(size)
        if len(self._graph_sizes) > _SIZED_PASSES:
            self._session.on_backward.unsubscribe(self._sizing)
            middle = sorted(self._graph_sizes[1:])[_SIZED_PASSES // 2]
            self._session.log.note(Topic.ENVIRONMENT, {"backward_nodes": middle})

    def _note_operators(self, root: Any) -> None:
        """Records the precision of a graph's products, by the dtypes of its nodes' results.

        This shows autocast wherever it was entered: in the loop, in the model, by a library.
        """
        counts = dict.fromkeys(("matmuls", "convolutions", "convolutions_2d", "lower", "opaque"), 0)
        lower, known, waiting = [getattr(self._torch, x) for x in _LOWER], {id(root): root}, [root]
        while waiting and len(known) < _MOST_NODES:
            node = waiting.pop()
            name, results = type(node).__name__, getattr(node, "_input_metadata", ())
            is_convolution = _CONVOLUTIONS.match(name) is not None
            is_opaque = _OPAQUE.match(name) is not None
            if results and (is_convolution or is_opaque or _MATMULS.match(name)):
                kind = "opaque" if is_opaque else "convolutions" if is_convolution else "matmuls"
                counts[kind] += 1
                counts["lower"] += results[0].dtype in lower
                is_2d = is_convolution and len(results[0].shape) == _DIMENSIONS_OF_IMAGES
                counts["convolutions_2d"] += is_2d
            for parent, _ in node.next_functions:
                if parent is not None and id(parent) not in known:
                    known[id(parent)] = parent  # held, so that its id is not reused
                    waiting.append(parent)
        is_user_file = self._session.sites.is_user_file
        mixes = [name for name, called in _MIXES.items() if lines_with(is_user_file, called)]
        self._session.log.note(Topic.ENVIRONMENT, {"operators": {**counts, "mixes": mixes}})

    def _note_threads(self, _: int, __: int, caller: FrameType | None, ___: Arguments) -> None:
        sites, frame = self._session.sites, caller
        while frame is not None and not sites.is_user_code(frame.f_code):
            if frame.f_code is self._worker_code:  # frames above are the parent's
                self._session.threads_set_at = 0
                return
            frame = frame.f_back
        self._session.threads_set_at = sites.find(caller)

    def _note_place(self, optimizer: Any) -> None:
        key = id(optimizer)
        if key not in self._built and len(self._built) < _MOST_OPTIMIZERS:
            sites = self._session.sites
            self._built[key] = sites.birthplace(type(optimizer), sys._getframe(1))
            self._session.keep_track(optimizer, self._built, key)

    def _first_step(self, optimizer: Any) -> None:
        self._optimizers += 1
        if self._optimizers > _MOST_OPTIMIZERS:
            return
        if self._optimizers == 1:
            self._session.on_backward.subscribe(self._sizing)
        note: dict[str, object] = {
            "torch_threads": self._torch.get_num_threads(),
            "threads_set_at": self._session.threads_set_at,
            "cores_allotted": _cores_allotted(),
            "cores": own_cores(),
            "optimizer": self._session.optimizer_numbers.get(id(optimizer)),
            "trains_by_lightning": any(name in sys.modules for name in _LIGHTNING),
        }
        if not self._modes.would_notice():
            with self._modes.unseen():
                note |= self._noted_of(optimizer)
        self._session.log.note(Topic.ENVIRONMENT, note)

    def _noted_of(self, optimizer: Any) -> dict[str, object]:
        parameters, groups = _parameters(optimizer), optimizer.param_groups
        what: dict[str, object] = {
            "class": type(optimizer).__qualname__,
            "tensors": len(parameters),
            "groups": len(groups),
            "settings": len({_settings(group) for group in groups}),
        }
        plain = [x for x in parameters if type(x) in self._plain_types]
        note = self._numerics(plain)
        # Reading other tensors may run user code.
        is_plain = len(plain) == len(parameters) and all(x.is_floating_point() for x in plain)
        is_on_host = is_plain and all(x.device.type == "cpu" for x in plain)
        built = self._built.get(id(optimizer), _NOWHERE)
        is_torchs = type(optimizer).__module__.startswith("torch.optim.")
        note["update"] = {**what, "built": built.site, "is_torchs": is_torchs}
        if is_plain and self._may_be_fused(optimizer):
            note["unfused"] = what["class"]
            keys = ("site", "built_by", "built_at")
            note["built"] = {key: getattr(built, key) for key in keys}
            # foreach=False updates one parameter at a time on any device.
            is_set_to_loop = all(group.get("foreach") is False for group in groups)
            if is_on_host or is_set_to_loop:
                more = ("momentum", "weight_decay")
                note["looped_optimizer"] = {
                    **what,
                    "site": self._session.sites.find(sys._getframe(1)),
                    "built": built.site,
                    "is_plain": not any(group.get(name) for group in groups for name in more),
                    "is_told_to": not is_on_host,
                    "has_hooks": _has_step_hooks(optimizer),
                }
        begins = self._own_loop(optimizer) if is_on_host else None
        if begins is not None:
            note["own_optimizer"] = {**what, "site": begins}
        return note

    def _numerics(self, parameters: list[Any]) -> dict[str, object]:
        """Returns the precision that plain parameters are computed in; {} without parameters."""
        if not parameters:
            return {}
        numbers = Counter[Any]()
        for parameter in parameters:
            numbers[parameter.dtype] += parameter.numel()
        dtype = numbers.most_common(1)[0][0]
        numerics: dict[str, object] = {"parameters": str(dtype).removeprefix("torch.")}
        note: dict[str, object] = {"numerics": numerics}
        if dtype is self._torch.float64:
            sites = self._session.sites
            lines = [line for how in _DOUBLE for line in lines_with(sites.is_user_file, how)]
            numerics["sites"] = [sites.site_at(*line) for line in lines[:_MOST_LINES]]
            note["decomposes_in_float64"] = any_text(
                sites.is_user_file, lambda text: _DECOMPOSES.search(text) is not None
            )
            note["convolves_in_float64"] = any(
                parameter.dtype is dtype and parameter.dim() >= _DIMENSIONS_OF_CONVOLUTIONS
                for parameter in parameters
            )
        device = parameters[-1].device
        if device.type != "cpu":
            numerics["capability"] = self._capability(device)
            try:
                numerics["products"] = str(self._torch.get_float32_matmul_precision())
                numerics["convolutions_tf32"] = bool(self._torch.backends.cudnn.allow_tf32)
            except RuntimeError:  # set by the new API, which the old one then refuses to read
                numerics["products"] = "unknown"
        return note

    def _capability(self, device: Any) -> list[int] | None:
        """Returns an NVIDIA device's compute capability (major, minor), None for others."""
        ask = getattr(getattr(self._torch, device.type, None), "get_device_capability", None)
        if ask is None or getattr(self._torch.version, "hip", None):
            return None
        known = ask(device.index)
        return list(known) if isinstance(known, tuple) else None

    def _may_be_fused(self, optimizer: Any) -> bool:
        """Returns whether it is a torch optimizer with plain tensors that could be fused.

        Unfused, it updates one parameter at a time on the host; on a GPU only with foreach=False.
        """
        if not type(optimizer).__module__.startswith("torch.optim."):
            return False
        groups, without = optimizer.param_groups, ("fused", "foreach", "differentiable")
        if any(group.get(name) for group in groups for name in without):
            return False
        # Fused optimizers take no sparse gradients, such as those of nn.Embedding(sparse=True).
        gradients = [parameter.grad for parameter in _parameters(optimizer)]
        is_sparse = any(type(x) in self._plain_types and x.is_sparse for x in gradients)
        return not is_sparse and all("fused" in group for group in groups)

    def _own_loop(self, optimizer: Any) -> int | None:
        """Returns the line of a user's optimizer step that loops over parameters, else None."""
        step = inspect.getattr_static(type(optimizer), "step", None)
        step = inspect.unwrap(step) if type(step) is FunctionType else None
        sites = self._session.sites
        if type(step) is not FunctionType or not sites.is_user_code(step.__code__):
            return None
        names = step.__code__.co_names
        if _DELEGATES.intersection(names) or any("_foreach_" in name for name in names):
            return None
        return sites.beginning_of(step.__code__)

    def _anomalous_backward(self) -> None:
        self._passes += 1
        if self._passes == _ANOMALOUS_PASSES:
            self._session.log.note(Topic.ENVIRONMENT, {"detects_anomalies": True})


def _settings(group: dict[str, Any]) -> tuple[object, ...]:
    """Returns a group's settings for comparison; other than plain values by identity."""

    def plain(value: Any) -> object:
        if type(value) in (tuple, list):
            return tuple(map(plain, value))
        is_plain = value is None or type(value) in (bool, int, float, str)
        return value if is_plain else id(value)

    return tuple((name, plain(group[name])) for name in group if name not in _OF_PARAMETERS)


def _parameters(optimizer: Any) -> list[Any]:
    return [x for group in optimizer.param_groups for x in group["params"]]


def _has_step_hooks(optimizer: Any) -> bool:
    """Returns whether it has step hooks besides ours, such as weight averaging."""
    own, shared = vars(optimizer), vars(sys.modules["torch.optim.optimizer"])
    hooks = [hook for name in _STEP_HOOKS for hook in (own.get(name) or {}).values()]
    hooks += [hook for name in _STEP_HOOKS_OF_ALL for hook in (shared.get(name) or {}).values()]
    made_in = ((x if type(x) is FunctionType else type(x)).__module__ for x in hooks)
    return not all(name.startswith("trainprof.") for name in made_in)


def _cores_allotted() -> int | None:
    """Returns the cores that a batch system allots to this process, None without one."""
    counts = (os.environ.get(name, "") for name in _ALLOTTED)
    return next((int(count) for count in counts if count.isdecimal()), None)
