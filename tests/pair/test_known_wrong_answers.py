"""What other tools of this kind get wrong, a test each: here the answer is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import Inputs, Overall, Phase, Verdict, align, capture, compare, copy_weights
from twinscope.adapters._registry import by_name
from twinscope.errors import OptionError, WeightError
from twinscope.running import as_arguments
from zoo import normal, zoo

pytestmark = pytest.mark.filterwarnings("ignore")


# -- one network a framework, with a place to put a fault ------------------------------------------------------------


FAULTS = ("", "factor", "gradient", "inner gradient", "gelu", "flip")


def torch_models() -> dict[str, Callable[[], Any]]:
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Square(nn.Linear):
        pass

    class Bend(nn.Module):
        """Hands its input on; its gradient is the right one, or twice that."""

        def __init__(self, wrong: bool) -> None:
            super().__init__()
            self.wrong = wrong

        def forward(self, h: Any) -> Any:
            return h.detach() + (h - h.detach()) * 2.0 if self.wrong else h + 0.0

    class Chain(nn.Module):
        def __init__(self, fault: str = "", order: str = "ab", layer: Any = nn.Linear) -> None:
            super().__init__()
            self.fault = fault
            self.bend = Bend(fault == "inner gradient")
            for name in order:
                setattr(self, name, layer(6, 6))
            self.head = nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            h = torch.tanh(self.a(x))
            if self.fault == "factor":
                h = h * 100.0
            if self.fault == "gradient":
                h = h.detach() + (h - h.detach()) * 2.0
            h = self.b(self.bend(h))
            h = F.gelu(h, approximate="tanh" if self.fault == "gelu" else "none")
            y = self.head(h)
            return y.flip(0) if self.fault == "flip" else y

    class Norm(nn.Module):
        def __init__(self, affine: bool) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.norm = nn.InstanceNorm2d(4, affine=affine)
            self.after = nn.Conv2d(4, 4, 1)

    return {
        **{fault or "chain": lambda fault=fault: Chain(fault) for fault in FAULTS},
        "other order": lambda: Chain(order="ba"),
        "square": lambda: Chain(layer=Square),
        "plain norm": lambda: Norm(False),
        "affine norm": lambda: Norm(True),
    }


def paddle_models() -> dict[str, Callable[[], Any]]:
    import paddle
    import paddle.nn.functional as F
    from paddle import nn

    class Square(nn.Linear):
        pass

    class Bend(nn.Layer):
        """Hands its input on; its gradient is the right one, or twice that."""

        def __init__(self, wrong: bool) -> None:
            super().__init__()
            self.wrong = wrong

        def forward(self, h: Any) -> Any:
            return h.detach() + (h - h.detach()) * 2.0 if self.wrong else h + 0.0

    class Chain(nn.Layer):
        def __init__(self, fault: str = "", order: str = "ab", layer: Any = nn.Linear) -> None:
            super().__init__()
            self.fault = fault
            self.bend = Bend(fault == "inner gradient")
            for name in order:
                setattr(self, name, layer(6, 6))
            self.head = nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            h = paddle.tanh(self.a(x))
            if self.fault == "factor":
                h = h * 100.0
            if self.fault == "gradient":
                h = h.detach() + (h - h.detach()) * 2.0
            h = self.b(self.bend(h))
            h = F.gelu(h, approximate=self.fault == "gelu")
            y = self.head(h)
            return paddle.flip(y, [0]) if self.fault == "flip" else y

    class Norm(nn.Layer):
        def __init__(self, affine: bool) -> None:
            super().__init__()
            self.conv = nn.Conv2D(3, 4, 1)
            off = {} if affine else {"weight_attr": False, "bias_attr": False}
            self.norm = nn.InstanceNorm2D(4, **off)
            self.after = nn.Conv2D(4, 4, 1)

    return {
        **{fault or "chain": lambda fault=fault: Chain(fault) for fault in FAULTS},
        "other order": lambda: Chain(order="ba"),
        "square": lambda: Chain(layer=Square),
        "plain norm": lambda: Norm(False),
        "affine norm": lambda: Norm(True),
    }


def mindspore_models() -> dict[str, Callable[[], Any]]:
    from mindspore import nn, ops

    class Square(nn.Dense):
        pass

    class Bend(nn.Cell):
        """Hands its input on; its gradient is the right one, or twice that."""

        def __init__(self, wrong: bool) -> None:
            super().__init__()
            self.wrong = wrong

        def construct(self, h: Any) -> Any:
            return ops.stop_gradient(h) + (h - ops.stop_gradient(h)) * 2.0 if self.wrong else h + 0.0

    class Chain(nn.Cell):
        def __init__(self, fault: str = "", order: str = "ab", layer: Any = nn.Dense) -> None:
            super().__init__()
            self.fault = fault
            self.bend = Bend(fault == "inner gradient")
            for name in order:
                setattr(self, name, layer(6, 6))
            self.head = nn.Dense(6, 3)

        def construct(self, x: Any) -> Any:
            h = ops.tanh(self.a(x))
            if self.fault == "factor":
                h = h * 100.0
            if self.fault == "gradient":
                h = ops.stop_gradient(h) + (h - ops.stop_gradient(h)) * 2.0
            h = self.b(self.bend(h))
            h = ops.gelu(h, approximate="tanh" if self.fault == "gelu" else "none")
            y = self.head(h)
            return ops.flip(y, (0,)) if self.fault == "flip" else y

    class Norm(nn.Cell):
        def __init__(self, affine: bool) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1, pad_mode="valid", has_bias=True)
            self.norm = nn.InstanceNorm2d(4, affine=affine)
            self.after = nn.Conv2d(4, 4, 1, pad_mode="valid", has_bias=True)

    return {
        **{fault or "chain": lambda fault=fault: Chain(fault) for fault in FAULTS},
        "other order": lambda: Chain(order="ba"),
        "square": lambda: Chain(layer=Square),
        "plain norm": lambda: Norm(False),
        "affine norm": lambda: Norm(True),
    }


MODELS = {"torch": torch_models, "paddle": paddle_models, "mindspore": mindspore_models}
X = normal(5, 6) * 2


def build(framework: str, kind: str, seed: int = 0) -> Any:
    by_name(framework).seed(seed)
    return MODELS[framework]()[kind]()


def both(pair: tuple[str, str], candidate: str, reference: str = "chain") -> tuple[Any, Any]:
    return build(pair[0], reference), build(pair[1], candidate, seed=1)


def state(framework: str, model: Any) -> dict[str, Any]:
    """Every parameter and buffer by path and neutral role, as torch lays it out."""
    adapter, found = by_name(framework), {}
    for info, module in adapter.modules(model):
        for p in info.params:
            array = np.array(adapter.to_numpy(adapter.state(module)[p.name]), copy=True)
            found[f"{info.path}.{p.role}"] = array if p.axes is None else array.transpose(p.axes)
    return found


def test_without_a_fault_they_are_the_same(pair: tuple[str, str]) -> None:
    result = align(*both(pair, "chain"), X)
    assert result.verdict is Overall.SAME, str(result)


# -- forward -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [0, 1])
def test_a_factor_between_layers_is_found_there(pair: tuple[str, str], side: int) -> None:
    kinds = ["chain", "chain"]
    kinds[side] = "factor"
    result = align(build(pair[0], kinds[0]), build(pair[1], kinds[1]), X)
    assert result.verdict is Overall.DIFFERENT and not result
    first = result.first_divergence
    assert first is not None and first.phase is Phase.FORWARD
    assert "tanh" in f"{first} {first.message}" or "b" in (first.reference, first.candidate) or "mul" in str(first)
    # what comes after it only hands it on
    assert not [f for f in result.findings if f.verdict is Verdict.BUG and "head" in (f.reference, f.candidate)]
    assert "a" not in (first.reference, first.candidate)


def test_a_factor_is_not_excused_by_running_every_layer_on_its_own(pair: tuple[str, str]) -> None:
    """Fed with the reference's inputs, every layer alone is right; the networks are not."""
    result = align(*both(pair, "factor"), X, level="module")
    assert result.verdict is Overall.DIFFERENT
    first = result.first_divergence
    assert first is not None
    # where only modules are seen, the factor lies on the way to the first that is given something else
    assert first.reference == first.candidate == "head"
    assert first.message.startswith("its input in.0 differs although all that it is made of agrees")


