"""How mindspore stores the weights of its layers: as torch does, but for the names of what lies within."""

from __future__ import annotations

from . import Layer, Store, Table, attention, recurrent

_LINEARS = ("dense1", "dense2")
_NORM = ("gamma", "beta")


def _encoder_layer(layer: Layer) -> list[Store]:
    return attention.transformer_layer(layer, attention.fused, {"self_attn": "self"}, _LINEARS, _NORM)


def _decoder_layer(layer: Layer) -> list[Store]:
    attentions = {"self_attn": "self", "multihead_attn": "cross"}
    return attention.transformer_layer(layer, attention.fused, attentions, _LINEARS, _NORM)


LAYERS: Table = {
    "multihead_attention": attention.fused,
    "transformer_encoder_layer": _encoder_layer,
    "transformer_decoder_layer": _decoder_layer,
    **dict.fromkeys(("lstm", "gru", "rnn"), recurrent.whole),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_cell"), recurrent.cell),
}
