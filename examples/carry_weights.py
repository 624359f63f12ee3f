import numpy as np
import paddle
import torch

import twinscope


class TorchMixer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(8, 8)
        self.value = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * self.value(x)


class PaddleMixer(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.both = paddle.nn.Linear(8, 16)

    def forward(self, x):
        value, gate = self.both(x).chunk(2, axis=-1)
        return paddle.nn.functional.sigmoid(gate) * value


x = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
reference, candidate = TorchMixer(), PaddleMixer()
mapping = twinscope.map_weights(reference, candidate, x)
print(mapping)
twinscope.copy_weights(reference, candidate, mapping=mapping)

torch.save(reference.state_dict(), "mixer.pth")
print(twinscope.convert_checkpoint("mixer.pth", "mixer.pdparams", mapping))
