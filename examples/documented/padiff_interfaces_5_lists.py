# PaDiff 0.3, Interfaces, black and white lists.
# Changed: imports and a layer with components to list; the comma between them, which is a full-width one in the document.
from padiff import create_model
import paddle

paddle.seed(0)

class SimpleLayer(paddle.nn.Layer):
    def __init__(self):
        super(SimpleLayer, self).__init__()
        self.block0 = paddle.nn.Sequential(paddle.nn.Linear(100, 50), paddle.nn.ReLU())
        self.block1 = paddle.nn.Sequential(paddle.nn.Linear(50, 50), paddle.nn.ReLU())
        self.head = paddle.nn.Linear(50, 10)

    def forward(self, x):
        return self.head(self.block1(self.block0(x)))


def dumped(model, dir_path):
    model.backward(model(paddle.rand((8, 100))).mean())
    model.dump_report(dir_path)
    model.clear_report()


model = create_model(SimpleLayer(), name="Simple")
component0, component1, component2 = model.model.block0, model.model.block1, model.model.head

dumped(model, "lists/everything")
model.update_black_list([component0, component1], "all")
dumped(model, "lists/black")
model.update_white_list([component2], "self")
dumped(model, "lists/white")
