# PaDiff 0.3, Interfaces, the model behind the proxy.
# Changed: imports and the layer, which the document leaves out; linear.weight stands for its XXX.
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


model = create_model(SimpleLayer(), name="Simple")
print(model.model.linear.weight.shape)
