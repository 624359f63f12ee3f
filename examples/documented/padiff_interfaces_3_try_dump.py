# PaDiff 0.3, Interfaces, a dump every so many steps.
# Changed: imports, the layer, data and a loss, which the document leaves out; dir_path is handed in by name, because no
# argument may follow per_step=10 without one; every second of four steps, where the document has every tenth.
from padiff import create_model
import paddle

paddle.seed(0)

class SimpleLayer(paddle.nn.Layer):
    def __init__(self):
        super(SimpleLayer, self).__init__()
        self.linear = paddle.nn.Linear(100, 100)

    def forward(self, x):
        x = self.linear(x)
        return x


def dataloader():
    for _ in range(4):
        yield paddle.rand((8, 100))


loss_fn = paddle.mean

dir_path = "tried"

model = create_model(SimpleLayer(), name="Simple")

for data in dataloader():
    output = model(data)
    loss = loss_fn(output)
    model.backward(loss)

    model.try_dump(per_step=2, dir_path=dir_path)     # dir_path 可选项，try_dump 提供默认值
