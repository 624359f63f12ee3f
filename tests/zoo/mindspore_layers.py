"""Single layers in MindSpore. It has no weight or spectral normalization, and InstanceNorm for GPUs only."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from .layers import Built


class Projection(nn.Dense):
    """A user's own subclass."""


class RMSNorm(nn.Cell):
    """As people write it where the framework has none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(width, "float32")))

    def construct(self, x: Any) -> Any:
        return x * ops.rsqrt(ops.square(x).mean(-1, keep_dims=True) + 1e-6) * self.weight


def _first(layer: Any, *given: Any) -> Any:
    return layer(*given)[0]


def _state(layer: Any, x: Any, *state: Any) -> Any:
    return layer(x, state if len(state) > 1 else state[0])


_CONV: dict[str, Any] = {"stride": 2, "pad_mode": "pad", "padding": 1, "has_bias": True}


def _norm(shape: tuple[int, ...]) -> Any:
    axis = {"begin_norm_axis": 1, "begin_params_axis": 1} if len(shape) == 2 else {}
    return nn.LayerNorm(shape, epsilon=1e-5, **axis)


LAYERS: dict[str, Built] = {
    "linear": Built(lambda: nn.Dense(4, 5)),
    "linear_mint": Built(lambda: mint.nn.Linear(4, 5)),
    "linear_square": Built(lambda: nn.Dense(4, 4)),
    "linear_no_bias": Built(lambda: nn.Dense(4, 5, has_bias=False)),
    "linear_subclass": Built(lambda: Projection(4, 5)),
    "bilinear": Built(lambda: nn.BiDense(3, 4, 5)),
    "layer_norm": Built(lambda: _norm((4,))),
    "layer_norm_2_axes": Built(lambda: _norm((3, 4))),
    "group_norm": Built(lambda: nn.GroupNorm(3, 6)),
    "group_norm_mint": Built(lambda: mint.nn.GroupNorm(3, 6)),
    "group_norm_plain": Built(lambda: nn.GroupNorm(3, 6, affine=False)),
    "rms_norm": Built(lambda: RMSNorm(4)),
    "sync_batch_norm": Built(lambda: nn.SyncBatchNorm(6)),
    "batch_norm1d_flat": Built(lambda: nn.BatchNorm1d(6)),
    "embedding": Built(lambda: nn.Embedding(6, 4)),
    "embedding_padded": Built(lambda: nn.Embedding(6, 4, padding_idx=1)),
    "prelu_1": Built(lambda: nn.PReLU()),
    "prelu": Built(lambda: nn.PReLU(6)),
    "prelu_mint": Built(lambda: mint.nn.PReLU(6)),
    "attention": Built(lambda: nn.MultiheadAttention(8, 2, batch_first=True), _first),
    "attention_no_bias": Built(lambda: nn.MultiheadAttention(8, 2, has_bias=False, batch_first=True), _first),
    "attention_sized": Built(lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=10, batch_first=True), _first),
    "attention_extra_key": Built(lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True), _first),
    "encoder_plain_end": Built(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 2)
    ),
    "rnn_relu": Built(lambda: nn.RNN(4, 6, nonlinearity="relu", batch_first=True)),
}

for d in (1, 2, 3):
    for groups in (1, 2):
        LAYERS[f"conv{d}d_groups{groups}"] = Built(partial(getattr(nn, f"Conv{d}d"), 4, 6, 3, group=groups, **_CONV))
        LAYERS[f"conv_transpose{d}d_groups{groups}"] = Built(
            partial(getattr(nn, f"Conv{d}dTranspose"), 4, 6, 3, group=groups, **_CONV)
        )
    LAYERS[f"batch_norm{d}d"] = Built(partial(getattr(nn, f"BatchNorm{d}d"), 6))
    LAYERS[f"batch_norm{d}d_plain"] = Built(partial(getattr(nn, f"BatchNorm{d}d"), 6, affine=False))

for first in (False, True):
    order = "_norm_first" if first else ""
    sizes: dict[str, Any] = {"dim_feedforward": 12, "dropout": 0.0, "batch_first": True, "norm_first": first}
    encoder = partial(nn.TransformerEncoderLayer, 8, 2, **sizes)
    decoder = partial(nn.TransformerDecoderLayer, 8, 2, **sizes)
    LAYERS |= {
        f"encoder_layer{order}": Built(encoder),
        f"decoder_layer{order}": Built(decoder),
        f"encoder{order}": Built(lambda encoder=encoder: nn.TransformerEncoder(encoder(), 2, _norm((8,)))),
        f"decoder{order}": Built(lambda decoder=decoder: nn.TransformerDecoder(decoder(), 2, _norm((8,)))),
        f"transformer{order}": Built(partial(nn.Transformer, 8, 2, 2, 2, **sizes)),
    }

for name, recurrent, cell in (("lstm", nn.LSTM, nn.LSTMCell), ("gru", nn.GRU, nn.GRUCell), ("rnn", nn.RNN, nn.RNNCell)):
    for bias in (True, False):
        without = "" if bias else "_no_bias"
        for depth in (1, 2):
            for both in (False, True):
                sizes = {"num_layers": depth, "bidirectional": both, "batch_first": True}
                ways = f"{depth}{'_both_ways' if both else ''}"
                LAYERS[f"{name}_{ways}{without}"] = Built(partial(recurrent, 4, 6, has_bias=bias, **sizes))
        LAYERS[f"{name}_cell{without}"] = Built(partial(cell, 4, 6, has_bias=bias), _state)

for kind, plain in (
    ("linear", partial(nn.Dense, 4, 4)),
    ("conv2d", partial(nn.Conv2d, 4, 4, 3, pad_mode="valid", has_bias=True)),
    ("conv_transpose2d", partial(nn.Conv2dTranspose, 4, 4, 3, pad_mode="valid", has_bias=True)),
):
    LAYERS[f"plain_{kind}"] = Built(plain)
