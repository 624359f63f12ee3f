# PaDiff 0.3, Interfaces, what to dump and when.
# Changed: imports, the layer, data, a loss and an optimizer, which the document leaves out; a directory for each step,
# because the document writes all of them over one another.
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

model = create_model(SimpleLayer(), name="Simple")
optimizer = paddle.optimizer.SGD(learning_rate=0.1, parameters=model.model.parameters())

for idx, data in enumerate(dataloader()):
    dir_path = f"dumped/step_{idx}"
    output = model(data)
    loss = loss_fn(output)
    model.backward(loss)

    model.dump_report(dir_path)
    model.dump_params(dir_path)                # dump_params 包含了 weight 和 grad 信息

    model.dump_grads(dir_path)
    optimizer.step()
    optimizer.clear_grad()
    model.dump_weights(dir_path)               # 记录 optimizer.step 后的权重，可以检查 optimizer 的效果

    model.clear_report()                       # 需要手动删除 report，否则将不断累积
