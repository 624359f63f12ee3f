"""Every model that two public packages both have, by name: what is tried, and on what size of image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

FAMILIES = ("torchvision-paddle", "timm-mindcv", "torchvision-mindcv", "paddle-mindcv")


@dataclass(frozen=True, slots=True)
class ModelPair:
    """One architecture under the names that the two packages give it."""

    family: str
    reference: str
    candidate: str
    image: int = 224
    small: bool = False  # part of the default run

    @property
    def name(self) -> str:
        """What the table calls it: one name where both packages agree on one.

        >>> ModelPair("timm-mindcv", "mobilenetv2_100", "mobilenet_v2_100").name
        'timm-mindcv: mobilenetv2_100 | mobilenet_v2_100'
        """
        same = self.reference == self.candidate
        return f"{self.family}: {self.reference}" + ("" if same else f" | {self.candidate}")


#: torchvision and paddle.vision.models: all names that exist in both (paddle makes `_bn` by an argument: not a name)
_TORCHVISION_PADDLE_SMALL = """
resnet18 resnet34 resnet50 vgg11 alexnet mobilenet_v2 mobilenet_v3_small mobilenet_v3_large densenet121 squeezenet1_0
squeezenet1_1 shufflenet_v2_x0_5 shufflenet_v2_x1_0 googlenet inception_v3:299 resnext50_32x4d
"""
_TORCHVISION_PADDLE_LARGE = """
resnet101 resnet152 densenet161 densenet169 densenet201 shufflenet_v2_x1_5 shufflenet_v2_x2_0 vgg13 vgg16 vgg19
resnext101_64x4d wide_resnet50_2 wide_resnet101_2
"""

#: timm and mindcv, `timm=mindcv` where the names differ, `:size` where it is not 224
_TIMM_MINDCV_SMALL = """
resnet18 resnet50 vit_base_patch16_224=vit_b_16_224 convnext_tiny densenet121 vgg11 mobilenetv2_100=mobilenet_v2_100
mobilenetv3_small_100=mobilenet_v3_small_100 mobilenetv3_large_100=mobilenet_v3_large_100
mobilenetv1_100=mobilenet_v1_100 mnasnet_100 efficientnet_b0 ghostnet_100 regnetx_002=regnet_x_200mf
regnety_002=regnet_y_200mf repvgg_a0 seresnet18 skresnet18 resnest14d=resnest14 res2net50_26w_4s=res2net50
rexnet_100=rexnet_10 mixnet_s poolformer_s12 pvt_v2_b0 pit_ti_224=pit_ti convit_tiny coat_lite_tiny cait_xxs24_224
crossvit_9_240=crossvit_9:240 edgenext_xx_small:256 mobilevit_xxs=mobilevit_xx_small:256 mixer_s16_224=mlp_mixer_s_p16
mixer_s32_224=mlp_mixer_s_p32 visformer_tiny xcit_tiny_12_p16_224 swin_tiny_patch4_window7_224=swin_tiny
swinv2_tiny_window8_256=swinv2_tiny_window8:256 convnextv2_atto resnetv2_50 resnext50_32x4d volo_d1_224=volo_d1
inception_v3:299 hrnet_w32 dpn92
"""
_TIMM_MINDCV_LARGE = """
resnet34 resnet101 resnet152 resnext101_32x4d resnext101_64x4d resnetv2_101 seresnet34 seresnet50 seresnet101
seresnet152 seresnext50_32x4d seresnext101_32x4d senet154 skresnet34 skresnet50 skresnext50_32x4d resnest26d=resnest26
resnest50d=resnest50 resnest101e=resnest101:256 resnest200e=resnest200:320 resnest269e=resnest269:416
res2net101_26w_4s=res2net101 densenet161 densenet169 densenet201 vgg13 vgg16 vgg19 dpn98 dpn107 dpn131
inception_v4:299 xception41=xception:299 nasnetalarge=nasnet_a_4x1056:331 pnasnet5large=pnasnet:331 hrnet_w48
mnasnet_050 mnasnet_075 mnasnet_140 mobilenetv2_035=mobilenet_v2_035_224 mobilenetv2_050=mobilenet_v2_050_224
mobilenetv2_075=mobilenet_v2_075 mobilenetv2_140=mobilenet_v2_140 mobilenetv3_small_075=mobilenet_v3_small_075
mobilenetv3_large_075=mobilenet_v3_large_075 efficientnet_b1:240 efficientnet_b2:260 efficientnet_b3:300
efficientnet_b4:380 efficientnet_b5:456 efficientnet_b6:528 efficientnet_b7:600 efficientnetv2_s=efficientnet_v2_s:300
efficientnetv2_m=efficientnet_v2_m:320 efficientnetv2_l=efficientnet_v2_l:384 efficientnetv2_xl=efficientnet_v2_xl:384
ghostnet_050 ghostnet_130 mixnet_m mixnet_l rexnet_130=rexnet_13 rexnet_150=rexnet_15 rexnet_200=rexnet_20
regnetx_004=regnet_x_400mf regnetx_006=regnet_x_600mf regnetx_008=regnet_x_800mf regnetx_016=regnet_x_1_6gf
regnetx_032=regnet_x_3_2gf regnetx_040=regnet_x_4_0gf regnetx_064=regnet_x_6_4gf regnetx_080=regnet_x_8_0gf
regnetx_120=regnet_x_12gf regnetx_160=regnet_x_16gf regnetx_320=regnet_x_32gf regnety_004=regnet_y_400mf
regnety_006=regnet_y_600mf regnety_008=regnet_y_800mf regnety_016=regnet_y_1_6gf regnety_032=regnet_y_3_2gf
regnety_040=regnet_y_4_0gf regnety_064=regnet_y_6_4gf regnety_080=regnet_y_8_0gf regnety_120=regnet_y_12gf
regnety_160=regnet_y_16gf regnety_320=regnet_y_32gf repvgg_a1 repvgg_a2 repvgg_b0 repvgg_b1 repvgg_b1g4 repvgg_b2
repvgg_b2g4 repvgg_b3 resnetv2_50x1_bit=BiT_resnet50 resnetv2_101x1_bit=BiT_resnet101 resnetv2_50x3_bit=BiT_resnet50x3
halonet50ts=halonet_50t:256 vit_base_patch16_384=vit_b_16_384:384 vit_base_patch32_224=vit_b_32_224
vit_base_patch32_384=vit_b_32_384:384 vit_large_patch16_224=vit_l_16_224 vit_large_patch16_384=vit_l_16_384:384
vit_large_patch32_224=vit_l_32_224 mixer_b16_224=mlp_mixer_b_p16 mixer_b32_224=mlp_mixer_b_p32
mixer_l16_224=mlp_mixer_l_p16 mixer_l32_224=mlp_mixer_l_p32 cait_xs24_384:384 cait_s24_224 cait_s24_384:384
cait_s36_384:384 cait_m36_384:384 cait_m48_448:448 coat_lite_mini coat_lite_small coat_lite_medium coat_tiny coat_mini
coat_small convit_small convit_base crossvit_15_240=crossvit_15:240 crossvit_18_240=crossvit_18:240
edgenext_x_small:256 edgenext_small:256 edgenext_base:256 mobilevit_xs=mobilevit_x_small:256
mobilevit_s=mobilevit_small:256 pit_xs_224=pit_xs pit_s_224=pit_s pit_b_224=pit_b poolformer_s24 poolformer_s36
poolformer_m36 poolformer_m48 pvt_v2_b1 pvt_v2_b2 pvt_v2_b3 pvt_v2_b4 pvt_v2_b5 visformer_small
swinv2_tiny_window16_256=swinv2_tiny_window16:256 swinv2_small_window8_256=swinv2_small_window8:256
swinv2_small_window16_256=swinv2_small_window16:256 swinv2_base_window8_256=swinv2_base_window8:256
swinv2_base_window16_256=swinv2_base_window16:256 convnext_small convnext_base convnext_large convnext_xlarge
convnextv2_femto convnextv2_pico convnextv2_nano convnextv2_tiny convnextv2_base convnextv2_large convnextv2_huge
volo_d2_224=volo_d2 volo_d3_224=volo_d3 volo_d4_224=volo_d4 volo_d5_224=volo_d5
"""

#: torchvision and mindcv
_TORCHVISION_MINDCV_SMALL = """
squeezenet1_0 shufflenet_v2_x0_5 mnasnet0_5=mnasnet_050 vit_b_16=vit_b_16_224 swin_t=swin_tiny convnext_tiny
regnet_y_400mf googlenet
"""
_TORCHVISION_MINDCV_LARGE = """
resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_64x4d vgg11 vgg13 vgg16 vgg19
densenet121 densenet161 densenet169 densenet201 inception_v3:299 squeezenet1_1 shufflenet_v2_x1_0 shufflenet_v2_x1_5
shufflenet_v2_x2_0 mobilenet_v2=mobilenet_v2_100 mobilenet_v3_small=mobilenet_v3_small_100
mobilenet_v3_large=mobilenet_v3_large_100 mnasnet0_75=mnasnet_075 mnasnet1_0=mnasnet_100 mnasnet1_3=mnasnet_130
regnet_x_400mf regnet_x_800mf regnet_x_1_6gf regnet_x_3_2gf regnet_x_8gf=regnet_x_8_0gf regnet_x_16gf regnet_x_32gf
regnet_y_800mf regnet_y_1_6gf regnet_y_3_2gf regnet_y_8gf=regnet_y_8_0gf regnet_y_16gf regnet_y_32gf
efficientnet_b0 efficientnet_b1:240 efficientnet_b2:260 efficientnet_b3:300 efficientnet_b4:380
efficientnet_v2_s:300 efficientnet_v2_m:320 efficientnet_v2_l:384 vit_b_32=vit_b_32_224 vit_l_16=vit_l_16_224
vit_l_32=vit_l_32_224 swin_v2_t=swinv2_tiny_window8:256 swin_v2_s=swinv2_small_window8:256 convnext_small
convnext_base convnext_large
"""

#: paddle.vision.models and mindcv
_PADDLE_MINDCV_SMALL = """
shufflenet_v2_x0_5 mobilenet_v1=mobilenet_v1_100 squeezenet1_1
"""
_PADDLE_MINDCV_LARGE = """
resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x4d resnext101_64x4d resnext152_64x4d
vgg11 vgg13 vgg16 vgg19 densenet121 densenet161 densenet169 densenet201 inception_v3:299 googlenet squeezenet1_0
shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 mobilenet_v2=mobilenet_v2_100
mobilenet_v3_small=mobilenet_v3_small_100 mobilenet_v3_large=mobilenet_v3_large_100
"""


def select(
    *, families: tuple[str, ...] = FAMILIES, pattern: str = "*", everything: bool = False
) -> tuple[ModelPair, ...]:
    """The pairs of these families whose name on either side fits the pattern; the small ones unless all are asked for.

    >>> [p.name for p in select(pattern="alexnet")]
    ['torchvision-paddle: alexnet']
    """
    return tuple(
        pair
        for pair in _all()
        if pair.family in families
        and (everything or pair.small or pattern != "*")
        and any(fnmatch(name, pattern) for name in (pair.reference, pair.candidate))
    )


def _all() -> Iterator[ModelPair]:
    for family, small, words in (
        (FAMILIES[0], True, _TORCHVISION_PADDLE_SMALL),
        (FAMILIES[0], False, _TORCHVISION_PADDLE_LARGE),
        (FAMILIES[1], True, _TIMM_MINDCV_SMALL),
        (FAMILIES[1], False, _TIMM_MINDCV_LARGE),
        (FAMILIES[2], True, _TORCHVISION_MINDCV_SMALL),
        (FAMILIES[2], False, _TORCHVISION_MINDCV_LARGE),
        (FAMILIES[3], True, _PADDLE_MINDCV_SMALL),
        (FAMILIES[3], False, _PADDLE_MINDCV_LARGE),
    ):
        for word in words.split():
            names, _, size = word.partition(":")
            reference, _, candidate = names.partition("=")
            yield ModelPair(family, reference, candidate or reference, int(size or 224), small)
