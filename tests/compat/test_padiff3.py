"""PaDiff 0.3's auto_diff and assign_weight over every pair of frameworks, in what the original gets right and wrong."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
import pytest

import padiff
import twinscope
from compat.padiff3_nets import X, array, net, seeded, shift, tensor, trainable
from padiff import add_special_init, assign_weight, auto_diff, check_dataloader, create_model
from twinscope import TwinscopeError
from twinscope.adapters._registry import by_name
from twinscope.compat.padiff import generation3, special
from twinscope.running import as_arguments
from zoo import zoo
from zoo.kits import kit

pytestmark = pytest.mark.filterwarnings("ignore")


def inputs(pair: tuple[str, str], x: Any = X) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"x": tensor(pair[0], x)}, {"x": tensor(pair[1], x)}


def models(pair: tuple[str, str], **options: Any) -> tuple[Any, Any]:
    return net(pair[0]), net(pair[1], **options)


# -- what passes, and what does not ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["mean", "strict"])
def test_a_good_port_passes(pair: tuple[str, str], mode: str, capsys: Any) -> None:
    first, second = models(pair)
    answer = auto_diff(first, second, inputs(pair), atol=1e-4, compare_mode=mode)
    assert answer and answer.result
    printed = capsys.readouterr().out
    for line in (
        "[AutoDiff] Your options:",
        "  atol: `0.0001`",
        f"  compare_mode: `{mode}`",
        "Assign weight success !!!",
    ):
        assert line in printed
    assert printed.rstrip().endswith("[AutoDiff] SUCCESS !!!")
    assert answer.result.judged(), "nor is there a difference without any tolerance"


@pytest.mark.parametrize("single_step", [False, True])
@pytest.mark.parametrize("wrong", [{"scale": 100.0}, {"act": False}])
def test_a_wrong_port_does_not(pair: tuple[str, str], wrong: dict[str, Any], single_step: bool, capsys: Any) -> None:
    first, second = models(pair, **wrong)
    answer = auto_diff(first, second, inputs(pair), atol=1e-4, single_step=single_step)
    assert not answer and not answer.result
    printed = capsys.readouterr().out
    assert "[AutoDiff] FAILED !!!" in printed and "Diff found in Forward Stage" in printed and "Route: " in printed


@pytest.mark.parametrize("single_step", [False, True])
def test_other_random_weights_are_a_difference(pair: tuple[str, str], single_step: bool) -> None:
    first, second = models(pair)
    for path in trainable(pair[1], second):
        shift(pair[1], second, path, 0.05)
    given = inputs(pair)
    assert not auto_diff(first, second, given, atol=1e-4, auto_init=False, single_step=single_step)
    assert auto_diff(first, second, given, atol=1e-4, auto_init=True, single_step=single_step)
    assert auto_diff(first, second, given, atol=1e-4, auto_init=False, single_step=single_step)


def test_single_step_does_not_count_what_accumulates(pair: tuple[str, str]) -> None:
    """Rounding of the first layer, made a thousand times larger by the next call, which does nothing wrong."""

    def grown(framework: str, factor: float) -> Any:
        k = kit(framework)

        class Grown(k.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.fc = k.linear(64, 64)

            def forward(self, x: Any) -> Any:
                return self.fc(x) * factor

        seeded(framework)
        return Grown()

    given = inputs(pair, np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32))
    told: dict[str, Any] = {"atol": 1e-5, "rtol": 0, "compare_mode": "strict", "diff_phase": "forward"}
    assert auto_diff(grown(pair[0], 1e3), grown(pair[1], 1e3), given, single_step=True, **told)
    assert not auto_diff(grown(pair[0], 1e3), grown(pair[1], 1001), given, single_step=True, **told)
    if "paddle" in pair and pair[0] != pair[1]:  # torch and MindSpore round alike here: nothing is there to grow
        assert not auto_diff(grown(pair[0], 1e3), grown(pair[1], 1e3), given, **told)


def test_rows_in_another_order_are_a_difference(pair: tuple[str, str]) -> None:
    k = kit(pair[1])

    class Flipped(k.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = net(pair[1])

        def forward(self, x: Any) -> Any:
            y = self.inner(x)
            return k.cat([y[i : i + 1] for i in (4, 3, 2, 1, 0)], 0)

    first, second = net(pair[0]), Flipped()
    twinscope.copy_weights(first, second.inner)
    assert not auto_diff(first, second, inputs(pair), atol=1e-4, auto_init=False)
    assert auto_diff(first, second.inner, inputs(pair), atol=1e-4, auto_init=False)


def test_mean_is_the_mean_of_the_error(pair: tuple[str, str]) -> None:
    first, second = models(pair)
    twinscope.copy_weights(first, second)
    adapter = by_name(pair[1])
    bias = trainable(pair[1], second)["head.bias"]
    adapter.assign(bias, adapter.to_numpy(bias) + np.float32([1e-3, 0, 0, 0]))  # of four columns: 2.5e-4 in the mean
    given = inputs(pair)
    told = {"auto_init": False, "rtol": 0, "diff_phase": "forward"}
    assert auto_diff(first, second, given, atol=3e-4, **told)
    assert not auto_diff(first, second, given, atol=2e-4, **told)
    assert not auto_diff(first, second, given, atol=3e-4, compare_mode="strict", **told)


# -- options ---------------------------------------------------------------------------------------------------------


def test_no_option_outlives_its_call(pair: tuple[str, str]) -> None:
    first, second = models(pair, scale=5.0)
    given = inputs(pair)
    assert auto_diff(first, second, given, atol=1e4)
    assert not auto_diff(first, second, given)
    assert not auto_diff(first, second, given, atol=1e-4)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"atoll": 1}, "auto_diff has no 'atoll'\nHint: it has 'atol', 'rtol', 'auto_init', 'compare_mode'"),
        ({"compare_mode": "max"}, "compare_mode='max' is not known\nHint: use one of 'mean', 'strict'"),
        ({"diff_phase": "all"}, "diff_phase='all' is not known\nHint: use one of 'both', 'forward', 'backward'"),
        ({"single_step": 1}, "single_step=1 is neither True nor False"),
        ({"auto_init": "no"}, "auto_init='no' is neither True nor False"),
        ({"rtol": -1}, "rtol=-1 is not a number of at least 0"),
        ({"loss_fns": [len]}, "loss_fns is not a pair"),
        ({"loss_fns": [len, 3]}, "loss_fns has what cannot be called"),
        ({"optimizers": 3}, "optimizers is not a pair"),
    ],
)
def test_what_is_misspelt_is_an_error(framework: str, told: dict[str, Any], text: str) -> None:
    pair = (framework, framework)
    with pytest.raises(TwinscopeError) as caught:
        auto_diff(*models(pair), inputs(pair), **told)
    assert text in str(caught.value)


def test_inputs_are_two_dicts(framework: str) -> None:
    pair = (framework, framework)
    for given in (X, [X, X], inputs(pair)[:1], None):
        with pytest.raises(TwinscopeError, match="inputs is not a pair of dicts"):
            auto_diff(*models(pair), given)


def test_forward_only(pair: tuple[str, str]) -> None:
    first, second = models(pair)
    answer = auto_diff(first, second, inputs(pair), atol=1e-4, diff_phase="forward")
    assert answer and {str(p.reference.phase) for p in answer.result.pairs} <= {"weight", "forward", "buffer"}
    both = auto_diff(first, second, inputs(pair), atol=1e-4)
    assert "backward" in {str(p.reference.phase) for p in both.result.pairs}


def scaled_back(framework: str, wrong: bool) -> Any:
    """Right forward; with `wrong`, the gradient that flows back through the head is twice what it should be."""
    k = kit(framework)

    class Net(k.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body = k.linear(8, 8)
            self.head = k.linear(8, 4)

        def forward(self, x: Any) -> Any:
            y = k.tanh(self.body(x))
            if wrong:
                y = 2 * y - (y.detach() if framework != "mindspore" else _stopped(y))
            return self.head(y)

    seeded(framework)
    return Net()


def _stopped(value: Any) -> Any:
    from mindspore import ops

    return ops.stop_gradient(value)


@pytest.mark.parametrize("single_step", [False, True])
def test_a_fault_in_backward_alone_is_found(pair: tuple[str, str], single_step: bool, capsys: Any) -> None:
    good = scaled_back(pair[0], False)
    bad, fine = scaled_back(pair[1], True), scaled_back(pair[1], False)
    given = inputs(pair)
    told: dict[str, Any] = {"atol": 1e-5, "single_step": single_step}
    assert auto_diff(good, fine, given, **told)
    answer = auto_diff(good, bad, given, **told)
    assert not answer
    place = answer.result.first_divergence
    assert place is not None and place.phase in (twinscope.Phase.BACKWARD, twinscope.Phase.GRADIENT)
    assert "head" not in str(place.reference)
    assert auto_diff(good, bad, given, diff_phase="forward", **told)
    capsys.readouterr()
    assert not auto_diff(good, bad, given, diff_phase="backward", **told)
    assert ("set to `both` instead" in capsys.readouterr().out) is not single_step


def test_single_step_backward_does_not_look_forward(pair: tuple[str, str]) -> None:
    """A wrong bias of the head changes the output and no gradient but through the loss, whose gradient is constant."""
    first, second = scaled_back(pair[0], False), scaled_back(pair[1], False)
    twinscope.copy_weights(first, second)
    shift(pair[1], second, "head.bias", 1.0)
    told: dict[str, Any] = {"atol": 1e-5, "auto_init": False, "single_step": True}
    assert not auto_diff(first, second, inputs(pair), **told)
    assert auto_diff(first, second, inputs(pair), diff_phase="backward", **told)


# -- losses and optimizers -------------------------------------------------------------------------------------------


def test_losses_of_ones_own(pair: tuple[str, str]) -> None:
    first, second = models(pair)
    given = inputs(pair)

    def squared(y: Any) -> Any:
        return (y * y).mean()

    assert auto_diff(first, second, given, loss_fns=[squared, squared], atol=1e-4)
    assert not auto_diff(first, second, given, loss_fns=[squared, lambda y: 3 * squared(y)], atol=1e-4)
    assert not auto_diff(first, second, given, [squared, lambda y: 3 * squared(y)], atol=1e-4)


def sgd(framework: str, model: Any, rate: float) -> Any:
    if framework == "torch":
        import torch

        return torch.optim.SGD(model.parameters(), lr=rate)
    if framework == "paddle":
        import paddle

        return paddle.optimizer.SGD(rate, parameters=model.parameters())
    from mindspore import nn

    return nn.SGD(model.trainable_params(), learning_rate=rate)


def test_optimizers(pair: tuple[str, str], capsys: Any) -> None:
    for rate, right in ((0.1, True), (0.2, False)):
        first, second = models(pair)
        before = array(pair[0], trainable(pair[0], first)["head.weight"])
        told = [sgd(pair[0], first, 0.1), sgd(pair[1], second, rate)]
        answer = auto_diff(first, second, inputs(pair), optimizers=told, atol=1e-6)
        assert bool(answer) is right
        assert not np.array_equal(before, array(pair[0], trainable(pair[0], first)["head.weight"]))
    capsys.readouterr()
    assert auto_diff(first, second, inputs(pair), optimizers=told, atol=1e-4, diff_phase="forward")
    assert "optimizer will not be used" in capsys.readouterr().out


# -- what the original refuses or gets wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["gru", "lstm", "recompute", "no_parameters", "nested_outputs", "transformer_block", "conv_bn", "integers"]
)
def test_networks_of_many_kinds(pair: tuple[str, str], name: str) -> None:
    given, made = _of_the_zoo(pair, name)
    answer = auto_diff(*made, given, atol=1e-4)
    assert answer
    for model, framework in zip(made, pair, strict=True):
        proxy = create_model(model, "m")
        proxy(**given[pair.index(framework)])
    if trainable(pair[1], made[1]):
        path = list(trainable(pair[1], made[1]))[-1]
        shift(pair[1], made[1], path, 0.5)
        assert not auto_diff(*made, given, atol=1e-4, auto_init=False)


def test_bfloat16(pair: tuple[str, str]) -> None:
    given, made = _of_the_zoo(pair, "bfloat16")
    assert auto_diff(*made, given, atol=0.1)
    path = list(trainable(pair[1], made[1]))[-1]
    shift(pair[1], made[1], path, 4.0)
    assert not auto_diff(*made, given, atol=0.1, auto_init=False)


def _of_the_zoo(pair: tuple[str, str], name: str) -> tuple[Any, Any]:
    made, given = [], []
    for framework in pair:
        entry = zoo(framework)[name]
        seeded(framework)
        model = entry.build()
        call = getattr(model, "construct", None) or model.forward
        names = [n for n in inspect.signature(call).parameters if n != "self"]
        adapter = by_name(framework)
        called = {**dict(zip(names, entry.args(), strict=False)), **entry.kwargs()}
        given.append(as_arguments(adapter, called)[1])
        made.append(model)
    return tuple(given), tuple(made)


def test_what_raises_leaves_nothing_behind(pair: tuple[str, str]) -> None:
    first, second = models(pair, raises=True)
    before = [_hooks(m) for m in (first, second)]
    with pytest.raises(KeyError, match="on purpose"):
        auto_diff(first, second, inputs(pair), auto_init=False)
    assert [_hooks(m) for m in (first, second)] == before
    assert auto_diff(first, net(pair[1]), inputs(pair), atol=1e-4)


def _hooks(model: Any) -> int:
    return sum(
        len(v)
        for _, module in twinscope.modules_of(model)
        for k, v in vars(module).items()
        if "hook" in k and hasattr(v, "__len__")
    )


def test_models_are_left_as_they_were(pair: tuple[str, str]) -> None:
    first, second = models(pair)
    for framework, model in zip(pair, (first, second), strict=True):
        model(tensor(framework, X))  # MindSpore's own calls leave attributes
        if framework == "mindspore":
            model.set_train(False)
    keys = [sorted(vars(m)) for m in (first, second)]
    before = {p: array(pair[0], t) for p, t in trainable(pair[0], first).items()}
    auto_diff(first, second, inputs(pair), atol=1e-4)
    assert [sorted(vars(m)) for m in (first, second)] == keys
    for path, held in trainable(pair[0], first).items():
        assert np.array_equal(array(pair[0], held), before[path])
        assert by_name(pair[0]).gradient(held) is None


# -- proxies ---------------------------------------------------------------------------------------------------------


def test_proxies_and_native_models_alike(pair: tuple[str, str]) -> None:
    first, second = models(pair)
    given = inputs(pair)
    assert auto_diff(create_model(first, "a"), second, given, atol=1e-4)
    assert auto_diff(create_model(first, "a"), create_model(second, "b"), given, atol=1e-4)
    assert auto_diff(base_model=first, raw_model=create_model(second), inputs=given, atol=1e-4)


def test_black_lists_take_the_blame_away(pair: tuple[str, str]) -> None:
    """Two biases that are wrong and cancel: outside of the block nothing differs."""
    first, second = models(pair, act=True)
    twinscope.copy_weights(first, second)
    adapter = by_name(pair[1])
    held = trainable(pair[1], second)
    weight = np.array(adapter.to_numpy(held["block.second.weight"]), copy=True)
    weight = weight if pair[1] == "paddle" else weight.T
    given = inputs(pair, np.abs(X) * 0 + X)
    shift(pair[1], second, "block.second.bias", 0.01)
    plain = auto_diff(first, second, given, atol=1e-5, auto_init=False)
    assert not plain and "block" in str(plain.result.first_divergence.reference)
    proxies = create_model(first, "a"), create_model(second, "b")
    for proxy in proxies:
        proxy.update_black_list([proxy.model.block.second], "all")
    found = auto_diff(*proxies, given, atol=1e-5, auto_init=False)
    assert not found and "second" not in str(found.result.first_divergence.reference)


def test_the_layer_map_takes_layers_as_a_whole(pair: tuple[str, str]) -> None:
    first, second = models(pair)
    proxies = create_model(first, "a"), create_model(second, "b")
    proxies[0].set_layer_map([first.block, first.head])
    proxies[1].set_layer_map([second.block, second.head])
    answer = auto_diff(*proxies, inputs(pair), atol=1e-4)
    assert answer
    assert not [p for p in answer.result.pairs if p.reference.path.startswith("block.")]
    proxies[1].set_layer_map([second.block])
    with pytest.raises(TwinscopeError, match="layer map of base_model has 2 layers, that of raw_model 1"):
        auto_diff(*proxies, inputs(pair))


def test_auto_layer_map(pair: tuple[str, str], capsys: Any) -> None:
    given, made = _of_the_zoo(pair, "lstm")
    proxies = create_model(made[0], "a"), create_model(made[1], "b")
    for proxy, place in zip(proxies, ("base", "raw"), strict=True):
        assert proxy.auto_layer_map(place)
    printed = capsys.readouterr().out
    assert f"++++    base_model found `{pair[0]}::LSTM` add to layer_map   ++++" in printed
    assert f"raw_model found `{pair[1]}::LSTM`" in printed
    assert auto_diff(*proxies, given, atol=1e-4)
    with pytest.raises(TwinscopeError, match="model_place='left' is not known"):
        proxies[0].auto_layer_map("left")


# -- weights ---------------------------------------------------------------------------------------------------------


def test_assign_weight(pair: tuple[str, str], capsys: Any) -> None:
    first, second = models(pair)
    for path in trainable(pair[1], second):
        shift(pair[1], second, path, 0.5)
    assert assign_weight(first, second)
    assert "[AutoDiff] Assign weight success !!!" in capsys.readouterr().out
    assert twinscope.compare(twinscope.snapshot(first), twinscope.snapshot(second), atol=0.0)
    k = kit(pair[1])
    before = array(pair[1], trainable(pair[1], second)["head.weight"])

    class Other(k.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.head = k.linear(8, 5)

        def forward(self, x: Any) -> Any:
            return self.head(x)

    failed = assign_weight(first, Other())
    assert not failed and isinstance(failed.result, TwinscopeError)
    printed = capsys.readouterr().out
    assert "[AutoDiff] Assign weight Failed !!!" in printed and "head.weight" in printed
    assert np.array_equal(array(pair[1], trainable(pair[1], second)["head.weight"]), before)
    assert not auto_diff(first, Other(), inputs(pair), atol=1e-4)
    assert "[AutoDiff] FAILED !!!" in capsys.readouterr().out


def layers(framework: str, names: list[str], order: list[int] | None = None) -> Any:
    """Square layers in a row, called in the order of the names, made in another."""
    k = kit(framework)

    class Row(k.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for i in order or range(len(names)):
                setattr(self, names[i], k.linear(8, 8))

        def forward(self, x: Any) -> Any:
            for name in names:
                x = k.tanh(getattr(self, name)(x))
            return x

    return Row()


def test_equal_layers_in_another_order(pair: tuple[str, str]) -> None:
    first, second = layers(pair[0], ["a", "b", "c"]), layers(pair[1], ["a", "b", "c"], [2, 0, 1])
    assert assign_weight(first, second)
    assert auto_diff(first, second, inputs(pair), atol=1e-4, auto_init=False)
    other = layers(pair[1], ["x", "y", "z"], [2, 0, 1])  # names say nothing: the run does
    assert auto_diff(first, other, inputs(pair), atol=1e-4)
    plain = layers(pair[1], ["x", "y", "z"])  # and without a run the order, which the document asks for
    assert assign_weight(first, plain)
    assert auto_diff(first, plain, inputs(pair), atol=1e-4, auto_init=False)


def test_names_that_lead_astray(pair: tuple[str, str]) -> None:
    """Equal layers whose names say the opposite of what they do: only running the two tells."""
    first, second = layers(pair[0], ["a", "b"]), layers(pair[1], ["b", "a"])
    assert auto_diff(first, second, inputs(pair), atol=1e-4)
    assert np.allclose(_weight(pair[0], first, "a.bias"), _weight(pair[1], second, "b.bias"), atol=1e-6)
    wrong = net(pair[1], scale=2.0)
    assert not auto_diff(net(pair[0]), wrong, inputs(pair), atol=1e-4)


def _weight(framework: str, model: Any, path: str) -> Any:
    return array(framework, trainable(framework, model)[path])


def test_special_inits(pair: tuple[str, str], capsys: Any) -> None:
    seen = []

    def carry(base: Any, raw: Any) -> None:
        seen.append((base, raw))
        if len(seen) == 3:
            raise ValueError("on purpose")

    names = (pair[0], type(net(pair[0]).head).__name__, pair[1], type(net(pair[1]).head).__name__)
    first, second = models(pair)
    shift(pair[1], second, "head.bias", 1.0)
    proxies = create_model(first, "a"), create_model(second, "b")
    for proxy in proxies:
        proxy.set_layer_map([proxy.model.head])
    before = array(pair[1], trainable(pair[1], second)["head.bias"])
    try:
        add_special_init(*names, carry)
        assert assign_weight(*proxies)
        assert seen == [(first.head, second.head)]
        assert np.array_equal(array(pair[1], trainable(pair[1], second)["head.bias"]), before)
        assert assign_weight(first, second) and len(seen) == 1  # without a layer map nobody asks for it
        assert assign_weight(*proxies)
        assert not assign_weight(*proxies)
        assert "ValueError: on purpose" in capsys.readouterr().out
    finally:
        special.forget(f"{names[0]}::{names[1]}", f"{names[2]}::{names[3]}")
    assert assign_weight(*proxies) and len(seen) == 3
    with pytest.raises(TwinscopeError, match="func=3 cannot be called"):
        add_special_init(*names, 3)


# -- loaders ---------------------------------------------------------------------------------------------------------


def test_loaders(pair: tuple[str, str], capsys: Any) -> None:
    def loader(framework: str, spoil: int = -1, stop: int = 4) -> Any:
        for i in range(stop):
            x = X + (1 if i == spoil else 0)
            yield {"x": tensor(framework, x), "y": [tensor(framework, np.arange(5)), i]}

    assert check_dataloader(loader(pair[0]), loader(pair[1]))
    found = check_dataloader(loader(pair[0]), loader(pair[1], spoil=2))
    assert not found and "batch 2, x: Not equal to tolerance" in found.result[0]
    assert "[AutoDiff] check dataloader failed!!!" in capsys.readouterr().out
    assert check_dataloader(loader(pair[0]), loader(pair[1], spoil=2), atol=2)
    flipped = ({"x": tensor(pair[1], X[::-1].copy())} for _ in range(1))
    assert not check_dataloader(iter([{"x": tensor(pair[0], X)}]), flipped)
    short = check_dataloader(loader(pair[0]), loader(pair[1], stop=3))
    assert not short and short.result == ["the second loader has 3 batches, the other has more"]
    with pytest.raises(TwinscopeError, match="check_dataloader has no 'tol'"):
        check_dataloader(loader(pair[0]), loader(pair[1]), tol=1)
    with pytest.raises(TwinscopeError, match="were they used up already"):
        check_dataloader(iter([]), iter([]))


# -- which generation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "told",
    [
        {"options": {"atol": 1e-4}, "auto_init": True},
        {"options": {"atol": 1e-4}, "atol": 1e-4},
        {"auto_weights": True, "atol": 1e-4},
        {"steps": 2, "optimizers": None},
        {"layer_map": None, "loss_fns": None},
    ],
)
def test_a_call_that_mixes_the_generations_is_refused(framework: str, told: dict[str, Any]) -> None:
    pair = (framework, framework)
    with pytest.raises(TwinscopeError) as caught:
        auto_diff(*models(pair), inputs(pair), **told)
    assert "auto_diff mixes PaDiff 0.2 (" in str(caught.value) and next(iter(told)) in str(caught.value)
    with pytest.raises(TwinscopeError, match=r"mixes PaDiff 0\.2"):
        auto_diff(create_model(models(pair)[0]), models(pair)[1], inputs(pair), options={})
    with pytest.raises(TwinscopeError, match="assign_weight mixes"):
        assign_weight(create_model(models(pair)[0]), models(pair)[1], layer_map=None)
    with pytest.raises(TwinscopeError, match=r"three arguments .PaDiff 0\.2. or five"):
        add_special_init("a", "b", "c", "d")


SIGNATURES = """
ProxyModel.auto_layer_map(self, model_place: 'str') -> 'bool'
ProxyModel.backward(self, loss: 'Any') -> 'dict[str, Any]'
ProxyModel.clear_report(self) -> 'None'
ProxyModel.dump_grads(self, dir_path: 'str | os.PathLike[str] | None' = None) -> 'None'
ProxyModel.dump_params(self, dir_path: 'str | os.PathLike[str] | None' = None) -> 'None'
ProxyModel.dump_report(self, dir_path: 'str | os.PathLike[str] | None' = None) -> 'None'
ProxyModel.dump_weights(self, dir_path: 'str | os.PathLike[str] | None' = None) -> 'None'
ProxyModel.set_layer_map(self, layers: 'Any') -> 'None'
ProxyModel.try_dump(self, per_step: 'int' = 1, dir_path: 'str | os.PathLike[str] | None' = None) -> 'None'
ProxyModel.update_black_list(self, layers: 'Any', mode: 'str' = 'all') -> 'None'
ProxyModel.update_black_list_with_class(self, layer_class: 'Any', mode: 'str' = 'self') -> 'None'
ProxyModel.update_white_list(self, layers: 'Any', mode: 'str' = 'self') -> 'None'
ProxyModel.update_white_list_with_class(self, layer_class: 'Any', mode: 'str' = 'self') -> 'None'
add_special_init(base_framework, base_model_name, raw_framework, raw_model_name, func)
assign_weight(base_model, raw_model)
auto_diff(base_model, raw_model, inputs, loss_fns=None, optimizers=None, **kwargs)
check_dataloader(first_loader, second_loader, **kwargs)
check_grads(report_path_0, report_path_1, cfg=None)
check_params(report_path_0, report_path_1, cfg=None)
check_report(report_path_0, report_path_1, cfg=None)
check_weights(report_path_0, report_path_1, cfg=None)
create_model(model, name=None)
get_dump_root_path()
set_dump_root_path(path)
"""


def test_signatures_are_those_of_the_documents() -> None:
    proxy = type(create_model(net(next(f for f in ("torch", "paddle", "mindspore") if f in sys.modules))))
    found = [
        f"ProxyModel.{name}{inspect.signature(method)}"
        for name, method in sorted(vars(proxy).items())
        if callable(method) and not name.startswith("_")
    ]
    both = ("add_special_init", "assign_weight", "auto_diff")  # which take what either generation has
    calls = [getattr(generation3, n) if n in both else getattr(padiff, n) for n in sorted(CALLS)]
    for call in calls:
        bare = inspect.signature(call)
        plain = [p.replace(annotation=inspect.Parameter.empty) for p in bare.parameters.values()]
        found.append(f"{call.__name__}{bare.replace(parameters=plain, return_annotation=inspect.Signature.empty)}")
    assert "\n".join(found) == SIGNATURES.strip()


CALLS = {line.partition("(")[0] for line in SIGNATURES.split("\n") if line and not line.startswith("Proxy")}


def test_all_names_are_there() -> None:
    assert set(dir(padiff)) >= CALLS
    assert {"LayerMap"} <= set(dir(padiff))
