# PaDiff 0.3, Interfaces, comparing what was dumped, offline.
# The document describes these calls and has no block for them.
from padiff import create_model, assign_weight, check_report, check_params, check_weights, check_grads
import torch
import paddle


class SimpleModule(torch.nn.Module):
    def __init__(self):
        super(SimpleModule, self).__init__()
        self.linear1 = torch.nn.Linear(100, 10)

    def forward(self, x):
        x = self.linear1(x)
        return x


class SimpleLayer(paddle.nn.Layer):
    def __init__(self):
        super(SimpleLayer, self).__init__()
        self.linear1 = paddle.nn.Linear(100, 10)

    def forward(self, x):
        x = self.linear1(x)
        return x


base, raw = create_model(SimpleModule(), name="Base"), create_model(SimpleLayer(), name="Raw")
assign_weight(base, raw)

data = paddle.rand((8, 100)).numpy()
for model, inputs, dir_path in ((base, torch.as_tensor(data), "offline/torch"), (raw, paddle.to_tensor(data), "offline/paddle")):
    model.backward(model(inputs).mean())
    model.dump_report(f"{dir_path}/report")
    model.dump_params(f"{dir_path}/params")
    model.dump_weights(f"{dir_path}/weights")
    model.dump_grads(f"{dir_path}/grads")

cfg = {"atol": 1e-6, "rtol": 1e-6, "compare_mode": "strict"}
print("report", check_report("offline/torch/report", "offline/paddle/report", cfg))
print("params", check_params("offline/torch/params", "offline/paddle/params", cfg))
print("weights", check_weights("offline/torch/weights", "offline/paddle/weights", cfg))
print("grads", check_grads("offline/torch/grads", "offline/paddle/grads", cfg))
