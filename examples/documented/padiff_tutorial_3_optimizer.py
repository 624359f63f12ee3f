# PaDiff 0.2, Tutorial, optimizers.
# Changed: the imports and the two models, which the document leaves out, are those of its first example; the second
# way that the document names, two functions without arguments, is added at the end.
from padiff import auto_diff
import torch
import paddle

class SimpleLayer(paddle.nn.Layer):
    def __init__(self):
        super(SimpleLayer, self).__init__()
        self.linear1 = paddle.nn.Linear(100, 100)
        self.linear2 = paddle.nn.Linear(100, 10)
        self.act = paddle.nn.ReLU()

    def forward(self, x):
        resdual = x
        x = self.linear1(x)
        x = self.act(x)
        x = x + resdual
        x = self.linear2(x)
        return x

class SimpleModule(torch.nn.Module):
    def __init__(self):
        super(SimpleModule, self).__init__()
        self.linear1 = torch.nn.Linear(100, 100)
        self.linear2 = torch.nn.Linear(100, 10)
        self.act = torch.nn.ReLU()

    def forward(self, x):
        resdual = x
        x = self.linear1(x)
        x = self.act(x)
        x = x + resdual
        x = self.linear2(x)
        return x

layer = SimpleLayer()
module = SimpleModule()

inp = paddle.rand((100, 100)).numpy().astype("float32")
inp = ({"x": paddle.to_tensor(inp)}, {"x": torch.as_tensor(inp)})

paddle_opt = paddle.optimizer.Adam(learning_rate=0.001, parameters=layer.parameters())
torch_opt = torch.optim.Adam(lr=0.001, params=module.parameters())

auto_diff(
    layer,
    module,
    inp,
    auto_weights=True,
    steps=10,
    options={"atol": 1e-4},
    optimizer=[paddle_opt, torch_opt],
)


# 依次传入两个无输入的 lambda,分别负责 paddle 模型与 torch 模型的权重更新,可在其中实现自定义操作
def paddle_step():
    paddle_opt.step()
    paddle_opt.clear_grad()


def torch_step():
    torch_opt.step()
    torch_opt.zero_grad()


auto_diff(
    layer,
    module,
    inp,
    auto_weights=True,
    steps=2,
    options={"atol": 1e-4},
    optimizer=[lambda: paddle_step(), lambda: torch_step()],
)
