"""Layers that are told one thing otherwise: in each framework's own words, as it should be and as it should not.

Where there are inputs, the plain layers of all frameworks compute the same of them, one told otherwise does not.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import normal

SEQUENCE, IMAGE, VOLUME = normal(2, 5, 8), normal(2, 4, 7, 9), normal(1, 4, 5, 6, 7)
#: Of eight: what is padded for "same" with a stride lies on one side only.
EVEN = normal(2, 4, 8, 8)
SIGNAL = normal(2, 4, 9)
IDS = np.array([[0, 1, 2], [3, 4, 1]])


@dataclass(frozen=True)
class Case:
    """One setting of one kind of layer: expressions by framework, (plain, told otherwise)."""

    kind: str
    setting: str
    inputs: Any
    told: dict[str, tuple[str, str]]
    #: The setting shows in evaluation, on these inputs.
    shows: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.setting}"

    def build(self, framework: str, otherwise: bool = False) -> Any:
        names = {"nn": importlib.import_module(f"{framework}.nn")}
        if framework == "mindspore":
            names["mint"] = importlib.import_module("mindspore.mint.nn")
        return eval(self.told[framework][otherwise], names)


CASES: list[Case] = []


def _case(kind: str, setting: str, inputs: Any, shows: bool = True, **told: tuple[str, str]) -> None:
    CASES.append(Case(kind, setting, inputs, told, shows))


def _alike(kind: str, setting: str, inputs: Any, plain: str, otherwise: str, shows: bool = True, **more: Any) -> None:
    """Where torch's and MindSpore's words are one and Paddle's class has a capital D."""
    told = {
        "torch": (f"nn.{plain}", f"nn.{otherwise}"),
        "paddle": (f"nn.{plain}", f"nn.{otherwise}"),
        "mindspore": (f"nn.{plain}", f"nn.{otherwise}"),
        **more,
    }
    CASES.append(Case(kind, setting, inputs, {k: v for k, v in told.items() if v}, shows))


_case(
    "linear", "bias", SEQUENCE, torch=("nn.Linear(8, 4)", "nn.Linear(8, 4, bias=False)"),
    paddle=("nn.Linear(8, 4)", "nn.Linear(8, 4, bias_attr=False)"),
    mindspore=("nn.Dense(8, 4)", "nn.Dense(8, 4, has_bias=False)"), shows=False,
)  # fmt: skip
for d, x in ((1, SIGNAL), (2, IMAGE), (3, VOLUME)):
    for setting, plain, torch, paddle, mindspore in (
        ("stride", "stride=1", "stride=2", "stride=2", "stride=2"),
        ("padding", "padding=1", "padding=0", "padding='VALID'", "pad_mode='valid'"),
        ("padding", "padding=1", "padding=2", "padding=2", "pad_mode='pad', padding=2"),
        ("dilation", "dilation=1", "dilation=2", "dilation=2", "dilation=2"),
        ("groups", "groups=2", "groups=4", "groups=4", "group=4"),
        ("bias", "padding=1", "padding=1, bias=False", "padding=1, bias_attr=False", "pad_mode='pad', padding=1"),
    ):
        if d == 3 and setting in ("groups", "dilation", "stride"):
            continue
        kept = "" if setting in ("padding", "bias") else "padding=1, "
        pad = "pad_mode='pad', "
        bias = "" if setting == "bias" else ", has_bias=True"
        base = {"groups": "group=2"}.get(setting, plain)
        _case(
            f"conv{d}d", setting, x, setting != "bias" and setting != "groups",
            torch=(f"nn.Conv{d}d(4, 4, 3, {kept}{plain})", f"nn.Conv{d}d(4, 4, 3, {kept}{torch})"),
            paddle=(f"nn.Conv{d}D(4, 4, 3, {kept}{plain})", f"nn.Conv{d}D(4, 4, 3, {kept}{paddle})"),
            mindspore=(
                f"nn.Conv{d}d(4, 4, 3, {pad}{kept}{base}, has_bias=True)",
                f"nn.Conv{d}d(4, 4, 3, {pad if kept else ''}{kept}{mindspore}{bias})",
            ),
        )  # fmt: skip
