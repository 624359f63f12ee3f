"""Why a call differs: hypotheses, and the replays that settle them.

Where hypotheses come from, the likeliest first; each is tested by making the candidate's call again without it:

    told       what the two layers or ops were told differently, and whether one is training
    weights    the layer's own parameters against the reference's, in the layer's own layout
    formulas   functions that give the very values that either side has
    inputs     exchanged, transposed, negated
    shapes     what the error itself looks like: a factor, another order, one row

The first that makes the call right is the cause. What only fits is said to be suspected.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..adapters.base import Array
from ..errors import TwinscopeError
from ..hints import Hints
from ..match import Pair, canonical_op
from ..metrics import arranged
from ..pairing.opnames import FAMILIES
from ..records import Kind, ModuleInfo, Phase
from ..replaying import KeptCall
from ..running import unchanged
from ..weights.mapper import Draft, draft
from ..weights.model import Weights
from . import formulas
from .held import Held, close, damages, gradient_scaled
from .linting import LintFinding, LintReport
from .partners import SURE
from .retelling import Called, Way, ways
from .shapes import MEANING, Shape, residual_shapes
from .spelling import layer_name, shown
from .suspect import Cause, Suspect
from .table import Effect, family, flavour_of, settings_of

#: A rho below which a call is right, and how much nearer than before it must be.
_RIGHT, _NEARER = 3.0, 0.5
#: Most replays for one suspect, and most causes that are only suspected.
_MOST_REPLAYS, _MOST_SUSPECTED = 40, 3
#: A layer that holds more parameters than this is a network: its parts are suspects of their own.
_MOST_PARAMETERS = 64


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """What may be wrong, and what the call comes to without it."""

    text: str
    test: Callable[[], float] | None = None
    #: whether it is worth telling when it is not, or cannot be, proven
    likely: bool = False


def explain(suspect: Suspect, lint: LintReport | None = None, *, replays: int = _MOST_REPLAYS) -> tuple[Cause, ...]:
    """Why this call differs, the best first: one cause that was proven, or some that are suspected, or none.

    Parameters, buffers and attributes of the module are what they were when this returns.

    ::

        [cause, *_] = explain(suspect)
        cause.text, cause.proven, cause.rho      # "eps 1e-05 / 1e-06 (...)", True, 1.02
    """
    search = _Search(suspect, lint, replays)
    adapter, target = suspect.adapters[1], suspect.calls[1].target
    with ExitStack() as stack:
        if adapter.is_model(target):
            stack.enter_context(unchanged(adapter, target))
        return search.causes()


class _Search:
    """One suspect, and what has been tried of it."""

    def __init__(self, suspect: Suspect, lint: LintReport | None, replays: int) -> None:
        self.suspect, self.lint = suspect, lint
        self.left = replays
        self.mine, self.other = suspect.calls
        self.adapter, self.target = suspect.adapters[1], suspect.calls[1].target
        self.base = suspect.reference if suspect.truth is None else suspect.truth
        self.is_layer = self.other.kind is Kind.MODULE and self.adapter.is_model(self.target)
        self.backward = suspect.phase is Phase.BACKWARD
        self._shapes: tuple[Shape, ...] | None = None
        self._ways: list[Way] | None = None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        if self._shapes is None:
            inputs = dict(_unique(zip(self.other.input_names, self.suspect.given, strict=True)))
            noise = max(self.suspect.noise, 1e-300)
            self._shapes = residual_shapes(self.base, self.suspect.candidate, noise, inputs)
        return self._shapes

    def causes(self) -> tuple[Cause, ...]:
        sources = (
            (_gradients, _told, _weights, _arguments, _inputs, _usual, _shaped, _unknown)
            if self.backward
            else (_told, _weights, _formulas, _arguments, _epsilon, _inputs, _usual, _operation, _shaped, _static)
        )
        suspected: list[Cause] = []
        partly: list[_Hypothesis] = []
        for source in sources:
            for hypothesis in source(self):
                rho = None if hypothesis.test is None else self.tried(hypothesis.test)
                if rho is not None and rho <= _RIGHT and rho < _NEARER * self.suspect.rho:
                    return (Cause(hypothesis.text, True, rho),)
                if hypothesis.likely:
                    partly.append(hypothesis)
                    suspected.append(Cause(hypothesis.text, False, rho))
        distinct = {cause.text: cause for cause in suspected}
        return tuple(list(distinct.values())[:_MOST_SUSPECTED])

    def tried(self, test: Callable[[], float]) -> float | None:
        """What a replay comes to; None where there was none."""
        if self.left <= 0:
            return None
        self.left -= 1
        try:
            return test()
        except (TwinscopeError, RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError):
            return None  # what cannot be is no cause

    def again(self, **changed: Any) -> float:
        return self.suspect.again(**changed)

    def altered(self, settings: Mapping[str, Any]) -> float:
        with self.adapter.altered(self.target, settings) as told:
            return self.again() if told else math.inf

    @property
    def ways(self) -> list[Way]:
        """How the candidate's call may be told otherwise."""
        if self._ways is None:
            try:
                sides = zip(self.suspect.adapters, self.suspect.calls, self.suspect.modules, strict=True)
                first, second = (Called(adapter, call, info) for adapter, call, info in sides)
                self._ways = list(ways(second, first))
            except (TwinscopeError, ValueError, TypeError, AttributeError):
                self._ways = []  # a call that nobody knows of
        return self._ways

    def told(self, way: Way) -> float:
        if way.settings is not None:
            return self.altered(way.settings)
        return math.inf if way.call is None else self.again(call=way.call, target=way.call.target)

    def matters(self, way: Way) -> bool:
        """Whether a difference can be why, though it could not be tried: not one of training in evaluation."""
        if way.settings is None or self.suspect.modules[1] is None:
            return True
        effects = {x.name: x.effect for x in settings_of(self.suspect.modules[1].kind or "")}
        own = {effects.get(name, Effect.FORWARD) for name in way.settings}
        return (
            Effect.FORWARD in own
            or (Effect.TRAINING in own and self.other.training is True)
            or (Effect.BACKWARD in own and self.backward)
        )

    @property
    def infos(self) -> tuple[ModuleInfo, ModuleInfo] | None:
        a, b = self.suspect.modules
        return None if a is None or b is None else (a, b)


