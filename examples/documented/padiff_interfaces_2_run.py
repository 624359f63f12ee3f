# PaDiff 0.3, Interfaces, forward and backward through the proxy.
# Changed: imports, the layer of the block before, inputs, a loss and an optimizer, which the document leaves out.
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

inputs = paddle.rand((8, 100))
loss_fn = paddle.mean
optimizer = paddle.optimizer.SGD(learning_rate=0.1, parameters=model.model.parameters())

output = model(inputs)            # 通过 model.__call__ 触发forward逻辑
loss = loss_fn(output)
model.backward(loss)              # 通过 model.backward 来执行反向
optimizer.step()