_case(
    "conv2d", "padding_mode", IMAGE,
    torch=("nn.Conv2d(4, 4, 3, padding=1)", "nn.Conv2d(4, 4, 3, padding=1, padding_mode='reflect')"),
    paddle=("nn.Conv2D(4, 4, 3, padding=1)", "nn.Conv2D(4, 4, 3, padding=1, padding_mode='reflect')"),
    mindspore=("nn.Conv2d(4, 4, 3, pad_mode='same', has_bias=True)", ""),
)  # fmt: skip
_case(
    "conv_transpose2d", "output_padding", IMAGE,
    torch=("nn.ConvTranspose2d(4, 4, 3, 2, 1, 0)", "nn.ConvTranspose2d(4, 4, 3, 2, 1, 1)"),
    paddle=("nn.Conv2DTranspose(4, 4, 3, 2, 1, 0)", "nn.Conv2DTranspose(4, 4, 3, 2, 1, 1)"),
    mindspore=(
        "nn.Conv2dTranspose(4, 4, 3, 2, 'pad', 1, 0, has_bias=True)",
        "nn.Conv2dTranspose(4, 4, 3, 2, 'pad', 1, 1, has_bias=True)",
    ),
)  # fmt: skip
_case(
    "conv_transpose2d", "padding", IMAGE,
    torch=("nn.ConvTranspose2d(4, 4, 4, 2, 1)", "nn.ConvTranspose2d(4, 4, 4, 2)"),
    paddle=("nn.Conv2DTranspose(4, 4, 4, 2, 1)", "nn.Conv2DTranspose(4, 4, 4, 2)"),
    mindspore=(
        "nn.Conv2dTranspose(4, 4, 4, 2, has_bias=True)",
        "nn.Conv2dTranspose(4, 4, 4, 2, 'valid', has_bias=True)",
    ),
)  # fmt: skip
_case(
    "conv2d", "dilation", IMAGE,
    torch=("nn.Conv2d(4, 4, 3, padding='same')", "nn.Conv2d(4, 4, 3, padding='same', dilation=2)"),
    paddle=("nn.Conv2D(4, 4, 3, padding='SAME', dilation=2)", ""),
    mindspore=("nn.Conv2d(4, 4, 3, has_bias=True)", "nn.Conv2d(4, 4, 3, has_bias=True, dilation=2)"),
)  # fmt: skip
_case(
    "conv2d", "channels_last", None, torch=("nn.Conv2d(4, 4, 3)", ""),
    paddle=("nn.Conv2D(4, 4, 3)", "nn.Conv2D(4, 4, 3, data_format='NHWC')"),
)  # fmt: skip
for d, x in ((1, SIGNAL), (2, IMAGE), (3, VOLUME)):
    names = {"torch": f"nn.BatchNorm{d}d", "paddle": f"nn.BatchNorm{d}D", "mindspore": f"nn.BatchNorm{d}d"}
    for setting, words in (
        ("eps", {"torch": "eps=1e-2", "paddle": "epsilon=1e-2", "mindspore": "eps=1e-2"}),
        ("momentum", {"torch": "momentum=0.9", "paddle": "momentum=0.1", "mindspore": "momentum=0.1"}),
        (
            "affine",
            {"torch": "affine=False", "paddle": "weight_attr=False, bias_attr=False", "mindspore": "affine=False"},
        ),
    ):
        _case(
            f"batch_norm{d}d", setting, None if d == 1 else x, setting == "eps",
            **{k: (f"{name}(4)", f"{name}(4, {words[k]})") for k, name in names.items()},
        )  # fmt: skip
