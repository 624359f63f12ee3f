"""Recurrent layers: the same roles from whatever names.

All three frameworks keep the gates in one order (LSTM i f g o, GRU r z n), two biases, and the GRU's hidden bias
within the product with its reset gate. The biases of LSTM and RNN count by their sum alone, so that no run tells one
from the other: only their names do.
"""

from __future__ import annotations

import re

from ..transforms import Chain
from . import Layer, Store

_WHOLE = re.compile(r"(weight|bias)_(ih|hh|hr)_l(\d+)(_reverse)?")
_CELL = re.compile(r"(weight|bias)_(ih|hh)")


def role_of(layer: int | str, reverse: bool, part: str, what: str) -> str:
    """The neutral role of a weight in a recurrent layer.

    >>> role_of(1, True, "hh", "bias")
    'l1r.hh.bias'
    """
    return f"l{layer}{'r' if reverse else ''}.{part}.{what}"


def role_of_name(own: str) -> str | None:
    """The role of a parameter of a whole layer, by torch's names for it, or None.

    >>> role_of_name("weight_ih_l0_reverse")
    'l0r.ih.weight'
    """
    found = _WHOLE.fullmatch(own)
    return None if found is None else role_of(found[3], found[4] is not None, found[2], found[1])


def store(names: tuple[str, ...], role: str, transform: Chain = ()) -> Store:
    """Its store. A bias may be missing on one side: paddle has no layer without."""
    return Store(names, (role,), transform, {role: 0.0} if role.endswith(".bias") else {})


def whole(layer: Layer) -> list[Store]:
    """A layer that calls its parameters as torch does."""
    return [store((own,), role) for own in layer.params if (role := role_of_name(own)) is not None]


def cell(layer: Layer) -> list[Store]:
    """A single step, which all frameworks call by the same names."""
    return [store((own,), f"{m[2]}.{m[1]}") for own in layer.params if (m := _CELL.fullmatch(own)) is not None]
