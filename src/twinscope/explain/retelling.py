"""What a call was told, and how it might have been told otherwise: hypotheses for a replay to test.

First what the two sides were told differently, conventions translated and defaults filled in; then the usual suspects
of that kind of layer or op: the other frameworks' defaults, the other boolean, the epsilons that are in use.

    for way in ways(Called(candidate_adapter, candidate), Called(reference_adapter, reference)):
        if way.settings is not None:
            with candidate_adapter.altered(candidate.target, way.settings) as told:
                rho = again() if told else inf
        else:
            rho = again(call=way.call, target=way.call.target)
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..adapters.base import Adapter
from ..pairing.opnames import canonical_op, op_of_kind
from ..records import Kind, ModuleInfo
from ..replaying import KeptCall
from .neutral import SAME, difference, neutral
from .optable import ALIASES, EPSILONS, GIVEN, OPTIONS, SIGNATURES, Option, forms
from .spelling import shown, spelled, written
from .table import UNSET, Effect, Setting, Settings, family, flavour_of, settings_of

_EFFECTS = tuple(Effect)


@dataclass(frozen=True, slots=True)
class Called:
    """One side of a pair of calls."""

    adapter: Adapter
    call: KeptCall
    #: of the layer that was called; looked up where it is alive
    info: ModuleInfo | None = None

    @property
    def layer(self) -> ModuleInfo | None:
        """The layer that was called; None of an op."""
        if self.call.kind is not Kind.MODULE:
            return None
        if self.adapter.is_model(self.call.target):
            return self.adapter.modules(self.call.target)[0][0]
        return self.info


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which the candidate's call may be told otherwise."""

    #: what it would be told, and what it is: "approximate 'none' / 'tanh' (approximate='none'; approximate=True)"
    text: str
    #: whether the two sides were told differently; else it is a usual suspect
    differs: bool
    #: of a layer, what to hand to `Adapter.altered`
    settings: Mapping[str, Any] | None = None
    #: of an op, the call with other arguments, or with another `target` that has other ones in itself
    call: KeptCall | None = None


def ways(candidate: Called, reference: Called | None = None) -> Iterator[Way]:
    """How the candidate's call may be told otherwise, the likeliest first, each once.

    ::

        for way in ways(Called(paddle_adapter, call), Called(torch_adapter, other)):
            print(way.text)          # eps 1e-05 / 1e-06 (eps=1e-05; epsilon=1e-06)
    """
    layer = candidate.layer
    seen = set()
    for way in _of_op(candidate, reference) if layer is None else _of_layer(candidate, layer, reference):
        key = repr(way.settings) if way.call is None else repr((way.call.args, way.call.kwargs, way.text))
        if key not in seen:
            seen.add(key)
            yield way


def expected(side: Called | None) -> dict[str, Any]:
    """What one side was told, by neutral names: of a layer its settings, of an op its arguments and defaults."""
    if side is None:
        return {}
    layer = side.layer
    if layer is not None:
        return neutral(side.adapter.name, layer)
    return {name: told.value for name, told in told_to(side.adapter, side.call).items()}


# -- layers ------------------------------------------------------------------------------------------------------------

#: Settings for which a layer would need other weights, or that make another network of it.
_SHAPED = frozenset("groups num_layers bidirectional proj_size init channels_last num_embeddings output_size".split())
#: What is tried of a setting where nothing is known of the other side.
_SUSPECTS: Mapping[str, tuple[Any, ...]] = {
    "eps": EPSILONS,
    "approximate": ("none", "tanh"),
    "reduction": ("mean", "sum", "none"),
    "nonlinearity": ("tanh", "relu"),
    "activation": ("relu", "gelu"),
    "negative_slope": (0.01, 0.2, 0.1, 0.3),
    "statistics": ("of the batch in training", "of the batch", "those it keeps"),
    "padding_mode": ("zeros", "reflect", "replicate", "circular"),
    "ignore_index": (-100, 0, -1),
    "label_smoothing": (0.0, 0.1),
    "align_mode": (0, 1),
}
_MODES: Mapping[str, tuple[str, ...]] = {
    "upsample": ("nearest", "bilinear", "bicubic", "linear", "trilinear"),
    "pad": ("constant", "reflect", "replicate", "circular"),
    "dropout": ("upscale_in_train", "downscale_in_infer"),
}