_case(
    "batch_norm2d", "statistics", IMAGE, False, torch=("nn.BatchNorm2d(4)", ""),
    paddle=("nn.BatchNorm2D(4)", "nn.BatchNorm2D(4, use_global_stats=True)"),
    mindspore=("nn.BatchNorm2d(4)", "nn.BatchNorm2d(4, use_batch_statistics=True)"),
)  # fmt: skip
_case(
    "instance_norm2d", "eps", None,
    torch=("nn.InstanceNorm2d(4, affine=True)", "nn.InstanceNorm2d(4, 1e-2, affine=True)"),
    paddle=("nn.InstanceNorm2D(4)", "nn.InstanceNorm2D(4, 1e-2)"),
    mindspore=("nn.InstanceNorm2d(4)", "nn.InstanceNorm2d(4, 1e-2)"),
)  # fmt: skip
_case(
    "instance_norm2d", "affine", None, torch=("nn.InstanceNorm2d(4, affine=True)", "nn.InstanceNorm2d(4)"),
    paddle=("nn.InstanceNorm2D(4)", "nn.InstanceNorm2D(4, weight_attr=False, bias_attr=False)"),
    mindspore=("nn.InstanceNorm2d(4)", "nn.InstanceNorm2d(4, affine=False)"),
)  # fmt: skip
_case(
    "layer_norm", "eps", SEQUENCE * 0.01, torch=("nn.LayerNorm(8)", "nn.LayerNorm(8, eps=1e-3)"),
    paddle=("nn.LayerNorm(8)", "nn.LayerNorm(8, epsilon=1e-3)"),
    mindspore=("nn.LayerNorm((8,), epsilon=1e-5)", "nn.LayerNorm((8,))"),
)  # fmt: skip
_case(
    "layer_norm", "elementwise_affine", SEQUENCE, False,
    torch=("nn.LayerNorm(8)", "nn.LayerNorm(8, elementwise_affine=False)"),
    paddle=("nn.LayerNorm(8)", "nn.LayerNorm(8, weight_attr=False, bias_attr=False)"),
    mindspore=("nn.LayerNorm((8,), epsilon=1e-5)", ""),
)  # fmt: skip
_case(
    "layer_norm", "bias", SEQUENCE, False, torch=("nn.LayerNorm(8)", "nn.LayerNorm(8, bias=False)"),
    paddle=("nn.LayerNorm(8)", "nn.LayerNorm(8, bias_attr=False)"), mindspore=("nn.LayerNorm((8,), epsilon=1e-5)", ""),
)  # fmt: skip
_case(
    "layer_norm", "normalized_shape", SEQUENCE, torch=("nn.LayerNorm((5, 8))", ""), paddle=("nn.LayerNorm((5, 8))", ""),
    mindspore=(
        "nn.LayerNorm((5, 8), begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5)",
        "nn.LayerNorm((5, 8), begin_norm_axis=2, begin_params_axis=1, epsilon=1e-5)",
    ),
)  # fmt: skip
for setting, words in (("num_groups", ("(2, 4", "(4, 4")), ("eps", ("(2, 4", "(2, 4, 1e-2"))):
    _alike("group_norm", setting, IMAGE * 0.1, f"GroupNorm{words[0]})", f"GroupNorm{words[1]})")
_case(
    "group_norm", "affine", IMAGE, False, torch=("nn.GroupNorm(2, 4)", "nn.GroupNorm(2, 4, affine=False)"),
    paddle=("nn.GroupNorm(2, 4)", "nn.GroupNorm(2, 4, weight_attr=False, bias_attr=False)"),
    mindspore=("nn.GroupNorm(2, 4)", "nn.GroupNorm(2, 4, affine=False)"),
)  # fmt: skip
for setting, word in (("alpha", "alpha=0.5"), ("beta", "beta=0.5"), ("k", "k=2.0")):
    other = {"alpha": ("alpha=0.2 / 3", "alpha=0.5 / 3"), "beta": ("alpha=0.2 / 3", "alpha=0.2 / 3, beta=0.5"),
             "k": ("alpha=0.2 / 3", "alpha=0.2 / 3, bias=2.0")}[setting]  # fmt: skip
    base = "LocalResponseNorm(3, alpha=0.2)"
    changed = "LocalResponseNorm(3, alpha=0.5)" if setting == "alpha" else f"LocalResponseNorm(3, alpha=0.2, {word})"
    told = [", ".join([o, *([] if "beta" in o else ["beta=0.75"])]) for o in other]
    _alike(
        "local_response_norm", setting, IMAGE, base, changed,
        mindspore=(f"nn.LRN(1, {told[0]})", f"nn.LRN(1, {told[1]})"),
    )  # fmt: skip
