"""What the original of PaDiff 0.3 gets wrong between torch and paddle, each with its twin that passes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from padiff import auto_diff, create_model

if not {"torch", "paddle"} <= set(sys.modules):
    pytest.skip("needs torch and paddle", allow_module_level=True)

import paddle
import torch

pytestmark = pytest.mark.filterwarnings("ignore")


def given(*shape: int) -> Any:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return {"x": torch.as_tensor(x)}, {"x": paddle.to_tensor(x)}


def torch_net(*layers: Any) -> Any:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    return Net()


def paddle_net(*layers: Any) -> Any:
    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.layers = paddle.nn.LayerList(layers)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    return Net()


@pytest.mark.parametrize("approximate", [False, True])
def test_a_gelu_of_another_formula_is_named_and_not_the_next_layer(approximate: bool) -> None:
    class Body(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.two(torch.nn.functional.gelu(self.one(x)))

    class Other(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.two(paddle.nn.functional.gelu(self.one(x), approximate=approximate))

    torch.manual_seed(0)
    for single_step in (False, True):
        answer = auto_diff(Body(), Other(), given(16, 8), atol=1e-6, compare_mode="strict", single_step=single_step)
        assert bool(answer) is not approximate
        if approximate:
            assert answer.result.first_divergence.reference == "(root) · gelu"


def test_a_square_subclass_of_linear_is_transposed() -> None:
    class Mine(torch.nn.Linear):
        pass

    class Own(paddle.nn.Linear):
        pass

    first, second = torch_net(Mine(8, 8)), paddle_net(Own(8, 8))
    assert auto_diff(first, second, given(4, 8), atol=1e-5)
    second.layers[0].weight.set_value(second.layers[0].weight.t())
    assert not auto_diff(first, second, given(4, 8), atol=1e-5, auto_init=False)


def test_running_statistics_are_copied() -> None:
    norm = torch.nn.BatchNorm2d(3)
    norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    norm.running_var.copy_(torch.tensor([4.0, 5.0, 6.0]))
    first, second = torch_net(norm).eval(), paddle_net(paddle.nn.BatchNorm2D(3))
    second.eval()
    assert not auto_diff(first, second, given(2, 3, 4, 4), atol=1e-5, auto_init=False)
    assert auto_diff(first, second, given(2, 3, 4, 4), atol=1e-5)
    assert np.allclose(second.layers[0]._mean.numpy(), [1, 2, 3])


def test_a_norm_with_weights_on_one_side_only_is_named_and_not_the_next_layer(capsys: Any) -> None:
    """Paddle's InstanceNorm learns a scale and a bias where it is not told otherwise, torch's does not."""
    torch.manual_seed(0)
    first = torch_net(torch.nn.Conv2d(3, 4, 1), torch.nn.InstanceNorm2d(4), torch.nn.Conv2d(4, 4, 1))
    for plain in (True, False):
        told = {"weight_attr": False, "bias_attr": False} if plain else {}
        norm = paddle.nn.InstanceNorm2D(4, **told)
        second = paddle_net(paddle.nn.Conv2D(3, 4, 1), norm, paddle.nn.Conv2D(4, 4, 1))
        answer = auto_diff(first, second, given(2, 3, 5, 5), atol=1e-5)
        assert bool(answer) is plain
        if not plain:
            assert {f.candidate for f in answer.result.findings} == {"layers.1"}
            assert "Net_raw_model.layers.1" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["GRU", "SimpleRNN"])
def test_recurrent_layers(kind: str) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = torch.nn.GRU(4, 5, batch_first=True) if kind == "GRU" else torch.nn.RNN(4, 5, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.rnn(x)  # a tuple

    class Other(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(paddle.nn, kind)(4, 5)

        def forward(self, x: Any) -> Any:
            return self.rnn(x)

    first, second = Net(), Other()
    assert auto_diff(first, second, given(2, 3, 4), atol=1e-5)
    proxies = create_model(first, "a"), create_model(second, "b")
    for proxy, place in zip(proxies, ("base", "raw"), strict=True):
        proxy.auto_layer_map(place)
    assert auto_diff(*proxies, given(2, 3, 4), atol=1e-5)
    name = next(iter(dict(second.rnn.named_parameters())))
    held = dict(second.rnn.named_parameters())[name]
    held.set_value(held + 0.1)
    assert not auto_diff(*proxies, given(2, 3, 4), atol=1e-5, auto_init=False)


def test_attention_in_the_layer_map() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.attn(x, x, x)[0]

    class Other(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.attn = paddle.nn.MultiHeadAttention(8, 2)

        def forward(self, x: Any) -> Any:
            return self.attn(x, x, x)

    first, second = Net(), Other()
    proxies = create_model(first, "a"), create_model(second, "b")
    proxies[0].set_layer_map([first.attn])
    proxies[1].set_layer_map([second.attn])
    assert auto_diff(*proxies, given(2, 3, 8), atol=1e-5)
    second.attn.q_proj.weight.set_value(second.attn.q_proj.weight + 0.1)
    assert not auto_diff(*proxies, given(2, 3, 8), atol=1e-5, auto_init=False)