def test_other_random_weights_are_different(pair: tuple[str, str]) -> None:
    models = both(pair, "chain")
    result = align(*models, X, weights=False)
    assert result.verdict is Overall.DIFFERENT
    assert {f.reference for f in result.findings if f.phase is Phase.WEIGHT} == {"a", "b", "head"}
    assert align(*models, X).verdict is Overall.SAME


@pytest.mark.parametrize("options", [{}, {"atol": 1e-4, "mode": "mean"}, {"atol": 1e-4, "mode": "strict"}])
def test_flipped_rows_are_different(pair: tuple[str, str], options: dict[str, Any]) -> None:
    """The means of the two outputs are equal; the mean of their difference is not."""
    result = align(*both(pair, "flip"), X, **options)
    assert result.verdict is Overall.DIFFERENT
    outputs = [p for p in result.pairs if p.reference.path == "" and p.reference.phase is Phase.FORWARD]
    outputs = [p for p in outputs if str(p.reference.kind) == "module"]
    assert [p.verdict for p in outputs] == [Verdict.BUG]
    assert align(*both(pair, "chain"), X, **options).verdict is Overall.SAME


def test_another_gelu_is_blamed_on_its_call(pair: tuple[str, str]) -> None:
    result = align(*both(pair, "gelu"), X)
    assert result.verdict is Overall.DIFFERENT
    first = result.first_divergence
    assert first is not None and first.phase is Phase.FORWARD
    assert "gelu" in (first.reference or "") and "gelu" in (first.candidate or "")
    assert not [f for f in result.findings if f.reference == "head" and f.verdict is Verdict.BUG]
    assert first.source[0] is not None and first.source[0].file.endswith("test_known_wrong_answers.py")


