"""Watching a model: `capture`, the `Plan` of what to keep, and the `Recorder` that turns events into a trace.

The recorder is the only place that decides what is kept; adapters only say what is called. It must not raise into the
user's model, must not keep the user's tensors alive, and must not read a device per call:

* tensors are known by identity and version through weak references (`_Value`); a tensor that one call returns and the
  next receives is measured once;
* statistics are started by `Adapter.measure` and read back in batches when records are written;
* a gradient is watched once per tensor and handed to every call that produced or consumed that tensor.
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from . import patterns
from .adapters._registry import adapter_for
from .adapters.base import Adapter
from .errors import CaptureError, OptionError, TraceWriteError, TwinscopeError
from .records import OUTSIDE, Kind, Level, Manifest, ModuleInfo, Phase, Record, Slot, Source, Stats, TensorMeta
from .store import MemoryWriter, Trace, TraceWriter, Writer

_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


#: How many records a step may have where each is captured on its own: their numbers begin at the step's, shifted.
STEP_BITS = 26


class TwinscopeWarning(UserWarning):
    """Something about the watching, never about the model."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to watch and what to keep. Every field is an option of `capture`.

    >>> Plan.parse(level="module", keep="200MB").keep
    209715200
    >>> Plan.parse(levl="module")
    Traceback (most recent call last):
    ...
    twinscope.errors.OptionError: 'levl' is not an option
    Hint: did you mean 'level'?
    """

    #: "op" (modules and public API calls) or "module"
    level: Level = Level.OP
    #: watch gradients too
    backward: bool = True
    #: "stats", "tensors", or a budget in bytes (an int, or "500MB"): full tensors until it is spent
    keep: str | int = "stats"
    #: path patterns to watch, all when empty: "encoder.*.attn" (one level), "encoder.**" (any depth)
    include: tuple[str, ...] = ()
    #: path patterns not to watch; wins over `include`
    exclude: tuple[str, ...] = ()
    #: class names (short or qualified, patterns allowed) of modules to watch, all when empty
    types: tuple[str, ...] = ()
    #: op names (short or qualified, patterns allowed) to watch, all when empty
    ops: tuple[str, ...] = ()
    #: op names not to watch; wins over `ops`
    exclude_ops: tuple[str, ...] = ()
    #: phases to record, all when empty: weight, buffer, forward, loss, backward, gradient
    phases: tuple[Phase, ...] = ()
    #: which steps to record: a range or a sequence of step numbers, all when None
    steps: range | tuple[int, ...] | None = None
    #: and of those, every n-th
    every: int = 1
    #: record the weights at the beginning of the "first" step, of "every" step, or "never"; "used": never, but measure
    #: those that an op is handed, as its inputs
    weights: str = "first"
    #: watch the ops, too, that the framework's own layers call
    layer_ops: bool = True
    #: note the user's source line of each call
    sources: bool = True
    #: note the whole stack of each call too, frames of the framework included
    stacks: bool = False
    #: "safetensors" (packed shards) or "npy" (a file a tensor)
    format: str = "safetensors"
    #: most bytes in one shard
    shard_bytes: int = 256 << 20
    #: replace an older trace at the same place; anything else that lies there is never touched
    overwrite: bool = True

    @classmethod
    def parse(cls, **options: Any) -> Plan:
        """A plan from options as users write them; what is misspelt or out of range is an `OptionError`."""
        legal = [f.name for f in fields(cls)]
        for name in options:
            if name not in legal:
                raise OptionError(f"{name!r} is not an option", hint=patterns.did_you_mean(name, legal))
        if "level" in options:
            options["level"] = Level.parse(options["level"], "level")
        if "phases" in options:
            options["phases"] = tuple(Phase.parse(p, "phases") for p in _strings(options["phases"], "phases"))
        for name in ("include", "exclude", "types", "ops", "exclude_ops"):
            if name in options:
                options[name] = _strings(options[name], name)
        for name in ("backward", "sources", "stacks", "overwrite", "layer_ops"):
            if name in options and not isinstance(options[name], bool):
                raise OptionError(f"{name}={options[name]!r} is neither True nor False", hint=f"write {name}=True")
        if "keep" in options:
            options["keep"] = _keep(options["keep"])
        if "steps" in options:
            options["steps"] = _steps(options["steps"])
        for name in ("every", "shard_bytes"):
            value = options.get(name, 1)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(
                    f"{name}={value!r} is not a whole number of at least 1", hint=f"write {name}=1 or more"
                )
        if options.get("weights", "first") not in ("first", "every", "never", "used"):
            raise OptionError(
                f"weights={options['weights']!r} is not known", hint="use one of 'first', 'every', 'never', 'used'"
            )
        if options.get("format", "safetensors") not in ("safetensors", "npy"):
            raise OptionError(f"format={options['format']!r} is not known", hint="use one of 'safetensors', 'npy'")
        return cls(**options)

    def wants_step(self, step: int) -> bool:
        if self.steps is not None and step not in self.steps:
            return False
        first = self.steps[0] if self.steps else 0
        return (step - first) % self.every == 0

    def wants_phase(self, phase: Phase) -> bool:
        if phase in (Phase.BACKWARD, Phase.GRADIENT) and not self.backward:
            return False
        return not self.phases or phase in self.phases

    def wants_path(self, path: str) -> bool:
        if any(patterns.matches(p, path) for p in self.exclude):
            return False
        return not self.include or any(patterns.matches(p, path) for p in self.include)

    def wants_type(self, name: str) -> bool:
        return not self.types or any(patterns.matches_name(p, name) for p in self.types)

    def wants_op(self, name: str) -> bool:
        if any(patterns.matches_name(p, name) for p in self.exclude_ops):
            return False
        return not self.ops or any(patterns.matches_name(p, name) for p in self.ops)

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        found["level"] = str(self.level)
        found["phases"] = [str(p) for p in self.phases]
        found["steps"] = None if self.steps is None else [self.steps[0], self.steps[-1], len(self.steps)]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}


def _strings(value: Any, option: str) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(item, str) for item in items):
        raise OptionError(f"{option}={value!r} is not a string or a list of strings", hint=f'write {option}=["..."]')
    return items


def _keep(value: Any) -> str | int:
    if value in ("stats", "tensors"):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        digits = value.strip().upper()
        for unit in sorted(_UNITS, key=len, reverse=True):
            number = digits.removesuffix(unit).strip()
            if digits.endswith(unit) and number.replace(".", "", 1).isdigit():
                return int(float(number) * _UNITS[unit])
    raise OptionError(
        f"keep={value!r} is not known", hint="use 'stats', 'tensors', or a budget: keep=500_000_000 or keep='500MB'"
    )


def _steps(value: Any) -> range | tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    if not isinstance(value, range):
        value = tuple(value) if isinstance(value, Iterable) else (value,)
    if not value or not all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in value):
        raise OptionError(f"steps={value!r} names no step", hint="use steps=range(0, 100, 10) or steps=[0, 5]")
    return value if isinstance(value, range) else tuple(sorted(set(value)))


# -- what the recorder remembers of things that are alive ------------------------------------------------------------


class _Value:
    """The content of one tensor at one version."""

    __slots__ = (
        "call_slots",
        "handle",
        "id",
        "kept",
        "meta",
        "param",
        "ref",
        "stats",
        "stop",
        "version",
        "watched",
        "whole",
    )

    def __init__(self, ref: Any, version: int, id: int, meta: TensorMeta) -> None:
        self.ref = ref
        self.version = version
        self.id = id
        self.meta = meta
        self.handle: Any = None
        self.stats: Stats | None = None
        self.kept = False
        self.param: str | None = None
        self.whole: int | None = None  # the value whose kept elements, in their own order, are this one's memory
        self.watched = False
        self.stop: Callable[[], None] | None = None
        self.call_slots: list[tuple[_Call, str]] = []


class _Call:
    """One call while it runs and until its gradients have come."""

    __slots__ = (
        "args",
        "builtin",
        "call_id",
        "failed",
        "gradients",
        "kind",
        "module",
        "nth",
        "ops",
        "parent",
        "parent_id",
        "path",
        "shadow_of",
        "slots",
        "source",
        "stack",
        "step",
        "training",
        "type",
        "wanted",
        "watched",
    )

    def __init__(self, kind: Kind, path: str, type_: str, call_id: int, parent: _Call | None, step: int) -> None:
        self.kind = kind
        self.path = path
        self.type = type_
        self.call_id = call_id
        self.parent = parent
        self.parent_id = parent.call_id if parent is not None else None
        self.step = step
        self.nth = 0
        self.args: Mapping[str, Any] = {}
        self.source: Source | None = None
        self.stack: tuple[Source, ...] = ()
        self.builtin = False
        self.training: bool | None = None
        self.failed = False
        self.wanted = True
        self.slots: list[tuple[str, _Value]] = []
        self.gradients: list[tuple[str, _Value]] = []
        self.watched: list[str] = []  # slots whose gradient is awaited
        self.ops: list[_Call] = []  # of a module call, for recomputation to find
        self.module: Any = None
        self.shadow_of: _Call | None = None  # recomputation: the call that this one repeats

    def forget(self) -> None:
        """Let go of everything: calls and values refer to each other, and the collector should not have to find out."""
        self.slots = self.gradients = []
        self.ops = []
        self.parent = self.shadow_of = self.module = None


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


#: Frames that tell nobody anything.
_NO_ONES = (_PACKAGE, "<frozen ")


def _line_of(code: CodeType, at: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= at < end and line is not None)
    return next(lines, code.co_firstlineno)


class _Sources:
    """The user's line: the innermost frame outside the framework and outside Twinscope."""

    def __init__(self, adapter: Adapter) -> None:
        self._internal = (*adapter.internal_paths, _PACKAGE, "<frozen ")
        self._ignored = adapter.ignored_paths
        self._layers = adapter.layer_paths
        self._kinds: dict[CodeType, int] = {}
        self._made: dict[tuple[CodeType, int], Source] = {}
        self._stacks: dict[tuple[tuple[CodeType, int], ...], tuple[Source, ...]] = {}
        # the longest import root that a file lies under gives its relative name
        roots = {os.getcwd(), *(p for p in sys.path if p)}
        self._roots = sorted((os.path.abspath(r) + os.sep for r in roots), key=len, reverse=True)

    def find(self, depth: int = 2) -> tuple[Source | None, bool, bool]:
        """(the user's line, whether the call comes from code that is no part of the network, and whether it comes from
        a layer of the framework's own)."""
        frame: Any = sys._getframe(depth)
        kinds = self._kinds
        layer = False
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code)
            if kind is None:
                kind = kinds[code] = self._classify(code.co_filename)
            if kind == 0:
                key = (code, frame.f_lineno)
                source = self._made.get(key)
                if source is None:
                    source = self._made[key] = Source(self.relative(code.co_filename), frame.f_lineno, code.co_name)
                return source, False, layer
            if kind == 2:
                return None, True, layer
            if kind == 3:
                layer = True
            frame = frame.f_back
        return None, False, layer

    def stack(self, depth: int = 2) -> tuple[Source, ...]:
        """All frames but Twinscope's own, the innermost first."""
        frame: Any = sys._getframe(depth)
        key: list[tuple[CodeType, int]] = []
        while frame is not None:
            key.append((frame.f_code, frame.f_lasti))  # a line number is looked up, and there are many frames
            frame = frame.f_back
        found = self._stacks.get(tuple(key))
        if found is None:
            lines = ((code, _line_of(code, at)) for code, at in key if not code.co_filename.startswith(_NO_ONES))
            found = self._stacks[tuple(key)] = tuple(
                Source(self.relative(code.co_filename), line, code.co_name) for code, line in lines
            )
        return found

    def _classify(self, filename: str) -> int:
        if filename.startswith(self._ignored):
            return 2
        if filename.startswith(self._layers):
            return 3
        return 1 if filename.startswith(self._internal) else 0

    def relative(self, filename: str) -> str:
        if not os.path.isabs(filename):
            return filename
        for root in self._roots:
            if filename.startswith(root):
                return filename[len(root) :].replace(os.sep, "/")
        return os.path.basename(filename)