# -- what they were told -----------------------------------------------------------------------------------------------


def _told(search: _Search) -> Iterator[_Hypothesis]:
    """Modes, kinds and settings that differ."""
    yield from _mode(search)
    if search.is_layer and search.infos is not None:
        yield from _kinds(search)
    for way in search.ways:
        if way.differs and not way.text.startswith("mode:"):
            yield _Hypothesis(way.text, lambda w=way: search.told(w), likely=search.matters(way))  # type: ignore[misc]


def _mode(search: _Search) -> Iterator[_Hypothesis]:
    a, b = search.mine.training, search.other.training
    if a is None or b is None or a == b or not search.is_layer:
        return
    words = ["training" if on else "evaluation" for on in (a, b)]
    text = f"mode: the reference is in {words[0]} mode, the candidate in {words[1]} mode"
    yield _Hypothesis(text, lambda: search.altered({"training": a}), likely=True)
    # the call has moved its running statistics since
    moved = [w for w in _wrong_weights(search) if w.held.param.buffer]
    if moved:
        yield _Hypothesis(text, lambda: _assigned(search, moved, {"training": a}), likely=True)


def _kinds(search: _Search) -> Iterator[_Hypothesis]:
    """Two kinds of layer where one was meant."""
    assert search.infos is not None
    kinds = [info.kind for info in search.infos]
    if None in kinds or family(kinds[0] or "") == family(kinds[1] or ""):
        return
    names = [adapter.name for adapter in search.suspect.adapters]
    layers = [layer_name(f, flavour_of(f, info), info) for f, info in zip(names, search.infos, strict=True)]
    pair = next((p for p in formulas_told_apart(search)), None)
    text = f"kind of layer: {layers[0]} / {layers[1]}, activation {kinds[0]} / {kinds[1]}"
    yield _Hypothesis(text, None if pair is None else lambda: _exchanged(search, pair), likely=True)


def _usual(search: _Search) -> Iterator[_Hypothesis]:
    """What is told otherwise often enough, though nobody can see that it was here."""
    for way in search.ways:
        if not way.differs:
            yield _Hypothesis(way.text, lambda w=way: search.told(w))  # type: ignore[misc]


# -- weights -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weight:
    """One of the candidate's parameters that is not what the reference's says it should be."""

    tensor: Any
    held: Held
    text: str
    sure: bool


def _weights(search: _Search) -> Iterator[_Hypothesis]:
    """Parameters and buffers that are not the reference's."""
    if not search.is_layer:
        return
    wrong = _wrong_weights(search)
    if search.other.training:  # what the call has moved itself
        wrong = [w for w in wrong if not w.held.param.buffer]
    if wrong:
        yield from (_Hypothesis(w.text, lambda w=w: _assigned(search, [w]), likely=w.sure) for w in wrong[:6])  # type: ignore[misc]
        if len(wrong) > 1:
            text = "; ".join(dict.fromkeys(w.text for w in wrong[:4]))
            yield _Hypothesis(text, lambda: _assigned(search, wrong))
    yield from _lacking(search)


