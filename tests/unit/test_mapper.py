"""The mapper on models described by hand: pairs of modules at rest, hints, rules, links that become entries."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinscope.errors import MatchError, OptionError, WeightError
from twinscope.hints import Hints, as_pairs
from twinscope.records import ModuleInfo, ParamInfo, TensorMeta
from twinscope.weights.layers import Layer
from twinscope.weights.linking import Link, Part, Stock, filled, joined, omitted, stocks_of
from twinscope.weights.mapper import draft
from twinscope.weights.model import Weights
from twinscope.weights.resting import Unit, likeness, pair_units
from twinscope.weights.rules import rule_for, weight_rule
from twinscope.weights.transforms import Split, Transpose, run
from twinscope.weights.weightmap import Entry, WeightMap


def param(name: str, *shape: int, dtype: str = "float32", buffer: bool = False, tied: str | None = None) -> ParamInfo:
    return ParamInfo(name, TensorMeta(shape, dtype), name, not buffer, buffer, tied_to=tied)


def module(path: str, kind: str | None, *params: ParamInfo, type_: str = "") -> ModuleInfo:
    return ModuleInfo(path, type_ or f"user.{kind or 'Block'}", kind, kind is not None, params)


def linear(path: str, inputs: int, out: int, bias: bool = True) -> ModuleInfo:
    held = [param("weight", out, inputs), *([param("bias", out)] if bias else [])]
    return module(path, "linear", *held)


def norm(path: str, size: int) -> ModuleInfo:
    return module(path, "layer_norm", param("weight", size), param("bias", size))


def weights(*modules: ModuleInfo, framework: str = "torch") -> Weights:
    """A model that exists as a description alone; what it holds is told by each path and shape."""

    def array(info: ModuleInfo, p: ParamInfo) -> Any:
        return np.full(p.meta.shape, sum(info.param_path(p.name).encode()), np.float32)

    root = () if any(m.path == "" for m in modules) else (module("", None),)
    return Weights(framework, "Net", (*root, *modules), array)


def mapped(a: Weights, b: Weights, hints: Any = None, skip: Any = None) -> WeightMap:
    return draft(a, b, Hints.parse(hints, skip)).map()


def pairs(mapping: WeightMap) -> dict[str, str]:
    return {" + ".join(e.reference): " + ".join(e.candidate) for e in mapping}


def units(*modules: ModuleInfo) -> list[Unit]:
    return [Unit(m, tuple(sorted((p.role, p.meta.shape) for p in m.params))) for m in modules]


def rest(a: Sequence[Unit], b: Sequence[Unit], settled: dict[str, str] | None = None) -> list[Any]:
    return pair_units(a, b, settled or {}, ({}, {}))


# -- pairs of modules at rest ----------------------------------------------------------------------------------------


def test_names_decide_among_equals() -> None:
    a = units(linear("enc.q", 8, 8), linear("enc.k", 8, 8), linear("enc.v", 8, 8))
    b = units(linear("v_proj", 8, 8), linear("q_proj", 8, 8), linear("k_proj", 8, 8))
    found = rest(a, b)
    assert {(p.a, p.b) for p in found} == {("enc.q", "q_proj"), ("enc.k", "k_proj"), ("enc.v", "v_proj")}
    assert all(p.confidence >= 0.7 for p in found)


def test_equals_without_names_are_not_sure() -> None:
    a = units(*(linear(name, 8, 8) for name in ("one", "two", "three")))
    b = units(*(linear(name, 8, 8) for name in ("x", "y", "z")))
    found = rest(a, b)
    assert len(found) == 3
    for p in found:
        assert p.confidence < 0.7 and len(p.options) == 2 and p.b not in p.options


def test_the_only_two_of_a_kind_and_shape() -> None:
    found = rest(units(linear("a", 8, 4), linear("b", 4, 8)), units(linear("x", 4, 8), linear("y", 8, 4)))
    assert {(p.a, p.b, p.confidence) for p in found} == {("a", "y", 0.95), ("b", "x", 0.95)}


def test_what_has_no_partner_gets_none() -> None:
    assert rest(units(linear("a", 8, 4)), units(linear("a", 8, 5), norm("b", 4))) == []
    found = rest(units(linear("a", 8, 8), linear("b", 8, 8)), units(linear("b", 8, 8)))
    assert [(p.a, p.b) for p in found] == [("b", "b")]


def test_more_on_one_side_than_on_the_other_is_not_sure() -> None:
    found = rest(units(linear("one", 8, 8), linear("two", 8, 8)), units(linear("x", 8, 8)))
    assert len(found) == 1 and found[0].confidence < 0.7


def test_kinds_are_told_apart() -> None:
    bn = module("n", "batch_norm2d", param("weight", 8), param("bias", 8))
    found = rest(units(norm("a", 8), bn), units(module("m", "batch_norm2d", *bn.params), norm("z", 8)))
    assert {(p.a, p.b) for p in found} == {("a", "z"), ("n", "m")}


def test_what_is_settled_stays_out() -> None:
    a, b = units(linear("a", 8, 8), linear("b", 8, 8)), units(linear("a", 8, 8), linear("b", 8, 8))
    found = rest(a, b, {"a": "b"})
    assert [(p.a, p.b) for p in found] == [("b", "a")]


def test_a_hint_keeps_what_lies_below_together() -> None:
    names = ("first.q", "first.k", "second.q", "second.k")
    a, b = (weights(module("first", None), module("second", None), *(linear(n, 8, 8) for n in names)) for _ in "ab")
    found = mapped(a, b, {"first": "second", "second": "first"})
    assert found.complete, str(found)
    assert pairs(found)["first.q.weight"] == "second.q.weight"
    assert pairs(found)["second.k.bias"] == "first.k.bias"


BLOCKS = [m for i in range(3) for m in (linear(f"blocks.{i}.fc1", 4, 8), linear(f"blocks.{i}.fc2", 8, 4))]
OTHERS = [m for i in range(3) for m in (linear(f"layers.{i}.mlp.0", 4, 8), linear(f"layers.{i}.mlp.2", 8, 4))]


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)), st.permutations(range(6)))
def test_the_order_of_definition_does_not_change_the_pairs(first: list[int], second: list[int]) -> None:
    known = mapped(weights(*BLOCKS), weights(*OTHERS))
    assert known.complete, str(known)
    found = mapped(weights(*(BLOCKS[i] for i in first)), weights(*(OTHERS[i] for i in second)))
    assert pairs(found) == pairs(known)
    assert all(a.replace("blocks", "layers").split(".")[1] == b.split(".")[1] for a, b in pairs(found).items())


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 2**31))
def test_names_that_say_nothing_make_nothing_sure(order: list[int], seed: int) -> None:
    draw = random.Random(seed)
    names = ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(6)) for _ in range(6)]
    found = mapped(
        weights(*(linear(f"fc{i}", 8, 8) for i in range(6))), weights(*(linear(names[i], 8, 8) for i in order))
    )
    assert not any(e.sure for e in found), str(found)


@given(st.lists(st.sampled_from(["layer1", "0", "1", "conv2", "q_proj", "q", "attn"]), min_size=1, max_size=4))
def test_a_path_is_most_like_itself(parts: list[str]) -> None:
    path = ".".join(parts)
    assert likeness(path, path) == pytest.approx(1.0)
    assert likeness(path, f"{path}.other") < 1.0
    assert likeness(path, f"{path}.other") == likeness(f"{path}.other", path)


@pytest.mark.parametrize(("count", "limit"), [(1_000, 10.0), (4_000, 60.0)])
def test_a_large_model_is_mapped_in_time(count: int, limit: float) -> None:
    """Twelve tensors a block; without names in common, and without running, the order of blocks is all there is."""

    def blocks(top: str, words: Sequence[str]) -> list[ModuleInfo]:
        return [
            m
            for i in range(count // 12)
            for m in (
                *(linear(f"{top}.{i}.{words[n]}", 8, 8) for n in range(4)),
                linear(f"{top}.{i}.{words[4]}", 8, 32),
                norm(f"{top}.{i}.{words[5]}", 8),
            )
        ]

    a = weights(*blocks("blocks", ("attn.q", "attn.k", "attn.v", "attn.out", "fc1", "norm")))
    b = weights(*blocks("encoder.layer", ("self.query", "self.key", "self.value", "output", "wide", "ln")))
    began = time.process_time()
    found = mapped(a, b)
    assert time.process_time() - began < limit
    numbers = [(e.reference[0].split(".")[1], e.candidate[0].split(".")[2]) for e in found if e.sure]
    assert all(i == j for i, j in numbers)


# -- what is packed, skipped, left over ------------------------------------------------------------------------------


def split_attention(path: str = "") -> list[ModuleInfo]:
    dot = f"{path}." if path else ""
    return [linear(f"{dot}{name}", 8, 8) for name in ("q", "k", "v", "out")]


def test_packed_projections_are_found_and_not_sure_without_running() -> None:
    a, b = weights(*split_attention()), weights(linear("qkv", 8, 24), linear("out", 8, 8))
    for first, second in ((a, b), (b, a)):
        found = mapped(first, second)
        assert len(found) == 4 and not found.unmatched_reference and not found.unmatched_candidate
        assert {p for e in found.unsure for p in (*e.reference, *e.candidate)} == {
            f"{layer}.{what}" for layer in ("q", "k", "v", "qkv") for what in ("weight", "bias")
        }


def test_a_joined_hint_gives_the_order() -> None:
    a, b = weights(*split_attention()), weights(linear("qkv", 8, 24), linear("out", 8, 8))
    hints = {f"v.{w} + q.{w} + k.{w}": f"qkv.{w}" for w in ("weight", "bias")}
    found = mapped(a, b, hints)
    assert found.complete, str(found)
    read = a.reader()
    arrays = {path: array for _, path, array in found.arrays(read)}
    want = np.concatenate([read(f"{name}.weight") for name in "vqk"])
    np.testing.assert_array_equal(arrays["qkv.weight"], want)
    back = mapped(b, a, {v: k for k, v in hints.items()})
    assert [e.candidate for e in back if "qkv.weight" in e.reference] == [("v.weight", "q.weight", "k.weight")]


def test_a_layer_too_many_is_unmatched() -> None:
    a = weights(linear("first", 4, 8), linear("between", 8, 8), linear("last", 8, 2))
    b = weights(linear("first", 4, 8), linear("last", 8, 2))
    for found, side in ((mapped(a, b), "unmatched_reference"), (mapped(b, a), "unmatched_candidate")):
        assert not found.complete and not found.unsure
        assert [h.path for h in getattr(found, side)] == ["between.weight", "between.bias"]
    assert mapped(a, b, skip=["between"]).complete
    assert mapped(a, b, skip={"reference": ["betw*"]}).complete
    assert not mapped(a, b, skip={"candidate": ["between"]}).complete


def test_an_index_table_is_not_needed() -> None:
    a = weights(linear("fc", 4, 4), module("pos", None, param("ids", 1, 16, dtype="int64", buffer=True)))
    found = mapped(a, weights(linear("fc", 4, 4)))
    assert found.complete and [h.path for h in found.unmatched_reference] == ["pos.ids"]


def test_shapes_that_do_not_fit_are_never_paired() -> None:
    found = mapped(weights(linear("fc", 4, 8)), weights(linear("fc", 4, 7)))
    assert not len(found) and len(found.unmatched_reference) == len(found.unmatched_candidate) == 2


def test_a_bare_square_is_not_turned_in_secret() -> None:
    found = mapped(weights(linear("fc", 8, 8, bias=False)), weights(module("", None, param("matrix", 8, 8))))
    assert len(found) == 1 and not found.complete


# -- links to entries ------------------------------------------------------------------------------------------------


def stock(side: Weights, name: str) -> Stock:
    return next(s for s in stocks_of(side) if s.names == (name,))


def test_links_that_share_a_parameter_make_one_entry() -> None:
    a, b = weights(*split_attention()), weights(linear("qkv", 8, 24))
    big = stock(b, "qkv.weight").refined(["q", "k", "v"], (Split((8, 8, 8)),))
    links = [
        Link(Part(stock(a, f"{name}.weight")), Part(big, i), "because", 0.9 - i / 10) for i, name in enumerate("qkv")
    ]
    (entry,) = joined(links)
    assert entry.reference == ("q.weight", "k.weight", "v.weight") and entry.candidate == ("qkv.weight",)
    assert entry.confidence == pytest.approx(0.7) and entry.why == "because"
    arrays = [np.full((8, 8), i, np.float32) for i in range(3)]
    (made,) = run(entry.transform, arrays)
    np.testing.assert_array_equal(made, np.concatenate(arrays))
    back = run(entry.inverted().transform, [made])
    assert all(np.array_equal(x, y) for x, y in zip(arrays, back, strict=True))


def test_a_part_without_partner_makes_no_entry_to_act_upon() -> None:
    a, b = weights(*split_attention()), weights(linear("qkv", 8, 24))
    big = stock(b, "qkv.weight").refined(["q", "k", "v"], (Split((8, 8, 8)),))
    (entry,) = joined([Link(Part(stock(a, "q.weight")), Part(big, 0), "", 1.0)])
    assert entry.confidence == 0.0 and "partner" in entry.why


def test_a_link_with_a_step_between() -> None:
    a, b = weights(linear("fc", 4, 8, bias=False)), weights(module("", None, param("matrix", 4, 8)))
    (entry,) = joined([Link(Part(stock(a, "fc.weight")), Part(stock(b, "matrix")), "", 1.0, between=(Transpose(),))])
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    (made,) = run(entry.transform, [x])
    np.testing.assert_array_equal(made, x.T)


def test_two_dtypes_are_cast() -> None:
    a = weights(module("fc", "linear", param("weight", 4, 4, dtype="float64")))
    found = mapped(a, weights(linear("fc", 4, 4, bias=False)))
    assert found.complete
    (made,) = run(found.entries[0].transform, [np.eye(4)])
    assert made.dtype == np.float32


def test_a_tied_tensor_is_mapped_once() -> None:
    def tied(name: str) -> Weights:
        table = module(name, "embedding", param("weight", 9, 4))
        return weights(table, module("head", "linear", param("weight", 9, 4, tied=f"{name}.weight")))

    found = mapped(tied("embed"), tied("wte"))
    assert found.complete and pairs(found) == {"embed.weight": "wte.weight"}


def test_what_changes_nothing_is_filled_and_left_out() -> None:
    side = weights(norm("n", 4))
    scale = stock(side, "n.weight")
    entry = filled(scale, "why")
    assert entry is not None and entry.reference == ()
    np.testing.assert_array_equal(run(entry.transform, [])[0], np.ones(4))
    entry = omitted(scale, "why")
    assert entry is not None and entry.candidate == ()
    assert run(entry.transform, [np.ones(4, np.float32)]) == []
    with pytest.raises(WeightError):
        run(entry.transform, [np.full(4, 1.5, np.float32)])
    assert filled(stock(weights(linear("fc", 4, 4)), "fc.weight"), "why") is None


# -- hints -----------------------------------------------------------------------------------------------------------

NAMES = {p: p for p in ("enc.0.q", "enc.1.q", "enc.0", "enc.1", "head")}
TARGETS = {p: p for p in ("blocks.0.wq", "blocks.1.wq", "blocks.0", "blocks.1", "out")}


def test_patterns_pair_modules() -> None:
    hints = Hints.parse({"enc.{i}.q": "blocks.{i}.wq", "head": "out"})
    assert hints.of_modules(NAMES, TARGETS) == {
        "enc.0.q": "blocks.0.wq",
        "enc.1.q": "blocks.1.wq",
        "head": "out",
    }


def test_hints_of_tensors_are_those_that_name_no_module() -> None:
    first, second = {f"{p}.weight": f"{p}.weight" for p in NAMES}, {f"{p}.weight": f"{p}.weight" for p in TARGETS}
    hints = Hints.parse({"head": "out", "enc.{i}.q.weight": "blocks.{i}.wq.weight"})
    assert hints.of_tensors(NAMES, first, second) == [
        (("enc.0.q.weight",), ("blocks.0.wq.weight",)),
        (("enc.1.q.weight",), ("blocks.1.wq.weight",)),
    ]


@pytest.mark.parametrize(
    ("given_hints", "message"),
    [
        ({"haed": "out"}, "haed"),
        ({"head": "uot"}, "uot"),
        ({"enc.{i}": "blocks.{j}"}, "j"),
        ({"enc.0": "out", "enc.1": "out"}, "more than one"),
        ({"head.weight": "out.weight + nothing"}, "nothing"),
        ({"nothing + head.weight": "out.weight"}, "nothing"),
    ],
)
def test_a_hint_that_fits_nothing_is_an_error(given_hints: dict[str, str], message: str) -> None:
    hints = Hints.parse(given_hints)
    first, second = {f"{p}.weight": f"{p}.weight" for p in NAMES}, {f"{p}.weight": f"{p}.weight" for p in TARGETS}
    with pytest.raises(MatchError, match=message):
        hints.of_modules(NAMES, TARGETS)
        hints.of_tensors(NAMES, first, second)


@pytest.mark.parametrize("wrong", [3, 1.5, {"a": 1}, [("a",)], ["ab"], {1: "a"}, [3], True, "no/such/file.json"])
def test_hints_of_the_wrong_form(wrong: Any) -> None:
    with pytest.raises(OptionError):
        Hints.parse(wrong)


@pytest.mark.parametrize("wrong", [{"left": ["a"]}, 3, [3], {"reference": 3}, {"reference": [None]}])
def test_skip_of_the_wrong_form(wrong: Any) -> None:
    with pytest.raises(OptionError):
        Hints.parse(None, wrong)


@pytest.mark.parametrize(
    ("content", "good"),
    [
        ({"map": {"a": "b"}, "skip": ["c"]}, True),
        ({"map": [["a", "b"]], "skip": ["c"]}, True),
        ({"a": "b"}, False),
        ({"map": {"a": "b"}, "ksip": []}, None),
        ([1], None),
        ("{", None),
        ({"map": 3}, None),
        ({"map": {"a": 3}}, None),
        ({"map": {"a": "b"}, "skip": {"c": 3}}, None),
    ],
)
def test_files_of_hints(tmp_path: Path, content: Any, good: bool | None) -> None:
    place = tmp_path / "hints.json"
    place.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    if good is None:
        with pytest.raises(OptionError):
            Hints.parse(place)
        return
    found = Hints.parse(str(place))
    assert found.pairs == (("a", "b"),) and found.skips(0, "c") == found.skips(1, "c") == good


def test_what_is_skipped_by_argument_wins_over_the_file(tmp_path: Path) -> None:
    place = tmp_path / "hints.json"
    place.write_text('{"map": {}, "skip": ["c"]}', encoding="utf-8")
    assert not Hints.parse(place, skip=["d"]).skips(0, "c")


def test_pairs_are_read_as_they_are() -> None:
    assert as_pairs([("a", "b")], "x") == [("a", "b")] and as_pairs(None, "x") == []


# -- rules -----------------------------------------------------------------------------------------------------------


class Fused:
    """A class that a rule is made for."""


def attention(packed: bool, type_: str) -> Weights:
    if packed:
        return weights(module("attn", None, param("w", 24, 8), type_=type_), linear("attn.out", 8, 8))
    return weights(module("attn", None, *(param(f"w{n}", 8, 8) for n in "kqv"), type_=type_), linear("attn.out", 8, 8))


def test_a_rule_is_used_in_both_directions_until_it_is_forgotten() -> None:
    @weight_rule("FusedAttention", "Apart*")
    def keys_first(fused: Layer, apart: Layer) -> Any:
        size = apart.shape("wq")[0]
        yield "w", ("wk", "wq", "wv"), Split((size, size, size))

    a, b = attention(True, "user.FusedAttention"), attention(False, "other.ApartAttention")
    try:
        there, back = mapped(a, b), mapped(b, a)
    finally:
        keys_first.forget()
    assert there.complete and back.complete, f"{there}\n{back}"
    assert pairs(there)["attn.w"] == "attn.wk + attn.wq + attn.wv"
    assert pairs(back)["attn.wk + attn.wq + attn.wv"] == "attn.w"
    assert not any("rule" in e.why for e in mapped(a, b))


def test_a_rule_for_containers_is_used() -> None:
    """The modules that it is for hold nothing themselves."""

    @weight_rule("Fused", "Apart")
    def keys_first(fused: Layer, apart: Layer) -> Any:
        for what in ("weight", "bias"):
            yield f"qkv.{what}", (f"k.{what}", f"q.{what}", f"v.{what}"), Split((8, 8, 8))

    a = weights(module("attn", None, type_="user.Fused"), linear("attn.qkv", 8, 24), linear("attn.out", 8, 8))
    b = weights(module("sa", None, type_="user.Apart"), *split_attention("sa"))
    try:
        there, back = mapped(a, b), mapped(b, a)
    finally:
        keys_first.forget()
    assert there.complete and back.complete, f"{there}\n{back}"
    assert pairs(there)["attn.qkv.weight"] == "sa.k.weight + sa.q.weight + sa.v.weight"


def test_the_latest_rule_wins_and_classes_may_be_given_themselves() -> None:
    first = weight_rule("Fused", "B")(lambda a, b: [("x", "y")])
    second = weight_rule(Fused, "B")(lambda a, b: [("z", "y")])
    try:
        infos = module("", None, type_=f"{Fused.__module__}.Fused"), module("", None, type_="user.B")
        assert rule_for(*infos) == (second, False)
        assert rule_for(*infos[::-1]) == (second, True)
        second.forget()
        assert rule_for(*infos) == (first, False)
    finally:
        first.forget()
    assert rule_for(*infos) is None


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        ([("nothing", "wq")], WeightError, "nothing"),
        ([("w", ("wk", "nothing"))], WeightError, "nothing"),
        ([("w", "wq", "transpose")], OptionError, "transpose"),
        ([("w",)], OptionError, "gave"),
        ([3], OptionError, "gave 3"),
        ([("w", 3)], OptionError, "gave"),
        ([("w", "wq", (), "more")], OptionError, "gave"),
    ],
)
def test_a_rule_that_says_nonsense(made: list[Any], error: type[Exception], message: str) -> None:
    rule = weight_rule("FusedAttention", "ApartAttention")(lambda fused, apart: made)
    try:
        with pytest.raises(error, match=message):
            mapped(attention(True, "user.FusedAttention"), attention(False, "user.ApartAttention"))
    finally:
        rule.forget()


def test_a_rule_is_made_for_classes_by_a_function() -> None:
    with pytest.raises(OptionError):
        weight_rule(3, "B")  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        weight_rule("A", "B")(3)  # type: ignore[arg-type]


def test_an_entry_is_sure_from_a_point_on() -> None:
    assert Entry(("a",), ("b",), (), "", 0.7).sure and not Entry(("a",), ("b",), (), "", 0.69).sure
