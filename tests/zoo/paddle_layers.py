"""Single layers in Paddle."""

from __future__ import annotations

from functools import partial
from typing import Any

import paddle
from paddle import nn
from paddle.nn import utils

from .layers import Built


class Projection(nn.Linear):
    """A user's own subclass."""


class RMSNorm(nn.Layer):
    """As people write it where the framework has none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([width])

    def forward(self, x: Any) -> Any:
        return x * paddle.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def _state(layer: Any, x: Any, *state: Any) -> Any:
    return layer(x, state if len(state) > 1 else state[0])[1]


_PLAIN: dict[str, Any] = {"weight_attr": False, "bias_attr": False}

LAYERS: dict[str, Built] = {
    "linear": Built(lambda: nn.Linear(4, 5)),
    "linear_square": Built(lambda: nn.Linear(4, 4)),
    "linear_no_bias": Built(lambda: nn.Linear(4, 5, bias_attr=False)),
    "linear_subclass": Built(lambda: Projection(4, 5)),
    "bilinear": Built(lambda: nn.Bilinear(3, 4, 5)),
    "layer_norm": Built(lambda: nn.LayerNorm(4)),
    "layer_norm_2_axes": Built(lambda: nn.LayerNorm([3, 4])),
    "group_norm": Built(lambda: nn.GroupNorm(3, 6)),
    "group_norm_plain": Built(lambda: nn.GroupNorm(3, 6, **_PLAIN)),
    "rms_norm": Built(lambda: RMSNorm(4)),
    "batch_norm1d_flat": Built(lambda: nn.BatchNorm1D(6)),
    "embedding": Built(lambda: nn.Embedding(6, 4)),
    "embedding_padded": Built(lambda: nn.Embedding(6, 4, padding_idx=1)),
    "prelu_1": Built(lambda: nn.PReLU()),
    "prelu": Built(lambda: nn.PReLU(6)),
    "attention": Built(lambda: nn.MultiHeadAttention(8, 2)),
    "attention_no_bias": Built(lambda: nn.MultiHeadAttention(8, 2, bias_attr=False)),
    "attention_sized": Built(lambda: nn.MultiHeadAttention(8, 2, kdim=6, vdim=10)),
    "encoder_plain_end": Built(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0), 2)),
    "rnn_relu": Built(lambda: nn.SimpleRNN(4, 6, activation="relu")),
}

for d in (1, 2, 3):
    for groups in (1, 2):
        made = partial(getattr(nn, f"Conv{d}D"), 4, 6, 3, stride=2, padding=1, groups=groups)
        LAYERS[f"conv{d}d_groups{groups}"] = Built(made)
        made = partial(getattr(nn, f"Conv{d}DTranspose"), 4, 6, 3, stride=2, padding=1, groups=groups)
        LAYERS[f"conv_transpose{d}d_groups{groups}"] = Built(made)
    for own, name in (("BatchNorm", "batch_norm"), ("InstanceNorm", "instance_norm")):
        LAYERS[f"{name}{d}d"] = Built(partial(getattr(nn, f"{own}{d}D"), 6))
        LAYERS[f"{name}{d}d_plain"] = Built(partial(getattr(nn, f"{own}{d}D"), 6, **_PLAIN))

for first in (False, True):
    order = "_norm_first" if first else ""
    sizes: dict[str, Any] = {"dim_feedforward": 12, "dropout": 0.0, "normalize_before": first}
    encoder = partial(nn.TransformerEncoderLayer, 8, 2, **sizes)
    decoder = partial(nn.TransformerDecoderLayer, 8, 2, **sizes)
    LAYERS |= {
        f"encoder_layer{order}": Built(encoder),
        f"decoder_layer{order}": Built(decoder),
        f"encoder{order}": Built(lambda encoder=encoder: nn.TransformerEncoder(encoder(), 2, nn.LayerNorm(8))),
        f"decoder{order}": Built(lambda decoder=decoder: nn.TransformerDecoder(decoder(), 2, nn.LayerNorm(8))),
        f"transformer{order}": Built(partial(nn.Transformer, 8, 2, 2, 2, **sizes)),
    }

for name, recurrent, cell in (
    ("lstm", nn.LSTM, nn.LSTMCell),
    ("gru", nn.GRU, nn.GRUCell),
    ("rnn", nn.SimpleRNN, nn.SimpleRNNCell),
):
    for depth in (1, 2):
        for both in (False, True):
            sizes = {"num_layers": depth, "direction": "bidirect" if both else "forward"}
            ways = f"{depth}{'_both_ways' if both else ''}"
            LAYERS[f"{name}_{ways}"] = Built(partial(recurrent, 4, 6, **sizes))
            # without a bias none of them runs on a CPU; the twin of one without has biases, all zero
            LAYERS[f"{name}_{ways}_no_bias"] = LAYERS[f"{name}_{ways}"]
            if name == "lstm":
                LAYERS[f"lstm_projected_{ways}"] = Built(partial(nn.LSTM, 4, 6, proj_size=3, **sizes))
    LAYERS[f"{name}_cell"] = Built(partial(cell, 4, 6), _state)
    LAYERS[f"{name}_cell_no_bias"] = Built(partial(cell, 4, 6, bias_ih_attr=False, bias_hh_attr=False), _state)

for kind, plain, out in (
    ("linear", partial(nn.Linear, 4, 4), 1),
    ("conv2d", partial(nn.Conv2D, 4, 4, 3), 0),
    ("conv_transpose2d", partial(nn.Conv2DTranspose, 4, 4, 3), 0),
):
    LAYERS |= {
        f"plain_{kind}": Built(plain),
        f"weight_norm_{kind}": Built(lambda plain=plain, out=out: utils.weight_norm(plain(), dim=out)),
        f"weight_norm_axis1_{kind}": Built(lambda plain=plain, out=out: utils.weight_norm(plain(), dim=1 - out)),
        f"weight_norm_all_{kind}": Built(lambda plain=plain: utils.weight_norm(plain(), dim=None)),
        f"spectral_norm_{kind}": Built(lambda plain=plain: utils.spectral_norm(plain())),
    }
