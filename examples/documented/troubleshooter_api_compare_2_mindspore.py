# TroubleShooter, automatic comparison on the level of APIs, the dump of the MindSpore network. Nothing is changed.
# It needs what the first script wrote.
import troubleshooter as ts

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops


class SimpleNet(nn.Cell):
    def __init__(self):
        super(SimpleNet, self).__init__()
        self.conv = nn.Conv2d(3, 5, kernel_size=3, stride=3,
                              padding=0, pad_mode="pad", has_bias=True)
        self.bn = nn.BatchNorm2d(5)
        self.relu = nn.ReLU()
        self.linear = nn.Dense(15000, 10)

    def construct(self, x):
        x = self.conv(x)
        x = ops.clip(x, ms.Tensor(0.2, ms.float32), ms.Tensor(0.5, ms.float32))
        x = self.bn(x)
        x = self.relu(x)
        x = x.reshape(1, -1)
        x = self.linear(x)
        x = self.relu(x)
        return x


def generate_data():
    data_path = Path('test_data')
    data_path.mkdir(exist_ok=True)
    np.save(data_path / 'label.npy',
            np.random.randn(1, 10).astype(np.float32))
    np.save(data_path / 'data.npy',
            np.random.randn(1, 3, 90, 300).astype(np.float32))
    return data_path


def train_one_step_torch(data_path):
    # 1. 固定随机性
    ts.fix_random()

    # 2. 创建训练网络
    net = SimpleNet()
    net.set_train()
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.01)
    criterion = nn.MSELoss()

    def forward_fn(data, label):
        out = net(data)
        loss = criterion(out, label)
        return loss
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)

    # 3. 统一数据样本
    data = ms.Tensor(np.load(data_path/'data.npy'))
    label = ms.Tensor(np.load(data_path/'label.npy'))

    # 4. 保存权重和转换映射，用于在MindSpore加载
    info_path = Path('pt_net_info')
    ts.migrator.convert_weight_and_load(weight_map_path=info_path/"torch_net_map.json",
                                        pt_file_path=info_path/"torch_troubleshooter_create.pth",
                                        net=net)

    # 5. 设置dump网络
    ts.migrator.api_dump_init(net, output_path="ms_dump", retain_backward=True)

    # 6. 在迭代开始时开启dump
    ts.migrator.api_dump_start()

    # 7. 执行训练流程
    loss, grads = grad_fn(data, label)

    # 8. 在优化器更新前关闭dump
    ts.migrator.api_dump_stop()

    # 9. 执行优化器更新
    optimizer(grads)

# 使用与PyTorch相同的数据作为输入
data_path = Path('test_data')

train_one_step_torch(data_path)
