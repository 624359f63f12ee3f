"""Environment 1, with PyTorch: save the starting weights and the batch, then record one training pass."""

import numpy as np
import torch

import twinscope


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(16, 32)
        self.fc2 = torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


torch.manual_seed(0)
model = Net()
x = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
np.savez("start.npz", x=x, **{name: p.detach().numpy() for name, p in model.named_parameters()})

with twinscope.capture(model, "runs/torch", keep="tensors"):
    loss = model(torch.from_numpy(x)).square().mean()
    loss.backward()
