# PaDiff 0.3, Interfaces, which component is which.
# Changed: imports and two layers that call their components in another order, which the document leaves out; what the
# map is good for is shown: the two reports are compared.
from padiff import create_model, assign_weight, check_report
import paddle

paddle.seed(0)

class SimpleLayer0(paddle.nn.Layer):
    def __init__(self):
        super(SimpleLayer0, self).__init__()
        self.linear1 = paddle.nn.Linear(100, 100)
        self.linear2 = paddle.nn.Linear(100, 100)

    def forward(self, x):
        a = self.linear1(x)
        b = self.linear2(x)
        return a - b


class SimpleLayer1(paddle.nn.Layer):
    def __init__(self):
        super(SimpleLayer1, self).__init__()
        self.linear2 = paddle.nn.Linear(100, 100)
        self.linear1 = paddle.nn.Linear(100, 100)

    def forward(self, x):
        b = self.linear2(x)
        a = self.linear1(x)
        return a - b


model0 = create_model(SimpleLayer0(), name="Simple0")
model1 = create_model(SimpleLayer1(), name="Simple1")

model0.set_layer_map([model0.model.linear1, model0.model.linear2])
model1.set_layer_map([model1.model.linear1, model1.model.linear2])

print(assign_weight(model0, model1))
inputs = paddle.rand((8, 100))
for model, dir_path in ((model0, "mapped/0"), (model1, "mapped/1")):
    model.backward(model(inputs).mean())
    model.dump_report(dir_path)
print(check_report("mapped/0", "mapped/1", cfg={"atol": 1e-6}))
