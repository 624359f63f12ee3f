"""Attention and the Transformer's layers: the same weights in all frameworks, under names that each table gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..transforms import Split
from . import NORM_DEFAULTS, Layer, Store

#: A table's function for the attention at a place within a layer: the layer, the names' prefix, the roles' prefix.
AttentionAt = Callable[[Layer, str, str], list[Store]]


def fused(layer: Layer, at: str = "", role: str = "") -> list[Store]:
    """Attention whose three projections are one parameter, or three where key and value have sizes of their own."""
    found = renamed(
        layer,
        {
            **{f"{at}{x}_proj_weight": f"{role}{x}.weight" for x in "qkv"},
            **{f"{at}out_proj.{name}": f"{role}out.{name}" for name in ("weight", "bias")},
            # a key and a value more, learned; a layer without them cannot do the same with any number in their place
            **{f"{at}{name}": f"{role}{name}" for name in ("bias_k", "bias_v")},
        },
    )
    for name in ("weight", "bias"):
        packed = f"{at}in_proj_{name}"
        if layer.has(packed):
            size = layer.shape(packed)[0] // 3
            found.append(Store((packed,), tuple(f"{role}{x}.{name}" for x in "qkv"), (Split((size, size, size)),)))
    return found


def separate(layer: Layer, at: str = "", role: str = "") -> list[Store]:
    """Attention of four Linear layers."""
    return renamed(
        layer,
        {f"{at}{x}_proj.{name}": f"{role}{x}.{name}" for x in ("q", "k", "v", "out") for name in ("weight", "bias")},
    )


def transformer_layer(
    layer: Layer, attention: AttentionAt, attentions: Mapping[str, str], linears: Sequence[str], norm: Sequence[str]
) -> list[Store]:
    """An encoder's or decoder's layer: `attentions` from own name to role, both Linear layers' names in the order of
    their calls, a norm's names of its weight and bias."""
    found = [store for own, role in attentions.items() for store in attention(layer, f"{own}.", f"{role}.")]
    found += renamed(
        layer,
        {f"{own}.{name}": f"ffn{i}.{name}" for i, own in enumerate(linears, 1) for name in ("weight", "bias")},
    )
    for i in (1, 2, 3):
        for own, name in zip(norm, NORM_DEFAULTS, strict=True):
            role = f"norm{i}.{name}"
            found += renamed(layer, {f"norm{i}.{own}": role}, {role: NORM_DEFAULTS[name]})
    return found


def renamed(layer: Layer, names: Mapping[str, str], defaults: Mapping[str, float] | None = None) -> list[Store]:
    """A store for each of these names that the layer has: own name -> role."""
    return [
        Store((own,), (role,), (), {role: defaults[role]} if defaults and role in defaults else {})
        for own, role in names.items()
        if layer.has(own)
    ]