def _drafted(search: _Search) -> Draft | None:
    """Which parameters of the two layers are the same; None where they are networks of their own."""
    reference, candidate = search.mine.target, search.target
    if not search.suspect.adapters[0].is_model(reference):
        return None
    sides = Weights.of(reference), Weights.of(candidate)
    if any(sum(1 for _ in side.places()) > _MOST_PARAMETERS for side in sides):
        return None
    return draft(sides[0], sides[1], Hints.parse(None, None))


def _wrong_weights(search: _Search) -> list[_Weight]:
    drafted = _drafted(search)
    if drafted is None:
        return []
    entries = [e for e in drafted.entries() if e.reference and e.candidate]
    places = {path: (info, param) for path, info, param in drafted.b.places()}
    objects = {info.path: module for info, module in search.adapter.modules(search.target)}
    expected: dict[str, tuple[Array, bool]] = {}
    with suppress(TwinscopeError):  # of what cannot be carried nothing is known
        for entry, path, array in drafted.map().arrays(drafted.a.reader(), entries):
            expected[path] = (np.asarray(array), entry.confidence >= SURE)
    found: list[tuple[Held, Any, bool]] = []
    for path, (array, sure) in expected.items():
        info, param = places[path]
        tensor = search.adapter.state(objects[info.path])[param.name]
        actual = np.array(search.adapter.to_numpy(tensor), copy=True)
        if actual.shape == array.shape and "float" in actual.dtype.name:
            found.append((Held(path, param, array, actual), tensor, sure))
    texts = damages([one for one, _, _ in found])
    return [
        _Weight(tensor, one, text, sure)
        for (one, tensor, sure), text in zip(found, texts, strict=True)
        if text is not None
    ]


def _assigned(search: _Search, weights: Sequence[_Weight], settings: Mapping[str, Any] | None = None) -> float:
    try:
        for weight in weights:
            search.adapter.assign(weight.tensor, weight.held.expected.astype(weight.held.actual.dtype))
        return search.again() if settings is None else search.altered(settings)
    finally:
        for weight in weights:
            search.adapter.assign(weight.tensor, weight.held.actual)


def _lacking(search: _Search) -> Iterator[_Hypothesis]:
    """Parameters that only the reference has: a bias that was dropped, a norm without weights."""
    drafted = _drafted(search)
    if drafted is None:
        return
    entries, read = drafted.entries(), drafted.a.reader()
    known = {path: param for path, _, param in drafted.a.places()}
    alone = [p for e in entries if e.reference and not e.candidate for p in e.reference]
    paired = {p for e in entries for p in e.reference}
    alone += [p for p in known if p not in paired]
    own = {}
    for path in dict.fromkeys(alone):
        param = known[path]
        if not param.buffer and param.role in ("weight", "bias") and len(param.neutral_shape()) == 1:
            own[param.role] = np.asarray(read(path)).astype(np.float64).ravel()
    if not own or search.backward:
        return
    shape = search.suspect.reference.shape
    size = next(iter(own.values())).size
    names = " and ".join(own)
    text = f"no {names}: the candidate's layer has none ({'affine' if 'weight' in own else 'bias'} True / False)"
    axes = [i for i in dict.fromkeys((len(shape) - 1, 1)) if i < len(shape) and shape[i] == size]
    if not axes:
        yield _Hypothesis(text, likely=True)
    for axis in axes:

        def change(y: Array, axis: int = axis) -> Array:
            if y.ndim != len(shape) or y.shape[axis] != size:
                return y
            lay = [size if i == axis else 1 for i in range(y.ndim)]
            changed = y * own["weight"].reshape(lay) if "weight" in own else y
            changed = changed + own["bias"].reshape(lay) if "bias" in own else changed
            return np.asarray(changed).astype(y.dtype)

        yield _Hypothesis(text, lambda c=change: search.again(change=c), likely=True)  # type: ignore[misc]


# -- arguments of ops --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Argument:
    """A number, word or flag among the arguments of a call."""

    place: int | str  # a position, or a keyword
    within: tuple[int, ...]  # of a tuple or list
    name: str
    value: Any


