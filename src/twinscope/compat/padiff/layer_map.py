"""LayerMap: which layers belong together and which to leave out; and functions that users register for such pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import twinscope
from twinscope import TwinscopeError, WeightMap
from twinscope.compat.console import say

from . import special
from .naming import framework_of
from .trees import full_path

PREFIX = "[AutoDiff] "

#: Kinds of layers that frameworks build in different ways, or whose running statistics have other names.
_BUILT_OTHERWISE = ("batch_norm", "multihead_attention", "lstm", "gru", "rnn", "transformer")
_CONTAINERS = ("sequential", "module_list", "module_dict")


def add_special_init(paddle_name: str, torch_name: str, func: Callable[[Any, Any], Any]) -> None:
    """Have ``func(layer, module)`` carry the weights wherever a `LayerMap` pairs layers of these two classes."""
    for what, name in (("paddle_name", paddle_name), ("torch_name", torch_name)):
        if not isinstance(name, str) or not name:
            raise TwinscopeError(f"{what}={name!r} is not the name of a class", hint="write 'BatchNorm2D'")
    special.add(paddle_name, torch_name, func)


def special_init(layer: Any, module: Any) -> Callable[[Any, Any], Any] | None:
    """The function that was added for the classes of these two."""
    return special.find(type(layer).__name__, type(module).__name__)


class LayerMap:
    """Which layers of the two models belong together, and which to leave out.

    ::

        layer_map = LayerMap()
        layer_map.map = {layer.attention: module.attn}      # either way round
        layer_map.ignore(layer.dropout)                     # not what is in it
        layer_map.ignore_recursively([layer.aux])           # with all that is in it
        layer_map.ignore_class(layer, paddle.nn.Sequential)
        layer_map.auto(layer, module)                       # finds pairs, and prints them
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        self._ignored: list[Any] = []
        self._ignored_with_all: list[Any] = []

    @property
    def map(self) -> dict[Any, Any]:
        """The pairs, as they were given."""
        return dict(self._pairs)

    @map.setter
    def map(self, given: Mapping[Any, Any]) -> None:
        if not isinstance(given, Mapping):
            raise TwinscopeError(f"LayerMap.map={given!r} is no dict", hint="write {layer: module}")
        for pair in given.items():
            for part in pair:
                _check(part, "LayerMap.map")
        self._pairs += [p for p in given.items() if not any(p[0] is a and p[1] is b for a, b in self._pairs)]

    def ignore(self, given: Any) -> None:
        """Leave out a layer, or several: what it holds and what it returns, but not the layers within it."""
        self._ignored += _layers(given, "LayerMap.ignore")

    def ignore_recursively(self, given: Any) -> None:
        """Leave out a layer, or several, with all that is within."""
        self._ignored_with_all += _layers(given, "LayerMap.ignore_recursively")

    def ignore_class(self, layer: Any, ign_cls: Any = None) -> None:
        """Leave out every layer of these classes within `layer`; without a class, what only holds others."""
        _check(layer, "LayerMap.ignore_class")
        if ign_cls is not None and not isinstance(ign_cls, (type, tuple)):
            raise TwinscopeError(f"ign_cls={ign_cls!r} is no class", hint="write ignore_class(layer, Dropout)")
        for info, module in twinscope.modules_of(layer):
            if isinstance(module, ign_cls) if ign_cls is not None else info.kind in _CONTAINERS:
                self._ignored.append(module)

    def auto(self, layer: Any, module: Any) -> None:
        """Find the layers that the two frameworks build in different ways, pair them, and print what was found."""
        say("auto update LayerMap start searching...\n", PREFIX)
        mine = _special(layer, special.registered_as("base"), self._left_out())
        theirs = _special(module, special.registered_as("raw"), self._left_out())
        owners = _owners(mine, theirs, layer, module)
        rest = [t for t in theirs if t not in owners.values()]
        found = []
        for own in mine:
            other = owners.get(own) or next((t for t in rest if _alike(mine[own], theirs[t])), None)
            if other is None:
                what, path = type(mine[own][1]).__name__, full_path(type(layer).__name__, own)
                say(f"\nError: `{what}` at `{path}` has no counterpart in {type(module).__name__}.")
                say("auto update LayerMap FAILED!!!\n", PREFIX)
                return
            if other in rest:
                rest.remove(other)
            found.append((own, other))
        if rest:
            what, path = type(theirs[rest[0]][1]).__name__, full_path(type(module).__name__, rest[0])
            say(f"\nError: `{what}` at `{path}` has no counterpart in {type(layer).__name__}.")
            say("auto update LayerMap FAILED!!!\n", PREFIX)
            return
        for own, other in found:
            places = [
                f"{framework_of(part)} `{type(part).__name__}` at `{full_path(type(model).__name__, path)}`"
                for part, model, path in ((mine[own][1], layer, own), (theirs[other][1], module, other))
            ]
            say(f"++++    {places[0]} <==> {places[1]}.")
        say()
        say("auto update LayerMap SUCCESS!!!\n", PREFIX)
        self.map = {mine[own][1]: theirs[other][1] for own, other in found}

    def _left_out(self) -> list[Any]:
        return [*self._ignored, *self._ignored_with_all]

    def resolved(self, layer: Any, module: Any) -> Resolved:
        """What all of this says of these two models, by path."""
        sides = [{id(m): info for info, m in twinscope.modules_of(model)} for model in (layer, module)]
        pairs: list[Paired] = []
        for a, b in self._pairs:
            if id(a) in sides[1] and id(b) in sides[0]:
                a, b = b, a
            if id(a) not in sides[0] or id(b) not in sides[1]:
                raise TwinscopeError(
                    f"LayerMap.map pairs a {type(a).__name__} with a {type(b).__name__}, which are not a layer of "
                    f"{type(layer).__name__} and one of {type(module).__name__}",
                    hint="pair a layer within one model with a layer within the other",
                )
            pairs.append(Paired(sides[0][id(a)], sides[1][id(b)], a, b))
        one = [[i[id(m)].path for m in self._ignored if id(m) in i] for i in sides]
        every = [[i[id(m)].path for m in self._ignored_with_all if id(m) in i] for i in sides]
        return Resolved(tuple(pairs), (tuple(one[0]), tuple(one[1])), (tuple(every[0]), tuple(every[1])))


