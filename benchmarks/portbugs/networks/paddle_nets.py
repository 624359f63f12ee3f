"""The candidates in Paddle, with their quirks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn


def halved(x: Any) -> Any:
    """The same values exactly; half the gradient."""
    return x * 0.5 + (x * 0.5).detach()


def doubled(x: Any) -> Any:
    """The same values exactly; twice the gradient."""
    return x * 2.0 - x.detach()


def as_tf32(x: Any) -> Any:
    """Rounded to the eleven significant bits that TF32 multiplies with."""
    with paddle.no_grad():
        wide = x * 8193.0
        rest = wide - (wide - x) - x
    return x + rest


class Attention(nn.Layer):
    quirk = ""

    def __init__(self, dim: int, heads: int, rotary: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.rotary = rotary
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        quirk = self.quirk
        b, t, c = x.shape
        h, d = self.heads, c // self.heads
        first, second = (self.k, self.q) if quirk == "q and k swapped" else (self.q, self.k)
        q, k, v = (self.split(layer(x), b, t, h, d) for layer in (first, second, self.v))
        if self.rotary:
            q, k = self.rotate(q), self.rotate(k)
        scale = {"no scale": 1.0, "scale by model width": c**-0.5}.get(quirk, d**-0.5)
        if quirk == "fused attention":
            q, k, v = (paddle.transpose(a, [0, 2, 1, 3]) for a in (q, k, v))
            return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).reshape([b, t, c]))
        if quirk == "scale first":
            scores = paddle.matmul(q * scale, k, transpose_y=True)
        elif quirk == "einsum":
            scores = paddle.einsum("bhid,bhjd->bhij", q, k) * scale
        else:
            scores = paddle.matmul(q, k, transpose_y=True) * scale
        scores = self.masked(scores, t)
        if quirk == "softmax by hand":
            grown = paddle.exp(scores - paddle.max(scores, axis=-1, keepdim=True))
            weights = grown / paddle.sum(grown, axis=-1, keepdim=True)
        else:
            weights = F.softmax(scores, axis=-2 if quirk == "softmax over queries" else -1)
        if quirk == "attention weights detached":
            weights = weights.detach()
        mixed = paddle.matmul(weights, v)
        if quirk != "heads merged untransposed":
            mixed = paddle.transpose(mixed, [0, 2, 1, 3])
        return self.o(mixed.reshape([b, t, c]))

    def split(self, x: Any, b: int, t: int, h: int, d: int) -> Any:
        if self.quirk == "heads split last":
            return paddle.transpose(x.reshape([b, t, d, h]), [0, 3, 1, 2])
        return paddle.transpose(x.reshape([b, t, h, d]), [0, 2, 1, 3])

    def masked(self, scores: Any, t: int) -> Any:
        hidden = np.triu(np.ones((t, t)), 2 if self.quirk == "mask off by one" else 1)
        if self.quirk == "mask added as it is":
            return scores + paddle.to_tensor(hidden).astype(scores.dtype)
        far = {"mask -1e4": -1e4, "mask too weak": -4.0}.get(self.quirk, -np.inf)
        return scores + paddle.to_tensor(np.where(hidden > 0, far, 0.0)).astype(scores.dtype)

    def rotate(self, x: Any) -> Any:
        t, d = x.shape[-2:]
        angles = np.arange(t)[:, None] * 100.0 ** (-np.arange(0, d, 2) / d)
        cos, sin = (paddle.to_tensor(f(angles)).astype(x.dtype) for f in (np.cos, np.sin))
        if self.quirk == "rotary interleaved":
            a, b = x[..., 0::2], x[..., 1::2]
            return paddle.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
        a, b = x[..., : d // 2], x[..., d // 2 :]
        if self.quirk == "rotary turned back":
            sin = -sin
        return paddle.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)


class MLP(nn.Layer):
    quirk = ""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x: Any) -> Any:
        x = self.fc1(x)
        if self.quirk == "gelu tanh in the code":
            x = F.gelu(x, approximate=True)
        elif self.quirk == "gelu in the code":
            x = F.gelu(x)
        elif self.quirk == "gelu by hand":
            x = x * 0.5 * (1.0 + paddle.erf(x * math.sqrt(0.5)))
        else:
            x = self.act(x)
        if self.quirk == "gradient halved":
            x = halved(x)
        if self.quirk == "gradient doubled":
            x = doubled(x)
        return self.fc2(x)


class SwiGLU(nn.Layer):
    quirk = ""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 2 * dim, bias_attr=False)
        self.up = nn.Linear(dim, 2 * dim, bias_attr=False)
        self.down = nn.Linear(2 * dim, dim, bias_attr=False)

    def forward(self, x: Any) -> Any:
        gate, up = self.gate(x), self.up(x)
        if self.quirk == "gate and up swapped":
            gate, up = up, gate
        if self.quirk == "silu by hand":
            return self.down(gate * F.sigmoid(gate) * up)
        return self.down(F.silu(gate) * up)


class RMSNorm(nn.Layer):
    quirk = ""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([dim], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x: Any) -> Any:
        eps = 1e-6 if self.quirk == "rms eps 1e-6" else 1e-5
        if self.quirk == "divided by the root":
            return x / paddle.sqrt((x * x).mean(-1, keepdim=True) + eps) * self.weight
        return self.weight * (x * paddle.rsqrt((x * x).mean(-1, keepdim=True) + eps))


class Block(nn.Layer):
    quirk = ""

    def __init__(self, dim: int, heads: int, llama: bool = False) -> None:
        super().__init__()
        self.ln1 = RMSNorm(dim) if llama else nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, rotary=llama)
        self.ln2 = RMSNorm(dim) if llama else nn.LayerNorm(dim)
        self.mlp = SwiGLU(dim) if llama else MLP(dim)

    def forward(self, x: Any) -> Any:
        if self.quirk == "residual after norm":
            x = self.ln1(x)
            x = x + self.attn(x)
        elif self.quirk == "norm after residual":
            x = self.ln1(x + self.attn(x))
        elif self.quirk == "residual detached":
            x = x.detach() + self.attn(self.ln1(x))
        elif self.quirk == "sum the other way":
            x = self.attn(self.ln1(x)) + x
        else:
            x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Net(nn.Layer):
    """A root."""

    quirk = ""

    def forward(self, *given: Any) -> Any:
        if self.quirk == "batch in halves":
            n = given[0].shape[0] // 2
            return paddle.concat([self.body(*(g[:n] for g in given)), self.body(*(g[n:] for g in given))])
        return self.body(*given)


class OneBlock(Net):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(32, 4)
        self.head = nn.Linear(32, 9)

    def body(self, x: Any) -> Any:
        return self.head(self.block(x))


class Deep(Net):
    def __init__(self, layers: int = 12, llama: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(17, 16)
        self.blocks = nn.LayerList([Block(16, 2, llama) for _ in range(layers)])
        self.ln_f = RMSNorm(16) if llama else nn.LayerNorm(16)
        self.head = nn.Linear(16, 17)

    def body(self, ids: Any) -> Any:
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class Residual(nn.Layer):
    quirk = ""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(into, out, 3, stride, 1, bias_attr=False)
        self.bn1 = nn.BatchNorm2D(out)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2D(out, out, 3, 1, 1, bias_attr=False)
        self.bn2 = nn.BatchNorm2D(out)
        self.short = nn.Conv2D(into, out, 1, stride) if stride > 1 else None

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        rest = x if self.short is None else self.short(x)
        if self.quirk == "relu before the sum":
            return self.relu(y) + rest
        if self.quirk == "relu as maximum":
            return paddle.maximum(y + rest, paddle.zeros_like(y))
        return self.relu(y + rest)


class ResNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, 8, 3, 1, 1)
        self.bn = nn.BatchNorm2D(8)
        self.pool = nn.MaxPool2D(2, 2)
        self.stages = nn.LayerList([Residual(8, 8, 1), Residual(8, 12, 2), Residual(12, 16, 2)])
        self.fc = nn.Linear(16, 10)

    def body(self, x: Any) -> Any:
        x = self.pool(F.relu(self.bn(self.conv(x))))
        for stage in self.stages:
            x = stage(x)
        if self.quirk == "pooling layer for mean":
            return self.fc(paddle.flatten(F.adaptive_avg_pool2d(x, 1), 1))
        return self.fc(x.mean((2, 3)))


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(13, 8)
        self.lstm = nn.LSTM(8, 12)
        self.gru = nn.GRU(12, 10)
        self.fc = nn.Linear(10, 6)

    def body(self, ids: Any) -> Any:
        x = self.emb(ids)
        x = self.unrolled(x) if self.quirk == "lstm unrolled" else self.lstm(x)[0]
        x, _ = self.gru(x)
        return self.fc(x)

    def unrolled(self, x: Any) -> Any:
        own = dict(self.lstm.named_parameters(include_sublayers=False))
        h = c = paddle.zeros([x.shape[0], 12], dtype=x.dtype)
        seen = []
        for step in range(x.shape[1]):
            taken = paddle.matmul(x[:, step], own["weight_ih_l0"], transpose_y=True) + own["bias_ih_l0"]
            kept = paddle.matmul(h, own["weight_hh_l0"], transpose_y=True) + own["bias_hh_l0"]
            i, f, g, o = paddle.split(taken + kept, 4, axis=-1)
            c = F.sigmoid(f) * c + F.sigmoid(i) * paddle.tanh(g)
            h = F.sigmoid(o) * paddle.tanh(c)
            seen.append(h)
        return paddle.stack(seen, axis=1)


class Resize(nn.Layer):
    quirk = ""

    def forward(self, x: Any) -> Any:
        if self.quirk == "nearest":
            return F.interpolate(x, size=(7, 7), mode="nearest")
        return F.interpolate(x, size=(7, 7), mode="bilinear", align_corners=self.quirk == "resize corners")


class Sampler(nn.Layer):
    quirk = ""

    def forward(self, x: Any) -> Any:
        theta = paddle.to_tensor([[[0.8, 0.2, 0.1], [-0.1, 0.9, -0.2]]]).astype(x.dtype)
        theta = paddle.tile(theta, [x.shape[0], 1, 1])
        size = [x.shape[0], x.shape[1], 5, 5]
        grid = F.affine_grid(theta, size, align_corners=self.quirk == "affine grid default")
        return F.grid_sample(x, grid, align_corners=self.quirk == "grid sample default")


class Vision(Net):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2D(3, 6, 3, 1, 1)
        self.norm = nn.InstanceNorm2D(6)
        self.act = nn.LeakyReLU()
        self.pool = nn.AvgPool2D(3, 2, 1, exclusive=False)
        self.mid = nn.Conv2D(6, 8, 3, 2, 1)
        self.resize = Resize()
        self.sample = Sampler()
        self.out = nn.Conv2D(8, 4, 1)
        self.fc = nn.Linear(100, 7)

    def body(self, x: Any) -> Any:
        x = self.pool(self.act(self.norm(self.stem(x))))
        x = self.out(self.sample(self.resize(self.mid(x))))
        if self.quirk == "flattened channels last":
            x = paddle.transpose(x, [0, 2, 3, 1])
        return self.fc(paddle.flatten(x, 1))


class Standardise(nn.Layer):
    quirk = ""

    def forward(self, x: Any) -> Any:
        axis = 1 if self.quirk == "normalised over another axis" else -1
        std = paddle.std(x, axis=axis, keepdim=True, unbiased=self.quirk != "std of the population")
        return (x - x.mean(axis, keepdim=True)) / (std + 1e-3)


class Median(nn.Layer):
    quirk = ""

    def forward(self, x: Any) -> Any:
        if self.quirk == "mean of the middle two":
            return paddle.median(x, axis=1)
        return paddle.sort(x, axis=1)[:, (x.shape[1] - 1) // 2]


class Statistics(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 6)
        self.standard = Standardise()
        self.median = Median()
        self.fc2 = nn.Linear(6, 5)

    def body(self, x: Any) -> Any:
        return self.fc2(self.median(self.standard(self.fc1(x))))


class Text(Net):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 8, padding_idx=0)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(8, 4)

    def body(self, ids: Any) -> Any:
        return self.fc(self.drop(self.emb(ids)).mean(1))


class CrossEntropy(nn.Layer):
    quirk = ""

    def forward(self, x: Any, labels: Any) -> Any:
        if self.quirk == "mean over all":
            return F.cross_entropy(x, labels, ignore_index=-100)  # its mean counts the ignored labels too
        if self.quirk == "loss by hand":
            kept = labels != -100
            logs = F.log_softmax(x, axis=-1) * F.one_hot(paddle.where(kept, labels, 0 * labels), 5).astype(x.dtype)
            return -(logs.sum(-1) * kept.astype(x.dtype)).sum() / kept.astype(x.dtype).sum()
        total = F.cross_entropy(x, labels, ignore_index=-100, reduction="sum")
        return total / (labels != -100).astype(x.dtype).sum()


class SmoothL1(nn.Layer):
    quirk = ""

    def forward(self, x: Any, target: Any) -> Any:
        if self.quirk == "delta for beta":
            return F.smooth_l1_loss(x, target, delta=0.5)
        if self.quirk == "beta forgotten":
            return F.smooth_l1_loss(x, target)
        return F.smooth_l1_loss(x, target, delta=0.5) / 0.5


class WithLoss(Net):
    def __init__(self, criterion: Any) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 12)
        self.fc2 = nn.Linear(12, 5)
        self.criterion = criterion

    def body(self, x: Any, target: Any) -> Any:
        return self.criterion(self.fc2(paddle.tanh(self.fc1(x))), target)


class Routed(nn.Layer):
    quirk = ""

    def __init__(self, dim: int = 8, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.experts = nn.LayerList([nn.Linear(dim, dim) for _ in range(experts)])

    def forward(self, x: Any) -> Any:
        chances = F.softmax(self.router(x), axis=-1)
        best, index = paddle.topk(chances, 1 if self.quirk == "one expert" else 2, axis=-1)
        if self.quirk != "shares not normalised":
            best = best / best.sum(-1, keepdim=True)
        shares = (F.one_hot(index, len(self.experts)).astype(x.dtype) * best.unsqueeze(-1)).sum(-2)
        every = paddle.stack([expert(x) for expert in self.experts], axis=-2)
        return (shares.unsqueeze(-1) * every).sum(-2)


class Experts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.moe = Routed()
        self.fc2 = nn.Linear(8, 5)

    def body(self, x: Any) -> Any:
        x = self.fc1(x)
        return self.fc2(x + self.moe(x))


class BuiltinAttention(Net):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiHeadAttention(16, 4)
        self.ln = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 5)

    def body(self, x: Any) -> Any:
        return self.fc(self.ln(x + self.attn(x, x, x)))


class PreAct(nn.Layer):
    quirk = ""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc = nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        if self.quirk == "relu in place":
            y = F.relu_(x)
            return x + self.fc(y)
        return x + self.fc(F.relu(x))


class PreActNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.LayerList([PreAct(8) for _ in range(3)])
        self.head = nn.Linear(8, 4)

    def body(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(13, 8)
        self.fc = nn.Linear(8, 8)

    def body(self, ids: Any) -> Any:
        weight = self.out if self.quirk == "untied" else self.emb.weight
        return paddle.matmul(paddle.tanh(self.fc(self.emb(ids))), weight, transpose_y=True)

    def untie(self) -> None:
        self.quirk = "untied"
        self.out = self.create_parameter(self.emb.weight.shape)
        self.out.set_value(self.emb.weight)


NETWORKS: dict[str, Callable[[], Any]] = {
    "block": OneBlock,
    "deep": Deep,
    "llama": lambda: Deep(2, llama=True),
    "resnet": ResNet,
    "rnn": Recurrent,
    "vision": Vision,
    "statistics": Statistics,
    "text": Text,
    "padded": Text,
    "classify": lambda: WithLoss(CrossEntropy()),
    "regress": lambda: WithLoss(SmoothL1()),
    "experts": Experts,
    "mha": BuiltinAttention,
    "preact": PreActNet,
    "tied": Tied,
}


class _Linear(nn.Linear):
    """Stands in for Linear, whose name it bears."""

    how = ""

    def forward(self, x: Any) -> Any:
        if self.how == "tf32":
            return paddle.matmul(as_tf32(x), as_tf32(self.weight)) + self.bias
        if self.how == "through bfloat16":
            # there is no bfloat16 kernel on CPU: multiply what was rounded in float32 and round, as others' kernels do
            product = paddle.matmul(*(a.astype("bfloat16").astype("float32") for a in (x, self.weight)))
            return (product + self.bias).astype("bfloat16").astype("float32")
        if self.how == "sum in two parts":
            n = x.shape[-1] // 2
            return paddle.matmul(x[..., n:], self.weight[n:]) + (paddle.matmul(x[..., :n], self.weight[:n]) + self.bias)
        return paddle.matmul(x, self.weight) + self.bias


class _LayerNorm(nn.LayerNorm):
    def forward(self, x: Any) -> Any:
        apart = x - x.mean(-1, keepdim=True)
        return apart / paddle.sqrt((apart * apart).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


class _BatchNorm(nn.BatchNorm2D):
    def forward(self, x: Any) -> Any:
        mean, var, weight, bias = (
            a.reshape([1, -1, 1, 1]) for a in (self._mean, self._variance, self.weight, self.bias)
        )
        scale = weight / paddle.sqrt(var + 1e-5)
        return x * scale + (bias - mean * scale)


_Linear.__name__, _LayerNorm.__name__, _BatchNorm.__name__ = "Linear", "LayerNorm", "BatchNorm2D"


def _linear(how: str) -> Callable[[Any], Any]:
    def build(old: Any) -> Any:
        new = _Linear(*old.weight.shape)
        new.how = how
        return new

    return build


def _width(layer: Any) -> int:
    return int(layer.weight.shape[0])


#: What is built instead of a layer, from that layer.
LAYERS: dict[str, Callable[[Any], Any]] = {
    "ln eps 1e-6": lambda old: nn.LayerNorm(_width(old), epsilon=1e-6),
    "ln eps 1e-12": lambda old: nn.LayerNorm(_width(old), epsilon=1e-12),
    "gelu tanh": lambda old: nn.GELU(approximate=True),
    "relu for gelu": lambda old: nn.ReLU(),
    "no bias": lambda old: nn.Linear(*old.weight.shape, bias_attr=False),
    "bn eps 1e-3": lambda old: nn.BatchNorm2D(_width(old), epsilon=1e-3),
    "bn momentum 0.1": lambda old: nn.BatchNorm2D(_width(old), momentum=0.1),
    "instance norm plain": lambda old: nn.InstanceNorm2D(6, weight_attr=False, bias_attr=False),
    "slope 0.2": lambda old: nn.LeakyReLU(0.2),
    "padding not counted": lambda old: nn.AvgPool2D(3, 2, 1),
    "time major": lambda old: type(old)(old.input_size, old.hidden_size, time_major=True),
    "no padding index": lambda old: nn.Embedding(*old.weight.shape),
    "no convolution bias": lambda old: nn.Conv2D(6, 8, 3, 2, 1, bias_attr=False),
    "dropout 0.9": lambda old: nn.Dropout(0.9),
    "convolution dilated": lambda old: nn.Conv2D(*old.weight.shape[1::-1], 3, 1, 2, dilation=2, bias_attr=False),
    "padding reflected": lambda old: nn.Conv2D(
        *old.weight.shape[1::-1], 3, 1, 1, bias_attr=False, padding_mode="reflect"
    ),
    "through bfloat16": _linear("through bfloat16"),
    "tf32": _linear("tf32"),
    "sum in two parts": _linear("sum in two parts"),
    "matmul and add": _linear("matmul and add"),
    "layer norm by hand": lambda old: _LayerNorm(_width(old)),
    "batch norm by hand": lambda old: _BatchNorm(_width(old)),
}


def set_training(module: Any, on: bool) -> None:
    """Put a module and what it holds in training or evaluation mode."""
    if on:
        module.train()
    else:
        module.eval()


def to_float64(model: Any) -> Any:
    """The model with all its numbers in float64."""
    return model.to(dtype="float64")


def freeze(parameter: Any) -> None:
    """No gradient for this one."""
    parameter.stop_gradient = True