_SCALES = ("mul", "multiply", "div", "divide", "scale", "true_divide", "__mul__", "__truediv__", "__rmul__", "bmm")
_SUMS = ("add", "sub", "__add__", "__sub__", "__radd__", "__rsub__", "subtract")
_ALONG = ("softmax", "mean", "sum", "std", "var", "median", "sort", "cat", "concat", "norm", "max", "min", "stack")


def _arguments(search: _Search) -> Iterator[_Hypothesis]:
    """Numbers, words and flags among the arguments: the reference's in the place of the candidate's."""
    if search.other.kind is not Kind.OP:
        return
    first, second = (list(_given(call)) for call in search.suspect.calls)
    yield from _indices(search)
    yield from _all_arguments(search, first, second)
    tried = 0
    ranked = sorted(
        ((a, b) for a in first for b in second if _comparable(a.value, b.value)),
        key=lambda p: (p[0].name != p[1].name, p[0].place != p[1].place),
    )
    for a, b in ranked:
        if a.value == b.value and type(a.value) is type(b.value):
            continue
        if any(o.name == a.name and o.value == a.value for o in second if o is not b) and a.name != b.name:
            continue  # the candidate has that elsewhere
        tried += 1
        if tried > 12:
            return
        call = _with(search.other, b, a.value)
        text = f"{_word(search.other.type, a, b)} {shown(a.value)} / {shown(b.value)}"
        likely = a.name == b.name or (len(first) == len(second) == 1)
        yield _Hypothesis(text, lambda c=call: search.again(call=c), likely=likely)  # type: ignore[misc]


def _all_arguments(search: _Search, first: Sequence[_Argument], second: Sequence[_Argument]) -> Iterator[_Hypothesis]:
    """A shape or an order of axes: all of its numbers at once."""
    if len(first) != len(second) or len(first) < 2:
        return
    pairs = list(zip(first, second, strict=True))
    if sum(a.value != b.value for a, b in pairs) < 2 or not all(_comparable(a.value, b.value) for a, b in pairs):
        return
    call = search.other
    for a, b in pairs:
        call = _with(call, b, a.value)
    values = [tuple(x.value for x in side) for side in (first, second)]
    op = search.other.type.rpartition(".")[2].strip("_")
    text = f"{op} {values[0]} / {values[1]}: another order, a permutation (reshaped or transposed otherwise)"
    yield _Hypothesis(text, lambda: search.again(call=call))


def _indices(search: _Search) -> Iterator[_Hypothesis]:
    """What of a tensor is taken: halves, or every second element."""
    own = [[v for v in (*call.args, *call.kwargs.values()) if _has_slice(v)] for call in search.suspect.calls]
    if len(own[0]) != 1 or len(own[1]) != 1 or repr(own[0]) == repr(own[1]):
        return
    theirs, mine = own[0][0], own[1][0]
    args = tuple(theirs if v is mine else v for v in search.other.args)
    kwargs = {k: theirs if v is mine else v for k, v in search.other.kwargs.items()}
    steps = [any(s.step not in (None, 1) for s in _slices(v)) for v in (theirs, mine)]
    words = (
        "interleaved / in halves" if steps[0] > steps[1] else "in halves / interleaved" if steps[1] > steps[0] else ""
    )
    text = f"index {_index_text(theirs)} / {_index_text(mine)}" + (
        f": {words}, another order (as in a rotary embedding)" if words else ""
    )
    call = replace(search.other, args=args, kwargs=kwargs)
    yield _Hypothesis(text, lambda: search.again(call=call))


def _slices(value: Any) -> list[slice]:
    return [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(v, slice)]


def _has_slice(value: Any) -> bool:
    return bool(_slices(value))


def _index_text(value: Any) -> str:
    def one(v: Any) -> str:
        if isinstance(v, slice):
            parts = ["" if x is None else str(x) for x in (v.start, v.stop, v.step)]
            return ":".join(parts if parts[2] else parts[:2])
        return "..." if v is Ellipsis else str(v)

    return f"[{', '.join(one(v) for v in (value if isinstance(value, (tuple, list)) else (value,)))}]"


def _given(call: KeptCall) -> Iterator[_Argument]:
    names: list[str] = []
    with suppress(TypeError, ValueError):  # of a builtin
        names = list(inspect.signature(call.target).parameters)
    for i, value in enumerate(call.args):
        yield from _plain_values(i, names[i] if i < len(names) else str(i), value)
    for key, value in call.kwargs.items():
        yield from _plain_values(key, key, value)


