"""The tables of how frameworks store their layers' weights, on layers described by hand: no framework is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from twinscope.records import ModuleInfo, ParamInfo, TensorMeta
from twinscope.weights.layers import Layer, Store, remarks_of, stores_of
from twinscope.weights.linking import Link, joined, remarks, stocks_of
from twinscope.weights.model import Weights
from twinscope.weights.transforms import Transpose, run

Shapes = Mapping[str, tuple[int, ...]]


def module(
    path: str, kind: str | None, shapes: Shapes, tied: Mapping[str, str] | None = None, **attributes: Any
) -> ModuleInfo:
    params = tuple(
        ParamInfo(name, TensorMeta(shape, "float32"), name, True, False, (tied or {}).get(name))
        for name, shape in shapes.items()
    )
    return ModuleInfo(path, "some.Layer", kind, True, params, (), attributes)


def layer(framework: str, kind: str, shapes: Shapes, inner: Shapes | None = None, **attributes: Any) -> Layer:
    info = module("", kind, shapes, **attributes)
    inside = module("", None, inner or {})
    return Layer(framework, info, {p.name: p for p in (*info.params, *inside.params)})


def weights(framework: str, *modules: ModuleInfo) -> Weights:
    def array(info: ModuleInfo, param: ParamInfo) -> Any:
        size = int(np.prod(param.meta.shape))
        return np.arange(1, size + 1, dtype=param.meta.dtype).reshape(param.meta.shape)

    return Weights(framework, "Model", modules, array)


def roles(stores: list[Store]) -> dict[tuple[str, ...], tuple[str, ...]]:
    return {s.names: s.roles for s in stores}


def recurrent(bias: bool = True) -> Shapes:
    found: dict[str, tuple[int, ...]] = {}
    for end in ("", "_reverse"):
        found |= {f"weight_ih_l0{end}": (24, 4), f"weight_hh_l0{end}": (24, 6)}
        found |= {f"bias_ih_l0{end}": (24,), f"bias_hh_l0{end}": (24,)} if bias else {}
    return found


@pytest.mark.parametrize("named", ["torch", "mindspore"])
def test_recurrent_layers_by_torchs_names(named: str) -> None:
    found = stores_of(layer(named, "lstm", recurrent()))
    assert roles(found)[("weight_hh_l0_reverse",)] == ("l0r.hh.weight",)
    assert roles(found)[("bias_ih_l0",)] == ("l0.ih.bias",)
    assert {s.roles[0]: dict(s.defaults) for s in found}["l0.ih.bias"] == {"l0.ih.bias": 0.0}
    assert not {s.roles[0]: s.defaults for s in found}["l0.ih.weight"]


def test_paddles_recurrent_layers_by_the_names_of_their_cells() -> None:
    """Their names at the layer are wrong: with a projection, `bias_ih_l0` is a weight here."""
    cell = {"weight_ih": (24, 4), "weight_hh": (24, 3), "bias_ih": (24,), "bias_hh": (24,), "weight_ho": (6, 3)}
    wrong = dict(zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), cell.values(), strict=False))
    ties = dict(zip(cell, wrong, strict=False))
    model = weights("paddle", module("", "lstm", wrong), module("0.cell", "lstm_cell", cell, ties))
    stocks = stocks_of(model)
    found = {s.roles[0]: s for s in stocks}
    assert set(found) == {"l0.ih.weight", "l0.hh.weight", "l0.ih.bias", "l0.hh.bias", "l0.hr.weight"}
    assert found["l0.ih.bias"].paths == ("bias_ih_l0",)
    assert found["l0.hr.weight"].shapes == ((3, 6),)
    assert found["l0.hr.weight"].chain == (Transpose(),)


@pytest.mark.parametrize("named", ["torch", "paddle", "mindspore"])
def test_cells_have_one_set_of_names(named: str) -> None:
    found = stores_of(layer(named, "gru_cell", {"weight_ih": (18, 4), "weight_hh": (18, 6), "bias_hh": (18,)}))
    assert [s.roles for s in found] == [("ih.weight",), ("hh.weight",), ("hh.bias",)]


def test_a_packed_projection_is_three() -> None:
    shapes = {"in_proj_weight": (24, 8), "in_proj_bias": (24,), "bias_k": (1, 1, 8)}
    found = stores_of(layer("torch", "multihead_attention", shapes, {"out_proj.weight": (8, 8)}))
    assert roles(found) == {
        ("in_proj_weight",): ("q.weight", "k.weight", "v.weight"),
        ("in_proj_bias",): ("q.bias", "k.bias", "v.bias"),
        ("bias_k",): ("bias_k",),
        ("out_proj.weight",): ("out.weight",),
    }


def test_inner_names_of_the_transformers_layers_are_neutral() -> None:
    attention = {f"{a}.{p}_proj.weight": (8, 8) for a in ("self_attn", "cross_attn") for p in ("q", "k", "v", "out")}
    rest = {"linear1.weight": (12, 8), "linear2.weight": (8, 12), "norm3.weight": (8,)}
    theirs = layer("paddle", "transformer_decoder_layer", {}, {**attention, **rest})
    packed = {f"{a}.in_proj_weight": (24, 8) for a in ("self_attn", "multihead_attn")}
    packed |= {f"{a}.out_proj.weight": (8, 8) for a in ("self_attn", "multihead_attn")}
    rest = {"dense1.weight": (12, 8), "dense2.weight": (8, 12), "norm3.gamma": (8,)}
    ours = layer("mindspore", "transformer_decoder_layer", {}, {**packed, **rest})
    first, second = ({role for s in stores_of(x) for role in s.roles} for x in (theirs, ours))
    assert first == second
    assert {"cross.k.weight", "self.out.weight", "ffn1.weight", "ffn2.weight", "norm3.weight"} <= first


def packed() -> Weights:
    inner = module("mha.out_proj", "linear", {"weight": (8, 8)})
    return weights(
        "torch", module("", None, {}), module("mha", "multihead_attention", {"in_proj_weight": (24, 8)}), inner
    )


def test_a_composite_layer_is_left_in_pieces_where_the_other_model_has_no_such_layer() -> None:
    other = weights("torch", module("", None, {}), module("q", "linear", {"weight": (8, 8)}))
    assert [s.roles for s in stocks_of(packed(), other)] == [("in_proj_weight",), ("weight",)]
    assert [s.owner.path for s in stocks_of(packed(), other)] == ["mha", "mha.out_proj"]
    assert [len(s.roles) for s in stocks_of(packed(), packed())] == [1, 3]
    assert stocks_of(packed(), packed())[0].owner.path == "mha"


@pytest.mark.parametrize(
    ("magnitude", "direction", "axis"),
    [((5, 1), (5, 4), 0), ((1, 4), (5, 4), 1), ((), (5, 4), None), ((1, 1), (1, 4), 0), ((1, 1, 3), (5, 4, 3), 2)],
)
@pytest.mark.parametrize("names", [("weight_g", "weight_v"), ("parametrizations.weight.original0", None)])
def test_the_weight_of_magnitude_and_direction(
    magnitude: tuple[int, ...], direction: tuple[int, ...], axis: int | None, names: tuple[str, str | None]
) -> None:
    own = {names[0]: magnitude, names[1] or "parametrizations.weight.original1": direction}
    given = layer("torch", "linear", own if names[1] else {}, {} if names[1] else own)
    (store,) = stores_of(given)
    assert store.roles == ("weight",)
    g, v = np.full(magnitude, 3.0), np.random.default_rng(0).standard_normal(direction)
    (weight,) = run(store.transform, [g, v])
    others = tuple(i for i in range(len(direction)) if i != axis)
    assert np.allclose(np.sqrt((weight**2).sum(others)), 3.0)


@pytest.mark.parametrize(
    "shapes",
    [
        {"weight_g": (5,), "weight_v": (5, 4)},  # nobody's magnitude
        {"weight_g": (2, 1), "weight_v": (5, 4)},
        {"weight_orig": (5, 4), "weight_mask": (5, 4)},  # pruned
    ],
)
def test_what_only_looks_like_a_computed_weight_keeps_its_names(shapes: Shapes) -> None:
    assert roles(stores_of(layer("torch", "linear", shapes))) == {(name,): (name,) for name in shapes}


def test_paddles_computed_weights() -> None:
    shapes = {"weight_v": (4, 5), "weight_g": (5,), "weight": (4, 5), "bias": (5,)}
    found = stores_of(layer("paddle", "linear", shapes, weight_norm_dim=1))
    assert roles(found) == {("weight_g", "weight_v"): ("weight",), ("weight",): (), ("bias",): ("bias",)}
    model = weights("paddle", module("", "linear", shapes, weight_norm_dim=1))
    assert [(s.paths, s.shapes) for s in stocks_of(model)] == [
        (("weight_g", "weight_v"), ((5, 4),)),
        (("bias",), ((5,),)),
    ]
    shapes = {"weight_orig": (4, 5), "weight": (4, 5), "weight_u": (5,), "weight_v": (4,)}
    found = stores_of(layer("paddle", "linear", shapes))
    assert {s.roles for s in found} == {("weight_orig",), ("weight_u",), ("weight_v",), ()}


def carried(first: ModuleInfo, second: ModuleInfo) -> list[Any]:
    """What a paddle layer gets from a torch layer with weights of one role."""
    a, b = weights("torch", first), weights("paddle", second)
    parts = [{p.role: p for s in stocks_of(w) for p in s.parts()} for w in (a, b)]
    (entry,) = joined([Link(parts[0]["weight"], parts[1]["weight"], "test", 1.0)])
    assert entry.reference == ("weight_g", "weight_v") == entry.candidate
    read = a.reader()
    return run(entry.transform, [read(path) for path in entry.reference])


def test_magnitude_and_direction_are_handed_across_where_both_go_along_one_axis() -> None:
    first = module("", "linear", {"weight_g": (4, 1), "weight_v": (4, 4)})
    theirs = {"weight_g": (4,), "weight_v": (4, 4)}
    g, v = carried(first, module("", "linear", theirs, weight_norm_dim=1))
    assert g.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert np.array_equal(v.T.ravel(), np.arange(1, 17))
    g, v = carried(first, module("", "linear", theirs, weight_norm_dim=0))
    assert not np.array_equal(v.T.ravel(), np.arange(1, 17))
    assert np.allclose(np.linalg.norm(v, axis=0), [1, 2, 3, 4])  # torch's: by the output, which stands last in paddle


def test_a_padding_row_that_paddle_does_not_read_is_said() -> None:
    torch = weights("torch", module("emb", "embedding", {"weight": (3, 2)}, padding_idx=1))
    paddle = weights("paddle", module("emb", "embedding", {"weight": (3, 2)}, padding_idx=1))
    (text,) = remarks(torch, paddle)
    assert "emb: row 1 holds numbers" in text
    assert remarks(paddle, torch) == [text]
    assert remarks(paddle, paddle) == []
    unpadded = weights("paddle", module("emb", "embedding", {"weight": (3, 2)}, padding_idx=-1))
    assert remarks(torch, unpadded) == []
    empty = layer("paddle", "embedding", {"weight": (3, 2)}, padding_idx=1)
    assert remarks_of(empty, lambda name: np.zeros((3, 2))) == []


def test_spectral_norm_in_training_is_said() -> None:
    shapes = {"parametrizations.weight.original": (5, 4), "parametrizations.weight.0._u": (5,)}
    shapes |= {"parametrizations.weight.0._v": (4,)}
    found = layer("torch", "linear", {}, shapes)
    assert {s.roles[0] for s in stores_of(found)} == {"weight_orig", "weight_u", "weight_v"}
    (text,) = remarks_of(found, lambda name: np.zeros(1))
    assert "training mode" in text
    assert remarks_of(layer("torch", "linear", {"weight": (5, 4)}), lambda name: np.zeros(1)) == []


def test_a_framework_without_tables_has_plain_stores() -> None:
    assert roles(stores_of(layer("jax", "lstm", {"kernel": (4, 4)}))) == {("kernel",): ("kernel",)}
    assert remarks_of(layer("jax", "lstm", {"kernel": (4, 4)}), lambda name: np.zeros(1)) == []
