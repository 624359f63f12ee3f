"""One small network in three frameworks, with what TroubleShooter's dumps get wrong: for the tests of dumps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

X = np.random.default_rng(5).standard_normal((2, 6)).astype(np.float32)
Y = np.random.default_rng(6).standard_normal((2, 6)).astype(np.float32)
WEIGHTS = [np.random.default_rng(n).standard_normal((6, 6)).astype(np.float32) * 0.4 for n in (7, 8)]


def build(framework: str, *, bug: bool = False, half: bool = False) -> tuple[Any, Callable[[], Any]]:
    """(network, one training step without the update): a layer, a function imported by name, one in place, one with
    keywords, dropout of a layer and of a function, and a loss."""
    net, step = {"torch": _torch, "paddle": _paddle, "mindspore": _mindspore}[framework](1.01 if bug else 1.0, half)
    return net, step


def _torch(factor: float, half: bool) -> tuple[Any, Callable[[], Any]]:
    import torch
    from torch import nn, relu

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            x = self.drop(self.a(x))
            x = relu(x) * factor
            y = x + 0
            y.add_(1.0)
            y = nn.functional.dropout(y, 0.5)
            return self.b(torch.clamp(input=y, min=-2.0, max=2.0))

    net = Net()
    for layer, weight in zip((net.a, net.b), WEIGHTS, strict=True):
        layer.weight.data = torch.from_numpy(weight.copy())
    x, y = torch.from_numpy(X.copy()), torch.from_numpy(Y.copy())
    if half:
        net, x, y = net.bfloat16(), x.bfloat16(), y.bfloat16()

    def step() -> Any:
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    return net, step


def _paddle(factor: float, half: bool) -> tuple[Any, Callable[[], Any]]:
    import paddle
    from paddle import nn
    from paddle.nn.functional import relu

    class Net(nn.Layer):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6, bias_attr=False), nn.Linear(6, 6, bias_attr=False)
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            x = self.drop(self.a(x))
            x = relu(x) * factor
            y = x + 0
            y.add_(paddle.ones_like(y))
            y = nn.functional.dropout(y, 0.5)
            return self.b(paddle.clip(x=y, min=-2.0, max=2.0))

    net = Net()
    for layer, weight in zip((net.a, net.b), WEIGHTS, strict=True):
        layer.weight.set_value(weight.T)
    x, y = paddle.to_tensor(X), paddle.to_tensor(Y)
    if half:
        net.to(dtype="bfloat16")
        x, y = x.astype("bfloat16"), y.astype("bfloat16")

    def step() -> Any:
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    return net, step


def _mindspore(factor: float, half: bool) -> tuple[Any, Callable[[], Any]]:
    import mindspore as ms
    from mindspore import nn, ops
    from mindspore.ops import relu

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Dense(6, 6, has_bias=False), nn.Dense(6, 6, has_bias=False)
            self.drop = nn.Dropout(p=0.5)

        def construct(self, x: Any) -> Any:
            x = self.drop(self.a(x))
            x = relu(x) * factor
            y = x + 0
            y = y + 1.0
            y = ops.dropout(y, 0.5)
            return self.b(ops.clamp(input=y, min=-2.0, max=2.0))

    net = Net()
    net.set_train()
    for layer, weight in zip((net.a, net.b), WEIGHTS, strict=True):
        layer.weight.set_data(ms.Tensor(weight))
    x, y = ms.Tensor(X), ms.Tensor(Y)
    if half:
        net.to_float(ms.bfloat16)
        x, y = x.astype(ms.bfloat16), y.astype(ms.bfloat16)

    def forward(x: Any, y: Any) -> Any:
        return ops.mse_loss(net(x), y)

    gradients = ms.value_and_grad(forward, None, net.trainable_params())

    def step() -> Any:
        return gradients(x, y)[0]

    return net, step
