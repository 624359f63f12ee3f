"""VisionTransformer, TopdownHeatmapSimpleHead and KeyPointMSELoss in paddle."""

import numpy as np
import paddle
from paddle import nn


def drop_path(x, drop_prob=0.0, training=False):
    """Leaves out whole samples of a branch while training."""
    if drop_prob == 0.0 or not training:
        return x
    keep = 1 - drop_prob
    mask = paddle.floor(paddle.rand([x.shape[0]] + [1] * (x.ndim - 1)) + keep)
    return x / keep * mask


class DropPath(nn.Layer):
    def __init__(self, drop_prob=0.0):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        return drop_path(x, self.drop_prob, self.training)


class Attention(nn.Layer):
    def __init__(self, dim, num_heads, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias_attr=None if qkv_bias else False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        tokens, dim = x.shape[1:]
        qkv = self.qkv(x).reshape((-1, tokens, 3, self.num_heads, dim // self.num_heads)).transpose((2, 0, 3, 1, 4))
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = q.matmul(k.transpose((0, 1, 3, 2))) * self.scale
        attn = nn.functional.softmax(attn, axis=-1)
        x = attn.matmul(v).transpose((0, 2, 1, 3)).reshape((-1, tokens, dim))
        return self.proj(x)


class Mlp(nn.Layer):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Layer):
    def __init__(self, dim, num_heads, mlp_ratio, qkv_bias, drop_path, epsilon):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, epsilon=epsilon)
        self.attn = Attention(dim, num_heads, qkv_bias)
        self.drop_path = DropPath(drop_path) if drop_path > 0.0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, epsilon=epsilon)
        self.mlp = Mlp(dim, dim * mlp_ratio)

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        x = x + self.drop_path(self.mlp(self.norm2(x)))
        return x


class PatchEmbed(nn.Layer):
    def __init__(self, img_size, patch_size, embed_dim):
        super().__init__()
        self.num_patches_in_h = img_size[0] // patch_size
        self.num_patches_in_w = img_size[1] // patch_size
        self.proj = nn.Conv2D(3, embed_dim, kernel_size=patch_size, stride=patch_size, padding=2)

    def forward(self, x):
        return self.proj(x)


class VisionTransformer(nn.Layer):
    def __init__(
        self,
        img_size,
        patch_size=16,
        embed_dim=32,
        depth=3,
        num_heads=4,
        mlp_ratio=2,
        qkv_bias=False,
        drop_path_rate=0.0,
        epsilon=1e-5,
    ):
        super().__init__()
        self.patch_embed = PatchEmbed(img_size, patch_size, embed_dim)
        patches = self.patch_embed.num_patches_in_h * self.patch_embed.num_patches_in_w
        self.pos_embed = self.create_parameter(
            (1, patches + 1, embed_dim), default_initializer=nn.initializer.TruncatedNormal(std=0.02)
        )
        self.blocks = nn.LayerList(
            Block(embed_dim, num_heads, mlp_ratio, qkv_bias, rate, epsilon)
            for rate in np.linspace(0, drop_path_rate, depth).tolist()
        )
        self.last_norm = nn.LayerNorm(embed_dim, epsilon=epsilon)

    def forward_features(self, x):
        x = self.patch_embed(x)
        batch, dim, high, wide = x.shape
        x = x.flatten(2).transpose([0, 2, 1])
        x = x + self.pos_embed[:, 1:] + self.pos_embed[:, :1]
        for blk in self.blocks:
            x = blk(x)
        x = self.last_norm(x)
        return x.transpose([0, 2, 1]).reshape([batch, dim, high, wide])

    def forward(self, x):
        return self.forward_features(x)


class TopdownHeatmapSimpleHead(nn.Layer):
    """Deconvolutions that double the size, and a last convolution that draws a heatmap a joint."""

    def __init__(
        self,
        in_channels,
        num_deconv_layers,
        num_deconv_filters,
        num_deconv_kernels,
        upsample=0,
        extra=None,
        out_channels=17,
    ):
        super().__init__()
        layers = []
        for i in range(num_deconv_layers):
            layers.append(
                nn.Conv2DTranspose(
                    in_channels, num_deconv_filters[i], num_deconv_kernels[i], stride=2, padding=1, bias_attr=False
                )
            )
            layers.append(nn.BatchNorm2D(num_deconv_filters[i]))
            layers.append(nn.ReLU())
            in_channels = num_deconv_filters[i]
        self.upsample = upsample
        self.deconv_layers = nn.Sequential(*layers)
        self.final_layer = nn.Conv2D(in_channels, out_channels, kernel_size=(extra or {}).get("final_conv_kernel", 1))

    def forward(self, x):
        if self.upsample > 0:
            x = nn.functional.interpolate(x, scale_factor=self.upsample, mode="bilinear", align_corners=False)
        x = self.deconv_layers(x)
        return self.final_layer(x)


class KeyPointMSELoss(nn.Layer):
    """The squared error of each joint's heatmap, weighted by whether the joint is seen."""

    def __init__(self, use_target_weight=True):
        super().__init__()
        self.criterion = nn.MSELoss(reduction="mean")
        self.use_target_weight = use_target_weight

    def forward(self, output, records):
        batch, joints = output.shape[:2]
        predicted = output.reshape((batch, joints, -1)).split(joints, 1)
        wanted = records["target"].reshape((batch, joints, -1)).split(joints, 1)
        loss = 0
        for idx in range(joints):
            one, other = predicted[idx].squeeze(1), wanted[idx].squeeze(1)
            if self.use_target_weight:
                weight = records["target_weight"][:, idx]
                one, other = one.multiply(weight), other.multiply(weight)
            loss += self.criterion(one, other)
        return loss / joints
