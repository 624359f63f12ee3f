"""The zoo in MindSpore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import relu  # imported by name on purpose: such calls must be seen too

from . import Entry, normal, tokens

LACKS: dict[str, str] = {}


class MLP(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(6, 8)
        self.act = nn.ReLU()
        self.fc2 = nn.Dense(8, 8)
        self.fc3 = nn.Dense(8, 3)

    def construct(self, x: Any) -> Any:
        x = self.act(self.fc1(x))
        x = x + ops.tanh(self.fc2(x))
        return self.fc3(x)


class ConvBN(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1, has_bias=True)
        self.bn1 = nn.BatchNorm2d(4, eps=1e-5, momentum=0.9)
        self.conv2 = nn.Conv2d(4, 4, 3, stride=2, pad_mode="pad", padding=1, has_bias=False)
        self.bn2 = nn.BatchNorm2d(4, eps=1e-5, momentum=0.9)
        self.pool = nn.MaxPool2d(2, stride=2)
        self.fc = nn.Dense(16, 5)
        self.set_train()  # the other frameworks' layers are born so

    def construct(self, x: Any) -> Any:
        x = relu(self.bn1(self.conv1(x)))
        x = self.pool(ops.relu(self.bn2(self.conv2(x))))
        return self.fc(ops.flatten(x, start_dim=1))


class Attention(nn.Cell):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Dense(dim, dim)
        self.k = nn.Dense(dim, dim)
        self.v = nn.Dense(dim, dim)
        self.out = nn.Dense(dim, dim)

    def construct(self, x: Any, mask: Any = None) -> Any:
        b, t, c = x.shape
        h = self.heads
        q = self.q(x).reshape(b, t, h, c // h).swapaxes(1, 2)
        k = self.k(x).reshape(b, t, h, c // h).swapaxes(1, 2)
        v = self.v(x).reshape(b, t, h, c // h).swapaxes(1, 2)
        scores = q @ k.swapaxes(-2, -1) * (c // h) ** -0.5
        if mask is not None:
            scores = scores + mask
        return self.out((ops.softmax(scores, axis=-1) @ v).swapaxes(1, 2).reshape(b, t, c))


class TransformerBlock(nn.Cell):
    def __init__(self, dim: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.attn = Attention(dim, heads)
        self.ln2 = nn.LayerNorm((dim,), epsilon=1e-5)
        self.fc1 = nn.Dense(dim, 4 * dim)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(4 * dim, dim)

    def construct(self, x: Any, mask: Any = None) -> Any:
        x = x + self.attn(self.ln1(x), mask=mask)
        return x + self.fc2(self.act(self.fc1(self.ln2(x))))


class LSTM(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 5, batch_first=True)
        self.fc = nn.Dense(5, 3)

    def construct(self, ids: Any) -> Any:
        out, (h, c) = self.rnn(self.emb(ids))
        return self.fc(out), h, c


class GRU(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 5, batch_first=True)
        self.fc = nn.Dense(5, 3)

    def construct(self, x: Any) -> Any:
        out, h = self.rnn(x)
        return self.fc(out), h


class SharedModule(nn.Cell):
    """One Dense called twice, and held under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(6, 6)
        self.again = self.first
        self.head = nn.Dense(6, 2)

    def construct(self, x: Any) -> Any:
        return self.head(ops.tanh(self.again(ops.tanh(self.first(x)))))


class TiedWeights(nn.Cell):
    """Input embedding and output projection are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 6)
        self.fc = nn.Dense(6, 6)
        self.bias = Parameter(Tensor(np.zeros(11, np.float32)), name="bias")

    def construct(self, ids: Any) -> Any:
        return self.fc(self.emb(ids)) @ self.emb.embedding_table.T + self.bias


@dataclass
class Output:
    logits: Any
    hidden: tuple[Any, ...]
    extra: dict[str, Any]
    nothing: Any = None


class NestedOutputs(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Dense(4, 4)
        self.b = nn.Dense(4, 4)

    def construct(self, pair: Any, scale: float = 1.0, extra: Any = None) -> Any:
        x, y = pair
        hidden = self.a(x)
        logits = self.b(hidden + y["other"]) * scale
        return Output(logits=logits, hidden=(x, hidden), extra={"sum": logits.sum(), "flag": True})


class InplaceReLU(nn.ReLU):
    """MindSpore's own has no in-place mode on CPU."""

    def construct(self, x: Any) -> Any:
        x[:] = super().construct(x)
        return x


