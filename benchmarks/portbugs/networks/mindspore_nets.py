"""The candidates in MindSpore, with their quirks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def halved(x: Any) -> Any:
    """The same values exactly; half the gradient."""
    return x * 0.5 + ops.stop_gradient(x * 0.5)


def doubled(x: Any) -> Any:
    """The same values exactly; twice the gradient."""
    return x * 2.0 - ops.stop_gradient(x)


def as_tf32(x: Any) -> Any:
    """Rounded to the eleven significant bits that TF32 multiplies with."""
    wide = x * 8193.0
    return x + ops.stop_gradient(wide - (wide - x) - x)


class Attention(nn.Cell):
    quirk = ""

    def __init__(self, dim: int, heads: int, rotary: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.rotary = rotary
        self.q = nn.Dense(dim, dim)
        self.k = nn.Dense(dim, dim)
        self.v = nn.Dense(dim, dim)
        self.o = nn.Dense(dim, dim)

    def construct(self, x: Any) -> Any:
        quirk = self.quirk
        b, t, c = x.shape
        h, d = self.heads, c // self.heads
        first, second = (self.k, self.q) if quirk == "q and k swapped" else (self.q, self.k)
        q, k, v = (self.split(layer(x), b, t, h, d) for layer in (first, second, self.v))
        if self.rotary:
            q, k = self.rotate(q), self.rotate(k)
        scale = {"no scale": 1.0, "scale by model width": c**-0.5}.get(quirk, d**-0.5)
        turned = ops.transpose(k, (0, 1, 3, 2))
        if quirk == "scale first":
            scores = ops.matmul(q * scale, turned)
        elif quirk == "batched matrices":
            scores = ops.bmm(q.reshape(b * h, t, d), turned.reshape(b * h, d, t)).reshape(b, h, t, t) * scale
        else:
            scores = ops.matmul(q, turned) * scale
        scores = self.masked(scores, t)
        if quirk == "softmax by hand":
            grown = ops.exp(scores - ops.amax(scores, axis=-1, keepdims=True))
            weights = grown / grown.sum(-1, keepdims=True)
        else:
            weights = ops.softmax(scores, axis=-2 if quirk == "softmax over queries" else -1)
        if quirk == "attention weights detached":
            weights = ops.stop_gradient(weights)
        mixed = ops.matmul(weights, v)
        if quirk != "heads merged untransposed":
            mixed = ops.transpose(mixed, (0, 2, 1, 3))
        return self.o(mixed.reshape(b, t, c))

    def split(self, x: Any, b: int, t: int, h: int, d: int) -> Any:
        if self.quirk == "heads split last":
            return ops.transpose(x.reshape(b, t, d, h), (0, 3, 1, 2))
        return ops.transpose(x.reshape(b, t, h, d), (0, 2, 1, 3))

    def masked(self, scores: Any, t: int) -> Any:
        hidden = np.triu(np.ones((t, t)), 2 if self.quirk == "mask off by one" else 1)
        if self.quirk == "mask added as it is":
            return scores + Tensor(hidden, scores.dtype)
        far = {"mask -1e4": -1e4, "mask too weak": -4.0}.get(self.quirk, -np.inf)
        return scores + Tensor(np.where(hidden > 0, far, 0.0), scores.dtype)

    def rotate(self, x: Any) -> Any:
        t, d = x.shape[-2:]
        angles = np.arange(t)[:, None] * 100.0 ** (-np.arange(0, d, 2) / d)
        cos, sin = (Tensor(f(angles), x.dtype) for f in (np.cos, np.sin))
        if self.quirk == "rotary interleaved":
            a, b = x[..., 0::2], x[..., 1::2]
            return ops.stack((a * cos - b * sin, b * cos + a * sin), axis=-1).reshape(x.shape)
        a, b = x[..., : d // 2], x[..., d // 2 :]
        if self.quirk == "rotary turned back":
            sin = -sin
        return ops.cat((a * cos - b * sin, b * cos + a * sin), axis=-1)


class MLP(nn.Cell):
    quirk = ""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Dense(dim, 2 * dim)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(2 * dim, dim)

    def construct(self, x: Any) -> Any:
        x = self.fc1(x)
        if self.quirk == "gelu tanh in the code":
            x = ops.gelu(x, approximate="tanh")
        elif self.quirk == "gelu in the code":
            x = ops.gelu(x)
        elif self.quirk == "gelu by hand":
            x = x * 0.5 * (1.0 + ops.erf(x * math.sqrt(0.5)))
        else:
            x = self.act(x)
        if self.quirk == "gradient halved":
            x = halved(x)
        if self.quirk == "gradient doubled":
            x = doubled(x)
        return self.fc2(x)


class SwiGLU(nn.Cell):
    quirk = ""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Dense(dim, 2 * dim, has_bias=False)
        self.up = nn.Dense(dim, 2 * dim, has_bias=False)
        self.down = nn.Dense(2 * dim, dim, has_bias=False)

    def construct(self, x: Any) -> Any:
        gate, up = self.gate(x), self.up(x)
        if self.quirk == "gate and up swapped":
            gate, up = up, gate
        if self.quirk == "silu by hand":
            return self.down(gate * ops.sigmoid(gate) * up)
        return self.down(ops.silu(gate) * up)


class RMSNorm(nn.Cell):
    quirk = ""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(dim, np.float32)), name="weight")

    def construct(self, x: Any) -> Any:
        eps = 1e-6 if self.quirk == "rms eps 1e-6" else 1e-5
        if self.quirk == "divided by the root":
            return x / ops.sqrt((x * x).mean(-1, keep_dims=True) + eps) * self.weight
        return self.weight * (x * ops.rsqrt((x * x).mean(-1, keep_dims=True) + eps))


class Block(nn.Cell):
    quirk = ""

    def __init__(self, dim: int, heads: int, llama: bool = False) -> None:
        super().__init__()
        self.ln1 = RMSNorm(dim) if llama else nn.LayerNorm((dim,), epsilon=1e-5)
        self.attn = Attention(dim, heads, rotary=llama)
        self.ln2 = RMSNorm(dim) if llama else nn.LayerNorm((dim,), epsilon=1e-5)
        self.mlp = SwiGLU(dim) if llama else MLP(dim)

    def construct(self, x: Any) -> Any:
        if self.quirk == "residual after norm":
            x = self.ln1(x)
            x = x + self.attn(x)
        elif self.quirk == "norm after residual":
            x = self.ln1(x + self.attn(x))
        elif self.quirk == "residual detached":
            x = ops.stop_gradient(x) + self.attn(self.ln1(x))
        elif self.quirk == "sum the other way":
            x = self.attn(self.ln1(x)) + x
        else:
            x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Net(nn.Cell):
    """A root."""

    quirk = ""

    def construct(self, *given: Any) -> Any:
        if self.quirk == "batch in halves":
            n = given[0].shape[0] // 2
            return ops.cat((self.body(*(g[:n] for g in given)), self.body(*(g[n:] for g in given))))
        return self.body(*given)


class OneBlock(Net):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(32, 4)
        self.head = nn.Dense(32, 9)

    def body(self, x: Any) -> Any:
        return self.head(self.block(x))


class Deep(Net):
    def __init__(self, layers: int = 12, llama: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(17, 16)
        self.blocks = nn.CellList([Block(16, 2, llama) for _ in range(layers)])
        self.ln_f = RMSNorm(16) if llama else nn.LayerNorm((16,), epsilon=1e-5)
        self.head = nn.Dense(16, 17)

    def body(self, ids: Any) -> Any:
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


def _conv(into: int, out: int, size: int, stride: int = 1, padding: int = 0, bias: bool = True) -> Any:
    return nn.Conv2d(into, out, size, stride, pad_mode="pad", padding=padding, has_bias=bias)


class Residual(nn.Cell):
    quirk = ""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.conv2 = _conv(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.short = _conv(into, out, 1, stride) if stride > 1 else None

    def construct(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        rest = x if self.short is None else self.short(x)
        if self.quirk == "relu before the sum":
            return self.relu(y) + rest
        if self.quirk == "relu as maximum":
            return ops.maximum(y + rest, ops.zeros_like(y))
        return self.relu(y + rest)


class ResNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv = _conv(3, 8, 3, 1, 1)
        self.bn = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2, 2)
        self.stages = nn.CellList([Residual(8, 8, 1), Residual(8, 12, 2), Residual(12, 16, 2)])
        self.fc = nn.Dense(16, 10)

    def body(self, x: Any) -> Any:
        x = self.pool(ops.relu(self.bn(self.conv(x))))
        for stage in self.stages:
            x = stage(x)
        if self.quirk == "pooling layer for mean":
            return self.fc(ops.flatten(ops.adaptive_avg_pool2d(x, 1), start_dim=1))
        return self.fc(x.mean((2, 3)))


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(13, 8)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.gru = nn.GRU(12, 10, batch_first=True)
        self.fc = nn.Dense(10, 6)

    def body(self, ids: Any) -> Any:
        x = self.emb(ids)
        x = self.unrolled(x) if self.quirk == "lstm unrolled" else self.lstm(x)[0]
        x, _ = self.gru(x)
        return self.fc(x)

    def unrolled(self, x: Any) -> Any:
        own = {p.name.rsplit(".", 1)[-1]: p for p in self.lstm.get_parameters()}
        h = c = ops.zeros((x.shape[0], 12), x.dtype)
        seen = []
        for step in range(x.shape[1]):
            taken = ops.matmul(x[:, step], own["weight_ih_l0"].T) + own["bias_ih_l0"]
            kept = ops.matmul(h, own["weight_hh_l0"].T) + own["bias_hh_l0"]
            i, f, g, o = ops.split(taken + kept, 12, axis=-1)
            c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
            h = ops.sigmoid(o) * ops.tanh(c)
            seen.append(h)
        return ops.stack(seen, axis=1)


class Resize(nn.Cell):
    quirk = ""

    def construct(self, x: Any) -> Any:
        if self.quirk == "nearest":
            return ops.interpolate(x, size=(7, 7), mode="nearest")
        return ops.interpolate(x, size=(7, 7), mode="bilinear", align_corners=self.quirk == "resize corners")


class Sampler(nn.Cell):
    quirk = ""

    def construct(self, x: Any) -> Any:
        theta = Tensor([[[0.8, 0.2, 0.1], [-0.1, 0.9, -0.2]]], x.dtype).tile((x.shape[0], 1, 1))
        size = (x.shape[0], x.shape[1], 5, 5)
        grid = ops.affine_grid(theta, size, align_corners=self.quirk == "affine grid corners")
        return ops.grid_sample(x, grid, align_corners=self.quirk == "grid sample corners")


class Vision(Net):
    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 6, 3, 1, 1)
        self.norm = nn.GroupNorm(6, 6)  # InstanceNorm2d has no kernel on CPU
        self.act = nn.LeakyReLU(0.01)
        self.pool = nn.AvgPool2d(3, 2, pad_mode="pad", padding=1)
        self.mid = _conv(6, 8, 3, 2, 1)
        self.resize = Resize()
        self.sample = Sampler()
        self.out = _conv(8, 4, 1)
        self.fc = nn.Dense(100, 7)

    def body(self, x: Any) -> Any:
        x = self.pool(self.act(self.norm(self.stem(x))))
        x = self.out(self.sample(self.resize(self.mid(x))))
        if self.quirk == "flattened channels last":
            x = ops.transpose(x, (0, 2, 3, 1))
        return self.fc(ops.flatten(x, start_dim=1))


class Standardise(nn.Cell):
    quirk = ""

    def construct(self, x: Any) -> Any:
        axis = 1 if self.quirk == "normalised over another axis" else -1
        std = ops.std(x, axis, 0 if self.quirk == "std of the population" else 1, True)
        return (x - x.mean(axis, keep_dims=True)) / (std + 1e-3)


class Median(nn.Cell):
    quirk = ""

    def construct(self, x: Any) -> Any:
        middle = (x.shape[1] - 1) // 2
        ordered = ops.sort(x, axis=1)[0]
        if self.quirk == "mean of the middle two":
            return (ordered[:, middle] + ordered[:, middle + 1]) / 2
        return ordered[:, middle]


class Statistics(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(8, 6)
        self.standard = Standardise()
        self.median = Median()
        self.fc2 = nn.Dense(6, 5)

    def body(self, x: Any) -> Any:
        return self.fc2(self.median(self.standard(self.fc1(x))))


class Text(Net):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 8, padding_idx=0)
        self.drop = nn.Dropout(p=0.1)
        self.fc = nn.Dense(8, 4)

    def body(self, ids: Any) -> Any:
        return self.fc(self.drop(self.emb(ids)).mean(1))


class CrossEntropy(nn.Cell):
    quirk = ""

    def construct(self, x: Any, labels: Any) -> Any:
        if self.quirk == "mean over all":
            return ops.cross_entropy(x, labels, ignore_index=-100, reduction="none").mean()
        if self.quirk == "loss by hand":
            kept = labels != -100
            logs = ops.log_softmax(x, axis=-1) * ops.one_hot(ops.where(kept, labels, 0 * labels), 5).astype(x.dtype)
            return -(logs.sum(-1) * kept.astype(x.dtype)).sum() / kept.astype(x.dtype).sum()
        return ops.cross_entropy(x, labels, ignore_index=-100)


class SmoothL1(nn.Cell):
    quirk = ""

    def construct(self, x: Any, target: Any) -> Any:
        if self.quirk == "delta for beta":
            return 0.5 * ops.smooth_l1_loss(x, target, beta=0.5, reduction="mean")
        if self.quirk == "beta forgotten":
            return ops.smooth_l1_loss(x, target, reduction="mean")
        if self.quirk == "reduction forgotten":
            return ops.smooth_l1_loss(x, target, beta=0.5)
        return ops.smooth_l1_loss(x, target, beta=0.5, reduction="mean")


class WithLoss(Net):
    def __init__(self, criterion: Any) -> None:
        super().__init__()
        self.fc1 = nn.Dense(8, 12)
        self.fc2 = nn.Dense(12, 5)
        self.criterion = criterion

    def body(self, x: Any, target: Any) -> Any:
        return self.criterion(self.fc2(ops.tanh(self.fc1(x))), target)


class Routed(nn.Cell):
    quirk = ""

    def __init__(self, dim: int = 8, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Dense(dim, experts)
        self.experts = nn.CellList([nn.Dense(dim, dim) for _ in range(experts)])

    def construct(self, x: Any) -> Any:
        chances = ops.softmax(self.router(x), axis=-1)
        best, index = ops.topk(chances, 1 if self.quirk == "one expert" else 2, dim=-1)
        if self.quirk != "shares not normalised":
            best = best / best.sum(-1, keepdims=True)
        shares = (ops.one_hot(index, len(self.experts)).astype(x.dtype) * best.expand_dims(-1)).sum(-2)
        every = ops.stack([expert(x) for expert in self.experts], axis=-2)
        return (shares.expand_dims(-1) * every).sum(-2)


class Experts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(8, 8)
        self.moe = Routed()
        self.fc2 = nn.Dense(8, 5)

    def body(self, x: Any) -> Any:
        x = self.fc1(x)
        return self.fc2(x + self.moe(x))


class BuiltinAttention(Net):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True)
        self.ln = nn.LayerNorm((16,), epsilon=1e-5)
        self.fc = nn.Dense(16, 5)

    def body(self, x: Any) -> Any:
        return self.fc(self.ln(x + self.attn(x, x, x)[0]))


class PreAct(nn.Cell):
    quirk = ""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc = nn.Dense(dim, dim)

    def construct(self, x: Any) -> Any:
        if self.quirk == "relu in place":
            x[:] = ops.relu(x)
            return x + self.fc(x)
        return x + self.fc(ops.relu(x))


class PreActNet(Net):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Dense(8, 8)
        self.blocks = nn.CellList([PreAct(8) for _ in range(3)])
        self.head = nn.Dense(8, 4)

    def body(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(13, 8)
        self.fc = nn.Dense(8, 8)

    def body(self, ids: Any) -> Any:
        weight = self.out if self.quirk == "untied" else self.emb.embedding_table
        return ops.matmul(ops.tanh(self.fc(self.emb(ids))), weight.T)

    def untie(self) -> None:
        self.quirk = "untied"
        self.out = Parameter(Tensor(self.emb.embedding_table.asnumpy()), name="out")


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


class _Dense(nn.Dense):
    """Stands in for Dense, whose name it bears."""

    how = ""

    def construct(self, x: Any) -> Any:
        weight = self.weight.T
        if self.how == "tf32":
            return ops.matmul(as_tf32(x), as_tf32(weight)) + self.bias
        if self.how == "sum in two parts":
            n = x.shape[-1] // 2
            return ops.matmul(x[..., n:], weight[n:]) + (ops.matmul(x[..., :n], weight[:n]) + self.bias)
        return ops.matmul(x, weight) + self.bias


class _LayerNorm(nn.LayerNorm):
    def construct(self, x: Any) -> Any:
        apart = x - x.mean(-1, keep_dims=True)
        return apart / ops.sqrt((apart * apart).mean(-1, keep_dims=True) + 1e-5) * self.gamma + self.beta


class _BatchNorm(nn.BatchNorm2d):
    def construct(self, x: Any) -> Any:
        mean, var, gamma, beta = (
            a.reshape(1, -1, 1, 1) for a in (self.moving_mean, self.moving_variance, self.gamma, self.beta)
        )
        scale = gamma / ops.sqrt(var + 1e-5)
        return x * scale + (beta - mean * scale)


_Dense.__name__, _LayerNorm.__name__, _BatchNorm.__name__ = "Dense", "LayerNorm", "BatchNorm2d"


def _dense(how: str) -> Callable[[Any], Any]:
    def build(old: Any) -> Any:
        new = _Dense(old.in_channels, old.out_channels)
        new.how = how
        return new

    return build


def _half(old: Any) -> Any:
    return nn.Dense(old.in_channels, old.out_channels, has_bias=old.has_bias).to_float(ms.float16)


def _width(layer: Any) -> int:
    return int(layer.gamma.shape[0])


#: What is built instead of a layer, from that layer.
LAYERS: dict[str, Callable[[Any], Any]] = {
    "ln eps 1e-6": lambda old: nn.LayerNorm((_width(old),), epsilon=1e-6),
    "ln eps 1e-12": lambda old: nn.LayerNorm((_width(old),), epsilon=1e-12),
    "ln eps default": lambda old: nn.LayerNorm((_width(old),)),
    "gelu tanh": lambda old: nn.GELU(approximate=True),
    "gelu default": lambda old: nn.GELU(),
    "relu for gelu": lambda old: nn.ReLU(),
    "no bias": lambda old: nn.Dense(old.in_channels, old.out_channels, has_bias=False),
    "bn eps 1e-3": lambda old: nn.BatchNorm2d(_width(old), eps=1e-3),
    "bn momentum 0.1": lambda old: nn.BatchNorm2d(_width(old), momentum=0.1),
    "instance norm plain": lambda old: nn.GroupNorm(6, 6, affine=False),
    "slope 0.2": lambda old: nn.LeakyReLU(),
    "padding not counted": lambda old: nn.AvgPool2d(3, 2, pad_mode="pad", padding=1, count_include_pad=False),
    "time major": lambda old: nn.LSTM(8, 12) if isinstance(old, nn.LSTM) else nn.GRU(12, 10),
    "no padding index": lambda old: nn.Embedding(old.vocab_size, old.embedding_size),
    "no convolution bias": lambda old: nn.Conv2d(6, 8, 3, 2, pad_mode="pad", padding=1),
    "pad mode same": lambda old: nn.Conv2d(old.in_channels, old.out_channels, 3, old.stride, has_bias=old.has_bias),
    "pool stride default": lambda old: nn.MaxPool2d(2),
    "dropout 0.9": lambda old: nn.Dropout(p=0.9),
    "convolution dilated": lambda old: nn.Conv2d(
        old.in_channels, old.out_channels, 3, 1, pad_mode="pad", padding=2, dilation=2
    ),
    "half precision": _half,
    "tf32": _dense("tf32"),
    "sum in two parts": _dense("sum in two parts"),
    "matmul and add": _dense("matmul and add"),
    "layer norm by hand": lambda old: _LayerNorm((_width(old),), epsilon=1e-5),
    "batch norm by hand": lambda old: _BatchNorm(_width(old)),
}


def set_training(module: Any, on: bool) -> None:
    """Put a module and what it holds in training or evaluation mode."""
    module.set_train(on)


def to_float64(model: Any) -> Any:
    """The model with all its numbers in float64."""
    for parameter in model.get_parameters():
        parameter.set_data(Tensor(parameter.asnumpy().astype(np.float64)))
        parameter.set_dtype(ms.float64)
    return model


def freeze(parameter: Any) -> None:
    """No gradient for this one."""
    parameter.requires_grad = False