def test_another_gelu_is_excused_by_a_tolerance_that_was_asked_for_once(pair: tuple[str, str]) -> None:
    models = both(pair, "gelu")
    assert align(*models, X, atol=10.0, rtol=10.0).verdict is Overall.SAME
    result = align(*models, X)
    assert result.verdict is Overall.DIFFERENT
    assert "atol" not in result.options
    assert align(*models, X, atol=1e-7).verdict is Overall.DIFFERENT


# -- backward ------------------------------------------------------------------------------------------------------


def test_a_fault_of_backward_alone_is_found_there(pair: tuple[str, str]) -> None:
    result = align(*both(pair, "inner gradient"), X)
    assert result.verdict is Overall.DIFFERENT
    bugs = [f for f in result.findings if f.verdict is Verdict.BUG]
    assert bugs and all(f.phase in (Phase.BACKWARD, Phase.GRADIENT) for f in bugs)
    first = result.first_divergence
    assert first is not None and first.phase is Phase.BACKWARD
    assert (first.reference or "").startswith("bend") and (first.candidate or "").startswith("bend")


def test_a_fault_of_backward_between_two_calls_is_seen(pair: tuple[str, str]) -> None:
    result = align(*both(pair, "gradient"), X)
    assert result.verdict is Overall.DIFFERENT
    bugs = [f for f in result.findings if f.verdict is Verdict.BUG]
    assert bugs and all(f.phase in (Phase.BACKWARD, Phase.GRADIENT) for f in bugs)
    assert not [f for f in bugs if f.reference in ("b", "head")]


def test_a_fault_of_backward_alone_needs_backward(pair: tuple[str, str]) -> None:
    for fault in ("gradient", "inner gradient"):
        assert align(*both(pair, fault), X, backward=False).verdict is Overall.SAME


# -- weights -------------------------------------------------------------------------------------------------------


def test_layers_of_one_shape_in_another_order(pair: tuple[str, str]) -> None:
    reference, candidate = both(pair, "other order")
    result = align(reference, candidate, X)
    assert result.verdict is Overall.SAME, str(result)
    ours, theirs = state(pair[0], reference), state(pair[1], candidate)
    for path, array in ours.items():
        np.testing.assert_array_equal(array, theirs[path], err_msg=path)
    assert not np.array_equal(ours["a.weight"], ours["b.weight"])