class Inplace(nn.Cell):
    """What a record holds is the value at that moment, not what an in-place op made of it later.

    On CPU Tensor.add_ and mul_ return a new tensor and leave their own alone, so items are assigned instead.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(6, 6)
        self.act = InplaceReLU()
        self.fc2 = nn.Dense(6, 6)

    def construct(self, x: Any) -> Any:
        x = self.act(self.fc1(x))
        y = self.fc2(x)
        y[:] = y + 1.0
        y[:] = y * 2.0
        return y


class Recompute(nn.Cell):
    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Dense(6, 6)  # the reentrant kind does nothing where its input needs no gradient
        self.inner = nn.SequentialCell(nn.Dense(6, 6), nn.Tanh(), nn.Dense(6, 6))
        self.head = nn.Dense(6, 2)
        self.inner.recompute(use_reentrant=reentrant)

    def construct(self, x: Any) -> Any:
        x = self.inner(self.stem(x))
        return self.head(x)


class NoParameters(nn.Cell):
    def construct(self, x: Any) -> Any:
        return ops.softmax(x * 2.0, axis=-1).sum(-1)


class Raises(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(6, 6)
        self.inner = RaisesInside()

    def construct(self, x: Any) -> Any:
        return self.inner(self.fc(x))


class RaisesInside(nn.Cell):
    def construct(self, x: Any) -> Any:
        y = ops.tanh(x)
        raise KeyError(f"planted, {tuple(y.shape)}")


class MakesNaN(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(6, 6)

    def construct(self, x: Any) -> Any:
        h = self.fc(x)
        return ops.log(h + 0.5 * ops.sign(h))  # of negative numbers too, but of none near zero


class Integers(nn.Cell):
    """Integer and boolean tensors among inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 4)

    def construct(self, ids: Any) -> Any:
        keep = ids > 3
        return self.emb(ids).sum(-1) * keep.float(), ids + 1, keep


class DenseBFloat16(nn.Dense):
    """MindSpore's CPU has no bfloat16 matmul: multiply in float32 and round, which is what torch's does."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, dtype=ms.bfloat16)

    def construct(self, x: Any) -> Any:
        y = ops.matmul(x.float(), self.weight.float().T) + self.bias.float()
        return y.astype(ms.bfloat16)


class BFloat16(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = DenseBFloat16(6, 8)
        self.fc2 = DenseBFloat16(8, 3)

    def construct(self, x: Any) -> Any:
        h = self.fc1(x.astype(ms.bfloat16))
        return self.fc2(ops.tanh(h.float()).astype(ms.bfloat16)).float()


def _causal_mask() -> Any:
    return np.triu(np.full((5, 5), -1e9, dtype=np.float32), 1)


ZOO = {
    "mlp": Entry(MLP, lambda: (normal(4, 6),)),
    "conv_bn": Entry(ConvBN, lambda: (normal(2, 3, 8, 8),)),
    "transformer_block": Entry(TransformerBlock, lambda: (normal(2, 5, 16),), lambda: {"mask": _causal_mask()}),
    "lstm": Entry(LSTM, lambda: (tokens(2, 4),)),
    "gru": Entry(GRU, lambda: (normal(2, 4, 6),)),
    "shared_module": Entry(SharedModule, lambda: (normal(3, 6),)),
    "tied_weights": Entry(TiedWeights, lambda: (tokens(2, 4),)),
    "nested_outputs": Entry(
        NestedOutputs, lambda: ((normal(3, 4), {"other": normal(3, 4, seed=1)}),), lambda: {"scale": 2.0, "extra": None}
    ),
    "inplace": Entry(Inplace, lambda: (normal(3, 6),)),
    "recompute": Entry(Recompute, lambda: (normal(3, 6),)),
    "recompute_reentrant": Entry(lambda: Recompute(reentrant=True), lambda: (normal(3, 6),)),
    "no_parameters": Entry(NoParameters, lambda: (normal(3, 6),), backward=False),
    "raises": Entry(Raises, lambda: (normal(3, 6),), raises=KeyError),
    "makes_nan": Entry(MakesNaN, lambda: (normal(3, 6),)),
    "integers": Entry(Integers, lambda: (tokens(3, 5),)),
    "bfloat16": Entry(BFloat16, lambda: (normal(4, 6),)),
}
