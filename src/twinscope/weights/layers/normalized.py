"""Weights that a layer computes from others before each call.

Weight normalization keeps a weight apart as magnitude and direction. Its role is that of the weight itself, because
that is what every other layer has, be it without normalization or normalized along another axis; where both sides
normalize along the same axis, `linking` hands magnitude and direction across as they are, so that gradients stay equal.

Spectral normalization divides by an estimate that it keeps in two vectors. The weight before is not what a layer
without it holds, so roles of their own keep them from one another.
"""

from __future__ import annotations

from ..transforms import Chain, Each, Normed, Reshape
from . import Layer, Store


def weight_norm(layer: Layer, magnitude: str, direction: str, role: str, axis: int | None, lay: Chain = ()) -> Store:
    """The weight of which these are magnitude and direction; `lay` brings the direction to the neutral layout, whose
    `axis` is the one that the magnitude goes along, None for one magnitude of all."""
    shape = layer.shape(magnitude)
    size = 1
    for extent in shape:
        size *= extent
    flat = () if axis is None else (size,)
    flatten: Chain = () if shape == flat else (Reshape(shape, flat),)
    chain: Chain = (Each((flatten, lay), (1, 1), (1, 1)), Normed(axis, flat))
    return Store((magnitude, direction), (role,), chain)


def spectral_norm(weight: str, vectors: tuple[str, str], role: str, lay: Chain = ()) -> list[Store]:
    """The weight before the division, and both vectors, of which the first goes along the neutral layout's output."""
    return [
        Store((weight,), (f"{role}_orig",), lay),
        Store((vectors[0],), (f"{role}_u",)),
        Store((vectors[1],), (f"{role}_v",)),
    ]
