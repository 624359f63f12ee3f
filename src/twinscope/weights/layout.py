"""Parameters in the neutral layout and back: what `ParamInfo.axes` says, done to an array."""

from __future__ import annotations

import numpy as np

from ..adapters.base import Array
from ..records import ParamInfo


def to_neutral(param: ParamInfo, array: Array) -> Array:
    """A parameter's values (or its gradient's) in the neutral layout. A view.

    >>> from twinscope.records import TensorMeta
    >>> weight = ParamInfo("weight", TensorMeta((3, 2), "float32"), "weight", True, False, axes=(1, 0))
    >>> to_neutral(weight, np.zeros((3, 2))).shape
    (2, 3)
    """
    if param.axes is None:
        return array
    dropped = [a for a in range(array.ndim) if a not in param.axes]
    return array.transpose(*param.axes, *dropped).reshape([array.shape[a] for a in param.axes])


def from_neutral(param: ParamInfo, array: Array) -> Array:
    """The inverse of `to_neutral`: what the framework's own parameter must be assigned. A view."""
    if param.axes is None:
        return array
    rank = len(param.meta.shape)
    dropped = [a for a in range(rank) if a not in param.axes]
    widened = array.reshape([*array.shape, *(1 for _ in dropped)])
    return widened.transpose(np.argsort([*param.axes, *dropped]))