_case(
    "embedding", "padding_idx", IDS, False, torch=("nn.Embedding(6, 4)", "nn.Embedding(6, 4, padding_idx=1)"),
    paddle=("nn.Embedding(6, 4)", "nn.Embedding(6, 4, padding_idx=1)"),
    mindspore=("nn.Embedding(6, 4)", "mint.Embedding(6, 4, padding_idx=1)"),
)  # fmt: skip
_case(
    "embedding", "max_norm", None, torch=("nn.Embedding(6, 4)", "nn.Embedding(6, 4, max_norm=0.5)"),
    paddle=("nn.Embedding(6, 4)", "nn.Embedding(6, 4, max_norm=0.5)"), mindspore=("nn.Embedding(6, 4)", ""),
)  # fmt: skip
_alike("prelu", "init", None, "PReLU()", "PReLU(init=0.5)", mindspore=None)
_alike(
    "leaky_relu", "negative_slope", SEQUENCE, "LeakyReLU()", "LeakyReLU(0.2)",
    mindspore=("nn.LeakyReLU(0.01)", "nn.LeakyReLU()"),
)  # fmt: skip
_alike("elu", "alpha", SEQUENCE, "ELU()", "ELU(0.5)", mindspore=("nn.ELU()", ""))
_alike("celu", "alpha", SEQUENCE, "CELU()", "CELU(0.5)")
_case(
    "gelu", "approximate", SEQUENCE, torch=("nn.GELU()", "nn.GELU('tanh')"), paddle=("nn.GELU()", "nn.GELU(True)"),
    mindspore=("nn.GELU(approximate=False)", "nn.GELU()"),
)  # fmt: skip
_alike("hardtanh", "min_val", SEQUENCE, "Hardtanh()", "Hardtanh(-0.5)")
_alike("hardtanh", "max_val", SEQUENCE, "Hardtanh()", "Hardtanh(-1.0, 0.5)")
_alike("softplus", "beta", SEQUENCE, "Softplus()", "Softplus(2.0)", mindspore=None)
_alike("softplus", "threshold", SEQUENCE, "Softplus()", "Softplus(1, 0.1)", mindspore=None)
for kind, name in (("softmax", "Softmax"), ("log_softmax", "LogSoftmax")):
    _alike(kind, "dim", SEQUENCE, f"{name}(-1)", f"{name}(1)")
_alike("flatten", "start_dim", IMAGE, "Flatten(1, 2)", "Flatten(0, 2)")
_alike("flatten", "end_dim", IMAGE, "Flatten(1, 2)", "Flatten(1, 3)")
_alike(
    "dropout", "p", SEQUENCE, "Dropout(0.1)", "Dropout(0.2)", False, mindspore=("nn.Dropout(p=0.1)", "nn.Dropout(0.1)")
)
_case(
    "dropout", "mode", SEQUENCE, torch=("nn.Dropout(0.1)", ""),
    paddle=("nn.Dropout(0.1)", "nn.Dropout(0.1, mode='downscale_in_infer')"), mindspore=("nn.Dropout(p=0.1)", ""),
)  # fmt: skip
_case(
    "dropout2d", "p", IMAGE, False, torch=("nn.Dropout2d(0.1)", "nn.Dropout2d(0.2)"),
    paddle=("nn.Dropout2D(0.1)", "nn.Dropout2D(0.2)"), mindspore=("nn.Dropout2d(0.1)", "nn.Dropout2d(0.2)"),
)  # fmt: skip
for setting, torch, paddle, mindspore in (
    ("kernel_size", "3", "3", "3, 3"),
    ("stride", "2, 1", "2, 1", "2"),
    ("padding", "2, 2, 1", "2, 2, 1", "2, 2, 'pad', 1"),
    ("ceil_mode", "2, ceil_mode=True", "2, ceil_mode=True", "2, 2, 'pad', ceil_mode=True"),
):
    for kind, name in (("max_pool", "MaxPool"), ("avg_pool", "AvgPool")):
        for d, x in ((1, SIGNAL), (2, IMAGE), (3, VOLUME)):
            if kind == "max_pool" and setting == "padding" and d == 3:
                continue
            # counting the padding is another setting
            more = ", exclusive=False" if kind == "avg_pool" else ""
            _case(
                f"{kind}{d}d", setting, x, torch=(f"nn.{name}{d}d(2)", f"nn.{name}{d}d({torch})"),
                paddle=(f"nn.{name}{d}D(2{more})", f"nn.{name}{d}D({paddle}{more})"),
                mindspore=(f"nn.{name}{d}d(2, 2)", f"nn.{name}{d}d({mindspore})"),
            )  # fmt: skip