def _plain_values(place: int | str, name: str, value: Any) -> Iterator[_Argument]:
    if isinstance(value, (bool, int, float, str)):
        yield _Argument(place, (), name, value)
    elif isinstance(value, (tuple, list)) and len(value) <= 8:
        for i, part in enumerate(value):
            if isinstance(part, (bool, int, float)):
                yield _Argument(place, (i,), name, part)


def _comparable(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool)
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str)
    return True


def _with(call: KeptCall, argument: _Argument, value: Any) -> KeptCall:
    """The call with one argument changed."""

    def change(own: Any) -> Any:
        if not argument.within:
            return value
        parts = [value if i == argument.within[0] else part for i, part in enumerate(own)]
        return tuple(parts) if isinstance(own, tuple) else parts

    if isinstance(argument.place, int):
        args = tuple(change(v) if i == argument.place else v for i, v in enumerate(call.args))
        return replace(call, args=args)
    return replace(call, kwargs={k: change(v) if k == argument.place else v for k, v in call.kwargs.items()})


def _word(type_: str, a: _Argument, b: _Argument) -> str:
    """What an argument is called; by its op and value where nobody says."""
    op = type_.rpartition(".")[2].strip("_")
    names = [n for n in dict.fromkeys((a.name, b.name)) if not n.isdigit() and n not in ("x", "y", "other", "input")]
    said = " / ".join(names)
    number = isinstance(a.value, (int, float)) and not isinstance(a.value, bool)
    if number and any(op == s.strip("_") for s in _SUMS) and 0 < abs(a.value) < 0.01:
        return f"{said} epsilon (eps)".strip()
    if number and any(op == s.strip("_") for s in _SCALES):
        return f"{said} factor (scale)".strip() if "scale" not in said else f"{said} factor"
    if isinstance(a.value, int) and number and any(s in op for s in _ALONG):
        return f"{said} (axis, dim)".strip() if not ({"axis", "dim"} & set(names)) else said
    if op == "topk":
        return "k"
    return said or f"argument {a.name}"


# -- values ------------------------------------------------------------------------------------------------------------

_Pair = tuple[Array, formulas.Formula, formulas.Formula]


def formulas_told_apart(search: _Search) -> Iterator[_Pair]:
    """(input, the reference's formula, the candidate's) where the values show which function each side is."""
    s = search.suspect
    if s.tensor not in ("out", "out.0"):
        return
    apart = float(np.sqrt(np.mean(_difference(s.reference, s.candidate) ** 2))) if s.reference.size else 0.0
    for x, param in zip(s.given, search.other.params, strict=True):
        if param is not None or x.dtype.kind != "f" or x.size < 4:
            continue
        slack = max(6 * s.noise, 1e-3 * apart if math.isfinite(apart) else 0.0)
        mine = formulas.matching(x, search.base, slack)
        theirs = formulas.matching(x, s.candidate, slack) if mine else []
        found = formulas.told_apart(mine, theirs)
        if found is not None:
            yield x, *found


def _formulas(search: _Search) -> Iterator[_Hypothesis]:
    for pair in formulas_told_apart(search):
        text = formulas.difference(pair[1], pair[2])
        if {pair[1].family, pair[2].family} & {"identity"}:
            text += ": an operation is missing"
        yield _Hypothesis(text, lambda pair=pair: _exchanged(search, pair), likely=True)  # type: ignore[misc]


def _exchanged(search: _Search, pair: _Pair) -> float:
    """The call, its formula's value exchanged for the other's: right only if it is that formula to the last bit."""
    x, a, b = pair
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        before, after = np.asarray(b.function(wide)), np.asarray(a.function(wide))

    def change(y: Array) -> Array:
        if y.size != before.size:
            return y
        with np.errstate(all="ignore"):
            moved = np.where(np.isfinite(before), y.reshape(before.shape) - before, 0.0)
            made = np.where(np.isfinite(after), moved.reshape(after.shape) + after, after)
        return made.reshape(y.shape).astype(y.dtype)

    return search.again(change=change)


_EPSILONS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-7, 1e-8, 1e-2, 1e-4, 1e-10, 0.0)