def _of_layer(candidate: Called, layer: ModuleInfo, reference: Called | None) -> Iterator[Way]:
    kind = layer.kind or ""
    now, goal = neutral(candidate.adapter.name, layer), expected(reference)
    other = None if reference is None else reference.layer
    alike = family(kind) == family(other.kind or "") if other is not None else op_of_kind(kind) == _op(reference)
    settings = [s for s in settings_of(kind) if s.effect is not Effect.COSMETIC and s.name in now]
    settings.sort(key=lambda s: _EFFECTS.index(s.effect))
    flavour = flavour_of(candidate.adapter.name, layer)

    def spell(setting: Setting, value: Any) -> str:
        own = written(flavour, kind, setting, value, {**now, setting.name: value})
        is_ = spelled(flavour, kind, setting, now, layer)
        if reference is not None and other is not None and goal.get(setting.name) is value:
            own = spelled(flavour_of(reference.adapter.name, other), other.kind or "", setting, goal, other)
        return f"{setting.name} {shown(value)} / {shown(now[setting.name])} ({own}; {is_})"

    if alike:
        found = {s.name: d for s in settings if (d := difference(s, goal, now)) is not None}
        differing = {s.name: s for s in sorted(settings, key=lambda s: s.name in found and not found[s.name].sure)}
        differing = {name: setting for name, setting in differing.items() if name in found}
        texts = {name: spell(setting, goal[name]) for name, setting in differing.items()}
        yield from (Way(texts[name], True, {name: goal[name]}) for name in differing)
        if len(differing) > 1:
            yield Way("; ".join(texts.values()), True, {name: goal[name] for name in differing})
    if candidate.call.training is not None:
        mode = not candidate.call.training
        if reference is not None and reference.call.training is mode:
            word = "training" if mode else "evaluation"
            yield Way(f"mode: the reference is in {word} mode, the candidate is not", True, {"training": mode})
    for setting in settings:
        if setting.name in _SHAPED or (setting.matters is not None and not setting.matters(now)):
            continue
        for value in _values(kind, setting, now):
            yield Way(spell(setting, value), False, {setting.name: value})


def _op(side: Called | None) -> str | None:
    return None if side is None else canonical_op(side.call.type)