def test_weights_in_the_wrong_layer_are_found(pair: tuple[str, str]) -> None:
    reference, candidate = both(pair, "chain")
    copy_weights(reference, candidate, mapping={"a": "b", "b": "a", "head": "head"})
    result = align(reference, candidate, X, weights=False)
    assert result.verdict is Overall.DIFFERENT


def test_a_square_subclass_of_linear_is_not_left_untransposed(pair: tuple[str, str]) -> None:
    for kinds in (("square", "square"), ("chain", "square"), ("square", "chain")):
        reference, candidate = build(pair[0], kinds[0]), build(pair[1], kinds[1], seed=1)
        result = align(reference, candidate, X)
        assert result.verdict is Overall.SAME, str(result)
        ours, theirs = state(pair[0], reference), state(pair[1], candidate)
        for path, array in ours.items():
            np.testing.assert_array_equal(array, theirs[path], err_msg=path)


def test_a_transposed_square_weight_is_found(pair: tuple[str, str]) -> None:
    reference, candidate = both(pair, "chain")
    copy_weights(reference, candidate)
    adapter = by_name(pair[1])
    module = next(m for info, m in adapter.modules(candidate) if info.path == "b")
    weight = adapter.state(module)["weight"]
    adapter.assign(weight, np.array(adapter.to_numpy(weight), copy=True).T.copy())
    result = align(reference, candidate, X, weights=False)
    assert result.verdict is Overall.DIFFERENT
    assert [f.reference for f in result.findings if f.phase is Phase.WEIGHT] == ["b"]


def evaluated(framework: str, seed: int) -> Any:
    """A network with BatchNorm in eval, whose running statistics are no longer those it was born with."""
    adapter = by_name(framework)
    adapter.seed(seed)
    model = zoo(framework)["conv_bn"].build()
    rng = np.random.default_rng(seed)
    for info, module in adapter.modules(model):
        for p in info.params:
            if p.buffer and "running" in p.role:
                adapter.assign(adapter.state(module)[p.name], rng.uniform(0.5, 2, p.meta.shape).astype(np.float32))
    model.set_train(False) if framework == "mindspore" else model.eval()
    return model


def test_buffers_are_copied_in_eval(pair: tuple[str, str]) -> None:
    reference, candidate = evaluated(pair[0], 0), evaluated(pair[1], 1)
    inputs = Inputs(*zoo(pair[0])["conv_bn"].args())
    other = align(reference, candidate, inputs, weights=False)
    assert other.verdict is Overall.DIFFERENT
    assert any("running_var" in f.message or "var" in f.message for f in other.findings)
    result = align(reference, candidate, inputs)
    assert result.verdict is Overall.SAME, str(result)
    ours, theirs = state(pair[0], reference), state(pair[1], candidate)
    for name in ("bn1.running_mean", "bn2.running_var"):
        np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.parametrize("kinds", [("plain norm", "affine norm"), ("affine norm", "plain norm")])
