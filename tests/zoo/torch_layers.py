"""Single layers in PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations

from .layers import Built


class Projection(nn.Linear):
    """A user's own subclass."""


def _first(layer: Any, *given: Any) -> Any:
    return layer(*given)[0]


def _state(layer: Any, x: Any, *state: Any) -> Any:
    return layer(x, state if len(state) > 1 else state[0])


def _apart() -> Any:
    """Three projections that need not be apart, as after a change of sizes to what they were."""
    layer = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    layer.kdim = layer.vdim = 8
    layer.k_proj_weight, layer.v_proj_weight = (nn.Parameter(nn.Linear(8, 8).weight.detach()) for _ in range(2))
    return layer


LAYERS: dict[str, Built] = {
    "linear": Built(lambda: nn.Linear(4, 5)),
    "linear_square": Built(lambda: nn.Linear(4, 4)),
    "linear_no_bias": Built(lambda: nn.Linear(4, 5, bias=False)),
    "linear_subclass": Built(lambda: Projection(4, 5)),
    "bilinear": Built(lambda: nn.Bilinear(3, 4, 5)),
    "layer_norm": Built(lambda: nn.LayerNorm(4)),
    "layer_norm_2_axes": Built(lambda: nn.LayerNorm((3, 4))),
    "group_norm": Built(lambda: nn.GroupNorm(3, 6)),
    "group_norm_plain": Built(lambda: nn.GroupNorm(3, 6, affine=False)),
    "rms_norm": Built(lambda: nn.RMSNorm(4, eps=1e-6)),
    "sync_batch_norm": Built(lambda: nn.SyncBatchNorm(6)),
    "batch_norm1d_flat": Built(lambda: nn.BatchNorm1d(6)),
    "embedding": Built(lambda: nn.Embedding(6, 4)),
    "embedding_padded": Built(lambda: nn.Embedding(6, 4, padding_idx=1)),
    "prelu_1": Built(lambda: nn.PReLU()),
    "prelu": Built(lambda: nn.PReLU(6)),
    "attention": Built(lambda: nn.MultiheadAttention(8, 2, batch_first=True), _first),
    "attention_no_bias": Built(lambda: nn.MultiheadAttention(8, 2, bias=False, batch_first=True), _first),
    "attention_sized": Built(lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=10, batch_first=True), _first),
    "attention_apart": Built(_apart, _first),
    "attention_extra_key": Built(lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True), _first),
    "encoder_plain_end": Built(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 2)
    ),
    "rnn_relu": Built(lambda: nn.RNN(4, 6, nonlinearity="relu", batch_first=True)),
}

for d in (1, 2, 3):
    for groups in (1, 2):
        made = partial(getattr(nn, f"Conv{d}d"), 4, 6, 3, stride=2, padding=1, groups=groups)
        LAYERS[f"conv{d}d_groups{groups}"] = Built(made)
        made = partial(getattr(nn, f"ConvTranspose{d}d"), 4, 6, 3, stride=2, padding=1, groups=groups)
        LAYERS[f"conv_transpose{d}d_groups{groups}"] = Built(made)
    for own, name in (("BatchNorm", "batch_norm"), ("InstanceNorm", "instance_norm")):
        LAYERS[f"{name}{d}d"] = Built(partial(getattr(nn, f"{own}{d}d"), 6, affine=True))
        LAYERS[f"{name}{d}d_plain"] = Built(partial(getattr(nn, f"{own}{d}d"), 6, affine=False))

for first in (False, True):
    order = "_norm_first" if first else ""
    sizes: dict[str, Any] = {"dim_feedforward": 12, "dropout": 0.0, "batch_first": True, "norm_first": first}
    encoder = partial(nn.TransformerEncoderLayer, 8, 2, **sizes)
    decoder = partial(nn.TransformerDecoderLayer, 8, 2, **sizes)
    LAYERS |= {
        f"encoder_layer{order}": Built(encoder),
        f"decoder_layer{order}": Built(decoder),
        f"encoder{order}": Built(lambda encoder=encoder: nn.TransformerEncoder(encoder(), 2, nn.LayerNorm(8))),
        f"decoder{order}": Built(lambda decoder=decoder: nn.TransformerDecoder(decoder(), 2, nn.LayerNorm(8))),
        f"transformer{order}": Built(partial(nn.Transformer, 8, 2, 2, 2, **sizes)),
    }

for name, recurrent, cell in (("lstm", nn.LSTM, nn.LSTMCell), ("gru", nn.GRU, nn.GRUCell), ("rnn", nn.RNN, nn.RNNCell)):
    for bias in (True, False):
        without = "" if bias else "_no_bias"
        for depth in (1, 2):
            for both in (False, True):
                sizes = {"num_layers": depth, "bidirectional": both, "batch_first": True}
                ways = f"{depth}{'_both_ways' if both else ''}"
                LAYERS[f"{name}_{ways}{without}"] = Built(partial(recurrent, 4, 6, bias=bias, **sizes))
                if name == "lstm" and bias:
                    LAYERS[f"lstm_projected_{ways}"] = Built(partial(nn.LSTM, 4, 6, proj_size=3, **sizes))
        LAYERS[f"{name}_cell{without}"] = Built(partial(cell, 4, 6, bias=bias), _state)

for kind, plain in (
    ("linear", partial(nn.Linear, 4, 4)),
    ("conv2d", partial(nn.Conv2d, 4, 4, 3)),
    ("conv_transpose2d", partial(nn.ConvTranspose2d, 4, 4, 3)),
):
    LAYERS |= {
        f"plain_{kind}": Built(plain),
        f"weight_norm_{kind}": Built(lambda plain=plain: parametrizations.weight_norm(plain())),
        f"weight_norm_hook_{kind}": Built(lambda plain=plain: utils.weight_norm(plain())),
        f"weight_norm_axis1_{kind}": Built(lambda plain=plain: parametrizations.weight_norm(plain(), dim=1)),
        f"weight_norm_all_{kind}": Built(lambda plain=plain: utils.weight_norm(plain(), dim=None)),
        f"spectral_norm_{kind}": Built(lambda plain=plain: parametrizations.spectral_norm(plain())),
        f"spectral_norm_hook_{kind}": Built(lambda plain=plain: utils.spectral_norm(plain())),
    }
