"""Which parts of a model a proxy looks at: black and white lists, the layer map; layers given as objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twinscope import modules_of

from .problems import ArgumentError, one_of

MODES = ("self", "sublayers", "all")


class Choice:
    """The lists of one model, by path. Layers are always the objects themselves.

    White beats black: as soon as anything is on the white list, only that is looked at. The root stays, since it is the
    run itself, unless it is on the black list.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._black: tuple[set[str], set[str]] = (set(), set())  # the layers themselves, what is below them
        self._white: tuple[set[str], set[str]] = (set(), set())
        self.layer_map: list[str] = []

    # -- saying --------------------------------------------------------------------------------------------------------

    def black(self, layers: Any, mode: str) -> None:
        self._add(self._black, layers, mode)

    def white(self, layers: Any, mode: str) -> None:
        self._add(self._white, layers, mode)

    def _add(self, lists: tuple[set[str], set[str]], layers: Any, mode: str) -> None:
        one_of(mode, MODES, "mode")
        paths = self.paths(layers)
        if mode in ("self", "all"):
            lists[0].update(paths)
        if mode in ("sublayers", "all"):
            lists[1].update(paths)

    def map_layers(self, layers: Any) -> None:
        paths = self.paths(layers)
        for path in paths:
            if paths.count(path) > 1:
                raise ArgumentError(
                    f"the layer at {path or 'the root'!r} is in the layer map twice", hint="a layer has one partner"
                )
        self.layer_map = paths
        self.black(layers, "sublayers")

    def of_class(self, layer_class: Any) -> list[Any]:
        classes = layer_class if isinstance(layer_class, tuple) else (layer_class,)
        if not all(isinstance(cls, type) for cls in classes):
            raise ArgumentError(f"{layer_class!r} is not a class", hint="hand in the class: torch.nn.Linear")
        found = [module for _, module in modules_of(self._model) if isinstance(module, classes)]
        if not found:
            names = ", ".join(cls.__name__ for cls in classes)
            raise ArgumentError(f"the model has no {names}", hint="check the class: lists go by isinstance")
        return found

    def paths(self, layers: Any) -> list[str]:
        """The paths of layers; what is not part of the model is an error, not nothing."""
        by_id = {id(module): info.path for info, module in modules_of(self._model)}
        if isinstance(layers, str) or not isinstance(layers, Iterable) or id(layers) in by_id:
            layers = [layers]  # a Sequential is iterable too, and yet one layer
        found = []
        for layer in layers:
            if id(layer) not in by_id:
                raise ArgumentError(
                    f"{_named(layer)} is not a part of this model",
                    hint="hand in the layer itself, as in model.model.encoder.norm",
                )
            found.append(by_id[id(layer)])
        if not found:
            raise ArgumentError("no layer was given", hint="hand in a layer or a list of layers")
        return found

    # -- asking --------------------------------------------------------------------------------------------------------

    @property
    def only_white(self) -> bool:
        return bool(self._white[0] or self._white[1])

    def wants(self, path: str) -> bool:
        """Whether the layer at `path` is looked at."""
        own, below = self._white if self.only_white else self._black
        listed = path in own or any(above in below for above in _above(path))
        return (listed or path == "") if self.only_white else not listed

    def wants_functions(self, path: str) -> bool:
        """Whether the functions that the layer at `path` calls itself are looked at."""
        return path in self._white[0] if self.only_white and path == "" else self.wants(path)

    def left_out(self, known: bool = False) -> list[str]:
        """Patterns of the paths that are not looked at.

        With `known` not of those inside of the frameworks' own layers in the layer map: whoever compares layers and not
        files knows what is inside of them, and how its parts correspond.
        """
        modules = [info for info, _ in modules_of(self._model)]
        mapped = [f"{i.path}." for i in modules if known and i.builtin and i.path in self.layer_map]
        return [f"={i.path}" for i in modules if not self.wants(i.path) and not i.path.startswith(tuple(mapped))]


def _above(path: str) -> list[str]:
    """The paths above: of "a.b.c" these are "", "a" and "a.b"."""
    if path == "":
        return []
    parts = path.split(".")
    return ["", *(".".join(parts[:i]) for i in range(1, len(parts)))]


def _named(layer: Any) -> str:
    return repr(layer) if isinstance(layer, str) else f"this {type(layer).__name__}"
