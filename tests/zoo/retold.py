"""Calls of functions that are told one thing otherwise: in each framework's own words, plain and told otherwise.

Both expressions of `x`, which compute the same in all frameworks.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import normal

X, IMAGE = normal(3, 6, seed=3), normal(2, 4, 6, 6, seed=4)
GRID = np.clip(normal(2, 5, 5, 2, seed=5), -1.2, 1.2)


@dataclass(frozen=True)
class OpCase:
    """One option of one op: (plain, told otherwise) by framework."""

    op: str
    option: str
    inputs: tuple[np.ndarray, ...]
    told: Mapping[str, tuple[str, str]]
    #: Where nothing is known of the other side, it is among what is tried.
    suspected: bool = True

    @property
    def name(self) -> str:
        return f"{self.op}-{self.option}"


def model(framework: str, text: str) -> Any:
    """A module that computes an expression of ``x`` and ``y``."""
    names: dict[str, Any] = {framework: importlib.import_module(framework)}
    nn = importlib.import_module(f"{framework}.nn")
    if framework == "mindspore":
        names["ops"] = importlib.import_module("mindspore.ops")
        names["made"] = made = {}
    else:
        names["F"] = importlib.import_module(f"{framework}.nn.functional")
    base = nn.Cell if framework == "mindspore" else nn.Module if framework == "torch" else nn.Layer
    code = compile(text, "expression", "eval")
    if framework == "mindspore" and text.startswith("ops.") and text[4].isupper():
        made["primitive"] = eval(text.partition(")(")[0] + ")", names)
        code = compile(f"made['primitive']({text.partition(')(')[2]}", "expression", "eval")

    class Expression(base):  # type: ignore[misc,valid-type]
        def forward(self, x: Any, y: Any = None) -> Any:
            return eval(code, {**names, "x": x, "y": y})

        construct = forward

    return Expression()


def _case(op: str, option: str, *inputs: np.ndarray, suspected: bool = True, **told: tuple[str, str]) -> OpCase:
    return OpCase(op, option, inputs, told, suspected)


CASES = [
    _case(
        "gelu", "approximate", X, torch=("F.gelu(x)", "F.gelu(x, approximate='tanh')"),
        paddle=("F.gelu(x)", "F.gelu(x, approximate=True)"),
        mindspore=("ops.gelu(x)", "ops.gelu(x, approximate='tanh')"),
    ),
    _case(
        "softmax", "dim", X, torch=("F.softmax(x, dim=-1)", "F.softmax(x, dim=0)"),
        paddle=("F.softmax(x)", "F.softmax(x, axis=0)"), mindspore=("ops.softmax(x)", "ops.softmax(x, axis=0)"),
    ),
    _case(
        "softmax", "dim-of-a-method", X, torch=("x.softmax(1)", "x.softmax(0)"),
        mindspore=("ops.Softmax(-1)(x)", "ops.Softmax(0)(x)"),
    ),
    _case(
        "interpolate", "align_corners", IMAGE,
        torch=(
            "F.interpolate(x, size=(9, 9), mode='bilinear')",
            "F.interpolate(x, size=(9, 9), mode='bilinear', align_corners=True)",
        ),
        paddle=(
            "F.interpolate(x, size=[9, 9], mode='bilinear')",
            "F.interpolate(x, size=[9, 9], mode='bilinear', align_corners=True)",
        ),
        mindspore=(
            "ops.interpolate(x, size=(9, 9), mode='bilinear')",
            "ops.interpolate(x, size=(9, 9), mode='bilinear', align_corners=True)",
        ),
    ),
    _case(
        "interpolate", "mode", IMAGE,
        torch=("F.interpolate(x, size=(9, 9), mode='bilinear')", "F.interpolate(x, size=(9, 9))"),
        paddle=("F.interpolate(x, size=[9, 9], mode='bilinear')", "F.interpolate(x, size=[9, 9])"),
        mindspore=("ops.interpolate(x, size=(9, 9), mode='bilinear')", "ops.interpolate(x, size=(9, 9))"),
    ),
    _case(
        "grid_sample", "align_corners", IMAGE, GRID,
        torch=("F.grid_sample(x, y)", "F.grid_sample(x, y, align_corners=True)"),
        paddle=("F.grid_sample(x, y, align_corners=False)", "F.grid_sample(x, y)"),
        mindspore=("ops.grid_sample(x, y)", "ops.grid_sample(x, y, align_corners=True)"),
    ),
    _case(
        "grid_sample", "padding_mode", IMAGE, GRID,
        torch=("F.grid_sample(x, y, align_corners=True)", "F.grid_sample(x, y, 'bilinear', 'border', True)"),
        paddle=("F.grid_sample(x, y)", "F.grid_sample(x, y, padding_mode='border')"),
        mindspore=(
            "ops.grid_sample(x, y, align_corners=True)",
            "ops.grid_sample(x, y, padding_mode='border', align_corners=True)",
        ),
    ),
    _case(
        "avg_pool", "count_include_pad", IMAGE,
        torch=("F.avg_pool2d(x, 3, 2, 1)", "F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)"),
        paddle=("F.avg_pool2d(x, 3, 2, 1, exclusive=False)", "F.avg_pool2d(x, 3, 2, 1)"),
        mindspore=("ops.avg_pool2d(x, 3, 2, 1)", "ops.avg_pool2d(x, 3, 2, 1, count_include_pad=False)"),
    ),
    _case(
        "max_pool", "stride", IMAGE, torch=("F.max_pool2d(x, 2, 2)", "F.max_pool2d(x, 2, stride=1)"),
        paddle=("F.max_pool2d(x, 2, 2)", "F.max_pool2d(x, 2, 1)"),
        mindspore=("ops.max_pool2d(x, 2, 2)", "ops.max_pool2d(x, 2, 1)"),
    ),
    _case(
        "leaky_relu", "negative_slope", X, torch=("F.leaky_relu(x)", "F.leaky_relu(x, 0.2)"),
        paddle=("F.leaky_relu(x)", "F.leaky_relu(x, 0.2)"),
        mindspore=("ops.leaky_relu(x, 0.01)", "ops.leaky_relu(x)"),
    ),
    _case(
        "std", "correction", X, torch=("x.std(dim=1)", "x.std(dim=1, correction=0)"),
        paddle=("x.std(axis=1)", "x.std(axis=1, unbiased=False)"),
        mindspore=("ops.std(x, 1, ddof=1)", "ops.std(x, 1)"),
    ),
    _case(
        "var", "correction", X, torch=("torch.var(x, dim=1)", "torch.var(x, dim=1, correction=0)"),
        paddle=("paddle.var(x, axis=1)", "paddle.var(x, axis=1, unbiased=False)"),
        mindspore=("ops.var(x, 1, ddof=1)", "ops.var(x, 1)"),
    ),
    _case(
        "layer_norm", "eps", X * 0.01, torch=("F.layer_norm(x, (6,))", "F.layer_norm(x, (6,), eps=1e-6)"),
        paddle=("F.layer_norm(x, 6)", "F.layer_norm(x, 6, epsilon=1e-6)"),
        mindspore=(
            "ops.LayerNorm(epsilon=1e-5)(x, ops.ones(6), ops.zeros(6))[0]",
            "ops.LayerNorm(epsilon=1e-6)(x, ops.ones(6), ops.zeros(6))[0]",
        ),
    ),
    _case(
        "normalize", "eps", X * 1e-6, torch=("F.normalize(x)", "F.normalize(x, eps=1e-5)"),
        paddle=("F.normalize(x)", "F.normalize(x, epsilon=1e-5)"),
    ),
    _case(
        "batch_norm", "training", IMAGE,
        torch=(
            "F.batch_norm(x, torch.zeros(4), torch.ones(4))",
            "F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True)",
        ),
        paddle=(
            "F.batch_norm(x, paddle.zeros([4]), paddle.ones([4]))",
            "F.batch_norm(x, paddle.zeros([4]), paddle.ones([4]), training=True)",
        ),
    ),
    _case(
        "smooth_l1_loss", "beta", X, X[::-1].copy(),
        torch=("F.smooth_l1_loss(x, y)", "F.smooth_l1_loss(x, y, beta=0.5)"),
        paddle=("F.smooth_l1_loss(x, y, is_huber=False)", "F.smooth_l1_loss(x, y, delta=0.5, is_huber=False)"),
        mindspore=(
            "ops.smooth_l1_loss(x, y, reduction='mean')", "ops.smooth_l1_loss(x, y, beta=0.5, reduction='mean')"
        ),
    ),
    _case(
        "smooth_l1_loss", "huber", X, X[::-1].copy(),
        torch=("F.smooth_l1_loss(x, y, beta=2.0)", ""),
        paddle=("F.smooth_l1_loss(x, y, delta=2.0)", "F.smooth_l1_loss(x, y, delta=2.0, is_huber=False)"),
    ),
    _case(
        "mse_loss", "reduction", X, X[::-1].copy(),
        torch=("F.mse_loss(x, y)", "F.mse_loss(x, y, reduction='sum')"),
        paddle=("F.mse_loss(x, y)", "F.mse_loss(x, y, reduction='sum')"),
        mindspore=("ops.mse_loss(x, y)", "ops.mse_loss(x, y, reduction='sum')"),
    ),
    _case(
        "cross_entropy", "label_smoothing", X, np.array([1, 0, 5]),
        torch=("F.cross_entropy(x, y)", "F.cross_entropy(x, y, label_smoothing=0.1)"),
        paddle=("F.cross_entropy(x, y)", "F.cross_entropy(x, y, label_smoothing=0.1)"),
        mindspore=(
            "ops.cross_entropy(x, y.astype('int32'))", "ops.cross_entropy(x, y.astype('int32'), label_smoothing=0.1)"
        ),
    ),
    _case(
        "cross_entropy", "ignore_index", X, np.array([1, 0, 5]),
        torch=("F.cross_entropy(x, y)", "F.cross_entropy(x, y, ignore_index=0)"),
        paddle=("F.cross_entropy(x, y)", "F.cross_entropy(x, y, ignore_index=0)"),
        mindspore=(
            "ops.cross_entropy(x, y.astype('int32'))", "ops.cross_entropy(x, y.astype('int32'), ignore_index=0)"
        ),
    ),
    _case(
        "topk", "k", X, suspected=False, torch=("torch.topk(x, 2)[0]", "torch.topk(x, 3)[0]"),
        paddle=("paddle.topk(x, 2)[0]", "paddle.topk(x, 3)[0]"), mindspore=("ops.topk(x, 2)[0]", "ops.topk(x, 3)[0]"),
    ),
    _case(
        "topk", "largest", X, torch=("x.topk(2)[0]", "x.topk(2, largest=False)[0]"),
        paddle=("x.topk(2)[0]", "x.topk(2, largest=False)[0]"),
        mindspore=("ops.topk(x, 2)[0]", "ops.topk(x, 2, largest=False)[0]"),
    ),
    _case(
        "sort", "descending", X, torch=("torch.sort(x)[0]", "torch.sort(x, descending=True)[0]"),
        paddle=("paddle.sort(x)", "paddle.sort(x, descending=True)"),
        mindspore=("ops.sort(x)[0]", "ops.sort(x, descending=True)[0]"),
    ),
    _case(
        "norm", "p", X, torch=("torch.norm(x, p=2, dim=1)", "torch.norm(x, p=1, dim=1)"),
        paddle=("paddle.norm(x, p=2, axis=1)", "paddle.norm(x, p=1, axis=1)"),
        mindspore=("ops.norm(x, 2, 1)", "ops.norm(x, 1, 1)"),
    ),
    _case(
        "median", "mode", X, torch=("torch.median(x, dim=1)[0]", ""),
        paddle=("paddle.median(x, axis=1)", "paddle.median(x, 1, mode='min')[0]"),
    ),
    _case(
        "mean", "dim", X[:, :3].copy(), torch=("x.mean(1)", "x.mean(0)"), paddle=("x.mean(1)", "x.mean(0)"),
        mindspore=("ops.mean(x, 1)", "ops.mean(x, 0)"),
    ),
    _case(
        "cumsum", "dim", X, torch=("torch.cumsum(x, 0)", "torch.cumsum(x, dim=1)"),
        paddle=("paddle.cumsum(x, 0)", "paddle.cumsum(x, 1)"), mindspore=("ops.cumsum(x, 0)", "ops.cumsum(x, 1)"),
    ),
    _case(
        "clamp", "max", X, suspected=False, torch=("x.clamp(-1.0, 1.0)", "torch.clamp(x, -1.0, max=0.5)"),
        paddle=("paddle.clip(x, -1.0, 1.0)", "paddle.clip(x, -1.0, 0.5)"),
        mindspore=("ops.clamp(x, -1.0, 1.0)", "ops.clamp(x, -1.0, 0.5)"),
    ),
    _case(
        "pad", "mode", IMAGE, torch=("F.pad(x, (1, 1, 1, 1))", "F.pad(x, (1, 1, 1, 1), mode='reflect')"),
        paddle=("F.pad(x, [1, 1, 1, 1])", "F.pad(x, [1, 1, 1, 1], mode='reflect')"),
        mindspore=("ops.pad(x, (1, 1, 1, 1))", "ops.pad(x, (1, 1, 1, 1), mode='reflect')"),
    ),
    _case(
        "conv", "padding", IMAGE,
        torch=("F.conv2d(x, torch.ones(4, 4, 3, 3))", "F.conv2d(x, torch.ones(4, 4, 3, 3), padding=1)"),
        paddle=(
            "F.conv2d(x, paddle.ones([4, 4, 3, 3]))", "F.conv2d(x, paddle.ones([4, 4, 3, 3]), padding=1)"
        ),
    ),
    _case(
        "div", "rounding_mode", X, torch=("torch.div(x, 0.3)", "torch.div(x, 0.3, rounding_mode='floor')"),
        mindspore=("ops.div(x, 0.3)", "ops.div(x, 0.3, rounding_mode='floor')"),
    ),
    _case(
        "tril", "diagonal", X, torch=("x.tril()", "x.tril(-1)"), paddle=("paddle.tril(x)", "paddle.tril(x, -1)"),
        mindspore=("ops.tril(x)", "ops.tril(x, -1)"),
    ),
    _case("elu", "alpha", X, suspected=False, mindspore=("ops.Elu(1.0)(x)", ""), torch=("F.elu(x)", "F.elu(x, 0.5)"),
          paddle=("F.elu(x)", "F.elu(x, 0.5)")),
]  # fmt: skip
