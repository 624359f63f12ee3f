"""How torch stores the weights of its layers: much of it is the neutral form."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...adapters.base import Array
from . import Layer, Remarks, Store, Table, attention, recurrent
from .normalized import spectral_norm, weight_norm

_LINEARS = ("linear1", "linear2")
_NORM = ("weight", "bias")


def _encoder_layer(layer: Layer) -> list[Store]:
    return attention.transformer_layer(layer, attention.fused, {"self_attn": "self"}, _LINEARS, _NORM)


def _decoder_layer(layer: Layer) -> list[Store]:
    attentions = {"self_attn": "self", "multihead_attn": "cross"}
    return attention.transformer_layer(layer, attention.fused, attentions, _LINEARS, _NORM)


def _weighted(layer: Layer) -> list[Store]:
    return [store for own in _computed(layer) for store in _parts(layer, own, own)]


def _recurrent(layer: Layer) -> list[Store]:
    computed = [s for own in _computed(layer) for s in _parts(layer, own, recurrent.role_of_name(own) or own)]
    return [*recurrent.whole(layer), *computed]


def _computed(layer: Layer) -> Iterator[str]:
    """Names of weights that are not parameters, because hooks or parametrizations make them of others."""
    for name in layer.params:
        if name.endswith("_g"):
            yield name[:-2]
        elif name.startswith("parametrizations.") and name.endswith((".original", ".original0")):
            own = name.split(".")
            if len(own) == 3:  # of this layer, not of one inside it
                yield own[1]


def _parts(layer: Layer, own: str, role: str) -> list[Store]:
    """What stands for one such weight: by hooks, or by parametrizations, of which there are others too."""
    for magnitude, direction in (
        (f"{own}_g", f"{own}_v"),
        (f"parametrizations.{own}.original0", f"parametrizations.{own}.original1"),
    ):
        if layer.has(magnitude, direction):
            along = _along(layer.shape(magnitude), layer.shape(direction))
            return [] if along is None else [weight_norm(layer, magnitude, direction, role, *along)]
    inner = f"parametrizations.{own}"
    names = (f"{inner}.original", f"{inner}.0._u", f"{inner}.0._v")
    return spectral_norm(names[0], names[1:], role) if layer.has(*names) else []


def _along(magnitude: tuple[int, ...], direction: tuple[int, ...]) -> tuple[int | None] | None:
    """The axis that a magnitude goes along, (None,) when it is one number for all, None when it is no magnitude."""
    if not magnitude:
        return (None,)
    if len(magnitude) != len(direction):
        return None
    axes = [i for i, n in enumerate(direction) if magnitude == tuple(n if i == j else 1 for j in range(len(direction)))]
    return (axes[0],) if axes else None


def _spectral_norm(layer: Layer, read: Callable[[str], Array]) -> list[str]:
    """Its parametrization updates the first vector before the second; torch's hook and paddle the other way round."""
    names = [own for own in _computed(layer) if layer.has(f"parametrizations.{own}.0._u")]
    return [
        f"in training mode the spectral norm of {own} runs half a step ahead of that of other frameworks: compare in "
        "evaluation mode"
        for own in names
    ]


LAYERS: Table = {
    **dict.fromkeys(("linear", "bilinear", "embedding"), _weighted),
    **{f"conv{t}{d}d": _weighted for t in ("", "_transpose") for d in (1, 2, 3)},
    "multihead_attention": attention.fused,
    "transformer_encoder_layer": _encoder_layer,
    "transformer_decoder_layer": _decoder_layer,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_cell"), recurrent.cell),
}

REMARKS: Remarks = dict.fromkeys(
    ("linear", *(f"conv{t}{d}d" for t in ("", "_transpose") for d in (1, 2, 3))), _spectral_norm
)