def test_a_norm_that_is_affine_on_one_side_is_named(pair: tuple[str, str], kinds: tuple[str, str]) -> None:
    reference, candidate = build(pair[0], kinds[0]), build(pair[1], kinds[1], seed=1)
    # as it is built it changes nothing, and can be filled in or left out: no later weight is shifted by it
    report = copy_weights(reference, candidate)
    ours, theirs = state(pair[0], reference), state(pair[1], candidate)
    for name in ("conv.weight", "after.weight", "after.bias"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    if kinds[1] == "affine norm" or pair[1] == "mindspore":  # MindSpore's has weights even so, and freezes them
        assert sum("norm" in n and "trainable" in n for n in report.notes) == 2
    if kinds[0] == "plain norm" or pair[1] == "mindspore":
        return
    # once it is trained, there is no place for it
    adapter = by_name(pair[0])
    module = next(m for info, m in adapter.modules(reference) if info.path == "norm")
    for tensor in adapter.state(module).values():
        adapter.assign(tensor, np.full(adapter.to_numpy(tensor).shape, 1.5, np.float32))
    before = state(pair[1], candidate)
    with pytest.raises(WeightError, match="norm") as caught:
        copy_weights(reference, candidate)
    assert "Hint:" in str(caught.value)
    assert "conv.weight" not in str(caught.value) and "after.weight" not in str(caught.value)
    after = state(pair[1], candidate)
    assert all(np.array_equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("kind", ["plain norm", "affine norm"])
def test_a_norm_that_is_alike_on_both_sides_is_copied(pair: tuple[str, str], kind: str) -> None:
    reference, candidate = build(pair[0], kind), build(pair[1], kind, seed=1)
    report = copy_weights(reference, candidate)
    assert not any("trainable" in n for n in report.notes) or kind == "plain norm"
    ours, theirs = state(pair[0], reference), state(pair[1], candidate)
    for name in ("conv.weight", "after.weight", "after.bias"):
        np.testing.assert_array_equal(ours[name], theirs[name])


# -- what others refuse --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["lstm", "gru", "bfloat16", "nested_outputs", "recompute", "no_parameters", "integers"]
)
def test_networks_that_others_refuse(pair: tuple[str, str], name: str) -> None:
    first, second = (zoo(framework)[name] for framework in pair)
    inputs = Inputs(*first.args(), **first.kwargs())
    result = align(first.build(), second.build(), inputs, level="module", backward=first.backward)
    assert result.verdict is Overall.SAME, str(result)


# -- offline -------------------------------------------------------------------------------------------------------


def three_steps(framework: str, model: Any, place: Path, wrong_at: int | None, **options: Any) -> Path:
    adapter = by_name(framework)
    args, kwargs = as_arguments(adapter, X)
    with capture(model, place, keep="tensors", **options) as run:
        for step in range(3):
            if step == wrong_at:
                module = next(m for info, m in adapter.modules(model) if info.path == "b")
                bias = adapter.state(module)["bias"]
                adapter.assign(bias, np.array(adapter.to_numpy(bias), copy=True) + np.float32(0.25))
            adapter.run(model, args, kwargs, None, backward=True)
    assert run.error is None
    return place


@pytest.mark.parametrize("weights", ["first", "every"])
def test_a_later_step_is_looked_at_offline(pair: tuple[str, str], tmp_path: Path, weights: str) -> None:
    reference, candidate = both(pair, "chain")
    copy_weights(reference, candidate)
    first = three_steps(pair[0], reference, tmp_path / "a", None, weights=weights)
    second = three_steps(pair[1], candidate, tmp_path / "b", None, weights=weights)
    assert compare(first, second).verdict is Overall.SAME
    third = three_steps(pair[1], candidate, tmp_path / "c", 2, weights=weights)
    result = compare(first, third)
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None
    assert result.first_divergence.step == 2
    assert (result.first_divergence.reference or "").startswith("b")
    assert {p.reference.step for p in result.pairs if p.verdict is Verdict.BUG} == {2}


# -- options and what is left behind -------------------------------------------------------------------------------


def test_unknown_options_are_errors(pair: tuple[str, str]) -> None:
    models = both(pair, "chain")
    for options, message in (
        ({"atoll": 1}, "'atoll' is not an option"),
        ({"mode": "median"}, "mode='median' is not known"),
        ({"atol": -1}, "atol=-1 is not a tolerance"),
        ({"rtol": float("nan")}, "rtol=nan is not a tolerance"),
        ({"phases": ["backwards"]}, "phases='backwards' is not known"),
        ({"single_step": True}, "'single_step' is not an option"),
    ):
        with pytest.raises(OptionError, match=message) as caught:
            align(*models, X, **options)
        assert "Hint:" in str(caught.value)


def traces_of_watching(framework: str, model: Any) -> list[dict[str, int]]:
    """How much every attribute of every module holds: a hook that stays is one more."""
    adapter = by_name(framework)
    return [
        {name: len(held) for name, held in vars(module).items() if hasattr(held, "__len__") and len(held)}
        for _, module in adapter.modules(model)
    ]


def test_no_hook_stays_when_forward_raises(pair: tuple[str, str]) -> None:
    models = [zoo(framework)["raises"].build() for framework in pair]
    before = [traces_of_watching(f, m) for f, m in zip(pair, models, strict=True)]
    with pytest.raises(KeyError, match="planted"):
        align(*models, Inputs(*zoo(pair[0])["raises"].args()))
    assert [traces_of_watching(f, m) for f, m in zip(pair, models, strict=True)] == before