def _plain(value: Any, depth: int = 0) -> Any:
    """A non-tensor argument in JSON's types; what has none is named by its type."""
    if value is None or isinstance(value, (bool, int, str)):
        return value if not isinstance(value, str) or len(value) <= 200 else value[:200] + "..."
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, (tuple, list)) and depth < 3 and len(value) <= 32:
        return [_plain(v, depth + 1) for v in value]
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop}, {value.step})"
    text = str(value) if type(value).__module__.split(".")[0] in ("torch", "paddle", "mindspore", "numpy") else ""
    return text if 0 < len(text) <= 40 else f"<{type(value).__name__}>"


#: Whether a call is to be recorded: its call_id, kind, type, path, and whether it is of the framework's own layers.
Chooser = Callable[[int, Kind, str, str, bool], bool]


class Recorder:
    """The sink of `Adapter.observe`: keeps what the plan asks for and hands records to a writer."""

    #: records are written, and statistics read back, in batches of this many
    BATCH = 512

    def __init__(
        self,
        adapter: Adapter,
        model: Any,
        plan: Plan,
        writer: Writer,
        choose: Chooser | None = None,
        failed: Callable[[], None] | None = None,
        modules: list[tuple[ModuleInfo, Any]] | None = None,
    ) -> None:
        self.adapter = adapter
        self._failed = failed
        self.plan = plan
        self._choose = choose
        self.writer = writer
        self.error: TwinscopeError | None = None
        self.step = 0
        self.paused = False
        self.backward_seen = False
        self._explicit_steps = False
        self._modules = adapter.modules(model) if modules is None else modules
        self._by_id: dict[int, tuple[ModuleInfo, bool]] = {
            id(m): (info, plan.wants_path(info.path) and plan.wants_type(info.type)) for info, m in self._modules
        }
        self._scopes: dict[str, bool] = {}
        self._op_wanted: dict[str, bool] = {}
        self._is_tensor: dict[type, bool] = {}
        self._sources = _Sources(adapter)
        self._root = model
        self._stack: list[_Call] = []
        self._values: dict[int, _Value] = {}
        self._params: dict[int, str] = {}
        self._counts: dict[str, int] = {}
        self._op_counts: dict[tuple[int, str], int] = {}
        self._open: dict[str, list[_Call]] = {}
        self._calls: list[_Call] = []
        self._pending: list[tuple[_Call, Phase, list[tuple[str, _Value]]]] = []
        self._wants_forward = plan.wants_phase(Phase.FORWARD)
        self._wants_backward = plan.wants_phase(Phase.BACKWARD)
        self._parameter_stops: list[Callable[[], None]] = []
        self._parameter_gradients: dict[str, dict[str, _Value]] = {}
        self._parameter_expected: dict[str, int] = {}
        self._recent: deque[Any] = deque(maxlen=3)
        self._contents: dict[Any, _Value] = {}
        self._watching: list[_Value] = []
        self._next_call = 0
        self._next_value = 0
        self._next_index = 0
        self._root_calls = 0
        self._weights_recorded = False
        self._root_output_has_grad = False
        self._step_open = False
        self._active = False
        self._grad = plan.backward and (plan.wants_phase(Phase.BACKWARD) or plan.wants_phase(Phase.GRADIENT))
        self._weights_as_inputs = plan.weights == "used"
        self._budget: float = float("inf") if plan.keep == "tensors" else 0 if plan.keep == "stats" else int(plan.keep)
        self._thread = threading.get_ident()
        self._lock = threading.RLock()

    def begin_at(self, step: int, again: bool = False) -> None:
        """Number what is recorded as of this step, so that it can stand beside records of the steps before; `again`,
        beside those of the same step."""
        self.step = step
        self._next_call = self._next_value = self._next_index = (step << STEP_BITS) + (again << (STEP_BITS - 2))

    # -- events --------------------------------------------------------------------------------------------------------

    def enter_module(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Call | None:
        if self.error is not None or self.paused or threading.get_ident() != self._thread:
            return None
        try:
            return self._enter_module(module, args, kwargs)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user's run
            self._give_up(error)
            return None

    def enter_op(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Call | None:
        if not self._active or self.error is not None or self.paused or threading.get_ident() != self._thread:
            return None
        try:
            return self._enter_op(name, args, kwargs)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user's run
            self._give_up(error)
            return None

    def leave(self, token: _Call, output: Any) -> None:
        try:
            self._leave(token, output, failed=False)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user's run
            self._give_up(error)

    def fail(self, token: _Call) -> None:
        outermost = self._failed is not None and token.module is self._root and token.parent is None
        try:
            self._leave(token, None, failed=True)
            if outermost and self._failed is not None:
                self._failed()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user's run
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Watching stops, the user's run goes on, and it is said once."""
        if self.error is not None:
            return
        if isinstance(error, TwinscopeError):
            self.error = error
        else:
            self.error = CaptureError(
                f"watching stopped: {type(error).__name__}: {error}",
                hint="this is a fault of twinscope; the run goes on",
            )
            self.error.__cause__ = error
        self._active = False
        warnings.warn(f"twinscope: {self.error}", TwinscopeWarning, stacklevel=4)

    # -- entering ------------------------------------------------------------------------------------------------------

    def _enter_module(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Call | None:
        found = self._by_id.get(id(module))
        if found is None:
            return None
        info, wanted = found
        recomputing = self.adapter.in_backward()
        outermost = module is self._root and not self._stack and not recomputing
        if outermost:
            self._root_called()
        if wanted and self._active and not recomputing and self._choose is not None:
            wanted = self._choose(self._next_call, Kind.MODULE, info.type, info.path, info.builtin)
        if not self._active:
            if not outermost:
                return None
            wanted = False  # but where its step ends must be known
        parent = self._stack[-1] if self._stack else None
        call = self._new_call(Kind.MODULE, info.path, info.type, parent)
        call.builtin = info.builtin
        call.wanted = wanted
        call.module = module
        training = getattr(module, "training", None)
        call.training = training if isinstance(training, bool) else None
        if recomputing or (parent is not None and parent.shadow_of is not None):
            # recomputation goes over the calls from the last to the first
            repeated = self._open.get(info.path)
            call.shadow_of = repeated.pop() if repeated else call
            self._shadow_inputs(call.shadow_of, args, kwargs)
        else:
            call.nth = self._counts.get(info.path, 0)
            self._counts[info.path] = call.nth + 1
            self._open.setdefault(info.path, []).append(call)
            if wanted and self.plan.sources:
                call.source, _, _ = self._sources.find(4)
            if wanted and self.plan.stacks:
                call.stack = self._sources.stack(4)
            if wanted:
                call.args = self._inputs(call, args, kwargs)
        self._stack.append(call)
        return call

    def _enter_op(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Call | None:
        parent = self._stack[-1] if self._stack else None
        if parent is None:
            if self.adapter.in_backward() or not self._knows_any(args, kwargs):
                return None  # nothing of the network: data preparation, metrics, an optimizer
            path = OUTSIDE
        elif parent.kind is Kind.OP:
            return None
        else:
            path = parent.path
        wanted = self._op_wanted.get(name)
        if wanted is None:
            wanted = self._op_wanted[name] = self.plan.wants_op(name)
        scope = self._scopes.get(path)
        if scope is None:
            scope = self._scopes[path] = self.plan.wants_path("" if path is OUTSIDE else path)
        if not (wanted and scope):
            return None
        shadowing = parent is not None and parent.shadow_of is not None
        source, builtin = None, parent is not None and parent.builtin
        if builtin and not self.plan.layer_ops:
            return None
        if not shadowing:
            source, ignored, layer = self._sources.find(4)
            if ignored:
                return None
            if parent is None:
                builtin = layer
            if self._choose is not None and not self._choose(self._next_call, Kind.OP, name, path, builtin):
                return None
        call = self._new_call(Kind.OP, path, name, parent)
        call.builtin = builtin
        call.training = parent.training if parent is not None else None
        if shadowing:
            assert parent is not None and parent.shadow_of is not None
            repeated = parent.shadow_of.ops
            ordinal = len(parent.ops)
            parent.ops.append(call)
            same = ordinal < len(repeated) and repeated[ordinal].type == name
            call.shadow_of = repeated[ordinal] if same else call
            self._shadow_inputs(call.shadow_of, args, kwargs)
        else:
            key = (parent.call_id if parent is not None else -1, name)
            call.nth = self._op_counts.get(key, 0)
            self._op_counts[key] = call.nth + 1
            if self.plan.sources:
                call.source = source
            if self.plan.stacks:
                call.stack = self._sources.stack(4)
            if parent is not None:
                parent.ops.append(call)
            call.args = self._inputs(call, args, kwargs)
        self._stack.append(call)
        return call

    def _new_call(self, kind: Kind, path: str, type_: str, parent: _Call | None) -> _Call:
        call = _Call(kind, path, type_, self._next_call, parent, self.step)
        self._next_call += 1
        self._calls.append(call)
        return call

    def _inputs(self, call: _Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Note the tensors among the arguments in the call's slots; return the others."""
        plain: dict[str, Any] = {}
        for i, arg in enumerate(args):
            self._input(call, f"in.{i}", str(i), arg, plain)
        for key, arg in kwargs.items():
            self._input(call, f"in.{key}", key, arg, plain)
        return plain

    def _input(self, call: _Call, slot: str, key: str, arg: Any, plain: dict[str, Any]) -> None:
        if self._tensor(arg):
            self._note(call, slot, arg)
        elif arg is None or isinstance(arg, (bool, int, float, str)):
            plain[key] = _plain(arg)
        else:
            found = False
            for name, tensor in self.adapter.leaves(arg):
                self._note(call, f"{slot}.{name}", tensor)
                found = True
            if not found:
                plain[key] = _plain(arg)

    def _tensor(self, obj: Any) -> bool:
        kind = self._is_tensor.get(type(obj))
        if kind is None:
            kind = self._is_tensor[type(obj)] = self.adapter.is_tensor(obj)
        return kind

    def _knows_any(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether any tensor among the arguments descends from something recorded in this step."""
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, (tuple, list)):
                if self._knows_any(tuple(arg), {}):
                    return True
            elif self._tensor(arg):
                value = self._values.get(id(arg))
                if value is not None and value.ref() is arg and id(arg) not in self._params:
                    return True
        return False

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _leave(self, call: _Call, output: Any, failed: bool) -> None:
        stack = self._stack
        if call not in stack:
            return  # the step ended in the middle of it
        while stack:
            top = stack.pop()
            if top is call:
                break
            self._close(top, failed=True)  # it raised, and whoever called it caught that
        if self.error is not None:
            return
        if call.shadow_of is not None:
            if not failed and self._grad:
                for name, tensor in self.adapter.leaves(output):
                    self._shadow(call.shadow_of, f"out.{name}" if name else "out", tensor)
            return
        if not failed and call.wanted:
            if self._tensor(output):
                self._note(call, "out", output)
            else:
                for name, tensor in self.adapter.leaves(output):
                    self._note(call, f"out.{name}" if name else "out", tensor)
        self._close(call, failed)
        if call.parent is None and call.module is self._root and not failed:
            self._root_output_has_grad = any(
                v.watched for n, v in call.slots if n.startswith("out")
            ) or self._expects_backward(output)

    def _expects_backward(self, output: Any) -> bool:
        """Whether the root's output needs a gradient; a step that is not recorded must notice its backward pass too."""
        if not self.plan.backward:
            return False
        stops = [self.adapter.watch_gradient(t, self._backward_came) for _, t in self.adapter.leaves(output)]
        self._parameter_stops += [stop for stop in stops if stop is not None]
        return any(stop is not None for stop in stops)

    def _backward_came(self, gradient: Any) -> None:
        self.backward_seen = self.backward_seen or not self.paused

    def _close(self, call: _Call, failed: bool) -> None:
        call.failed = failed
        if call.shadow_of is not None or not call.wanted:
            return
        if call.kind is Kind.OP and not failed and not any(n.startswith("out") for n, _ in call.slots):
            return  # it computed no tensor
        if self._wants_forward:
            self._emit(call, Phase.FORWARD, call.slots)

    def _shadow_inputs(self, original: _Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._grad:
            for key, arg in (*enumerate(args), *kwargs.items()):
                for name, tensor in self.adapter.leaves(arg):
                    self._shadow(original, f"in.{key}.{name}" if name else f"in.{key}", tensor)

    def _shadow(self, original: _Call, slot: str, tensor: Any) -> None:
        """Recomputation under a checkpoint that ran without gradients: they belong to the call that is repeated."""
        if slot in original.watched or id(tensor) in self._params or not self.adapter.requires_grad(tensor):
            return
        value = self._value(tensor, measure=False)
        if not value.watched:
            self._watch(value, tensor)
        self._subscribe(original, slot, value)

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, tensor: Any, measure: bool = True) -> _Value:
        key = id(tensor)
        version = self.adapter.version(tensor)
        value = self._values.get(key)
        if value is None or value.version != version or value.ref() is not tensor:
            value = self._fresh(tensor, version)
            self._values[key] = value
        if measure and value.handle is None and value.stats is None:
            self._measure(value, tensor)
        return value

    def _remeasured(self, tensor: Any) -> _Value:
        self._contents.pop(self.adapter.memory(tensor), None)
        value = self._fresh(tensor, self.adapter.version(tensor))
        self._measure(value, tensor)
        return value

    def _fresh(self, tensor: Any, version: int) -> _Value:
        value = _Value(weakref.ref(tensor), version, self._next_value, self.adapter.meta(tensor))
        value.param = self._params.get(id(tensor))
        self._next_value += 1
        return value

    def _measure(self, value: _Value, tensor: Any) -> None:
        """Start the statistics, unless the same elements in the same memory were measured before: under another shape,
        or in another object. While that object lives, its memory is nobody else's."""
        key = self.adapter.memory(tensor)
        if key is not None:
            same = self._contents.get(key)
            held = same.ref() if same is not None and same.version == value.version else None
            if same is not None and held is not None and self.adapter.memory(held) == key:
                value.handle, value.stats = same.handle, same.stats
                value.whole = same.whole
            self._contents[key] = value
        if value.handle is None and value.stats is None:
            value.handle = self.adapter.measure(tensor)
        if self._budget > 0:
            self._store(value, tensor)

    def _store(self, value: _Value, tensor: Any) -> None:
        """Keep the full tensor, while the budget lasts; of the same elements in another arrangement only that."""
        array = self.adapter.to_numpy(tensor)
        if value.whole is not None and array.itemsize:
            strides = tuple(s // array.itemsize for s in array.strides)
            if self.writer.alias(value.id, value.whole, array.shape, strides):
                value.kept = True
                return
        if array.nbytes <= self._budget:
            self._budget -= array.nbytes
            self.writer.tensor(value.id, array)
            value.kept = True
            value.whole = value.id if array.flags.c_contiguous and array.size else None

    def _note(self, call: _Call, slot: str, tensor: Any) -> None:
        # a parameter is measured when the step begins; as an input of an op it is only named
        value = self._value(tensor, measure=self._weights_as_inputs or id(tensor) not in self._params)
        call.slots.append((slot, value))
        if self._grad and id(tensor) not in self._params:
            if not value.watched:
                self._watch(value, tensor)
            if value.stop is not None:
                self._subscribe(call, slot, value)

    def _watch(self, value: _Value, tensor: Any) -> None:
        value.watched = True
        value.stop = self.adapter.watch_gradient(tensor, lambda gradient: self._gradient(value, gradient))
        value.watched = value.stop is not None
        if value.watched:
            self._watching.append(value)

    def _subscribe(self, call: _Call, slot: str, value: _Value) -> None:
        call.watched.append(slot)
        value.call_slots.append((call, slot))

    def _gradient(self, value: _Value, gradient: Any) -> None:
        if self.error is not None or self.paused or gradient is None:
            return
        with self._lock:
            try:
                self.backward_seen = True
                if not self._wants_backward:
                    return
                seen = self._gradient_value(gradient)
                for call, slot in value.call_slots:
                    call.gradients.append((slot, seen))
                    if len(call.gradients) == len(call.watched):
                        self._emit_backward(call)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user's run
                self._give_up(error)

    def _gradient_value(self, gradient: Any) -> _Value:
        # neighbouring calls are often handed one and the same gradient, or a rearranged view of it: the last few are
        # kept alive so that they are known again
        value = self._fresh(gradient, self.adapter.version(gradient))
        self._measure(value, gradient)
        self._recent.append(gradient)
        return value

    def _emit_backward(self, call: _Call) -> None:
        if call.gradients and not call.failed:
            slots = call.gradients
            if len(slots) > 1:  # in the order of the forward record, whatever the order of arrival
                order = {name: i for i, (name, _) in enumerate(call.slots)}
                slots.sort(key=lambda item: order.get(item[0], len(order)))
            self._emit(call, Phase.BACKWARD, slots)
        call.gradients = []

    # -- state ---------------------------------------------------------------------------------------------------------

    def _root_called(self) -> None:
        """A new step begins when the root is called again after a backward pass, or where there will be none."""
        over = self.backward_seen or not self._root_output_has_grad
        if self._step_open and self._root_calls and not self._explicit_steps and over:
            self.end_step()
        if not self._step_open:
            self._begin_step()
        self._root_calls += 1

    def _begin_step(self) -> None:
        self._step_open = True
        self._root_calls = 0
        self.backward_seen = False
        self._active = self.plan.wants_step(self.step)
        if not self._active:
            return
        for info, module in self._modules:
            held = self.adapter.state(module)
            for param in info.params:
                if param.name in held:
                    self._params.setdefault(id(held[param.name]), info.param_path(param.name))
        if self.plan.weights == "every" or (self.plan.weights == "first" and not self._weights_recorded):
            self._record_state(Phase.WEIGHT)
            self._weights_recorded = True
        if self._grad and self.plan.wants_phase(Phase.GRADIENT):
            self._watch_parameters()

    def _record_state(self, phase: Phase) -> None:
        if not self.plan.wants_phase(phase):
            return
        for info, module in self._modules:
            if not self._by_id[id(module)][1]:
                continue
            held = self.adapter.state(module)
            slots = []
            for param in info.params:
                if _inner_alias(info, param.tied_to):
                    continue
                if param.name in held and (phase is Phase.WEIGHT or param.buffer):
                    # kernels move running statistics without telling the tensor's version counter
                    fresh = phase is Phase.BUFFER
                    slots.append(
                        (param.name, self._remeasured(held[param.name]) if fresh else self._value(held[param.name]))
                    )
            if slots:
                self._emit_state(info, phase, slots)

    def record_held(self, gradients: Mapping[str, Any]) -> None:
        """Weights, buffers and gradients as they are now; `gradients` by path are those not stored on parameters."""
        self._record_state(Phase.WEIGHT)
        for info, module in self._modules:
            held = self.adapter.state(module)
            slots = []
            for param in info.params:
                if param.name not in held or param.buffer or param.tied_to is not None:
                    continue
                gradient = gradients.get(info.param_path(param.name), self.adapter.gradient(held[param.name]))
                if gradient is not None:
                    slots.append((param.name, self._gradient_value(gradient)))
            if slots:
                self._emit_state(info, Phase.GRADIENT, slots)
        self.write_pending()

    def _watch_parameters(self) -> None:
        for info, module in self._modules:
            if not self._by_id[id(module)][1]:
                continue
            held = self.adapter.state(module)
            for param in info.params:
                tensor = held.get(param.name)
                if tensor is None or param.buffer or param.tied_to is not None:
                    continue
                stop = self.adapter.watch_gradient(tensor, self._parameter_callback(info, param.name))
                if stop is not None:
                    self._parameter_stops.append(stop)
                    self._parameter_expected[info.path] = self._parameter_expected.get(info.path, 0) + 1

    def _parameter_callback(self, info: ModuleInfo, name: str) -> Callable[[Any], None]:
        def seen(gradient: Any) -> None:
            if self.error is not None or self.paused or gradient is None:
                return
            with self._lock:
                try:
                    self.backward_seen = True
                    # not kept alive: a gradient that somebody holds is copied into .grad instead of moved
                    value = self._fresh(gradient, self.adapter.version(gradient))
                    self._measure(value, gradient)
                    arrived = self._parameter_gradients.setdefault(info.path, {})
                    if name in arrived:  # a second backward pass in this step
                        self._emit_parameter_gradients(info)
                        arrived = self._parameter_gradients.setdefault(info.path, {})
                    arrived[name] = value
                    if len(arrived) == self._parameter_expected.get(info.path, 0):
                        self._emit_parameter_gradients(info)
                except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user's run
                    self._give_up(error)

        return seen

    def _emit_parameter_gradients(self, info: ModuleInfo) -> None:
        arrived = self._parameter_gradients.pop(info.path, {})
        if arrived:
            order = [p.name for p in info.params]
            self._emit_state(info, Phase.GRADIENT, sorted(arrived.items(), key=lambda item: order.index(item[0])))

    def _emit_state(self, info: ModuleInfo, phase: Phase, slots: list[tuple[str, _Value]]) -> None:
        key = f"{phase}:{info.path}"
        nth = self._counts.get(key, 0)
        self._counts[key] = nth + 1
        state = _Call(Kind.STATE, info.path, info.type, -1, None, self.step)
        state.builtin, state.nth = info.builtin, nth
        self._emit(state, phase, slots)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _emit(self, call: _Call, phase: Phase, slots: list[tuple[str, _Value]]) -> None:
        self._pending.append((call, phase, slots))
        if len(self._pending) >= self.BATCH:
            self.write_pending()

    def note_loss(self, tensor: Any) -> None:
        """Record what the loss function returned, before the step ends."""
        if not self._active or self.error is not None or not self.plan.wants_phase(Phase.LOSS):
            return
        try:
            state = _Call(Kind.STATE, OUTSIDE, "loss", -1, None, self.step)
            self._emit(state, Phase.LOSS, [("loss", self._value(tensor))])
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user's run
            self._give_up(error)

    def write_pending(self) -> None:
        """Read back what was measured, and hand the records over."""
        with self._lock:
            pending, self._pending = self._pending, []
            waiting = [v for _, _, slots in pending for _, v in slots if v.stats is None and v.handle is not None]
            measured = list({id(v.handle): v.handle for v in waiting}.values())
            stats = {id(h): s for h, s in zip(measured, self.adapter.collect(measured), strict=True)}
            for value in waiting:
                if value.handle is not None:
                    value.stats = stats[id(value.handle)]
            for value in waiting:
                value.handle = None
            for call, phase, slots in pending:
                self.writer.record(self._record(call, phase, slots))

    def _record(self, call: _Call, phase: Phase, slots: list[tuple[str, _Value]]) -> Record:
        made = tuple([Slot(name, v.meta, v.id, v.stats, v.kept, v.param) for name, v in slots])
        index = self._next_index
        self._next_index += 1
        return Record(
            index,
            call.step,
            call.kind,
            phase,
            call.path,
            call.type,
            call.call_id,
            call.parent_id,
            call.nth,
            made,
            call.args if phase is Phase.FORWARD else {},
            call.source,
            call.builtin,
            call.training,
            call.failed,
            call.stack if phase is Phase.FORWARD else (),
        )

    def end_step(self) -> None:
        """Close the books of this step: late gradients, buffers; forget every tensor."""
        if not self._step_open:
            return
        if self._active and self.error is None:
            for call in reversed(self._calls):  # some of their gradients never came
                self._emit_backward(call)
            for info, _ in self._modules:
                self._emit_parameter_gradients(info)
            self._record_state(Phase.BUFFER)
            self.write_pending()
            self.writer.flush()
        self._forget()
        self.step += 1
        self._step_open = False
        self._active = False

    def _forget(self) -> None:
        """Take every hook off the user's tensors, whatever happened."""
        for value in self._watching:
            if value.stop is not None:
                value.stop()
            value.call_slots = []
        self._watching.clear()
        for stop in self._parameter_stops:
            stop()
        self._parameter_stops.clear()
        self._parameter_expected.clear()
        self._parameter_gradients.clear()
        self._values.clear()
        self._params.clear()
        for call in self._calls:
            call.forget()
        self._calls.clear()
        self._recent.clear()
        self._contents.clear()
        self._counts.clear()
        self._op_counts.clear()
        self._open.clear()
        self._stack.clear()

    def close(self) -> None:
        while self._stack:
            self._close(self._stack.pop(), failed=True)
        try:
            self.end_step()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the user's run
            self._give_up(error)
        finally:
            self._forget()


def _inner_alias(info: ModuleInfo, tied_to: str | None) -> bool:
    """Whether a parameter is but a framework layer's own second name for one of an enclosing layer's."""
    return info.builtin and tied_to is not None and info.path.startswith(tied_to.rpartition(".")[0] + ".")


def manifest_of(
    adapter: Adapter,
    model: Any,
    plan: Plan,
    rank: int = 0,
    world: int = 1,
    modules: list[tuple[ModuleInfo, Any]] | None = None,
) -> Manifest:
    """What a trace of this model says about itself when it begins."""
    cls = type(model)
    modules = adapter.modules(model) if modules is None else modules
    return Manifest(
        framework=adapter.name,
        versions=adapter.versions(),
        model=f"{cls.__module__}.{cls.__qualname__}",
        modules=tuple(info for info, _ in modules),
        plan=plan.to_dict(),
        rank=rank,
        world=world,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


class Capture:
    """A watched run; made by `capture`, used as a context manager."""

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str] | None,
        plan: Plan,
        *,
        rank: int = 0,
        world: int = 1,
        adapter: Adapter | None = None,
        choose: Chooser | None = None,
        writer: Callable[[Manifest], Writer] | None = None,
        first_step: int = 0,
        failed: Callable[[], None] | None = None,
        again: bool = False,
    ) -> None:
        self.adapter = adapter or adapter_for(model)
        self._choose, self._make_writer, self._failed = choose, writer, failed
        self.model = model
        self._first_step, self._step_again = first_step, again
        self.plan = plan
        self.path = Path(path) if path is not None else None
        self._rank, self._world = rank, world
        self._trace: Trace | None = None
        self._recorder: Recorder | None = None
        self._writer: Writer | None = None
        self._observing: Any = None
        self._manifest: Manifest | None = None

    @property
    def trace(self) -> Trace:
        """What was recorded; available once the context has ended."""
        if self._trace is None:
            if self.path is None or self._observing is not None or self._manifest is None:
                raise CaptureError("the capture has not ended", hint="read .trace after the with block")
            self._trace = Trace.open(self.path)
        return self._trace

    @property
    def error(self) -> TwinscopeError | None:
        """Why watching stopped early (a full disk, say), if it did; the user's run went on."""
        return self._recorder.error if self._recorder is not None else None

    def step(self) -> None:
        """Say that a training step is over. Without it, a step ends when the model is called after a backward pass."""
        recorder = self._running()
        recorder._explicit_steps = True
        recorder.end_step()

    def loss(self, value: Any) -> None:
        """Record the value of the loss, so that it is compared in its own right: ``run.loss(loss)`` before `step`."""
        recorder = self._running()
        if not self.adapter.is_tensor(value):
            raise OptionError(
                f"a loss of type {type(value).__name__} cannot be recorded", hint="hand in the tensor, not its value"
            )
        recorder.note_loss(value)

    def pause(self) -> None:
        """Stop recording until `resume`."""
        self._running().paused = True

    def resume(self) -> None:
        """Record again."""
        self._running().paused = False

    def _running(self) -> Recorder:
        if self._recorder is None or self._observing is None:
            raise CaptureError("the capture is not running", hint="use it inside its with block")
        return self._recorder

    def __enter__(self) -> Capture:
        if self._observing is not None or self._manifest is not None:
            raise CaptureError("a capture can be entered once", hint="call twinscope.capture(...) again")
        modules = self.adapter.modules(self.model)
        manifest = manifest_of(self.adapter, self.model, self.plan, self._rank, self._world, modules)
        writer: Writer
        if self._make_writer is not None:
            writer = self._make_writer(manifest)
        elif self.path is None:
            writer = MemoryWriter(manifest)
        else:
            writer = TraceWriter(
                self.path,
                manifest,
                format=self.plan.format,
                shard_bytes=self.plan.shard_bytes,
                overwrite=self.plan.overwrite,
            )
        self._manifest, self._writer = manifest, writer
        self._recorder = Recorder(self.adapter, self.model, self.plan, writer, self._choose, self._failed, modules)
        self._recorder.begin_at(self._first_step, self._step_again)
        observing = self.adapter.observe(self.model, self._recorder, self.plan.level)
        try:
            observing.__enter__()
        except BaseException:
            writer.close()
            raise
        self._observing = observing
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recorder, writer, manifest = self._recorder, self._writer, self._manifest
        assert recorder is not None and writer is not None and manifest is not None
        observing, self._observing = self._observing, None
        try:
            observing.__exit__(None, None, None)
        finally:
            recorder.close()
            notes = manifest.notes if recorder.error is None else (*manifest.notes, f"stopped early: {recorder.error}")
            self._manifest = replace(
                manifest,
                complete=recorder.error is None,
                error=None if error is None else f"{type(error).__name__}: {error}",
                notes=notes,
            )
            try:
                writer.close(self._manifest)
            except TraceWriteError as failure:
                recorder._give_up(failure)
            if isinstance(writer, MemoryWriter):
                self._trace = writer.trace()


def capture(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    rank: int | None = None,
    choose: Chooser | None = None,
    writer: Callable[[Manifest], Writer] | None = None,
    failed: Callable[[], None] | None = None,
    **options: Any,
) -> Capture:
    """Watch everything that `model` does inside a ``with`` block, and keep it as a trace.

    `path` is the trace directory to write; without it the trace stays in memory, as ``capture(...).trace``. The other
    options are the fields of `Plan`. Outputs, gradients, weights and random state are bit-identical with and without.

    ::

        with twinscope.capture(model, "runs/torch", level="op", keep="tensors") as run:
            loss = loss_fn(model(x))
            loss.backward()
        print(run.trace.records[0])

    In a distributed run each process writes to ``path/rank<N>`` when `rank` is given.

    `choose(call_id, kind, type, path, builtin)` is asked at the beginning of every call that the plan wants; what it
    refuses is not recorded and costs next to nothing. `writer(manifest)` makes what records and tensors are handed to
    while the run goes on (`Writer`: a `TraceWriter`, or one of your own around it); then `path` says nothing.
    `failed()` is called when the model's own call raises, for who opens a capture without a block and must close it.
    """
    plan = Plan.parse(**options)
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool) or rank < 0):
        raise OptionError(f"rank={rank!r} is not a rank", hint="hand in the process's rank, 0 or more, or None")
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise OptionError(f"path={path!r} is not a path", hint='write capture(model, "runs/mine"), or leave it out')
    if path is not None and rank is not None:
        path = Path(path) / f"rank{rank}"
    return Capture(model, path, plan, rank=rank or 0, choose=choose, writer=writer, failed=failed)


__all__: Sequence[str] = ("Capture", "Plan", "Recorder", "TwinscopeWarning", "capture")