def _epsilon(search: _Search) -> Iterator[_Hypothesis]:
    """An epsilon in a norm that nobody can read: rows of little variance are scaled as two known ones would do it."""
    s = search.suspect
    row = next((shape for shape in search.shapes if shape.name == "row scale"), None)
    if row is None or search.backward:
        return
    for x in s.given:
        if x.shape != s.reference.shape or x.dtype.kind != "f":
            continue
        wide = x.astype(np.float64)
        levels = {"variance": wide.var(-1, keepdims=True), "mean square": np.mean(wide**2, -1, keepdims=True)}
        bias = _own_bias(search, s.reference.shape[-1])
        moved = search.base.astype(np.float64) - bias
        d = _difference(s.reference, s.candidate)
        scale = np.sum(d * moved, -1, keepdims=True) / np.maximum(np.sum(moved * moved, -1, keepdims=True), 1e-300)
        best: tuple[float, float, float, Array] | None = None
        for level in levels.values():
            for a, b in itertools.permutations(_EPSILONS, 2):
                with np.errstate(all="ignore"):
                    factor = np.sqrt((level + a) / (level + b))
                error = float(np.sqrt(np.mean(((factor - 1.0 - scale) * moved) ** 2)))
                if math.isfinite(error) and (best is None or error < best[0]):
                    best = error, a, b, factor
        if best is None:
            continue
        _, a, b, factor = best
        text = f"eps {a:g} / {b:g} (epsilon): every row is scaled as these would"

        def change(y: Array, factor: Array = factor, bias: Array = bias) -> Array:
            return y if y.shape != s.reference.shape else ((y - bias) / factor + bias).astype(y.dtype)

        yield _Hypothesis(text, lambda c=change: search.again(change=c))  # type: ignore[misc]


def _own_bias(search: _Search, size: int) -> Array:
    if not search.is_layer:
        return np.zeros(size)
    for info, module in search.adapter.modules(search.target):
        for param in info.params:
            if param.role == "bias" and param.meta.shape == (size,):
                found = search.adapter.to_numpy(search.adapter.state(module)[param.name])
                return np.asarray(found, dtype=np.float64)
    return np.zeros(size)


# -- inputs ------------------------------------------------------------------------------------------------------------


def _inputs(search: _Search) -> Iterator[_Hypothesis]:
    """What was given, in other places or otherwise turned."""
    s = search.suspect
    given, names = list(s.given), search.other.input_names
    floats = [i for i, x in enumerate(given) if x.dtype.kind == "f"]
    for i, j in itertools.combinations(floats, 2):
        if given[i].shape != given[j].shape or given[i] is given[j] or np.array_equal(given[i], given[j]):
            continue
        changed = list(given)
        changed[i], changed[j] = given[j], given[i]
        what = " and ".join(_input_name(search, k) for k in (i, j))
        yield _Hypothesis(f"{what} are swapped", lambda c=changed: search.again(given=c))  # type: ignore[misc]
    yield from _assignments(search, floats)
    for i in floats:
        x = given[i]
        own = _input_name(search, i)
        if x.ndim >= 2 and x.shape[-1] == x.shape[-2] > 1:
            changed = [np.ascontiguousarray(x.swapaxes(-1, -2)) if k == i else v for k, v in enumerate(given)]
            yield _Hypothesis(f"{own} is transposed", lambda c=changed: search.again(given=c))  # type: ignore[misc]
    if search.other.kind is Kind.OP:
        for i in floats:
            if search.other.params[i] is None:
                continue
            for j, path in enumerate(search.mine.params):
                if path is None:
                    continue
                laid = arranged(given[i], search.mine.inputs[j])
                if laid is None or close(laid[0], given[i]) or close(laid[0].swapaxes(0, -1), given[i]):
                    continue
                noise = 2.0**-25 * float(np.sqrt(np.mean(laid[0].astype(np.float64) ** 2)))
                found = residual_shapes(laid[0], given[i], max(noise, 1e-30))
                how = found[0].text.replace("the candidate", "it") if found else "another weight"
                changed = [laid[0].astype(x.dtype) if k == i else x for k, x in enumerate(given)]
                text = f"weight {search.other.params[i]}: {how}"
                yield _Hypothesis(text, lambda c=changed: search.again(given=c))  # type: ignore[misc]
    for i in floats[:2]:
        changed = [-x if k == i else x for k, x in enumerate(given)]
        text = f"{names[i]} has the other sign"
        yield _Hypothesis(text, lambda c=changed: search.again(given=c))  # type: ignore[misc]


