# PaDiff 0.2, ViTPose, part 0: the models and the loaders. The other parts import it.
# Changed: PaddleDetection and mmpose are not here, so a small pair written for this stands in for their ViTPose, and a
# few made-up pictures for COCO; sizes are those of the pair. The pretrained weights are made when they are not there.
import torch
import paddle
import numpy as np
from functools import partial

# import 需要的组件

from vitpose.paddle_net import VisionTransformer as vit_paddle
from vitpose.paddle_net import KeyPointMSELoss as paddle_loss
from vitpose.paddle_net import TopdownHeatmapSimpleHead as head_paddle

from vitpose.torch_net import ViT as vit_torch
from vitpose.torch_net import TopdownHeatmapSimpleHead as head_torch
from vitpose.torch_net import JointsMSELoss as torch_loss
from vitpose import coco

from padiff import auto_diff


# 定义用于对齐的模型

class tiny_pose_paddle(paddle.nn.Layer):
    def __init__(self):
        super(tiny_pose_paddle,self).__init__()
        qkv_bias=True
        drop_path_rate=0.3
        epsilon=0.000001 # 1e-6

        in_channels=32
        num_deconv_layers=2
        num_deconv_filters=(16,16)
        num_deconv_kernels=(4,4)
        upsample=0
        extra=dict(final_conv_kernel=1, )

        self.backbone = vit_paddle(img_size=(64,48),
                            qkv_bias=qkv_bias,
                            drop_path_rate=drop_path_rate,
                            epsilon=epsilon)
        self.head = head_paddle(in_channels=in_channels,
                                    num_deconv_layers=num_deconv_layers,
                                    num_deconv_filters=num_deconv_filters,
                                    num_deconv_kernels=num_deconv_kernels,
                                    upsample=upsample,
                                    extra=extra)

    def forward(self,x):
        x = self.backbone.forward_features(x)
        x = self.head(x)

        return x


class tiny_pose_torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        qkv_bias=True
        drop_path_rate=0.3

        in_channels=32
        num_deconv_layers=2
        num_deconv_filters=(16,16)
        num_deconv_kernels=(4,4)
        upsample=0
        extra=dict(final_conv_kernel=1, )

        self.backbone = vit_torch(img_size=(64,48),
                            qkv_bias=qkv_bias,
                            drop_path_rate=drop_path_rate)
        self.head = head_torch(in_channels=in_channels,
                                    num_deconv_layers=num_deconv_layers,
                                    num_deconv_filters=num_deconv_filters,
                                    num_deconv_kernels=num_deconv_kernels,
                                    upsample=upsample,
                                    extra=extra,
                                    out_channels=17)

    def forward(self,x):
        x = self.backbone.forward_features(x)
        x = self.head(x)

        return x

# 编写构造 dataloader 的逻辑

def build_torch_data_pipeline():
    data_root= 'coco'
    ann_file = coco.annotations(f'{data_root}/annotations/person_keypoints_train2017_10.json')
    dataset, data_loaders = coco.torch_data(ann_file, batch_size=2)

    return dataset,data_loaders

def build_paddle_data_pipeline():
    data_root= 'coco'
    ann_file = coco.annotations(f'{data_root}/annotations/person_keypoints_train2017_10.json')
    dataset, loader = coco.paddle_data(ann_file, batch_size=2)

    return dataset,loader


def pretrained_weights(pretrained):
    """Somebody else's weights, so to speak."""
    from pathlib import Path

    if not Path(pretrained).is_file():
        Path(pretrained).parent.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        torch.save({'state_dict': tiny_pose_torch().state_dict()}, pretrained)
    return pretrained