@dataclass(frozen=True, slots=True)
class Paired:
    """Two layers that a `LayerMap` pairs: what is known of them, and themselves. The first is the first model's."""

    first: Any
    second: Any
    layer: Any
    module: Any

    @property
    def alike(self) -> bool:
        """Whether both are the frameworks' own, of one kind: then Twinscope knows how each is built."""
        kinds = [info.kind and info.kind.rstrip("123d") for info in (self.first, self.second)]
        return bool(self.first.builtin and self.second.builtin and kinds[0] and kinds[0] == kinds[1])


@dataclass(frozen=True, slots=True)
class Resolved:
    """A `LayerMap` by paths: of the first model and of the second."""

    pairs: tuple[Paired, ...] = ()
    ignored: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    with_all: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def whole(self) -> dict[str, str]:
        """Pairs whose inside is their own business, from the second model to the first."""
        return {p.second.path: p.first.path for p in self.pairs if not p.alike}

    @property
    def hints(self) -> dict[str, str]:
        """Pairs that are built alike, from the second model to the first."""
        return {p.second.path: p.first.path for p in self.pairs if p.alike}

    def left_out(self) -> dict[str, list[str]]:
        """What is not to be compared; the second model is the reference."""
        return {"reference": self._modules(1), "candidate": self._modules(0)}

    def _modules(self, side: int) -> list[str]:
        own = [f"={path}" for path in self.ignored[side]] + [_within(path) for path in self.with_all[side]]
        return ["<outside>", *own]  # what a loss function does inside is not compared, what it returns is

    def skips(self, taken: Sequence[Paired]) -> dict[str, list[str]]:
        """What no weights are copied of: what is left out, and what was copied already."""
        found: dict[str, list[str]] = {}
        for side, name in ((1, "reference"), (0, "candidate")):
            own = [f"={path}.*" if path else "=*" for path in self.ignored[side]]
            own += [_within(path) for path in self.with_all[side]]
            found[name] = own + [_within((p.first, p.second)[side].path) for p in taken]
        return found

    def skipped(self, side: int, infos: Iterable[Any]) -> set[str]:
        """The paths of a model's modules whose weights are not looked at: left out, mapped, or without any."""
        every = list(self.with_all[side]) + [(p.first, p.second)[side].path for p in self.pairs]
        return {
            i.path
            for i in infos
            if not any(not p.buffer for p in i.params)
            or i.path in self.ignored[side]
            or any(i.path == path or i.path.startswith(f"{path}.") for path in every)
        }


def as_layer_map(given: Any) -> LayerMap:
    """What a script hands in as layer_map: one, a dict of pairs, or nothing."""
    if isinstance(given, LayerMap):
        return given
    found = LayerMap()
    if given is not None:
        found.map = given
    return found


def _within(path: str) -> str:
    """A pattern for a module and all that is in it."""
    return path or "**"


def _check(given: Any, where: str) -> None:
    try:
        twinscope.modules_of(given)
    except TwinscopeError as error:
        raise TwinscopeError(f"{where}: {error.message}", hint="hand in layers of the two models") from None


def _layers(given: Any, where: str) -> list[Any]:
    found = list(given) if isinstance(given, (list, tuple, set)) else [given]
    for layer in found:
        _check(layer, where)
    return found


def _special(model: Any, known: set[str], left_out: Sequence[Any]) -> dict[str, tuple[Any, Any]]:
    """The layers that are built otherwise, or registered, without what lies within them."""
    found: dict[str, tuple[Any, Any]] = {}
    for info, module in twinscope.modules_of(model):
        built = info.builtin and info.kind is not None and info.kind.startswith(_BUILT_OTHERWISE)
        inner = any(info.path.startswith(f"{path}.") for path in found)
        wanted = (built or type(module).__name__ in known) and not inner and info.path != ""
        if wanted and not any(module is m for m in left_out):
            found[info.path] = (info, module)
    return found


def _alike(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    kinds = [(info.kind or "").rstrip("123d") for info, _ in (first, second)]
    return special_init(first[1], second[1]) is not None or (kinds[0] != "" and kinds[0] == kinds[1])


def _owners(mine: Mapping[str, Any], theirs: Mapping[str, Any], layer: Any, module: Any) -> dict[str, str]:
    """Which of these layers hold each other's weights, by the map of all weights."""
    mapping: WeightMap = twinscope.map_weights(module, layer)
    found: dict[str, str] = {}
    for entry in mapping:
        places = [
            {path for path in owned for name in names if name.startswith(f"{path}.")}
            for owned, names in ((mine, entry.candidate), (theirs, entry.reference))
        ]
        if entry.sure and len(places[0]) == len(places[1]) == 1:
            (own,), (other,) = places
            if _alike(mine[own], theirs[other]):
                found.setdefault(own, other)
    return found