def _assignments(search: _Search, floats: Sequence[int]) -> Iterator[_Hypothesis]:
    """The reference's two tensors in the candidate's two places, either way round, as they are or transposed: where
    extents are equal, nobody can tell from the shapes alone how they were meant."""
    theirs = [x for x in search.mine.inputs if x.dtype.kind == "f" and x.ndim >= 2]
    if len(floats) != 2 or len(theirs) != 2 or search.other.kind is not Kind.OP:
        return
    given = list(search.suspect.given)
    for order in ((0, 1), (1, 0)):
        ways: list[list[Array]] = [[], []]
        for n in (0, 1):
            x = theirs[order[n]]
            ways[n] = [y for y in (x, x.swapaxes(-1, -2)) if y.shape == search.other.inputs[floats[n]].shape]
        for pair in itertools.product(*ways):
            changed = list(given)
            for n in (0, 1):
                changed[floats[n]] = np.ascontiguousarray(pair[n]).astype(given[floats[n]].dtype)
            held = [bool(np.array_equal(np.sort(changed[i], None), np.sort(given[i], None))) for i in floats]
            names = " and ".join(_input_name(search, k) for k in floats)
            text = f"{names} are in another order of axes (transposed)" if all(held) else f"{names} are swapped"
            yield _Hypothesis(text, lambda c=changed: search.again(given=c))  # type: ignore[misc]


def _input_name(search: _Search, i: int) -> str:
    param = search.other.params[i]
    name = search.other.input_names[i]
    return name if param is None else f"the weight {param} ({name})"


def _operation(search: _Search) -> Iterator[_Hypothesis]:
    """Two ops of other names."""
    if search.mine.kind is not Kind.OP or search.other.kind is not Kind.OP or not search.mine.inputs:
        return
    a, b = (canonical_op(call.type) for call in search.suspect.calls)
    if a != b and not (FAMILIES.get(a) == FAMILIES.get(b) == "layout"):
        yield _Hypothesis(f"operation {a} / {b}: another function", likely=True)


# -- gradients ---------------------------------------------------------------------------------------------------------


def _gradients(search: _Search) -> Iterator[_Hypothesis]:
    s = search.suspect
    a, b = search.base.astype(np.float64), s.candidate.astype(np.float64)
    own = search.suspect.modules[1]
    name = s.tensor.rpartition(".")[2]
    params = [p for p in (own.params if own is not None else ()) if name in (p.name, p.role)]
    if any(not p.trainable and not p.buffer for p in params):
        text = f"{s.tensor} is frozen in the candidate (trainable True / False): it gets no gradient"
        yield _Hypothesis(text, likely=True)
        return
    if a.shape != b.shape:
        return
    if not b.any() and a.any():
        text = f"no gradient reaches {s.tensor}: detached (detach, stop_gradient)"
        yield _Hypothesis(text, likely=True)
        return
    scale = next((x for x in search.shapes if x.name == "scale" and x.complete), None)
    if scale is not None:
        text = gradient_scaled(scale).text
        test = None if scale.undo is None else lambda: search.again(change=scale.undo)
        yield _Hypothesis(text, test if "known" in scale.parameters else None, likely=True)


def _unknown(search: _Search) -> Iterator[_Hypothesis]:
    shapes = f"; {search.shapes[0].text}" if search.shapes else ""
    text = (
        "the outputs agree and the gradient does not: one path of it is detached (detach, stop_gradient), or the "
        f"backward pass is another{shapes}"
    )
    yield _Hypothesis(text, likely=True)


# -- the shape of the error --------------------------------------------------------------------------------------------


def _shaped(search: _Search) -> Iterator[_Hypothesis]:
    """The error's own shape; undone, where that takes no more than a number that is known or an order."""
    place = f"{search.suspect.tensor}: " if search.backward else ""
    for shape in search.shapes[:3]:
        if search.backward and shape.name == "scale":
            continue
        meaning = MEANING.get(shape.name)
        text = place + shape.text + (f"; {meaning}" if meaning else "")
        if shape.name == "scale" and "known" not in shape.parameters and "scale" not in text:
            text += ": a scale"
        elif shape.name == "scale":
            text += ": a scale that is missing or applied twice"
        known = shape.free == 0 or "known" in shape.parameters
        # a factor fitted to very many numbers that leaves none of them off is no accident either
        known = known or (shape.name in ("scale", "offset", "sign") and search.suspect.reference.size >= 64)
        test = None
        if shape.undo is not None and shape.complete and known:
            test = lambda undo=shape.undo: search.again(change=undo)  # noqa: E731
        yield _Hypothesis(text, test, likely=True)


# -- without a replay --------------------------------------------------------------------------------------------------


def _static(search: _Search) -> Iterator[_Hypothesis]:
    """What lint says of this layer, where nothing else was found."""
    if search.lint is None or search.suspect.modules[1] is None:
        return
    for finding in search.lint.at(search.suspect.modules[1].path):
        if finding.effect is Effect.FORWARD or (search.backward and finding.effect is Effect.BACKWARD):
            yield _Hypothesis(_linted(finding), likely=True)


