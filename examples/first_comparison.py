import numpy as np
import paddle
import torch

import twinscope


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.fc2 = torch.nn.Linear(32, 4)

    def forward(self, x):
        x = torch.nn.functional.gelu(self.fc1(x))
        return self.fc2(self.norm(x))


class PaddleNet(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.fc1 = paddle.nn.Linear(16, 32)
        self.norm = paddle.nn.LayerNorm(32)
        self.fc2 = paddle.nn.Linear(32, 4)

    def forward(self, x):
        x = paddle.nn.functional.gelu(self.fc1(x), approximate=True)  # the bug: torch's default is the exact gelu
        return self.fc2(self.norm(x))


torch.manual_seed(0)
x = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
print(twinscope.align(TorchNet(), PaddleNet(), x))
