"""How paddle stores the weights of its layers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from ...adapters.base import Array
from ..transforms import Chain, Reshape, Squeeze, Transpose
from . import NORM_DEFAULTS, Layer, Remarks, Store, Table, attention, recurrent
from .normalized import spectral_norm, weight_norm

_LINEARS = ("linear1", "linear2")
_NORM = ("weight", "bias")

#: A recurrent layer's weights, by the names of its cells. It has them under torch's names as well, but those are wrong
#: with a projection or without a bias: they are given out in order, whatever is there.
_CELL = re.compile(r"(\d+)\.cell(_fw|_bw)?\.(weight|bias)_(ih|hh|ho)")


def _encoder_layer(layer: Layer) -> list[Store]:
    return attention.transformer_layer(layer, attention.separate, {"self_attn": "self"}, _LINEARS, _NORM)


def _decoder_layer(layer: Layer) -> list[Store]:
    attentions = {"self_attn": "self", "cross_attn": "cross"}
    return attention.transformer_layer(layer, attention.separate, attentions, _LINEARS, _NORM)


def _recurrent(layer: Layer) -> list[Store]:
    found = []
    for own in layer.params:
        m = _CELL.fullmatch(own)
        if m is not None:
            # the projection of an LSTM's output is [hidden, projected] here
            part, lay = ("hr", (Transpose(),)) if m[4] == "ho" else (m[4], ())
            found.append(recurrent.store((own,), recurrent.role_of(m[1], m[2] == "_bw", part, m[3]), lay))
    return found


def _weighted(layer: Layer) -> list[Store]:
    """Linear and convolution: only weights that hooks compute need a word."""
    found = []
    # [in, out] as any Linear's, but of these names the adapter does not know it
    linear = layer.info.kind == "linear"
    lay: Chain = (Transpose(),) if linear else ()
    for own in [p.name.removesuffix("_v") for p in layer.info.params if p.name.endswith("_v")]:
        magnitude, direction, before = f"{own}_g", f"{own}_v", f"{own}_orig"
        if layer.has(magnitude):
            dim = layer.attributes.get(f"{own}_norm_dim")
            if dim is None:  # saved by a version that did not write it down
                continue
            axis = None if dim < 0 or not layer.shape(magnitude) else 1 - dim if linear else dim
            found.append(weight_norm(layer, magnitude, direction, own, axis, lay))
        elif layer.has(before, f"{own}_u"):
            found += spectral_norm(before, (f"{own}_u", direction), own, lay)
        else:
            continue
        if layer.has(own):
            found.append(Store((own,), ()))  # of the last call: computed anew at the next, and not saved
    return found


def _layer_norm(layer: Layer) -> list[Store]:
    """Over several axes its parameters are flat."""
    shape = tuple(layer.attributes.get("normalized_shape", ()))
    found = []
    for role, default in NORM_DEFAULTS.items():
        if layer.has(role):
            flat = layer.shape(role)
            chain = (Reshape(flat, shape),) if flat != shape and (math.prod(shape),) == flat else ()
            found.append(Store((role,), (role,), chain, {role: default}))
    return found


def _bilinear(layer: Layer) -> list[Store]:
    """Its bias is [1, out]."""
    flat = layer.has("bias") and len(layer.shape("bias")) == 2
    return [Store(("bias",), ("bias",), (Squeeze(0),))] if flat else []


def _padding_row(layer: Layer, read: Callable[[str], Array]) -> list[str]:
    row = layer.attributes.get("padding_idx")
    if not layer.has("weight") or not isinstance(row, int) or not 0 <= row < layer.shape("weight")[0]:
        return []
    if not np.any(read("weight")[row]):
        return []
    return [
        f"row {row} holds numbers, but paddle gives zeros for padding_idx={row}; the others give what the row holds"
    ]


LAYERS: Table = {
    "linear": _weighted,
    **{f"conv{t}{d}d": _weighted for t in ("", "_transpose") for d in (1, 2, 3)},
    "bilinear": _bilinear,
    "layer_norm": _layer_norm,
    "multihead_attention": attention.separate,
    "transformer_encoder_layer": _encoder_layer,
    "transformer_decoder_layer": _decoder_layer,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_cell"), recurrent.cell),
}

REMARKS: Remarks = {"embedding": _padding_row}
