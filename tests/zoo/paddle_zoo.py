"""The zoo in PaddlePaddle: the same networks, parameter names and structure as in torch_zoo.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.distributed.fleet.utils import recompute
from paddle.nn.functional import relu  # imported by name on purpose: such calls must be seen too

from . import Entry, normal, tokens

LACKS: dict[str, str] = {}


class MLP(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(8, 8)
        self.fc3 = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = self.act(self.fc1(x))
        x = x + paddle.tanh(self.fc2(x))
        return self.fc3(x)


class ConvBN(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2D(4)
        self.conv2 = nn.Conv2D(4, 4, 3, stride=2, padding=1, bias_attr=False)
        self.bn2 = nn.BatchNorm2D(4)
        self.pool = nn.MaxPool2D(2)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = relu(self.bn1(self.conv1(x)))
        x = self.pool(F.relu(self.bn2(self.conv2(x))))
        return self.fc(paddle.flatten(x, 1))


class Attention(nn.Layer):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Any, mask: Any = None) -> Any:
        b, t, c = x.shape
        h = self.heads
        q = self.q(x).reshape([b, t, h, c // h]).transpose([0, 2, 1, 3])
        k = self.k(x).reshape([b, t, h, c // h]).transpose([0, 2, 1, 3])
        v = self.v(x).reshape([b, t, h, c // h]).transpose([0, 2, 1, 3])
        scores = q @ k.transpose([0, 1, 3, 2]) * (c // h) ** -0.5
        if mask is not None:
            scores = scores + mask
        return self.out((F.softmax(scores, axis=-1) @ v).transpose([0, 2, 1, 3]).reshape([b, t, c]))


class TransformerBlock(nn.Layer):
    def __init__(self, dim: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(dim, epsilon=1e-5)
        self.attn = Attention(dim, heads)
        self.ln2 = nn.LayerNorm(dim, epsilon=1e-5)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Any, mask: Any = None) -> Any:
        x = x + self.attn(self.ln1(x), mask=mask)
        return x + self.fc2(self.act(self.fc1(self.ln2(x))))


class LSTM(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 5)
        self.fc = nn.Linear(5, 3)

    def forward(self, ids: Any) -> Any:
        out, (h, c) = self.rnn(self.emb(ids))
        return self.fc(out), h, c


class GRU(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 5)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        out, h = self.rnn(x)
        return self.fc(out), h


class SharedModule(nn.Layer):
    """One Linear called twice, and held under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.head = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.head(paddle.tanh(self.again(paddle.tanh(self.first(x)))))


class TiedWeights(nn.Layer):
    """Input embedding and output projection are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 6)
        self.fc = nn.Linear(6, 6)
        self.bias = self.create_parameter([11], is_bias=True)

    def forward(self, ids: Any) -> Any:
        return self.fc(self.emb(ids)) @ self.emb.weight.t() + self.bias


@dataclass
class Output:
    logits: Any
    hidden: tuple[Any, ...]
    extra: dict[str, Any]
    nothing: Any = None


class NestedOutputs(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, pair: Any, scale: float = 1.0, extra: Any = None) -> Any:
        x, y = pair
        hidden = self.a(x)
        logits = self.b(hidden + y["other"]) * scale
        return Output(logits=logits, hidden=(x, hidden), extra={"sum": logits.sum(), "flag": True})


class InplaceReLU(nn.ReLU):
    """Paddle's own layer has no such option."""

    def forward(self, x: Any) -> Any:
        return F.relu_(x)


class Inplace(nn.Layer):
    """What a record holds is the value at that moment, not what an in-place op made of it later."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 6)
        self.act = InplaceReLU()
        self.fc2 = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        x = self.act(self.fc1(x))
        y = self.fc2(x)
        y.add_(paddle.ones([1]))
        y.scale_(2.0)
        return y


class Recompute(nn.Layer):
    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Linear(6, 6)  # the reentrant kind does nothing where its input needs no gradient
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        x = recompute(self.inner, self.stem(x), use_reentrant=self.reentrant)
        return self.head(x)


class NoParameters(nn.Layer):
    def forward(self, x: Any) -> Any:
        return F.softmax(x * 2.0, axis=-1).sum(-1)


class Raises(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.inner = RaisesInside()

    def forward(self, x: Any) -> Any:
        return self.inner(self.fc(x))


class RaisesInside(nn.Layer):
    def forward(self, x: Any) -> Any:
        y = paddle.tanh(x)
        raise KeyError(f"planted, {tuple(y.shape)}")


class MakesNaN(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        h = self.fc(x)
        return paddle.log(h + 0.5 * paddle.sign(h))  # of negative numbers too, but of none near zero


class Integers(nn.Layer):
    """Integer and boolean tensors among inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 4)

    def forward(self, ids: Any) -> Any:
        keep = ids > 3
        return self.emb(ids).sum(-1) * keep.astype("float32"), ids + 1, keep


class BFloat16Linear(nn.Linear):
    """Paddle has no bfloat16 matmul on CPU: this one multiplies in float32 and rounds, which is what torch's does."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.to(dtype="bfloat16")

    def forward(self, x: Any) -> Any:
        wide = F.linear(x.astype("float32"), self.weight.astype("float32"), self.bias.astype("float32"))
        return wide.astype("bfloat16")


class BFloat16(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = BFloat16Linear(6, 8)
        self.fc2 = BFloat16Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = paddle.tanh(self.fc1(x.astype("bfloat16")).astype("float32")).astype("bfloat16")
        return self.fc2(x).astype("float32")


def _causal_mask() -> Any:
    import numpy as np

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
