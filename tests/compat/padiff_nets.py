"""Small networks, in torch and in paddle, that the documented systems are known to judge wrongly; and clean twins.

Each function gives ``(layer, module, inputs)`` with inputs as PaDiff takes them: a dict for each side. Frameworks are
imported where they are used: a test run without them must be able to read this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Twins = tuple[Any, Any, tuple[dict[str, Any], dict[str, Any]]]


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def given(x: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    import paddle
    import torch

    return {"x": paddle.to_tensor(x)}, {"x": torch.as_tensor(x)}


def simple(bug: str = "", width: int = 10) -> Twins:
    """The network of the documents: linear1, relu, a residual, linear2."""
    import paddle
    import torch

    paddle.seed(0)
    torch.manual_seed(0)

    class SimpleLayer(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear1 = paddle.nn.Linear(100, 100)
            self.linear2 = paddle.nn.Linear(100, width)
            self.act = paddle.nn.ReLU()

        def forward(self, x: Any) -> Any:
            resdual = x
            x = self.linear1(x)
            if bug == "detached":
                x = x.detach()
            x = self.act(x)
            if bug == "scaled":
                x = x * 100
            if bug == "raises":
                raise RuntimeError("the user's own")
            x = x + resdual
            x = self.linear2(x)
            return x[::-1] if bug == "flipped" else x

    class SimpleModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear1 = torch.nn.Linear(100, 100)
            self.linear2 = torch.nn.Linear(100, 10)
            self.act = torch.nn.ReLU()

        def forward(self, x: Any) -> Any:
            resdual = x
            x = self.linear1(x)
            x = self.act(x)
            x = x + resdual
            x = self.linear2(x)
            return x

    return SimpleLayer(), SimpleModule(), given(normal(100, 100))


def wrong_gradient(factor: float) -> Twins:
    """The forward pass agrees; on the way back the middle layer's gradient is multiplied."""
    import paddle
    import torch

    class Scaled(paddle.autograd.PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return dy * factor

    class Gate(paddle.nn.Layer):
        def forward(self, x: Any) -> Any:
            return Scaled.apply(x)

    class TorchGate(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 1.0

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.gate, self.b = paddle.nn.Linear(8, 16), Gate(), paddle.nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            return self.b(self.gate(paddle.nn.functional.relu(self.a(x))))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.gate, self.b = torch.nn.Linear(8, 16), TorchGate(), torch.nn.Linear(16, 4)

        def forward(self, x: Any) -> Any:
            return self.b(self.gate(torch.relu(self.a(x))))

    return Net(), TorchNet(), given(normal(6, 8))


def swapped_order(in_call_order: bool = True) -> Twins:
    """Two layers of one shape, declared in another order in the port; with other names."""
    import paddle
    import torch

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.second, self.first, self.last = (paddle.nn.Linear(8, n) for n in (8, 8, 4))

        def forward(self, x: Any) -> Any:
            order = (self.first, self.second) if in_call_order else (self.second, self.second)
            return self.last(order[1](paddle.tanh(order[0](x))))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.out = (torch.nn.Linear(8, n) for n in (8, 8, 4))

        def forward(self, x: Any) -> Any:
            return self.out(self.down(torch.tanh(self.up(x))))

    return Net(), TorchNet(), given(normal(6, 8))


def square_subclass(transposed: bool = False) -> Twins:
    """A square subclass of Linear."""
    import paddle
    import torch

    class Mine(paddle.nn.Linear):
        def forward(self, x: Any) -> Any:
            if transposed:
                return paddle.matmul(x, self.weight, transpose_y=True) + self.bias
            return super().forward(x)

    class TorchMine(torch.nn.Linear):
        pass

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = Mine(8, 8), paddle.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.out(paddle.tanh(self.fc(x)))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = TorchMine(8, 8), torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.out(torch.tanh(self.fc(x)))

    return Net(), TorchNet(), given(normal(6, 8))


def gelu(approximate: bool) -> Twins:
    """The function between two linear layers: gelu by tanh where the original has erf."""
    import paddle
    import torch

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = paddle.nn.Linear(16, 32), paddle.nn.Linear(32, 4)

        def forward(self, x: Any) -> Any:
            return self.fc2(paddle.nn.functional.gelu(self.fc1(x), approximate=approximate))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

        def forward(self, x: Any) -> Any:
            return self.fc2(torch.nn.functional.gelu(self.fc1(x)))

    return Net(), TorchNet(), given(normal(8, 16))


def batch_norm(trained: bool = True) -> Twins:
    """BatchNorm in evaluation, with running statistics that are not the initial ones."""
    import paddle
    import torch

    layer = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.BatchNorm2D(4), paddle.nn.ReLU())
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    if trained:
        module(torch.as_tensor(normal(4, 3, 8, 8, seed=5) * 3 + 1))
    layer.eval()
    module.eval()
    x = normal(2, 3, 8, 8)
    return layer, module, ({"input": paddle.to_tensor(x)}, {"input": torch.as_tensor(x)})


def instance_norm(bug: bool = False) -> Twins:
    """InstanceNorm has weights by default in paddle, and none in torch; linear layers follow."""
    import paddle
    import torch

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = paddle.nn.Conv2D(3, 4, 3), paddle.nn.InstanceNorm2D(4)
            self.fc1, self.fc2 = paddle.nn.Linear(6, 6), paddle.nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return self.fc2(self.fc1(self.norm(self.conv(x))) * (1.1 if bug else 1.0))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.InstanceNorm2d(4)
            self.fc1, self.fc2 = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return self.fc2(self.fc1(self.norm(self.conv(x))) * 1.0)

    return Net(), TorchNet(), given(normal(2, 3, 8, 8))


def recurrent(kind: str, bug: bool = False) -> Twins:
    """GRU, SimpleRNN, LSTM: their outputs are tuples."""
    import paddle
    import torch

    own = {"gru": paddle.nn.GRU, "rnn": paddle.nn.SimpleRNN, "lstm": paddle.nn.LSTM}[kind]
    theirs = {"gru": torch.nn.GRU, "rnn": torch.nn.RNN, "lstm": torch.nn.LSTM}[kind]

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = own(6, 8), paddle.nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.out(self.rnn(x)[0] * (1.05 if bug else 1.0))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = theirs(6, 8, batch_first=True), torch.nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.out(self.rnn(x)[0] * 1.0)

    return Net(), TorchNet(), given(normal(2, 5, 6))


def outputs(kind: str, bug: bool = False) -> Twins:
    """What a network may return: a tuple, a dict, a dataclass."""
    from dataclasses import dataclass

    import paddle
    import torch

    @dataclass
    class Output:
        logits: Any
        hidden: Any = None

    def packed(first: Any, second: Any) -> Any:
        if kind == "dataclass":
            return Output(first, second)
        return {"logits": first, "hidden": second} if kind == "dict" else (first, second)

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            h = paddle.tanh(self.fc1(x))
            return packed(self.fc2(h), h * (1.1 if bug else 1.0))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            h = torch.tanh(self.fc1(x))
            return packed(self.fc2(h), h * 1.0)

    return Net(), TorchNet(), given(normal(6, 8))


def bfloat16(bug: bool = False) -> Twins:
    """Two linear layers in bfloat16. Paddle has no such product on CPU: its layers multiply in float32 and round."""
    import paddle
    import torch

    class Linear(paddle.nn.Linear):
        def forward(self, x: Any) -> Any:
            wide = [t.astype("float32") for t in (x, self.weight, self.bias)]
            return paddle.nn.functional.linear(*wide).astype("bfloat16")

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = Linear(8, 8), Linear(8, 4)

        def forward(self, x: Any) -> Any:
            h = self.fc1(x.astype("bfloat16"))
            return self.fc2((h.astype("float32") * 2.0).astype("bfloat16") if bug else h)

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.fc2(self.fc1(x.bfloat16()))

    layer, module = Net(), TorchNet()
    return layer.to(dtype="bfloat16"), module.bfloat16(), given(normal(6, 8))


def recompute(bug: bool = False) -> Twins:
    """A block whose activations are computed again in the backward pass."""
    import paddle
    import torch
    from paddle.distributed.fleet.utils import recompute as again
    from torch.utils.checkpoint import checkpoint

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.block = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.Tanh())
            self.fc, self.out = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.out(again(self.block, self.fc(x)) * (1.1 if bug else 1.0))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
            self.fc, self.out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.out(checkpoint(self.block, self.fc(x), use_reentrant=False) * 1.0)

    return Net(), TorchNet(), given(normal(6, 8))


def no_parameters(bug: bool = False) -> Twins:
    """Nothing to train."""
    import paddle
    import torch

    class Net(paddle.nn.Layer):
        def forward(self, x: Any) -> Any:
            return paddle.nn.functional.softmax(x * (1.1 if bug else 1.0), axis=-1)

    class TorchNet(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.softmax(x * 1.0, dim=-1)

    return Net(), TorchNet(), given(normal(6, 8))


def detour() -> Twins:
    """One side scales before the product, the other one after it: another way to the same numbers."""
    import paddle
    import torch

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (paddle.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Any) -> Any:
            scores = paddle.matmul(self.q(x) * 0.35, self.k(x).transpose([0, 2, 1]))
            return paddle.matmul(paddle.nn.functional.softmax(scores, axis=-1), self.v(x))

    class TorchNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: Any) -> Any:
            scores = torch.matmul(self.q(x), self.k(x).transpose(1, 2)) * 0.35
            return torch.matmul(torch.softmax(scores, dim=-1), self.v(x))

    return Net(), TorchNet(), given(normal(2, 5, 8))