_case(
    "max_pool2d", "dilation", IMAGE, torch=("nn.MaxPool2d(2)", "nn.MaxPool2d(2, dilation=2)"),
    paddle=("nn.MaxPool2D(2)", ""), mindspore=("nn.MaxPool2d(2, 2)", "nn.MaxPool2d(2, 2, 'pad', dilation=2)"),
)  # fmt: skip
_case(
    "avg_pool2d", "count_include_pad", IMAGE,
    torch=("nn.AvgPool2d(3, 2, 1)", "nn.AvgPool2d(3, 2, 1, count_include_pad=False)"),
    paddle=("nn.AvgPool2D(3, 2, 1, exclusive=False)", "nn.AvgPool2D(3, 2, 1)"),
    mindspore=("nn.AvgPool2d(3, 2, 'pad', 1)", "nn.AvgPool2d(3, 2, 'pad', 1, count_include_pad=False)"),
)  # fmt: skip
_case(
    "avg_pool2d", "divisor_override", IMAGE,
    torch=("nn.AvgPool2d(2)", "nn.AvgPool2d(2, divisor_override=3)"),
    paddle=("nn.AvgPool2D(2)", "nn.AvgPool2D(2, divisor_override=3)"),
    mindspore=("nn.AvgPool2d(2, 2)", "nn.AvgPool2d(2, 2, 'pad', divisor_override=3)"),
)  # fmt: skip
for kind, name in (("adaptive_avg_pool2d", "AdaptiveAvgPool2"), ("adaptive_max_pool2d", "AdaptiveMaxPool2")):
    _case(
        kind, "output_size", IMAGE, torch=(f"nn.{name}d(2)", f"nn.{name}d((2, 3))"),
        paddle=(f"nn.{name}D((2, 2))", f"nn.{name}D((2, 3))"), mindspore=(f"nn.{name}d(2)", f"nn.{name}d((2, 3))"),
    )  # fmt: skip
for setting, torch, paddle in (
    ("num_heads", "8, 4, batch_first=True", "8, 4"),
    ("dropout", "8, 2, 0.1, batch_first=True", "8, 2, 0.1"),
    ("batch_first", "8, 2", ""),
):
    plain = "MultiheadAttention(8, 2, batch_first=True)"
    _case(
        "multihead_attention", setting, None, torch=(f"nn.{plain}", f"nn.MultiheadAttention({torch})"),
        paddle=("nn.MultiHeadAttention(8, 2)", f"nn.MultiHeadAttention({paddle})" if paddle else ""),
        mindspore=(f"nn.{plain}", f"nn.MultiheadAttention({torch})"),
    )  # fmt: skip
for setting, torch, paddle in (
    ("norm_first", "norm_first=True", "normalize_before=True"),
    ("activation", "activation='gelu'", "activation='gelu'"),
):
    for kind, name in (("encoder", "TransformerEncoderLayer"), ("decoder", "TransformerDecoderLayer")):
        plain = f"nn.{name}(8, 2, 16, batch_first=True"
        _case(
            f"transformer_{kind}_layer", setting, None, torch=(f"{plain})", f"{plain}, {torch})"),
            paddle=(f"nn.{name}(8, 2, 16)", f"nn.{name}(8, 2, 16, {paddle})"),
            mindspore=(f"{plain})", f"{plain}, {torch})"),
        )  # fmt: skip
for kind, name, paddle_name in (("lstm", "LSTM", "LSTM"), ("gru", "GRU", "GRU"), ("rnn", "RNN", "SimpleRNN")):
    plain = f"nn.{name}(4, 4, 2, batch_first=True"
    plain_paddle = f"nn.{paddle_name}(4, 4, 2"
    changes = [("batch_first", f"nn.{name}(4, 4, 2)", f"{plain_paddle}, time_major=True)")]
    changes += [("dropout", f"{plain}, dropout=0.2)", f"{plain_paddle}, dropout=0.2)")]
    if kind == "rnn":
        changes += [("nonlinearity", f"{plain}, nonlinearity='relu')", f"{plain_paddle}, activation='relu')")]
    for setting, torch, paddle in changes:
        _case(
            kind, setting, None, torch=(f"{plain})", torch), paddle=(f"{plain_paddle})", paddle),
            mindspore=(f"{plain})", torch),
        )  # fmt: skip
for setting, words in (
    ("size", "(21, 27), None, 'bilinear'"),
    ("mode", "(14, 18), None, 'nearest'"),
    ("align_corners", "(14, 18), None, 'bilinear', True"),
):
    _alike("upsample", setting, IMAGE, "Upsample((14, 18), None, 'bilinear')", f"Upsample({words})")
