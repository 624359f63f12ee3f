# PaDiff 0.3, Interfaces, a proxy for a model.
# Changed: paddle, which the document does not import, is imported.
import paddle
from padiff import create_model

class SimpleLayer(paddle.nn.Layer):
    def __init__(self):
        super(SimpleLayer, self).__init__()
        self.linear = paddle.nn.Linear(100, 100)

    def forward(self, x):
        x = self.linear(x)
        return x

model = create_model(SimpleLayer(), name="Simple")  # name 是可选的
