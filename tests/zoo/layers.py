"""Single layers, as each framework has them: what goes in, and under which name each ``*_layers.py`` builds them.

A name stands for one and the same mathematics. A framework whose table lacks a name has no such layer, or no kernel
for it on a CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import normal

#: Into which layer kinds dimensions go, with an input's spatial extents.
_EXTENTS = {1: (9,), 2: (7, 8), 3: (5, 6, 7)}


@dataclass(frozen=True)
class Built:
    """How a framework builds a layer, and how it calls it where that is not plain."""

    build: Callable[[], Any]
    call: Callable[..., Any] | None = None


def layers(framework: str) -> Mapping[str, Built]:
    found: dict[str, Built] = importlib.import_module(f"zoo.{framework}_layers").LAYERS
    return found


def _inputs() -> dict[str, tuple[Any, ...]]:
    query, key, value = normal(2, 5, 8), normal(2, 7, 8, seed=1), normal(2, 7, 8, seed=2)
    matrix, image = (normal(2, 4),), (normal(2, 4, 7, 8),)
    found: dict[str, tuple[Any, ...]] = {
        "linear": (normal(2, 3, 4),),
        "linear_square": matrix,
        "linear_no_bias": matrix,
        "linear_subclass": matrix,
        "bilinear": (normal(2, 3), normal(2, 4, seed=1)),
        "layer_norm": (normal(2, 3, 4),),
        "layer_norm_2_axes": (normal(2, 3, 4),),
        "group_norm": (normal(2, 6, 4, 5),),
        "group_norm_plain": (normal(2, 6, 4, 5),),
        "rms_norm": (normal(2, 3, 4),),
        "sync_batch_norm": (normal(2, 6, 4, 5),),
        "batch_norm1d_flat": (normal(4, 6),),
        "embedding": (np.array([[0, 1, 2], [3, 4, 5]]),),
        "embedding_padded": (np.array([[0, 1, 2], [3, 4, 5]]),),
        "prelu_1": (normal(2, 6, 4, 4),),
        "prelu": (normal(2, 6, 4, 4),),
        "attention": (query, key, value),
        "attention_no_bias": (query, key, value),
        "attention_sized": (query, normal(2, 7, 6, seed=1), normal(2, 7, 10, seed=2)),
        "attention_apart": (query, key, value),
        "attention_extra_key": (query, key, value),
        "encoder_plain_end": (query,),
        "rnn_relu": (0.5 * normal(3, 5, 4),),
    }
    for d, extents in _EXTENTS.items():
        for groups in (1, 2):
            found[f"conv{d}d_groups{groups}"] = (normal(2, 4, *extents),)
            found[f"conv_transpose{d}d_groups{groups}"] = (normal(2, 4, *extents),)
        for norm in ("batch_norm", "instance_norm"):
            found[f"{norm}{d}d"] = found[f"{norm}{d}d_plain"] = (normal(4, 6, *extents),)
    for order in ("", "_norm_first"):
        found |= {
            f"encoder_layer{order}": (query,),
            f"decoder_layer{order}": (query, key),
            f"encoder{order}": (query,),
            f"decoder{order}": (query, key),
            f"transformer{order}": (key, query),
        }
    step, h, c = (0.5 * normal(3, n, seed=n) for n in (4, 6, 6))
    for kind in ("lstm", "gru", "rnn"):
        for depth in (1, 2):
            for ways in ("", "_both_ways"):
                found[f"{kind}_{depth}{ways}"] = found[f"{kind}_{depth}{ways}_no_bias"] = (0.5 * normal(3, 5, 4),)
                if kind == "lstm":
                    found[f"lstm_projected_{depth}{ways}"] = (0.5 * normal(3, 5, 4),)
        found[f"{kind}_cell"] = found[f"{kind}_cell_no_bias"] = (step, h, c) if kind == "lstm" else (step, h)
    for kind, given in (("linear", matrix), ("conv2d", image), ("conv_transpose2d", image)):
        for name in ("weight_norm", "weight_norm_hook", "weight_norm_axis1", "weight_norm_all", "plain"):
            found[f"{name}_{kind}"] = given
        for name in ("spectral_norm", "spectral_norm_hook"):
            found[f"{name}_{kind}"] = given
    return found


#: Name -> the layer's inputs.
INPUTS = _inputs()

#: Pairs of names whose layers can hold the same weights in another form, tried within each framework and across.
FORMS = (
    *(
        pair
        for kind in ("linear", "conv2d", "conv_transpose2d")
        for pair in (
            (f"weight_norm_{kind}", f"weight_norm_hook_{kind}"),
            (f"weight_norm_{kind}", f"weight_norm_axis1_{kind}"),
            (f"weight_norm_all_{kind}", f"weight_norm_{kind}"),
            (f"weight_norm_{kind}", f"plain_{kind}"),
            (f"spectral_norm_{kind}", f"spectral_norm_hook_{kind}"),
        )
    ),
    ("attention", "attention_apart"),
    ("batch_norm2d", "sync_batch_norm"),
    ("linear", "linear_subclass"),
    ("linear", "linear_mint"),
    ("group_norm", "group_norm_mint"),
    ("prelu", "prelu_mint"),
)

#: Pairs of names of which the first does without parameters that the second has.
ONE_SIDED = (
    ("group_norm_plain", "group_norm"),
    ("batch_norm2d_plain", "batch_norm2d"),
    ("instance_norm2d_plain", "instance_norm2d"),
    ("lstm_1_no_bias", "lstm_1"),
    ("gru_1_no_bias", "gru_1"),
    ("rnn_1_no_bias", "rnn_1"),
    ("gru_cell_no_bias", "gru_cell"),
)
