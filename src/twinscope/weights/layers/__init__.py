"""What is known of how each framework stores the weights of its own layers: one table a framework, never of pairs.

A table says, for a neutral layer kind, which of the layer's parameters hold which neutral weights, and how. Neutral is
what the mathematics has: the query's, key's and value's projections apart, each gate in PyTorch's order. A kind that
is not in the table stores each neutral weight in a parameter of its own, which `ParamInfo.role` and `ParamInfo.axes`
say all about.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...adapters.base import Array
from ...records import ModuleInfo, ParamInfo
from ..transforms import Chain


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as the tables see it: its attributes and its parameters, own and inner, by path relative to it."""

    framework: str
    info: ModuleInfo
    params: Mapping[str, ParamInfo]

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.info.attributes

    def has(self, *names: str) -> bool:
        """Whether it holds all of these."""
        return all(name in self.params for name in names)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one of its parameters, in the neutral layout."""
        return self.params[name].neutral_shape()

    def tensor(self, name: str) -> str:
        """The full path of the tensor that it has under this name: the first of its names in the model."""
        return self.params[name].tied_to or self.info.param_path(name)


@dataclass(frozen=True, slots=True)
class Store:
    """Some parameters of a layer, and which neutral weights they are after `transform`.

    The transform begins where `ParamInfo.axes` ends: a Linear's weight is [out, in] already. A store of no roles says
    that these hold nothing of their own: the layer computes them anew before it uses them.
    """

    names: tuple[str, ...]
    roles: tuple[str, ...]
    transform: Chain = ()
    #: The value that changes nothing, for roles that the other side may do without.
    defaults: Mapping[str, float] = field(default_factory=dict)


Table: TypeAlias = Mapping[str, Callable[[Layer], Sequence[Store]]]

#: What to say of a layer, by kind; see `remarks_of`.
Remarks: TypeAlias = Mapping[str, Callable[[Layer, Callable[[str], Array]], Sequence[str]]]

#: Kinds whose stores hold several weights in one parameter, or those of layers inside. Only two of a kind profit:
#: against a network of the user's own, these are better taken for the layers and parameters that they consist of.
COMPOSITE = frozenset({"multihead_attention", "transformer_encoder_layer", "transformer_decoder_layer"})

#: Where a norm's own parameters change nothing.
NORM_DEFAULTS: Mapping[str, float] = {"weight": 1.0, "bias": 0.0}


def stores_of(layer: Layer) -> list[Store]:
    """How a layer's parameters, its own and those of layers inside that it claims, hold neutral weights."""
    kind = layer.info.kind
    rule = _table(layer.framework).get(kind) if kind is not None else None
    found = list(rule(layer)) if rule is not None else []
    # by tensor: what a layer calls by two names (paddle's LSTM and its cells) is one weight
    claimed = {layer.tensor(name) for store in found for name in store.names}
    defaults = _defaults(kind or "")
    for param in layer.info.params:
        if layer.tensor(param.name) not in claimed:
            own = {param.role: defaults[param.role]} if param.role in defaults else {}
            found.append(Store((param.name,), (param.role,), (), own))
    return found


def _defaults(kind: str) -> Mapping[str, float]:
    if "norm" in kind:
        return NORM_DEFAULTS
    return {"bias": 0.0} if kind == "linear" or kind.startswith("conv") else {}


def remarks_of(layer: Layer, read: Callable[[str], Array]) -> list[str]:
    """What a person should know when weights go to or from another framework: where this one computes otherwise.

    `read` gives the content of one of the layer's parameters.
    """
    kind = layer.info.kind
    if kind is None or layer.framework not in _FRAMEWORKS:
        return []
    say = getattr(_module(layer.framework), "REMARKS", {}).get(kind)
    return [] if say is None else [f"{layer.info.path or 'the model'}: {text}" for text in say(layer, read)]


_FRAMEWORKS = ("torch", "paddle", "mindspore")


def _table(framework: str) -> Table:
    if framework not in _FRAMEWORKS:
        return {}
    found: Table = _module(framework).LAYERS
    return found


def _module(framework: str) -> Any:
    return importlib.import_module(f"{__name__}.{framework}")