_case(
    "upsample", "align_mode", IMAGE, torch=("nn.Upsample((14, 18), None, 'bilinear')", ""),
    paddle=("nn.Upsample([14, 18], None, 'bilinear')", "nn.Upsample([14, 18], None, 'bilinear', align_mode=1)"),
    mindspore=("nn.Upsample((14, 18), None, 'bilinear')", ""),
)  # fmt: skip
_alike("upsample", "scale_factor", IMAGE, "Upsample(None, 2)", "Upsample(None, 3)", mindspore=None)
_case(
    "pad", "padding", IMAGE, torch=("nn.ConstantPad2d(1, 0.0)", "nn.ConstantPad2d((1, 1, 2, 0), 0.0)"),
    paddle=("nn.Pad2D(1)", "nn.Pad2D([1, 1, 2, 0])"),
    mindspore=("nn.Pad(((0, 0), (0, 0), (1, 1), (1, 1)))", "nn.Pad(((0, 0), (0, 0), (2, 0), (1, 1)))"),
)  # fmt: skip
_case(
    "pad", "mode", IMAGE, torch=("nn.ReflectionPad2d(1)", "nn.ReplicationPad2d(1)"),
    paddle=("nn.Pad2D(1, 'reflect')", "nn.Pad2D(1, 'replicate')"),
    mindspore=("nn.ReflectionPad2d(1)", "nn.ReplicationPad2d(1)"),
)  # fmt: skip
_case(
    "pad", "value", IMAGE, torch=("nn.ConstantPad2d(1, 0.0)", "nn.ConstantPad2d(1, 1.0)"),
    paddle=("nn.Pad2D(1)", "nn.Pad2D(1, value=1.0)"),
    mindspore=("nn.ConstantPad2d(1, 0.0)", "nn.ConstantPad2d(1, 1.0)"),
)  # fmt: skip
_alike("pixel_shuffle", "upscale_factor", normal(2, 16, 4, 4), "PixelShuffle(2)", "PixelShuffle(4)")
for setting, torch, paddle in (
    ("kernel_size", "3, padding=1", "3, paddings=1"),
    ("padding", "2", "2"),
    ("stride", "2, padding=1, stride=2", "2, paddings=1, strides=2"),
    ("dilation", "2, padding=1, dilation=2", "2, paddings=1, dilations=2"),
):
    _case(
        "unfold", setting, IMAGE, torch=("nn.Unfold(2, padding=1)", f"nn.Unfold({torch})"),
        paddle=("nn.Unfold(2, paddings=1)", f"nn.Unfold({paddle})"),
    )  # fmt: skip
for kind, name in (
    ("mse_loss", "MSELoss"),
    ("l1_loss", "L1Loss"),
    ("smooth_l1_loss", "SmoothL1Loss"),
    ("cross_entropy_loss", "CrossEntropyLoss"),
    ("nll_loss", "NLLLoss"),
    ("bce_loss", "BCELoss"),
    ("bce_with_logits_loss", "BCEWithLogitsLoss"),
    ("kl_div_loss", "KLDivLoss"),
):
    _alike(kind, "reduction", None, f"{name}(reduction='mean')", f"{name}(reduction='sum')")
_alike("cross_entropy_loss", "label_smoothing", None, "CrossEntropyLoss()", "CrossEntropyLoss(label_smoothing=0.1)")
_alike("cross_entropy_loss", "ignore_index", None, "CrossEntropyLoss()", "CrossEntropyLoss(ignore_index=0)")
_alike("nll_loss", "ignore_index", None, "NLLLoss()", "NLLLoss(ignore_index=0)")
_alike(
    "smooth_l1_loss", "beta", None, "SmoothL1Loss()", "SmoothL1Loss(beta=0.5)",
    paddle=("nn.SmoothL1Loss()", "nn.SmoothL1Loss(delta=0.5, is_huber=False)"),
    mindspore=("nn.SmoothL1Loss(reduction='mean')", "nn.SmoothL1Loss(0.5, reduction='mean')"),
)  # fmt: skip
_case(
    "smooth_l1_loss", "huber", None, torch=("nn.SmoothL1Loss(beta=2.0)", ""),
    paddle=("nn.SmoothL1Loss(delta=2.0, is_huber=False)", "nn.SmoothL1Loss(delta=2.0)"),
    mindspore=("nn.SmoothL1Loss(2.0, reduction='mean')", ""),
)  # fmt: skip