def _linted(finding: LintFinding) -> str:
    told = finding.reference, finding.candidate
    if finding.attribute == "kind":
        return f"kind of layer: {told[0].layer} / {told[1].layer}"
    values = " / ".join(shown(t.value) for t in told)
    return f"{finding.attribute} {values} ({told[0].spelling}; {told[1].spelling})"


def explain_records(pair: Pair, lint: LintReport | None = None) -> tuple[Cause, ...]:
    """Why two calls may differ, from their records and `lint` alone: all of it is only suspected.

    For calls that cannot be made again: drawn at random, of another process, or judged backward as a whole.
    """
    a, b = pair.reference, pair.candidate
    found = []
    if a.training is not None and b.training is not None and a.training != b.training:
        words = ["training" if on else "evaluation" for on in (a.training, b.training)]
        found.append(f"mode: the reference is in {words[0]} mode, the candidate in {words[1]} mode")
    if lint is not None:
        effects = (Effect.FORWARD, *([Effect.TRAINING] if b.training else ()), Effect.BACKWARD)
        found += [_linted(f) for f in lint.at(b.path) if f.effect in effects]
    if b.kind is Kind.OP:
        told = [{k: v for k, v in r.args.items() if isinstance(v, (bool, int, float, str))} for r in (a, b)]
        for name in [k for k in told[0] if k in told[1]] or list(zip(told[0], told[1], strict=False))[:2]:
            own, other = name if isinstance(name, tuple) else (name, name)
            x, y = told[0][own], told[1][other]
            if x != y and _comparable(x, y):
                first, second = (_Argument(0, (), n, v) for n, v in ((own, x), (other, y)))
                found.append(f"{_word(b.type, first, second)} {shown(x)} / {shown(y)}")
    return tuple(Cause(text, False) for text in dict.fromkeys(found))


def explain_dropout(given: Array, reference: Array, candidate: Array) -> tuple[Cause, ...]:
    """Why two draws of one dropout differ beyond chance: another share is dropped, or what is left is scaled otherwise.

    >>> x, r = np.ones(4096), np.random.default_rng(0)
    >>> a, b = (np.where(r.random(4096) < p, 0, x / (1 - p)) for p in (0.1, 0.9))
    >>> print(explain_dropout(x, a, b)[0])
    dropout p 0.1 / 0.9 (keep_prob 0.9 / 0.1): 10.4 % and 89.9 % of the elements are dropped
    >>> explain_dropout(x, a, a[::-1])
    ()
    """
    kept = given != 0
    if given.shape != reference.shape or given.shape != candidate.shape or kept.sum() < 16:
        return ()
    n = int(kept.sum())
    shares = [float((x[kept] == 0).mean()) for x in (reference, candidate)]
    spread = math.sqrt(max(sum(p * (1 - p) for p in shares), 1.0 / n) / n)
    if abs(shares[0] - shares[1]) > 5 * spread:
        near = [
            min(
                (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0),
                key=lambda p: abs(p - s),
            )
            for s in shares
        ]
        keep = " / ".join(f"{1 - p:g}" for p in near)
        text = (
            f"dropout p {near[0]:g} / {near[1]:g} (keep_prob {keep}): {100 * shares[0]:.3g} % and "
            f"{100 * shares[1]:.3g} % of the elements are dropped"
        )
        return (Cause(text, True),)
    levels = []
    for x in (reference, candidate):
        own = kept & (x != 0)
        levels.append(float(np.median(x[own].astype(np.float64) / given[own])) if own.any() else 1.0)
    if abs(levels[0] - levels[1]) > 1e-3 * abs(levels[0]):
        text = (
            f"dropout scales what is left by {levels[0]:.4g} / {levels[1]:.4g}: upscale_in_train or downscale_in_infer"
        )
        return (Cause(text, True),)
    return ()


# -- small things ------------------------------------------------------------------------------------------------------


def _unique(named: Any) -> Iterator[tuple[str, Array]]:
    """Each tensor once, under its first name."""
    seen: list[Array] = []
    for name, array in named:
        if not any(array is s for s in seen):
            seen.append(array)
            yield name, array


def _difference(a: Array, b: Array) -> Array:
    if a.shape != b.shape:
        return np.full(1, np.inf)
    x, y = a.astype(np.float64), b.astype(np.float64)
    fine = np.isfinite(x) & np.isfinite(y)
    return np.where(fine, np.where(fine, y, 0.0) - np.where(fine, x, 0.0), 0.0)


def _rms(a: Array, b: Array) -> float:
    return float(np.sqrt(np.mean(_difference(a, b) ** 2)))
