"""The references, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, rotary: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.rotary = rotary
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        h, d = self.heads, c // self.heads
        q = self.q(x).reshape(b, t, h, d).transpose(1, 2)
        k = self.k(x).reshape(b, t, h, d).transpose(1, 2)
        v = self.v(x).reshape(b, t, h, d).transpose(1, 2)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        scores = q @ k.transpose(-2, -1) * d**-0.5
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(mask, float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.o(mixed.transpose(1, 2).reshape(b, t, c))


def rotate(x: Any) -> Any:
    """Rotary position embedding, the two halves of a head turned against each other."""
    t, d = x.shape[-2:]
    angles = np.arange(t)[:, None] * 100.0 ** (-np.arange(0, d, 2) / d)
    cos, sin = (torch.tensor(f(angles), dtype=x.dtype) for f in (np.cos, np.sin))
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class MLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class SwiGLU(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 2 * dim, bias=False)
        self.up = nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Any) -> Any:
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, llama: bool = False) -> None:
        super().__init__()
        self.ln1 = RMSNorm(dim) if llama else nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, rotary=llama)
        self.ln2 = RMSNorm(dim) if llama else nn.LayerNorm(dim)
        self.mlp = SwiGLU(dim) if llama else MLP(dim)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class OneBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(32, 4)
        self.head = nn.Linear(32, 9)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(x))


class Deep(nn.Module):
    """Twelve narrow layers, or two in the manner of Llama."""

    def __init__(self, layers: int = 12, llama: bool = False) -> None:
        super().__init__()
        self.emb = nn.Embedding(17, 16)
        self.blocks = nn.ModuleList([Block(16, 2, llama) for _ in range(layers)])
        self.ln_f = RMSNorm(16) if llama else nn.LayerNorm(16)
        self.head = nn.Linear(16, 17)

    def forward(self, ids: Any) -> Any:
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class Residual(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.short = nn.Conv2d(into, out, 1, stride) if stride > 1 else None

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.short is None else self.short(x)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 1, 1)
        self.bn = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2, 2)
        self.stages = nn.ModuleList([Residual(8, 8, 1), Residual(8, 12, 2), Residual(12, 16, 2)])
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = self.pool(F.relu(self.bn(self.conv(x))))
        for stage in self.stages:
            x = stage(x)
        return self.fc(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(13, 8)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.gru = nn.GRU(12, 10, batch_first=True)
        self.fc = nn.Linear(10, 6)

    def forward(self, ids: Any) -> Any:
        x, _ = self.lstm(self.emb(ids))
        x, _ = self.gru(x)
        return self.fc(x)


class Resize(nn.Module):
    def forward(self, x: Any) -> Any:
        return F.interpolate(x, size=(7, 7), mode="bilinear", align_corners=False)


class Sampler(nn.Module):
    def forward(self, x: Any) -> Any:
        theta = torch.tensor([[[0.8, 0.2, 0.1], [-0.1, 0.9, -0.2]]], dtype=x.dtype).repeat(x.shape[0], 1, 1)
        grid = F.affine_grid(theta, [x.shape[0], x.shape[1], 5, 5], align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)


class Vision(nn.Module):
    """A chain of layers whose conventions differ."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 1, 1)
        self.norm = nn.InstanceNorm2d(6, affine=True)
        self.act = nn.LeakyReLU()
        self.pool = nn.AvgPool2d(3, 2, 1)
        self.mid = nn.Conv2d(6, 8, 3, 2, 1)
        self.resize = Resize()
        self.sample = Sampler()
        self.out = nn.Conv2d(8, 4, 1)
        self.fc = nn.Linear(100, 7)

    def forward(self, x: Any) -> Any:
        x = self.pool(self.act(self.norm(self.stem(x))))
        x = self.out(self.sample(self.resize(self.mid(x))))
        return self.fc(torch.flatten(x, 1))


class Standardise(nn.Module):
    def forward(self, x: Any) -> Any:
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3)


class Median(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.median(x, dim=1)[0]


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 6)
        self.standard = Standardise()
        self.median = Median()
        self.fc2 = nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        return self.fc2(self.median(self.standard(self.fc1(x))))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(11, 8, padding_idx=0)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(8, 4)

    def forward(self, ids: Any) -> Any:
        return self.fc(self.drop(self.emb(ids)).mean(1))


class CrossEntropy(nn.Module):
    def forward(self, x: Any, labels: Any) -> Any:
        return F.cross_entropy(x, labels, ignore_index=-100)


class SmoothL1(nn.Module):
    def forward(self, x: Any, target: Any) -> Any:
        return F.smooth_l1_loss(x, target, beta=0.5)


class WithLoss(nn.Module):
    def __init__(self, criterion: Any) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 12)
        self.fc2 = nn.Linear(12, 5)
        self.criterion = criterion

    def forward(self, x: Any, target: Any) -> Any:
        return self.criterion(self.fc2(torch.tanh(self.fc1(x))), target)


class Routed(nn.Module):
    """Each token goes to the two experts that its router likes best."""

    def __init__(self, dim: int = 8, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.experts = nn.ModuleList([nn.Linear(dim, dim) for _ in range(experts)])

    def forward(self, x: Any) -> Any:
        best, index = torch.topk(torch.softmax(self.router(x), dim=-1), 2, dim=-1)
        best = best / best.sum(-1, keepdim=True)
        shares = (F.one_hot(index, len(self.experts)).to(x.dtype) * best[..., None]).sum(-2)
        every = torch.stack([expert(x) for expert in self.experts], dim=-2)
        return (shares[..., None] * every).sum(-2)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.moe = Routed()
        self.fc2 = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.fc1(x)
        return self.fc2(x + self.moe(x))


class BuiltinAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True)
        self.ln = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.fc(self.ln(x + self.attn(x, x, x)[0]))


class PreAct(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc = nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        return x + self.fc(F.relu(x))


class PreActNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([PreAct(8) for _ in range(3)])
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(13, 8)
        self.fc = nn.Linear(8, 8)

    def forward(self, ids: Any) -> Any:
        return F.linear(torch.tanh(self.fc(self.emb(ids))), self.emb.weight)


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


def set_training(module: Any, on: bool) -> None:
    """Put a module and what it holds in training or evaluation mode."""
    module.train(on)
