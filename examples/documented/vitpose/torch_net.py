"""ViT, TopdownHeatmapSimpleHead and JointsMSELoss in torch."""

import torch
from torch import nn


class DropPath(nn.Module):
    """Leaves out whole samples of a branch while training."""

    def __init__(self, drop_prob=0.0):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        mask = torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), device=x.device).add(keep).floor()
        return x.div(keep) * mask


class Attention(nn.Module):
    def __init__(self, dim, num_heads, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attention = (q * self.scale) @ k.transpose(-2, -1)
        x = attention.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, dim))


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio, qkv_bias, drop_path):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads, qkv_bias)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, dim * mlp_ratio)

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    def __init__(self, img_size, patch_size, embed_dim):
        super().__init__()
        self.patches = (img_size[0] // patch_size, img_size[1] // patch_size)
        self.proj = nn.Conv2d(3, embed_dim, kernel_size=patch_size, stride=patch_size, padding=2)

    def forward(self, x):
        x = self.proj(x)
        size = x.shape[-2:]
        return x.flatten(2).transpose(1, 2), size


class ViT(nn.Module):
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
    ):
        super().__init__()
        self.patch_embed = PatchEmbed(img_size, patch_size, embed_dim)
        patches = self.patch_embed.patches[0] * self.patch_embed.patches[1]
        self.pos_embed = nn.Parameter(torch.randn(1, patches + 1, embed_dim) * 0.02)
        rates = torch.linspace(0, drop_path_rate, depth).tolist()
        self.blocks = nn.ModuleList(Block(embed_dim, num_heads, mlp_ratio, qkv_bias, rate) for rate in rates)
        self.last_norm = nn.LayerNorm(embed_dim, eps=1e-6)

    def forward_features(self, x):
        x, (high, wide) = self.patch_embed(x)
        x = x + self.pos_embed[:, 1:] + self.pos_embed[:, :1]
        for block in self.blocks:
            x = block(x)
        x = self.last_norm(x)
        return x.permute(0, 2, 1).reshape(x.shape[0], -1, high, wide).contiguous()

    def forward(self, x):
        return self.forward_features(x)


class TopdownHeatmapSimpleHead(nn.Module):
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
        for filters, kernel in zip(num_deconv_filters[:num_deconv_layers], num_deconv_kernels, strict=True):
            layers += [
                nn.ConvTranspose2d(in_channels, filters, kernel, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(filters),
                nn.ReLU(),
            ]
            in_channels = filters
        self.upsample = upsample
        self.deconv_layers = nn.Sequential(*layers)
        self.final_layer = nn.Conv2d(in_channels, out_channels, kernel_size=(extra or {}).get("final_conv_kernel", 1))

    def forward(self, x):
        if self.upsample > 0:
            x = nn.functional.interpolate(x, scale_factor=self.upsample, mode="bilinear", align_corners=False)
        return self.final_layer(self.deconv_layers(x))


class JointsMSELoss(nn.Module):
    """The squared error of each joint's heatmap, weighted by whether the joint is seen."""

    def __init__(self, use_target_weight=True):
        super().__init__()
        self.criterion = nn.MSELoss()
        self.use_target_weight = use_target_weight

    def forward(self, output, target, target_weight):
        batch, joints = output.shape[:2]
        predicted = output.reshape(batch, joints, -1).split(1, 1)
        wanted = target.reshape(batch, joints, -1).split(1, 1)
        loss = 0.0
        for joint in range(joints):
            one, other = predicted[joint].squeeze(1), wanted[joint].squeeze(1)
            if self.use_target_weight:
                one, other = one * target_weight[:, joint], other * target_weight[:, joint]
            loss = loss + self.criterion(one, other)
        return loss / joints
