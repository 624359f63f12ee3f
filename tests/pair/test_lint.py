"""Real layers told one thing otherwise, in every pair of frameworks: that is found, and nothing where none is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import capture
from twinscope.adapters._registry import by_name
from twinscope.explain import Effect, lint
from twinscope.weights import copy_weights
from zoo import NAMES, zoo
from zoo.layers import layers
from zoo.told import CASES, Case
from zoo.twins import TWISTS, Twist, make_twin

pytestmark = pytest.mark.filterwarnings("ignore")

BY_NAME = {f"{case.name}-{n}": case for n, case in enumerate(CASES)}


def has(case: Case, framework: str, otherwise: bool = False) -> bool:
    return framework in case.told and bool(case.told[framework][otherwise])


def of(pair: tuple[str, str], name: str, otherwise: bool) -> tuple[Case, Any, Any]:
    case = BY_NAME[name]
    if not has(case, pair[0]) or not has(case, pair[1], otherwise):
        pytest.skip("no such layer here")
    return case, case.build(pair[0]), case.build(pair[1], otherwise)


def nn(framework: str) -> Any:
    return importlib.import_module(f"{framework}.nn")


@pytest.mark.parametrize("name", BY_NAME)
def test_twins_are_told_the_same(pair: tuple[str, str], name: str) -> None:
    _, reference, candidate = of(pair, name, otherwise=False)
    report = lint(reference, candidate)
    assert report, str(report)
    assert report.compared == 1 or "layer" in name or "attention" in name
    assert report.findings == () and len(report) == 0


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_told_otherwise_is_found(pair: tuple[str, str], name: str) -> None:
    case, reference, candidate = of(pair, name, otherwise=True)
    report = lint(reference, candidate)
    assert not report
    assert [(f.kind, f.attribute) for f in report] == [(case.kind, case.setting)], str(report)
    found = report.findings[0]
    assert (found.reference.path, found.candidate.path) == ("", "")
    assert case.setting in str(report)
    # dim=-1 and dim=1 are one for two axes, and what moves the axes of an input is not seen
    depends = case.kind in ("softmax", "log_softmax") or case.setting in ("batch_first", "channels_last")
    assert found.suspected is depends, found.doubt
    back = lint(candidate, reference)
    assert [f.attribute for f in back] == [case.setting]
    assert back.findings[0].reference.value == found.candidate.value


@pytest.mark.parametrize("otherwise", [False, True])
@pytest.mark.parametrize("name", [n for n, case in BY_NAME.items() if case.inputs is not None])
def test_running_says_the_same(pair: tuple[str, str], name: str, otherwise: bool) -> None:
    """The table is right: twins compute the same, and what lint calls a change of the forward pass is one."""
    case, reference, candidate = of(pair, name, otherwise)
    if otherwise and not case.shows:
        pytest.skip("it does not show in a forward pass")
    try:
        copy_weights(reference, candidate)
        outputs = [
            run(framework, model, case.inputs) for framework, model in zip(pair, (reference, candidate), strict=True)
        ]
    except (RuntimeError, NotImplementedError, TypeError) as error:
        pytest.skip(f"no kernel on a CPU: {error}")
    same = outputs[0].shape == outputs[1].shape and np.allclose(*outputs, rtol=1e-4, atol=2e-5)
    assert same is not otherwise
    assert bool(lint(reference, candidate)) is same


def run(framework: str, model: Any, inputs: Any) -> Any:
    adapter = by_name(framework)
    with adapter.evaluating(model):
        output, _ = adapter.run(model, (adapter.from_numpy(inputs),), {}, None, False)
    return adapter.to_numpy(output)


@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_is_told_the_same(pair: tuple[str, str], name: str) -> None:
    report = lint(*(zoo(framework)[name].build() for framework in pair))
    assert report and report.unpaired == ((), ()), str(report)


def test_single_layers_of_the_zoo_are_told_the_same(pair: tuple[str, str]) -> None:
    first, second = (layers(framework) for framework in pair)
    wrong = []
    for name in first.keys() & second.keys():
        report = lint(first[name].build(), second[name].build())
        if (
            "no_bias" in name
            and "paddle" in pair
            and "cell" not in name
            and not {"attention", "linear"} & {*name.split("_")}
        ):
            continue  # Paddle's twin has biases, all zero
        if name == "embedding_padded" and set(pair) == {"torch", "mindspore"}:
            assert [(f.attribute, f.effect) for f in report] == [("padding_idx", Effect.BACKWARD)]
            continue
        if name == "embedding_padded" and set(pair) == {"paddle", "mindspore"}:
            assert [(f.attribute, f.effect) for f in report] == [("padding_idx", Effect.FORWARD)]
            continue
        if not report:
            wrong.append(str(report))
    assert not wrong, "\n".join(wrong)


# -- defaults that people fall for -------------------------------------------------------------------------------------


def defaults(kind: str, framework: str) -> Any:
    names = {
        "layer_norm": {"torch": "LayerNorm(8)", "paddle": "LayerNorm(8)", "mindspore": "LayerNorm((8,))"},
        "gelu": dict.fromkeys(("torch", "paddle", "mindspore"), "GELU()"),
        "leaky_relu": dict.fromkeys(("torch", "paddle", "mindspore"), "LeakyReLU()"),
        "batch_norm": {"torch": "BatchNorm2d(4)", "paddle": "BatchNorm2D(4)", "mindspore": "BatchNorm2d(4)"},
        "smooth_l1": dict.fromkeys(("torch", "paddle", "mindspore"), "SmoothL1Loss()"),
        "instance_norm": {
            "torch": "InstanceNorm2d(4)",
            "paddle": "InstanceNorm2D(4)",
            "mindspore": "InstanceNorm2d(4)",
        },
        "softmax": dict.fromkeys(("torch", "paddle", "mindspore"), "Softmax()"),
        "avg_pool": {
            "torch": "AvgPool2d(2, 2, 1)",
            "paddle": "AvgPool2D(2, 2, 1)",
            "mindspore": "AvgPool2d(2, 2, 'pad', 1)",
        },
        "conv": {"torch": "Conv2d(4, 4, 3)", "paddle": "Conv2D(4, 4, 3)", "mindspore": "Conv2d(4, 4, 3)"},
        "lstm": dict.fromkeys(("torch", "paddle", "mindspore"), "LSTM(4, 4)"),
        "dropout": dict.fromkeys(("torch", "paddle", "mindspore"), "Dropout(0.1)"),
    }
    return eval(f"nn.{names[kind][framework]}", {"nn": nn(framework)})


@pytest.mark.parametrize(
    ("kind", "alone", "settings"),
    [
        ("layer_norm", "mindspore", {"eps"}),
        ("gelu", "mindspore", {"approximate"}),
        ("leaky_relu", "mindspore", {"negative_slope"}),
        ("smooth_l1", "mindspore", {"reduction"}),
        ("conv", "mindspore", {"padding", "bias"}),
        ("dropout", "mindspore", {"p"}),
        ("instance_norm", "torch", {"affine"}),
        ("softmax", "torch", {"dim"}),
        ("avg_pool", "paddle", {"count_include_pad"}),
        ("lstm", "paddle", {"batch_first"}),
        ("batch_norm", "", set()),  # 0.1 here is 0.9 there: the very same
    ],
)
def test_defaults_of_one_framework(pair: tuple[str, str], kind: str, alone: str, settings: set[str]) -> None:
    report = lint(*(defaults(kind, framework) for framework in pair))
    expected = settings if alone in pair and pair[0] != pair[1] else set()
    assert {f.attribute for f in report} == expected, str(report)
    for found in report:
        told = dict(zip(pair, (found.reference, found.candidate), strict=True))
        if kind != "dropout" and not (kind == "avg_pool" and found.reference.default is None):
            assert told[alone].is_default is True
            assert told[alone].default == told[alone].spelling


def test_the_words_are_each_frameworks_own(pair: tuple[str, str]) -> None:
    case = next(c for c in CASES if c.name == "batch_norm2d-momentum")
    found = lint(case.build(pair[0]), case.build(pair[1], otherwise=True)).findings[0]
    spelled = {"torch": "momentum=0.1", "paddle": "momentum=0.9", "mindspore": "momentum=0.9"}
    otherwise = {"torch": "momentum=0.9", "paddle": "momentum=0.1", "mindspore": "momentum=0.1"}
    assert found.reference.spelling == spelled[pair[0]] == found.reference.default
    assert found.candidate.spelling == otherwise[pair[1]]
    assert found.effect is Effect.TRAINING
    assert (found.reference.value, found.candidate.value) == (0.1, 0.9)


# -- in a network ------------------------------------------------------------------------------------------------------


def test_one_epsilon_of_many_is_found_with_its_line(pair: tuple[str, str]) -> None:
    models = [zoo(framework)["transformer_block"].build() for framework in pair]
    for name in ("epsilon", "_epsilon", "eps"):
        if hasattr(models[1].ln2, name):
            setattr(models[1].ln2, name, 1e-6)
    report = lint(*models)
    assert [(f.reference.path, f.candidate.path, f.attribute) for f in report] == [("ln2", "ln2", "eps")]
    found = report.findings[0]
    for framework, told in zip(pair, (found.reference, found.candidate), strict=True):
        assert told.source is not None and told.source.file.endswith(f"{framework}_zoo.py")
        lines = importlib.import_module(f"zoo.{framework}_zoo").__file__
        with open(str(lines), encoding="utf-8") as file:
            assert "self.ln2 =" in file.read().splitlines()[told.source.line - 1]
    assert "ln2" in str(report) and "1e-06" in str(report)


def test_a_weight_that_is_frozen_on_one_side(pair: tuple[str, str]) -> None:
    models = [zoo(framework)["mlp"].build() for framework in pair]
    adapter = by_name(pair[1])
    weight = next(adapter.state(m)["weight"] for info, m in adapter.modules(models[1]) if info.path == "fc2")
    if pair[1] == "paddle":
        weight.stop_gradient = True
    else:
        weight.requires_grad = False
    report = lint(*models)
    assert [(f.reference.path, f.attribute, f.effect) for f in report] == [("fc2", "trainable", Effect.BACKWARD)]


def test_another_activation_is_found(pair: tuple[str, str]) -> None:
    models = [zoo(framework)["mlp"].build() for framework in pair]
    models[1].act = nn(pair[1]).Tanh()
    report = lint(*models)
    assert [(f.reference.path, f.attribute, f.suspected) for f in report] == [("act", "kind", False)]
    assert lint(*models, skip=["act"])


# -- what differs though it is called the same -------------------------------------------------------------------------


def test_same_with_a_stride_is_suspected(pair: tuple[str, str]) -> None:
    words = {
        "torch": "Conv2d(4, 4, 3, 2, 1)",
        "paddle": "Conv2D(4, 4, 3, 2, 'SAME')",
        "mindspore": "Conv2d(4, 4, 3, 2, has_bias=True)",
    }
    models = [eval(f"nn.{words[framework]}", {"nn": nn(framework)}) for framework in pair]
    report = lint(*models)
    if "torch" not in pair or pair[0] == pair[1]:
        assert report
        return
    assert [(f.attribute, f.suspected) for f in report] == [("padding", True)]
    assert "modulo 2 is 1" in report.findings[0].doubt
    copy_weights(*models)
    for size, same in ((9, True), (8, False)):
        image = np.random.default_rng(0).standard_normal((1, 4, size, size)).astype(np.float32)
        outputs = [run(framework, model, image) for framework, model in zip(pair, models, strict=True)]
        assert np.allclose(*outputs, atol=1e-5) is same


def test_mindspore_fills_an_output_padding_with_zeros(pair: tuple[str, str]) -> None:
    words = {
        "torch": "ConvTranspose2d(4, 4, 3, 2, 1, 1)",
        "paddle": "Conv2DTranspose(4, 4, 3, 2, 1, 1)",
        "mindspore": "Conv2dTranspose(4, 4, 3, 2, 'pad', 1, 1, has_bias=True)",
    }
    models = [eval(f"nn.{words[framework]}", {"nn": nn(framework)}) for framework in pair]
    report = lint(*models)
    differs = "mindspore" in pair and pair[0] != pair[1]
    assert [f.attribute for f in report] == ["output_padding"] * differs
    copy_weights(*models)
    image = np.random.default_rng(0).standard_normal((1, 4, 5, 5)).astype(np.float32)
    outputs = [run(framework, model, image) for framework, model in zip(pair, models, strict=True)]
    assert np.allclose(*outputs, atol=1e-5) is not differs


def test_paddle_heeds_no_dilation_where_padding_is_same(pair: tuple[str, str]) -> None:
    if "paddle" not in pair or pair[0] == pair[1]:
        pytest.skip("Paddle alone")
    words = {
        "torch": "Conv2d(4, 4, 3, padding='same', dilation=2)",
        "paddle": "Conv2D(4, 4, 3, padding='SAME', dilation=2)",
        "mindspore": "Conv2d(4, 4, 3, dilation=2, has_bias=True)",
    }
    report = lint(*(eval(f"nn.{words[framework]}", {"nn": nn(framework)}) for framework in pair))
    assert [(f.attribute, f.suspected) for f in report] == [("dilation", False)]


def test_another_mode_is_noted(pair: tuple[str, str]) -> None:
    models = [zoo(framework)["conv_bn"].build() for framework in pair]
    for framework, model, training in zip(pair, models, (True, False), strict=True):
        model.set_train(training) if framework == "mindspore" else model.train() if training else model.eval()
    report = lint(*models)
    assert report and "the candidate is in evaluation mode" in report.notes[0]
    assert not lint(models[0], models[0]).notes


def test_twins_under_other_names_are_told_the_same(pair: tuple[str, str]) -> None:
    for name in ("mlp", "conv_bn", "transformer_block", "no_parameters"):
        for twist in (*TWISTS.values(), Twist(misnamed=True)):
            reference, candidate = (zoo(framework)[name].build() for framework in pair)
            make_twin(pair[1], candidate, twist)
            report = lint(reference, candidate)
            assert report and report.unpaired == ((), ()), f"{name} {twist}\n{report}"


def test_traces_are_told_from_one_another(pair: tuple[str, str], tmp_path: Path) -> None:
    places = []
    for framework, name in zip(pair, ("transformer_block", "transformer_block"), strict=True):
        entry = zoo(framework)[name]
        model, adapter = entry.build(), by_name(framework)
        place = tmp_path / f"{framework}{len(places)}"
        with capture(model, place, backward=False):
            adapter.run(model, tuple(adapter.from_numpy(x) for x in entry.args()), {}, None, False)
        places.append(place)
    assert lint(*places)
    assert lint(places[0], zoo(pair[1])["transformer_block"].build())
    other = nn(pair[1]).GELU("tanh" if pair[1] == "torch" else True)
    model = zoo(pair[1])["transformer_block"].build()
    model.act = other
    assert [f.attribute for f in lint(places[0], model)] == ["approximate"]
