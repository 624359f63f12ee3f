"""One vision transformer (12 blocks, width 192, 3 heads, patches of 16) in three frameworks, with a training step.

`build(framework, batch, image)` gives ``(model, step)``; a step is forward, cross entropy, backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

DEPTH, WIDTH, HEADS, CLASSES, PATCH = 12, 192, 3, 10, 16


def build(framework: str, batch: int, image: int = 128, threads: int = 1) -> tuple[Any, Callable[[], Any]]:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, 3, image, image)).astype(np.float32)
    labels = rng.integers(0, CLASSES, batch)
    makers = {"torch": _torch, "paddle": _paddle, "mindspore": _mindspore}
    return makers[framework](images, labels, threads)


def _torch(images: Any, labels: Any, threads: int) -> tuple[Any, Callable[[], Any]]:
    import torch
    from torch import nn

    torch.set_num_threads(threads)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.proj = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = self.qkv(x).reshape(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
            weights = torch.softmax((q @ k.transpose(-2, -1)) * (c // HEADS) ** -0.5, -1)
            return self.proj((weights @ v).transpose(1, 2).reshape(b, t, c))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(WIDTH)
            self.attn = Attention()
            self.norm2 = nn.LayerNorm(WIDTH)
            self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
            self.act = nn.GELU()
            self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.norm1(x))
            return x + self.fc2(self.act(self.fc1(self.norm2(x))))

    class ViT(nn.Module):
        def __init__(self, tokens: int) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
            self.cls = nn.Parameter(torch.zeros(1, 1, WIDTH))
            self.position = nn.Parameter(torch.zeros(1, tokens + 1, WIDTH))
            self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
            return self.head(self.norm(self.blocks(x))[:, 0])

    model = ViT((images.shape[-1] // PATCH) ** 2)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)

    def step() -> Any:
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return model, step


def _paddle(images: Any, labels: Any, threads: int) -> tuple[Any, Callable[[], Any]]:
    import paddle
    from paddle import nn

    class Attention(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.proj = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = self.qkv(x).reshape([b, t, 3, HEADS, c // HEADS]).transpose([2, 0, 3, 1, 4]).unbind(0)
            weights = nn.functional.softmax((q @ k.transpose([0, 1, 3, 2])) * (c // HEADS) ** -0.5, -1)
            return self.proj((weights @ v).transpose([0, 2, 1, 3]).reshape([b, t, c]))

    class Block(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(WIDTH)
            self.attn = Attention()
            self.norm2 = nn.LayerNorm(WIDTH)
            self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
            self.act = nn.GELU()
            self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.norm1(x))
            return x + self.fc2(self.act(self.fc1(self.norm2(x))))

    class ViT(nn.Layer):
        def __init__(self, tokens: int) -> None:
            super().__init__()
            self.patch = nn.Conv2D(3, WIDTH, PATCH, PATCH)
            self.cls = self.create_parameter([1, 1, WIDTH])
            self.position = self.create_parameter([1, tokens + 1, WIDTH])
            self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.patch(x).flatten(2).transpose([0, 2, 1])
            x = paddle.concat([self.cls.expand([x.shape[0], -1, -1]), x], 1) + self.position
            return self.head(self.norm(self.blocks(x))[:, 0])

    model = ViT((images.shape[-1] // PATCH) ** 2)
    x, y = paddle.to_tensor(images), paddle.to_tensor(labels)

    def step() -> Any:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        model.clear_gradients()
        return loss

    return model, step


def _mindspore(images: Any, labels: Any, threads: int) -> tuple[Any, Callable[[], Any]]:
    import mindspore as ms
    from mindspore import nn, ops

    class Attention(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Dense(WIDTH, 3 * WIDTH)
            self.proj = nn.Dense(WIDTH, WIDTH)

        def construct(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = ops.unbind(self.qkv(x).reshape(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4), 0)
            weights = ops.softmax(ops.matmul(q, k.swapaxes(-2, -1)) * (c // HEADS) ** -0.5, -1)
            return self.proj(ops.matmul(weights, v).swapaxes(1, 2).reshape(b, t, c))

    class Block(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm((WIDTH,))
            self.attn = Attention()
            self.norm2 = nn.LayerNorm((WIDTH,))
            self.fc1 = nn.Dense(WIDTH, 4 * WIDTH)
            self.act = nn.GELU(approximate=False)
            self.fc2 = nn.Dense(4 * WIDTH, WIDTH)

        def construct(self, x: Any) -> Any:
            x = x + self.attn(self.norm1(x))
            return x + self.fc2(self.act(self.fc1(self.norm2(x))))

    class ViT(nn.Cell):
        def __init__(self, tokens: int) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH, pad_mode="valid", has_bias=True)
            self.cls = ms.Parameter(ms.Tensor(np.zeros((1, 1, WIDTH), np.float32)), name="cls")
            self.position = ms.Parameter(ms.Tensor(np.zeros((1, tokens + 1, WIDTH), np.float32)), name="position")
            self.blocks = nn.SequentialCell(*[Block() for _ in range(DEPTH)])
            self.norm = nn.LayerNorm((WIDTH,))
            self.head = nn.Dense(WIDTH, CLASSES)

        def construct(self, x: Any) -> Any:
            x = self.patch(x)
            x = x.reshape(x.shape[0], WIDTH, -1).swapaxes(1, 2)
            cls = ops.broadcast_to(self.cls, (x.shape[0], 1, WIDTH))
            x = ops.cat([cls, x], 1) + self.position
            return self.head(self.norm(self.blocks(x))[:, 0])

    model = ViT((images.shape[-1] // PATCH) ** 2)
    model.set_train()
    x, y = ms.Tensor(images), ms.Tensor(labels.astype(np.int32))
    gradient = ms.value_and_grad(lambda a, b: ops.cross_entropy(model(a), b), None, model.trainable_params())

    def step() -> Any:
        loss, gradients = gradient(x, y)
        for g in gradients:
            g.asnumpy()  # kernels run behind the scenes: wait for them
        return loss

    return model, step
