"""Environment 2, with PaddlePaddle: start from the same weights and batch, and record the same pass."""

import numpy as np
import paddle

import twinscope


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.fc1 = paddle.nn.Linear(16, 32)
        self.fc2 = paddle.nn.Linear(32, 4)

    def forward(self, x):
        return self.fc2(paddle.nn.functional.relu(self.fc1(x)))


model = Net()
start = np.load("start.npz")
for name, parameter in model.named_parameters():
    value = start[name]
    parameter.set_value(value.T if value.ndim == 2 else value)  # Paddle keeps a Linear's weight as [in, out]

with twinscope.capture(model, "runs/paddle", keep="tensors"):
    loss = model(paddle.to_tensor(start["x"])).square().mean()
    loss.backward()