def _values(kind: str, setting: Setting, now: Settings) -> Iterator[Any]:
    """Other values that a setting often has."""
    value = now[setting.name]
    found: list[Any] = [default for default in setting.defaults.values() if default is not UNSET]
    found += _SUSPECTS.get(setting.name, ()) if setting.name != "mode" else _MODES.get(kind, ())
    if isinstance(value, bool):
        found.append(not value)
    elif setting.name in ("momentum", "p") and isinstance(value, float):
        found += [round(1.0 - value, 12), 0.0] if setting.name == "p" else [round(1.0 - value, 12)]
    elif setting.name == "dim" and isinstance(value, int):
        found += [-1, 1, -2, 0]
    if setting.compared == "padding" and isinstance(value, tuple):
        sizes = now.get("kernel_size")
        found = [((0, 0),) * len(value), ((1, 1),) * len(value), (SAME,) * len(value)]
        if isinstance(sizes, tuple) and len(sizes) == len(value):
            found.append(tuple((n // 2, n // 2) for n in sizes))
    elif isinstance(value, tuple) and setting.name in ("stride", "dilation", "output_padding"):
        found = [(n,) * len(value) for n in (1, 2, 0)[: 3 if setting.name == "output_padding" else 2]]
    for other in found:
        if isinstance(value, tuple) and not isinstance(other, tuple):
            continue
        if setting.name == "kernel_size" or (isinstance(other, str) and not isinstance(value, str)):
            continue
        if other != value or type(other) is not type(value):
            yield other


# -- ops ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToldOp:
    """One parameter of a function that was called."""

    value: Any  # neutral
    own: str  # the parameter's name
    raw: Any  # its value there
    option: Option
    #: where it stands: a position, a keyword, or None where the function has it in itself
    place: int | str | None


_EMPTY = inspect.Parameter.empty


def told_to(adapter: Adapter, call: KeptCall) -> dict[str, ToldOp]:
    """What a function was told, by neutral name: its arguments but for tensors, its defaults, what it has in itself."""
    op = canonical_op(call.type)
    known = {own: option for option in OPTIONS.get(op, ()) for own in (option.name, *option.own)}
    found: dict[str, ToldOp] = {}

    def add(own: str, value: Any, place: int | str | None) -> None:
        if not _is_plain(value):
            return
        option = known.get(own) or Option(ALIASES.get(own, own), form="axis" if own in ("axis", "dim") else "plain")
        if option.name in found:
            return
        read, _ = forms(adapter.name, op, own)
        found[option.name] = ToldOp(_neutral(option, read(value), call), own, value, option, place)

    parameters = _parameters(call)
    for i, value in enumerate(call.args):
        if i < len(parameters):
            add(parameters[i][0], value, i)
    for name, value in call.kwargs.items():
        add(name, value, name)
    for name, value in adapter.configuration(call.target).items():
        add(name, value, None)
    for i, (name, default) in enumerate(parameters):
        if default is not _EMPTY and i >= len(call.args) and name not in call.kwargs:
            add(name, default, name)
    for key in (call.type.rpartition(".")[2], op):
        for name, value in GIVEN.get((adapter.name, key), {}).items():
            found.setdefault(name, ToldOp(value, "", None, Option(name), ""))
    return found


def retold(adapter: Adapter, call: KeptCall, told: ToldOp, value: Any) -> KeptCall | None:
    """The call with one parameter of another neutral value; None where the function cannot be told it."""
    if told.place == "":
        return None
    _, write = forms(adapter.name, canonical_op(call.type), told.own)
    own = write(value)
    if told.option.form == "each" and isinstance(told.raw, (tuple, list)) and not isinstance(own, (tuple, list)):
        own = [own] * len(told.raw)
    if isinstance(told.raw, (tuple, list)) and isinstance(own, (tuple, list)):
        own = type(told.raw)(own)
    if told.place is None:
        target = adapter.configured(call.target, {told.own: own})
        return None if target is None else replace(call, target=target)
    if isinstance(told.place, int):
        args = tuple(own if i == told.place else v for i, v in enumerate(call.args))
        return replace(call, args=args)
    return replace(call, kwargs={**call.kwargs, told.place: own})


def _of_op(candidate: Called, reference: Called | None) -> Iterator[Way]:
    adapter, call = candidate.adapter, candidate.call
    op, now = canonical_op(call.type), told_to(adapter, call)
    goal = expected(reference)
    theirs = told_to(reference.adapter, reference.call) if reference is not None and reference.layer is None else {}
    other = None if reference is None else reference.layer
    alike = reference is not None and (op_of_kind(other.kind or "") == op if other else _op(reference) == op)
    order = {option.name: n for n, option in enumerate(OPTIONS.get(op, ()))}
    names = sorted(now, key=lambda name: order.get(name, len(order)))

    def way(name: str, value: Any, differs: bool) -> Way | None:
        told = now[name]
        changed = retold(adapter, call, told, value)
        if changed is None:
            return None
        write = forms(adapter.name, op, told.own)[1]
        own = f"{told.own}={shown(write(value))}"
        if differs and name in theirs:
            own = f"{theirs[name].own}={shown(theirs[name].raw)}" if theirs[name].own else own
        return Way(
            f"{name} {shown(value)} / {shown(told.value)} ({own}; {told.own}={shown(told.raw)})", differs, None, changed
        )

    differing: list[tuple[str, Any]] = []
    if alike:
        differing = [(n, goal[n]) for n in names if n in goal and not _same(now[n], goal[n])]
        made = [(n, found) for n, value in differing if (found := way(n, value, True)) is not None]
        yield from (found for _, found in made)
        if len(made) > 1:
            whole: KeptCall | None = call
            for name, value in differing:
                whole = None if whole is None else (retold(adapter, whole, now[name], value) or whole)
            if whole is not None:
                yield Way("; ".join(found.text for _, found in made), True, None, whole)
    for name in names:
        told = now[name]
        values = list(told.option.suspects)
        if isinstance(told.value, bool):
            values.append(not told.value)
        for value in values:
            if _same(told, value) or not _fits(told, value, call):
                continue
            found = way(name, value, False)
            if found is not None:
                yield found


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return len(value) <= 8 and all(_is_plain(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _ndim(call: KeptCall) -> int | None:
    return call.inputs[0].ndim + (canonical_op(call.type) == "stack") if call.inputs else None


def _neutral(option: Option, value: Any, call: KeptCall) -> Any:
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, tuple) and value and len(set(map(repr, value))) == 1 and option.form in ("each", "axis"):
        value = value[0]
    if option.form == "axis":
        ndim = _ndim(call)
        if ndim is not None:
            count = [v - ndim if isinstance(v, int) and v >= 0 else v for v in _listed(value)]
            value = tuple(sorted(count)) if isinstance(value, tuple) else count[0]
    return value


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)


def _same(told: ToldOp, value: Any) -> bool:
    a, b = told.value, value
    if told.option.form == "each":
        a, b = (v[0] if isinstance(v, tuple) and len(set(map(repr, v))) == 1 else v for v in (a, b))
        pairs = isinstance(b, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in b)
        if pairs and all(p[0] == p[1] for p in b):  # padding as layers have it
            b = b[0][0] if len({p[0] for p in b}) == 1 else tuple(p[0] for p in b)
        elif isinstance(b, tuple) and len(b) == 2 and b[0] == b[1] and isinstance(a, int):
            b = b[0]
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return abs(a - b) <= 1e-6 * max(abs(a), abs(b)) if a != b else True
    return bool(a == b)


def _fits(told: ToldOp, value: Any, call: KeptCall) -> bool:
    if told.option.form == "axis":
        ndim = _ndim(call)
        return isinstance(told.value, int) and ndim is not None and -ndim <= value
    return True


# -- signatures --------------------------------------------------------------------------------------------------------


def _parameters(call: KeptCall) -> list[tuple[str, Any]]:
    """The parameters of what was called, in order, with their defaults."""
    if call.type in SIGNATURES:
        found = _parsed(SIGNATURES[call.type])
        if call.type.startswith("torch.Tensor.") and len(call.inputs) and (not found or found[0][0] != "input"):
            return [("input", _EMPTY), *found]
        return found
    if len(call.args) and call.type.startswith("mindspore.ops.") and hasattr(call.target, "func"):
        return []  # a primitive: its arguments are its inputs
    return _signature(call.target, call.type)


def _signature(function: Any, name: str) -> list[tuple[str, Any]]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
        if not any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
            return [(p.name, p.default) for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    except (TypeError, ValueError):
        pass  # of a builtin: its documentation begins with it
    return _documented(getattr(function, "__doc__", None) or "", name)


@lru_cache(maxsize=2048)
def _documented(text: str, name: str) -> list[tuple[str, Any]]:
    last = name.rpartition(".")[2]
    found = re.search(rf"(?:^|[\s.]){re.escape(last)}\((.*?)\)\s*(?:->|\n|$)", text, re.S)
    if found is None:
        return []
    parameters = _parsed(found.group(1))
    if ".Tensor." in name and (not parameters or parameters[0][0] not in ("input", "self", "x")):
        parameters.insert(0, ("self", _EMPTY))
    return parameters


@lru_cache(maxsize=2048)
def _parsed_once(text: str) -> tuple[tuple[str, Any], ...]:
    try:
        arguments = ast.parse(f"def f({text}): pass").body[0].args  # type: ignore[attr-defined]
    except SyntaxError:
        return ()
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    defaults = [_EMPTY] * (len(names) - len(arguments.defaults)) + [_literal(d) for d in arguments.defaults]
    keywords = [(a.arg, _EMPTY if d is None else _literal(d)) for a, d in _keywords(arguments)]
    return (*zip(names, defaults, strict=True), *keywords)


def _keywords(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _EMPTY


def _parsed(text: str) -> list[tuple[str, Any]]:
    return list(_parsed_once(text))
