"""What is needed to write a small network once and build it in every framework: layers and a few functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np


@cache
def kit(framework: str) -> Any:
    """The parts of one framework, under names that all have: `Module` (with ``forward``), `linear`, `permute`, ..."""
    return {"torch": _torch, "paddle": _paddle, "mindspore": _mindspore}[framework]()


def scaled(*shape: int) -> Any:
    """Numbers to begin with, drawn from numpy's own state."""
    return (np.random.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)


def _torch() -> Any:
    import torch
    import torch.nn.functional as F
    from torch import nn

    return SimpleNamespace(
        name="torch",
        keepdim="keepdim",
        Module=nn.Module,
        linear=nn.Linear,
        conv=lambda i, o, k, stride=1, padding=0: nn.Conv2d(i, o, k, stride, padding),
        layer_norm=nn.LayerNorm,
        embedding=nn.Embedding,
        modules=nn.ModuleList,
        sequential=lambda *layers: nn.Sequential(*layers),
        attention=lambda dim, heads: nn.MultiheadAttention(dim, heads, batch_first=True),
        attend=lambda layer, x: layer(x, x, x)[0],
        instance_norm=lambda n, affine: nn.InstanceNorm2d(n, affine=affine),
        parameter=lambda array: nn.Parameter(torch.tensor(np.asarray(array, np.float32))),
        buffer=lambda module, name, array: module.register_buffer(name, torch.tensor(array)),
        freeze=lambda model: model.requires_grad_(False),
        matrix=F.linear,
        permute=lambda x, *axes: x.permute(*axes),
        reshape=lambda x, *shape: x.reshape(*shape),
        softmax=lambda x: torch.softmax(x, -1),
        tanh=torch.tanh,
        relu=torch.relu,
        cat=torch.cat,
    )


def _paddle() -> Any:
    import paddle
    import paddle.nn.functional as F
    from paddle import nn

    def frozen(model: Any) -> None:
        for p in model.parameters():
            p.stop_gradient = True

    def instance_norm(n: int, affine: bool) -> Any:
        return nn.InstanceNorm2D(n) if affine else nn.InstanceNorm2D(n, weight_attr=False, bias_attr=False)

    def parameter(array: Any) -> Any:
        made = paddle.create_parameter(list(array.shape), "float32")
        made.set_value(np.asarray(array, np.float32))
        return made

    return SimpleNamespace(
        name="paddle",
        keepdim="keepdim",
        Module=nn.Layer,
        linear=nn.Linear,
        conv=lambda i, o, k, stride=1, padding=0: nn.Conv2D(i, o, k, stride, padding),
        layer_norm=nn.LayerNorm,
        embedding=nn.Embedding,
        modules=nn.LayerList,
        sequential=lambda *layers: nn.Sequential(*layers),
        attention=nn.MultiHeadAttention,
        attend=lambda layer, x: layer(x, x, x),
        instance_norm=instance_norm,
        parameter=parameter,
        buffer=lambda module, name, array: module.register_buffer(name, paddle.to_tensor(array)),
        freeze=frozen,
        matrix=lambda x, w, b=None: F.linear(x, w.t(), b),
        permute=lambda x, *axes: paddle.transpose(x, list(axes)),
        reshape=lambda x, *shape: paddle.reshape(x, list(shape)),
        softmax=lambda x: F.softmax(x, -1),
        tanh=paddle.tanh,
        relu=F.relu,
        cat=paddle.concat,
    )


def _mindspore() -> Any:
    import mindspore as ms
    from mindspore import Parameter, Tensor, nn, ops

    class Module(nn.Cell):
        def construct(self, *args: Any, **kwargs: Any) -> Any:
            return self.forward(*args, **kwargs)

    def buffer(module: Any, name: str, array: Any) -> None:
        setattr(module, name, Parameter(Tensor(array), requires_grad=False))

    def frozen(model: Any) -> None:
        for p in model.get_parameters():
            p.requires_grad = False

    def conv(i: int, o: int, k: int, stride: int = 1, padding: int = 0) -> Any:
        return nn.Conv2d(i, o, k, stride, pad_mode="pad", padding=padding, has_bias=True)

    def matrix(x: Any, w: Any, b: Any = None) -> Any:
        y = ops.matmul(x, w.T)
        return y if b is None else y + b

    def permute(x: Any, *axes: int) -> Any:
        return ops.transpose(x, axes)

    def reshape(x: Any, *shape: int) -> Any:
        return ops.reshape(x, shape)

    def cat(given: Sequence[Any], axis: int) -> Any:
        return ops.cat(given, axis)

    assert ms.get_context("mode") == ms.PYNATIVE_MODE
    return SimpleNamespace(
        name="mindspore",
        keepdim="keep_dims",
        Module=Module,
        linear=nn.Dense,
        conv=conv,
        layer_norm=lambda n: nn.LayerNorm((n,), epsilon=1e-5),
        embedding=nn.Embedding,
        modules=nn.CellList,
        sequential=lambda *layers: nn.SequentialCell(*layers),
        attention=lambda dim, heads: nn.MultiheadAttention(dim, heads, batch_first=True),
        attend=lambda layer, x: layer(x, x, x)[0],
        instance_norm=lambda n, affine: nn.InstanceNorm2d(n, affine=affine),
        parameter=lambda array: Parameter(Tensor(np.asarray(array, np.float32))),
        buffer=buffer,
        freeze=frozen,
        matrix=matrix,
        permute=permute,
        reshape=reshape,
        softmax=lambda x: ops.softmax(x, -1),
        tanh=ops.tanh,
        relu=ops.relu,
        cat=cat,
    )
