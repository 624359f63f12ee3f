"""Lint on layers described by hand: the table, what is the same in other words, and which layer is whose partner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from twinscope.adapters.base import KINDS
from twinscope.explain import Effect, LintReport, lint
from twinscope.explain.neutral import SAME, difference, neutral
from twinscope.explain.spelling import default_written, spelled, written
from twinscope.explain.table import (
    FLAVOURS,
    ROLES,
    TABLE,
    UNSET,
    Setting,
    default_of,
    family,
    flavour_of,
    role,
    settings_of,
)
from twinscope.records import ModuleInfo, ParamInfo, TensorMeta
from twinscope.weights.model import Weights


def layer(kind: str | None, path: str = "", type_: str = "torch.nn.modules.Layer", **attributes: Any) -> ModuleInfo:
    return ModuleInfo(path, type_, kind, kind is not None, (), (), attributes)


def weighted(kind: str, path: str, *shape: int, trainable: bool = True, **attributes: Any) -> ModuleInfo:
    held = ParamInfo("weight", TensorMeta(shape, "float32"), "weight", trainable, False)
    return ModuleInfo(path, "torch.nn.modules.Layer", kind, True, (held,), (), attributes)


def model(framework: str, *modules: ModuleInfo) -> Weights:
    """A model of these modules, with the containers that their paths tell of."""
    known = {m.path for m in modules}
    above = {""}
    for m in modules:
        parts = m.path.split(".")
        above |= {".".join(parts[:i]) for i in range(1, len(parts))}
    containers = [ModuleInfo(path, "user.Part", None, False) for path in sorted(above - known)]
    rank = {m.path: n for n, m in enumerate(modules)}
    order = sorted([*containers, *modules], key=lambda m: min([rank[p] for p in rank if _under(p, m.path)], default=0))
    order.sort(key=lambda m: (m.path != "",))

    def array(info: ModuleInfo, param: ParamInfo) -> Any:
        return np.zeros(param.meta.shape, np.float32)

    return Weights(framework, "Net", tuple(order), array)


def _under(path: str, above: str) -> bool:
    return not above or path == above or path.startswith(f"{above}.")


def setting(kind: str, name: str) -> Setting:
    return next(s for s in TABLE[kind] if s.name == name)


def differs(kind: str, name: str, a: tuple[str, ModuleInfo], b: tuple[str, ModuleInfo]) -> Any:
    return difference(setting(kind, name), neutral(*a), neutral(*b))


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_table_speaks_of_known_kinds() -> None:
    assert set(TABLE) <= KINDS
    assert frozenset().union(*ROLES.values()) <= KINDS


@pytest.mark.parametrize("kind", TABLE)
def test_settings_are_well_formed(kind: str) -> None:
    names = [s.name for s in TABLE[kind]]
    assert len(set(names)) == len(names)
    for s in TABLE[kind]:
        assert set(s.defaults) <= set(FLAVOURS) and set(s.own) <= set(s.defaults)
        assert s.compared in ("plain", "axis", "padding", "layout", "extent")
        for flavour in s.defaults:
            if s.is_fixed(flavour):
                assert s.defaults[flavour] is not UNSET, (kind, s.name, flavour)


def test_families_and_roles() -> None:
    assert family("batch_norm1d") == family("sync_batch_norm") == "batch_norm"
    assert family("max_pool1d") != family("max_pool2d")
    assert role("gelu") == role("relu") == "activation" and role("linear") == "linear"
    assert settings_of("relu") == ()


def test_flavours() -> None:
    assert flavour_of("mindspore", layer("gelu", type_="mindspore.nn.layer.activation.GELU")) == "mindspore"
    assert flavour_of("mindspore", layer("gelu", type_="mindspore.mint.nn.GELU")) == "mint"
    assert flavour_of("mindspore", layer("layer_norm", type_="mindspore.nn.layer.normalization.LayerNormExt")) == "mint"
    assert flavour_of("torch", layer("gelu")) == "torch"


def test_a_pools_stride_is_by_default_its_kernel() -> None:
    stride = setting("max_pool2d", "stride")
    assert default_of(stride, "torch", {"kernel_size": (3, 3)}) == (3, 3)
    assert default_of(stride, "torch", {}) is UNSET
    assert default_of(stride, "mindspore", {"kernel_size": (3, 3)}) == 1


# -- what is the same in other words -----------------------------------------------------------------------------------

CONV = {"kernel_size": [3, 3], "stride": [1, 1], "dilation": [1, 1], "padding_mode": "zeros"}


def conv(padding: Any, kind: str = "conv2d", **more: Any) -> ModuleInfo:
    return layer(kind, padding=padding, **{**CONV, **more})


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (("torch", conv(1)), ("torch", conv([1, 1])), True),
        (("torch", conv(1)), ("paddle", conv("SAME")), True),
        (("torch", conv(1)), ("mindspore", conv("same", pad_mode="same")), True),
        (("torch", conv(0)), ("paddle", conv("VALID")), True),
        (("torch", conv([1, 2])), ("paddle", conv([1, 1, 2, 2])), True),
        (("torch", conv([2, 1])), ("paddle", conv([1, 1, 2, 2])), False),
        (("torch", conv(1)), ("paddle", conv([0, 1, 0, 1])), False),
        (("torch", conv("same", kernel_size=[4, 4])), ("paddle", conv([1, 2, 1, 2], kernel_size=[4, 4])), True),
        (("torch", conv("same", kernel_size=[4, 4])), ("paddle", conv([2, 1, 2, 1], kernel_size=[4, 4])), False),
        (("torch", conv(2, dilation=[2, 2])), ("mindspore", conv("same", dilation=[2, 2])), True),
        (("torch", conv(0)), ("mindspore", conv("same")), False),
        (("torch", conv(0, kernel_size=[1, 1], stride=[2, 2])),
         ("mindspore", conv("same", kernel_size=[1, 1], stride=[2, 2])), True),
        (("torch", conv(1, kind="conv_transpose2d", kernel_size=[4, 4], stride=[2, 2])),
         ("mindspore", conv("same", kind="conv_transpose2d", kernel_size=[4, 4], stride=[2, 2])), True),
    ],
)  # fmt: skip
def test_padding_in_many_words(a: tuple[str, ModuleInfo], b: tuple[str, ModuleInfo], same: bool) -> None:
    for first, second in ((a, b), (b, a)):
        found = differs(first[1].kind or "", "padding", first, second)
        assert (found is None) is same
        assert found is None or found.sure


@pytest.mark.parametrize(
    ("padding", "kernel", "stride", "said"),
    [
        (1, 3, 2, "modulo 2 is 1"),  # of an odd number as much is added on both ends
        (0, 3, 2, None),  # something is always added
        (0, 2, 2, "modulo 2 is 0"),
        (2, 3, 2, None),
        (1, 3, 3, "modulo 3 is 1"),
        (0, 3, 3, "modulo 3 is 0"),
    ],
)
def test_same_with_a_stride_depends_on_the_input(padding: int, kernel: int, stride: int, said: str | None) -> None:
    sizes = {"kernel_size": [kernel] * 2, "stride": [stride] * 2}
    found = differs("conv2d", "padding", ("torch", conv(padding, **sizes)), ("mindspore", conv("same", **sizes)))
    assert found is not None
    if said is None:
        assert found.sure
    else:
        assert not found.sure and said in found.reservation
    both = [conv("same", **sizes)] * 2
    assert differs("conv2d", "padding", ("paddle", both[0]), ("mindspore", both[1])) is None
    for size in range(20, 30):  # by counting
        count = -(-size // stride)
        total = max((count - 1) * stride + kernel - size, 0)
        agrees = (total // 2, total - total // 2) == (padding, padding) and (
            (size + 2 * padding - kernel) // stride + 1 == count
        )
        assert agrees is (said is not None and str(size % stride) in said.rpartition(" is ")[2].split(" or "))


def test_paddle_heeds_no_dilation_where_padding_is_same() -> None:
    found = neutral("paddle", conv("SAME", dilation=[2, 2]))
    assert found["dilation"] == (1, 1) and found["padding"] == ((1, 1), (1, 1))
    assert neutral("torch", conv("same", dilation=[2, 2]))["padding"] == ((2, 2), (2, 2))
    assert neutral("paddle", conv("SAME", stride=[2, 2]))["padding"] == (SAME, SAME)


@pytest.mark.parametrize(
    ("kind", "name", "a", "b", "same"),
    [
        ("layer_norm", "eps", {"eps": 1e-5}, {"eps": 0.00001}, True),
        ("layer_norm", "eps", {"eps": 1e-5}, {"eps": 9.99999974737875e-06}, True),  # after float32
        ("layer_norm", "eps", {"eps": 1e-5}, {"eps": 1e-6}, False),
        ("batch_norm2d", "eps", {"eps": 1e-5}, {}, True),  # of what cannot be read nothing is said
        ("softplus", "beta", {"beta": 1}, {"beta": 1.0}, True),
        ("avg_pool2d", "count_include_pad", {"padding": 0, "count_include_pad": True},
         {"count_include_pad": False}, True),
        ("avg_pool2d", "count_include_pad", {"padding": 1, "count_include_pad": True},
         {"padding": 1, "count_include_pad": False}, False),
        ("max_pool2d", "stride", {"kernel_size": 2, "stride": None}, {"kernel_size": [2, 2], "stride": 2}, True),
        ("max_pool2d", "kernel_size", {"kernel_size": 2}, {"kernel_size": [2, 3]}, False),
        ("lstm", "dropout", {"num_layers": 1, "dropout": 0.5}, {"num_layers": 1, "dropout": 0.0}, True),
        ("lstm", "dropout", {"num_layers": 2, "dropout": 0.5}, {"num_layers": 2, "dropout": 0.0}, False),
        ("embedding", "padding_idx", {"padding_idx": -1, "num_embeddings": 5},
         {"padding_idx": 4, "num_embeddings": 5}, True),
        ("embedding", "norm_type", {"max_norm": None, "norm_type": 1.0}, {"max_norm": None, "norm_type": 2.0}, True),
        ("upsample", "align_corners", {"mode": "nearest", "align_corners": None},
         {"mode": "nearest", "align_corners": True}, True),
        ("upsample", "align_corners", {"mode": "bilinear", "align_corners": None},
         {"mode": "bilinear", "align_corners": False}, True),
        ("upsample", "align_corners", {"mode": "bilinear", "align_corners": True}, {"mode": "bilinear",
         "align_corners": False}, False),
        ("upsample", "scale_factor", {"scale_factor": 2}, {"scale_factor": [2.0, 2.0]}, True),
        ("rnn", "nonlinearity", {"nonlinearity": "relu"}, {"activation": "relu"}, True),
        ("mse_loss", "reduction", {"reduction": "mean"}, {"reduce": True, "average": True}, True),
        ("mse_loss", "reduction", {"reduction": "mean"}, {"reduce": True, "average": False}, False),
        ("pad", "padding", {"padding": [1, 1]}, {"padding": [1, 1, 0, 0, 0, 0]}, True),
        ("smooth_l1_loss", "huber", {"beta": 1.0}, {"delta": 1.0, "is_huber": True}, True),
    ],
)  # fmt: skip
def test_values_in_many_words(kind: str, name: str, a: Mapping[str, Any], b: Mapping[str, Any], same: bool) -> None:
    sides = ("torch", layer(kind, **a)), ("torch", layer(kind, **b))
    assert (differs(kind, name, *sides) is None) is same
    assert (differs(kind, name, *sides[::-1]) is None) is same


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        *((1, 1, "same"), (1, 2, "differ"), (-1, -2, "differ")),
        *((1, -1, "suspected"), (None, -1, "suspected"), (None, None, "same")),
    ],
)
def test_axes(a: int | None, b: int | None, verdict: str) -> None:
    found = differs("softmax", "dim", ("torch", layer("softmax", dim=a)), ("paddle", layer("softmax", dim=b)))
    assert ("same" if found is None else "differ" if found.sure else "suspected") == verdict


def test_what_a_side_always_does_counts() -> None:
    dilated = layer("max_pool2d", kernel_size=2, stride=2, dilation=2)
    assert (
        differs("max_pool2d", "dilation", ("torch", dilated), ("paddle", layer("max_pool2d", kernel_size=2)))
        is not None
    )
    plain = layer("max_pool2d", kernel_size=2, stride=2, dilation=1)
    assert differs("max_pool2d", "dilation", ("torch", plain), ("paddle", layer("max_pool2d", kernel_size=2))) is None
    infer = layer("dropout", p=0.1, mode="downscale_in_infer")
    assert differs("dropout", "mode", ("torch", layer("dropout", p=0.1)), ("paddle", infer)) is not None


def test_a_bias_is_what_is_held() -> None:
    assert neutral("torch", weighted("linear", "fc", 3, 4))["bias"] is False
    assert "bias" not in neutral("torch", layer("linear"))
    assert neutral("paddle", layer("linear", bias=True))["bias"] is True


def test_mindspore_counts_axes_apart() -> None:
    def norm(begin: int, params: int) -> Any:
        found = layer("layer_norm", normalized_shape=[3, 4], begin_norm_axis=begin, begin_params_axis=params)
        return neutral("mindspore", found).get("normalized_shape")

    assert norm(-2, -2) == norm(1, 1) == (3, 4)
    assert norm(-1, -2) == norm(2, 1) == (4,)
    assert norm(1, 2) == ("*", 3, 4)
    assert norm(1, -2) is None  # it depends on the input


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flavour", "kind", "name", "value", "said"),
    [
        ("torch", "batch_norm2d", "momentum", 0.1, "momentum=0.1"),
        ("paddle", "batch_norm2d", "momentum", 0.1, "momentum=0.9"),
        ("mindspore", "batch_norm2d", "momentum", 0.1, "momentum=0.9"),
        ("mint", "batch_norm2d", "momentum", 0.1, "momentum=0.1"),
        ("mindspore", "instance_norm2d", "momentum", 0.1, "momentum=0.1"),
        ("paddle", "layer_norm", "eps", 1e-5, "epsilon=1e-05"),
        ("mindspore", "layer_norm", "eps", 1e-7, "epsilon=1e-07"),
        ("mindspore", "gelu", "approximate", "tanh", "approximate=True"),
        ("torch", "gelu", "approximate", "tanh", "approximate='tanh'"),
        ("paddle", "linear", "bias", False, "bias_attr=False"),
        ("mindspore", "linear", "bias", True, "has_bias=True"),
        ("paddle", "lstm", "batch_first", True, "time_major=False"),
        ("paddle", "lstm", "bidirectional", True, "direction='bidirect'"),
        ("paddle", "avg_pool2d", "count_include_pad", False, "exclusive=True"),
        ("mindspore", "leaky_relu", "negative_slope", 0.2, "alpha=0.2"),
        ("torch", "conv2d", "padding", ((1, 1), (1, 1)), "padding=1"),
        ("torch", "conv2d", "padding", (SAME, SAME), "padding='same'"),
        ("paddle", "conv2d", "padding", ((0, 1), (0, 1)), "padding=((0, 1), (0, 1))"),
        ("torch", "max_pool2d", "kernel_size", (3, 2), "kernel_size=(3, 2)"),
    ],
)  # fmt: skip
def test_settings_in_a_frameworks_own_words(flavour: str, kind: str, name: str, value: Any, said: str) -> None:
    assert written(flavour, kind, setting(kind, name), value, {name: value}) == said


def test_defaults_in_a_frameworks_own_words() -> None:
    conv2d = setting("conv2d", "padding")
    assert default_written("torch", "conv2d", conv2d, {}) == "padding=0"
    assert default_written("mindspore", "conv2d", conv2d, {}) == "pad_mode='same'"
    assert default_written("torch", "conv2d", setting("conv2d", "kernel_size"), {}) is None
    assert default_written("torch", "dropout", setting("dropout", "mode"), {}) == "always 'upscale_in_train'"
    info = layer("dropout", p=0.9, keep_prob=0.1, type_="mindspore.nn.layer.basic.Dropout")
    assert spelled("mindspore", "dropout", setting("dropout", "p"), {"p": 0.9}, info) == "keep_prob=0.1"


# -- whose partner is whose --------------------------------------------------------------------------------------------


def found(a: Weights, b: Weights, **options: Any) -> list[tuple[str, str, str, bool]]:
    return [(f.reference.path, f.candidate.path, f.attribute, f.suspected) for f in lint(a, b, **options)]


def block(at: str, *, act: str = "gelu", p: float = 0.1, size: int = 4, names: str = "plain") -> list[ModuleInfo]:
    words = {"plain": ("fc1", "act", "drop", "fc2"), "other": ("up", "nonlinearity", "dropping", "down")}[names]
    return [
        weighted("linear", f"{at}.{words[0]}", 4 * size, size),
        layer(act, f"{at}.{words[1]}"),
        layer("dropout", f"{at}.{words[2]}", p=p),
        weighted("linear", f"{at}.{words[3]}", size, 4 * size),
    ]


def test_layers_without_weights_in_renamed_blocks() -> None:
    a = model("torch", *(m for i in range(4) for m in block(f"layers.{i}")))
    b = [block(f"encoder.stages.{i}", names="other") for i in range(4)]
    assert lint(a, model("torch", *(m for one in b for m in one)))
    b[2] = block("encoder.stages.2", names="other", p=0.3)
    assert found(a, model("torch", *(m for one in b for m in one))) == [
        ("layers.2.drop", "encoder.stages.2.dropping", "p", False)
    ]
    b[2] = block("encoder.stages.2", names="other", act="relu")
    assert found(a, model("torch", *(m for one in b for m in one))) == [
        ("layers.2.act", "encoder.stages.2.nonlinearity", "kind", False)
    ]


def test_layers_without_weights_in_other_nesting() -> None:
    a = model("torch", *block("features"), weighted("linear", "head", 7, 4))
    flat = [
        weighted("linear", "0", 16, 4),
        layer("gelu", "1"),
        layer("dropout", "2", p=0.5),
        weighted("linear", "3", 4, 16),
        weighted("linear", "4", 7, 4),
    ]
    assert found(a, model("torch", *flat)) == [("features.drop", "2", "p", False)]
    deep = [ModuleInfo(f"net.inner.{m.path}", m.type, m.kind, True, m.params, (), m.attributes) for m in flat]
    assert found(model("torch", *deep), a) == [("net.inner.2", "features.drop", "p", False)]


def test_numbers_in_a_sequence_are_no_names() -> None:
    def net(*kinds: str) -> Weights:
        lights = [layer(k, f"{n + 1}", **({"p": 0.1} if k == "dropout" else {})) for n, k in enumerate(kinds)]
        return model("torch", weighted("linear", "0", 8, 4), *lights, weighted("linear", f"{len(kinds) + 1}", 4, 8))

    assert lint(net("relu", "dropout"), net("dropout", "relu"))
    assert lint(net("identity", "relu"), net("relu"))
    assert found(net("identity", "relu"), net("gelu")) == [("2", "1", "kind", False)]


def test_a_doubtful_pair_is_only_suspected() -> None:
    def net(*ps: float, listed: str = "a b c", names: str = "ab") -> Weights:
        drops = [layer("dropout", f"{n}", p=p) for n, p in zip(listed.split(), ps, strict=True)]
        return model("torch", weighted("linear", f"{names}1", 8, 4), weighted("linear", f"{names}2", 4, 8), *drops)

    assert lint(net(0.1, 0.2, 0.3), net(0.3, 0.1, 0.2, listed="x y z"))  # all are there
    assert found(net(0.1, 0.2, 0.3), net(0.1, 0.2, 0.4, listed="x y z")) == [("c", "z", "p", False)]
    swapped = lint(net(0.1, 0.2, 0.3), net(0.2, 0.1, 0.3))
    assert [f.suspected for f in swapped] == [True, True] and "each other's names" in swapped.findings[0].doubt
    assert found(net(0.1, 0.2, 0.3), net(0.1, 0.2, 0.5)) == [("c", "c", "p", False)]
    fewer = found(net(0.1, 0.1, 0.1), net(0.2, 0.2, listed="x y"))
    assert [(f[2], f[3]) for f in fewer] == [("p", True)]
    mixed = found(net(0.1, 0.2, 0.3), net(0.1, 0.4, 0.5, listed="x y z"))
    assert [(f[0], f[3]) for f in mixed] == [("b", True), ("c", True)]
    assert lint(net(0.1, 0.1, 0.1), net(0.1, 0.1, listed="x y"))


def test_declared_in_another_place() -> None:
    a = model("torch", *block("one"), *block("two", size=8))
    shared = [m for m in (*block("one"), *block("two", size=8)) if m.kind not in ("gelu",)]
    top = layer("gelu", "gelu", approximate="tanh")
    a_exact = model(
        "torch", *(layer("gelu", m.path, approximate="none") if m.kind == "gelu" else m for m in a.modules if m.path)
    )
    report = lint(a_exact, model("torch", *shared, top))
    assert [(f.attribute, f.suspected) for f in report] == [("approximate", True)]
    assert report.unpaired == (("two.act",), ())


def test_equal_weights_in_equal_places_are_sure() -> None:
    norms = [weighted("layer_norm", f"blocks.{i}.norm", 8, eps=1e-5) for i in range(12)]
    other = list(norms)
    other[5] = weighted("layer_norm", "blocks.5.norm", 8, eps=1e-6)
    assert found(model("torch", *norms), model("paddle", *other)) == [("blocks.5.norm", "blocks.5.norm", "eps", False)]


def test_hints_and_skip() -> None:
    a = model("torch", weighted("linear", "fc", 4, 4), layer("dropout", "a", p=0.1), layer("dropout", "b", p=0.2))
    b = model("torch", weighted("linear", "fc", 4, 4), layer("dropout", "x", p=0.2), layer("dropout", "y", p=0.3))
    assert found(a, b, hints={"a": "y", "b": "x"}) == [("a", "y", "p", False)]
    assert found(a, b, hints={"a": "y", "b": "x"}, skip={"reference": ["a"]}) == []


def test_frozen_on_one_side() -> None:
    a, b = (model("torch", weighted("linear", "fc", 4, 3, trainable=t)) for t in (True, False))
    report = lint(a, b)
    assert [(f.attribute, f.effect) for f in report] == [("trainable", Effect.BACKWARD)]
    assert lint(b, b)


def test_conv_for_linear_is_another_way_to_write_it() -> None:
    a = model("torch", weighted("linear", "fc", 4, 3))
    b = model("torch", weighted("conv1d", "fc", 4, 3, 1, kernel_size=[1]))
    assert lint(a, b)


def test_another_norm_is_suspected() -> None:
    a, b = (model("torch", weighted(kind, "norm", 8, eps=1e-5)) for kind in ("layer_norm", "rms_norm"))
    assert [f[2:] for f in found(a, b)] == [("kind", True)]


# -- the report --------------------------------------------------------------------------------------------------------


def example() -> LintReport:
    a = [weighted("layer_norm", f"blocks.{i}.norm", 8, eps=1e-5) for i in range(12)]
    b = [
        ModuleInfo(m.path, "mindspore.nn.layer.normalization.LayerNorm", m.kind, True, m.params, (), {"eps": 1e-7})
        for m in a
    ]
    return lint(model("torch", *a), model("mindspore", *b))


def test_the_report_says_once_what_is_everywhere() -> None:
    report = example()
    assert not report and len(report) == 12 and len(list(report)) == 12
    text = str(report)
    assert text.count("epsilon=1e-07, its default") == 1
    assert "x12" in text and "blocks.0.norm" in text and "and 5 more" in text
    assert "mindspore.nn.LayerNorm" in text and "changes the forward pass" in text
    assert report.at("blocks.3.norm")[0].message == "eps 1e-05 / 1e-07: both are the defaults"
    assert report.at("nowhere") == ()


def test_findings_are_values() -> None:
    report = example()
    told = report.findings[0].candidate
    assert (told.value, told.spelling, told.default, told.is_default) == (1e-7, "epsilon=1e-07", "epsilon=1e-07", True)
    assert str(report.findings[0]).splitlines()[0] == "    blocks.0.norm (layer_norm): eps 1e-05 / 1e-07".strip() + (
        ": both are the defaults"
    )
    again = json.loads(json.dumps(report.to_dict()))
    assert again["compared"] == 12 and again["findings"][0]["candidate"]["spelling"] == "epsilon=1e-07"


def test_the_hint_is_in_the_candidates_words() -> None:
    assert example().findings[0].hint == "in the candidate write epsilon=1e-05"
    told = [("torch", "conv2d", conv(1)), ("mindspore", "conv2d", conv("same", kernel_size=[5, 5]))]
    (a, _, x), (b, _, y) = told
    assert [f.hint for f in lint(model(a, x), model(b, y)) if f.attribute == "kernel_size"] == [
        "in the candidate write kernel_size=3"
    ]
    y = conv(0, pad_mode="valid")
    assert lint(model(a, x), model(b, y)).findings[0].hint == "in the candidate write pad_mode='pad', padding=1"
    always = layer("dropout", p=0.1)
    infer = layer("dropout", p=0.1, mode="downscale_in_infer")
    assert lint(model("paddle", infer), model("torch", always)).findings[0].hint.startswith("downscale_in_infer")
    tanh, exact = layer("gelu", approximate="tanh"), layer("gelu", approximate="none")
    assert "mindspore" not in lint(model("torch", tanh), model("paddle", exact)).findings[0].hint
    assert "mindspore" in lint(model("mindspore", tanh), model("paddle", exact)).findings[0].hint


def test_which_of_two_equals_does_not_matter() -> None:
    def norms(*names: str, eps: tuple[float, float] = (1e-5, 1e-5)) -> Weights:
        return model("torch", *(weighted("layer_norm", n, 8, eps=e) for n, e in zip(names, eps, strict=True)))

    sure = lint(norms("a.p", "a.q", eps=(1e-6, 1e-5)), norms("a.x", "a.y"))
    assert [f.suspected for f in sure] == [False]
    unsure = lint(norms("a.p", "a.q", eps=(1e-6, 1e-5)), norms("a.x", "a.y", eps=(1e-5, 1e-6)))
    assert {f.suspected for f in unsure} <= {True}


def test_a_size_and_a_factor_may_be_one() -> None:
    a, b = layer("upsample", scale_factor=2, size=None), layer("upsample", scale_factor=None, size=[4, 4])
    assert [f[2:] for f in found(model("torch", a), model("torch", b))] == [("size", True)]


def test_a_layout_may_be_moved_outside() -> None:
    a, b = layer("lstm", batch_first=True), layer("lstm", batch_first=False)
    assert [f[2:] for f in found(model("torch", a), model("torch", b))] == [("batch_first", True)]


def test_nothing_differs() -> None:
    a = model("torch", weighted("linear", "fc", 4, 3))
    report = lint(a, a)
    assert report and not report.findings
    assert "nothing differs" in str(report)


def test_nothing_to_compare_is_said() -> None:
    report = lint(model("torch", layer("gelu", "act")), model("torch", weighted("linear", "fc", 2, 2)))
    assert "nothing could be compared" in str(report) and report.unpaired == (("act",), ("fc",))


def test_a_user_class_has_no_known_defaults() -> None:
    own = ModuleInfo("", "user.Norm", "layer_norm", False, (), (), {"eps": 1e-6})
    told = lint(model("torch", own), model("torch", layer("layer_norm", eps=1e-5))).findings[0].reference
    assert (told.layer, told.default, told.is_default) == ("Norm", None, None)


def test_what_changes_most_comes_first() -> None:
    a = model("torch", layer("dropout", "drop", p=0.1), layer("gelu", "act", approximate="none"))
    b = model("torch", layer("dropout", "drop", p=0.2), layer("gelu", "act", approximate="tanh"))
    assert [f.effect for f in lint(a, b)] == [Effect.FORWARD, Effect.TRAINING]
