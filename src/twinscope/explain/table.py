"""The table: what each kind of layer can be told, what it is when it is not told, and what each framework calls it.

Values are neutral, which is to say PyTorch's: BatchNorm's momentum is the weight of the new value, padding is counted
before and after each axis, an axis is `dim`. A flavour is a framework's own set of layers: MindSpore has two, `nn` and
`mint`, and in `mint` names and defaults are PyTorch's. Tests hold every default and every name against the frameworks
that are installed, so that a release that changes one is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records import Choice, ModuleInfo

#: A neutral setting's name -> its neutral value.
Settings = Mapping[str, Any]

TORCH, PADDLE, MINDSPORE, MINT = "torch", "paddle", "mindspore", "mint"
FLAVOURS = (TORCH, PADDLE, MINDSPORE, MINT)


class Effect(Choice):
    """What a difference changes, the worst first."""

    FORWARD = "forward"  # what the network computes, in evaluation too
    TRAINING = "training"  # what it computes or keeps in training only: dropout, running statistics
    BACKWARD = "backward"  # gradients only
    COSMETIC = "cosmetic"  # nothing once weights have been copied: how they were drawn


class _Unset:
    """There is no default: the layer must be told."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()

#: A default that is another setting's value: a pool's stride is its kernel size.
AS_KERNEL = "as kernel_size"


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that a kind of layer can be told."""

    name: str
    effect: Effect
    #: Neutral value by flavour of a layer that was told nothing; a flavour that is not listed is not known of.
    defaults: Mapping[str, Any]
    own: Mapping[str, str]  # the option's name by flavour, where it has one
    #: Whether the setting changes anything, given what else the layer was told.
    matters: Callable[[Settings], bool] | None = None
    #: How two values are compared: "plain", "axis", "padding", "layout" (of the input), "extent".
    compared: str = "plain"
    hint: str = ""

    def is_fixed(self, flavour: str) -> bool:
        """Whether a layer of this flavour always has the default, for there is nothing to tell it."""
        return flavour in self.defaults and flavour not in self.own


def _by(default: Any = UNSET, **flavours: Any) -> dict[str, Any]:
    """One value for all, with exceptions; `mint` is as torch unless it is said."""
    found = {name: flavours.get(name, default) for name in (TORCH, PADDLE, MINDSPORE)}
    found[MINT] = flavours.get(MINT, found[TORCH])
    return found


def _setting(
    name: str,
    default: Any = UNSET,
    *,
    effect: Effect = Effect.FORWARD,
    fixed: Sequence[str] = (),
    unknown: Sequence[str] = (),
    paddle: str | None = None,
    mindspore: str | None = None,
    **more: Any,
) -> Setting:
    """`default` is one value, or what `_by` gives. Flavours in `fixed` have no such option."""
    defaults = default if isinstance(default, dict) else _by(default)
    own = {TORCH: name, PADDLE: paddle or name, MINDSPORE: mindspore or name, MINT: name}
    return Setting(
        name,
        effect,
        {k: v for k, v in defaults.items() if k not in unknown},
        {k: v for k, v in own.items() if k not in fixed and k not in unknown},
        **more,
    )


def _some(*names: str) -> Callable[[Settings], bool]:
    """Only where one of these settings is on."""
    return lambda s: any(s.get(name) not in (None, False, 0) for name in names)


def _pads(s: Settings) -> bool:
    padding = s.get("padding")
    return bool(padding) if isinstance(padding, str) else any(n for pair in padding or () for n in pair)


_LINEAR_MODES = ("linear", "bilinear", "trilinear", "bicubic")


def _interpolates(s: Settings) -> bool:
    return s.get("mode") in _LINEAR_MODES


def _half_pixel(s: Settings) -> bool:
    return s.get("mode") in _LINEAR_MODES[:3] and not s.get("align_corners")


_T = Effect.TRAINING
_EPS = _setting("eps", 1e-5, paddle="epsilon")
_BIAS = _setting("bias", True, paddle="bias_attr", mindspore="has_bias")
_CHANNELS_LAST = _setting(
    "channels_last",
    False,
    fixed=(TORCH, MINT),
    unknown=(MINDSPORE,),
    paddle="data_format",
    compared="layout",
)
_MOMENTUM = _setting(
    "momentum",
    0.1,
    effect=_T,
    matters=_some("track_running_stats"),
    hint="the conventions are inverse: momentum=0.1 in torch and mindspore.mint is 0.9 in paddle and mindspore.nn",
)

_CONV = (
    _setting("kernel_size"),
    _setting("stride", 1),
    _setting("dilation", 1, hint="paddle heeds no dilation where padding='SAME'"),
    _setting("padding", _by(0, mindspore="same"), compared="padding", mindspore="pad_mode"),
    _setting("padding_mode", "zeros", fixed=(MINDSPORE,), matters=_pads),
    _setting("groups", 1, mindspore="group"),
    _setting("bias", _by(True, mindspore=False), paddle="bias_attr", mindspore="has_bias"),
    _CHANNELS_LAST,
)
_OUTPUT_PADDING = "mindspore.nn.Conv2dTranspose adds rows of zeros where the others go on computing"
_TRANSPOSED = (*(s for s in _CONV if s.name != "padding_mode"), _setting("output_padding", 0, hint=_OUTPUT_PADDING))
_BATCH_NORM = (
    _EPS,
    _MOMENTUM,
    _setting("affine", True, paddle="weight_attr"),
    _setting("track_running_stats", True, effect=Effect.FORWARD, fixed=(PADDLE, MINDSPORE)),
    _setting(
        "statistics",
        "of the batch in training",
        fixed=(TORCH, MINT),
        paddle="use_global_stats",
        mindspore="use_batch_statistics",
    ),
)
_INSTANCE_NORM = (
    _EPS,
    _setting("affine", _by(False, paddle=True, mindspore=True), paddle="weight_attr"),
    # MindSpore keeps statistics that it never normalises with: nothing to compare
    _setting("track_running_stats", False, fixed=(PADDLE,), unknown=(MINDSPORE,)),
    _MOMENTUM,
)
_LAYER_NORM = (
    _setting("eps", _by(1e-5, mindspore=1e-7), paddle="epsilon", mindspore="epsilon"),
    _setting("normalized_shape", mindspore="begin_norm_axis"),
    _setting("elementwise_affine", True, paddle="weight_attr", fixed=(MINDSPORE,)),
    _setting("bias", True, paddle="bias_attr", fixed=(MINDSPORE,), matters=_some("elementwise_affine")),
)
_MAX_POOL = (
    _setting("kernel_size", _by(mindspore=1)),
    _setting("stride", _by(AS_KERNEL, mindspore=1)),
    _setting("padding", 0, compared="padding", mindspore="pad_mode"),
    _setting("dilation", 1, fixed=(PADDLE,)),
    _setting("ceil_mode", False),
    _CHANNELS_LAST,
)
_AVG_POOL = (
    *(s for s in _MAX_POOL if s.name not in ("dilation", "kernel_size")),
    _setting("kernel_size", _by(mindspore=1)),
    _setting("count_include_pad", _by(True, paddle=False), paddle="exclusive", matters=_pads),
    _setting("divisor_override", None),
)
_RECURRENT = (
    _setting("num_layers", 1),
    _setting("bidirectional", False, paddle="direction"),
    _setting(
        "batch_first",
        _by(False, paddle=True),
        paddle="time_major",
        compared="layout",
    ),
    _setting("bias", True, paddle="bias_ih_attr", mindspore="has_bias"),
    _setting("dropout", 0.0, effect=_T, matters=lambda s: s.get("num_layers", 2) > 1),
    _setting("proj_size", 0, fixed=(MINDSPORE,), unknown=(MINT,)),
)
_CELL = (_setting("bias", True, paddle="bias_ih_attr", mindspore="has_bias"),)
_TANH_OR_RELU = _setting("nonlinearity", "tanh", paddle="activation")
_TRANSFORMER_LAYER = (
    _setting("norm_first", False, paddle="normalize_before"),
    _setting("activation", "relu"),
)
_SOFTMAX = (_setting("dim", _by(None, paddle=-1, mindspore=-1), compared="axis", paddle="axis", mindspore="axis"),)
_P = _setting("p", 0.5, effect=_T, hint="MindSpore's nn.Dropout(0.1) is keep_prob=0.1, which drops nine of ten")
_REDUCTION = _setting("reduction", "mean")
_WINDOW = (
    _setting("kernel_size", paddle="kernel_sizes"),
    _setting("stride", 1, paddle="strides"),
    _setting("padding", 0, paddle="paddings", compared="padding"),
    _setting("dilation", 1, paddle="dilations"),
)


def _spatial(kind: str, settings: Sequence[Setting], without: Mapping[int, Sequence[str]] | None = None) -> Any:
    return {
        f"{kind}{d}d": tuple(s for s in settings if s.name not in (without or {}).get(d, ())) for d in (1, 2, 3)
    }.items()


#: By kind, what its layers can be told.
TABLE: dict[str, tuple[Setting, ...]] = {
    "linear": (_BIAS,),
    "bilinear": (_BIAS,),
    **dict(_spatial("conv", _CONV)),
    **dict(_spatial("conv_transpose", _TRANSPOSED)),
    "conv_transpose1d": (*_TRANSPOSED[:-1], _setting("output_padding", 0, fixed=(MINDSPORE,))),
    **dict(_spatial("batch_norm", _BATCH_NORM)),
    "batch_norm": _BATCH_NORM,
    "sync_batch_norm": _BATCH_NORM,
    **dict(_spatial("instance_norm", _INSTANCE_NORM)),
    "layer_norm": _LAYER_NORM,
    "group_norm": (_setting("num_groups"), _EPS, _setting("affine", True, paddle="weight_attr")),
    "rms_norm": (_setting("eps", None, unknown=(PADDLE, MINDSPORE, MINT)), _setting("normalized_shape")),
    "local_response_norm": (
        _setting("size", _by(mindspore=11), mindspore="depth_radius"),
        _setting("alpha", _by(1e-4, mindspore=11.0)),
        _setting("beta", _by(0.75, mindspore=0.5)),
        _setting("k", 1.0, mindspore="bias"),
    ),
    "embedding": (
        _setting(
            "padding_idx",
            None,
            effect=Effect.BACKWARD,
            hint="torch keeps gradients from that row, paddle also makes it zero in the output, mindspore.nn only "
            "begins with zeros there",
        ),
        _setting("max_norm", None, fixed=(MINDSPORE,)),
        _setting("norm_type", 2.0, fixed=(MINDSPORE,), matters=_some("max_norm")),
        _setting("scale_grad_by_freq", False, effect=Effect.BACKWARD, fixed=(MINDSPORE,)),
    ),
    "prelu": (_setting("init", 0.25, effect=Effect.COSMETIC, unknown=(MINDSPORE, MINT)),),
    "leaky_relu": (_setting("negative_slope", _by(0.01, mindspore=0.2), mindspore="alpha"),),
    "elu": (_setting("alpha", 1.0),),
    "celu": (_setting("alpha", 1.0),),
    "selu": (
        _setting("alpha", 1.6732632423543772, fixed=(TORCH, MINDSPORE, MINT)),
        _setting("scale", 1.0507009873554805, fixed=(TORCH, MINDSPORE, MINT)),
    ),
    "gelu": (
        _setting(
            "approximate",
            _by("none", mindspore="tanh"),
            hint="mindspore.nn.GELU approximates by tanh unless told not to: GELU(approximate=False)",
        ),
    ),
    "hardtanh": (
        _setting("min_val", -1.0, paddle="min"),
        _setting("max_val", 1.0, paddle="max"),
    ),
    "softplus": (_setting("beta", 1.0), _setting("threshold", 20.0)),
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
    "flatten": (
        _setting("start_dim", 1, compared="axis", paddle="start_axis"),
        _setting("end_dim", -1, compared="axis", paddle="stop_axis"),
    ),
    "dropout": (
        _P,
        _setting(
            "mode",
            "upscale_in_train",
            fixed=(TORCH, MINDSPORE, MINT),
            hint="downscale_in_infer multiplies by 1 - p in evaluation instead of dividing by it in training",
        ),
        _setting("dim", None, effect=_T, fixed=(TORCH, MINDSPORE, MINT), paddle="axis"),
    ),
    **{f"dropout{d}d": (_P,) for d in (1, 2, 3)},
    "alpha_dropout": (_P,),
    **dict(_spatial("max_pool", _MAX_POOL, {1: ("channels_last",)})),
    **dict(_spatial("avg_pool", _AVG_POOL, {1: ("channels_last", "divisor_override")})),
    **dict(_spatial("adaptive_avg_pool", (_setting("output_size"), _CHANNELS_LAST), {1: ("channels_last",)})),
    **dict(_spatial("adaptive_max_pool", (_setting("output_size"),))),
    "multihead_attention": (
        _setting("num_heads"),
        _setting("dropout", 0.0, effect=_T),
        _setting(
            "batch_first",
            _by(False, paddle=True),
            fixed=(PADDLE,),
            compared="layout",
        ),
        _setting("add_zero_attn", False, fixed=(PADDLE,)),
    ),
    "transformer_encoder_layer": _TRANSFORMER_LAYER,
    "transformer_decoder_layer": _TRANSFORMER_LAYER,
    "lstm": _RECURRENT,
    "gru": tuple(s for s in _RECURRENT if s.name != "proj_size"),
    "rnn": (*(s for s in _RECURRENT if s.name != "proj_size"), _TANH_OR_RELU),
    "lstm_cell": _CELL,
    "gru_cell": _CELL,
    "rnn_cell": (*_CELL, _TANH_OR_RELU),
    "upsample": (
        _setting("size", None, compared="extent"),
        _setting("scale_factor", None),
        _setting("mode", "nearest"),
        _setting("align_corners", False, matters=_interpolates),
        _setting("align_mode", 0, fixed=(TORCH, MINDSPORE, MINT), matters=_half_pixel),
    ),
    "pixel_shuffle": (_setting("upscale_factor"),),
    "pixel_unshuffle": (_setting("downscale_factor"),),
    "pad": (
        _setting("padding", mindspore="paddings"),
        _setting("mode", "constant"),
        _setting("value", 0.0, matters=lambda s: s.get("mode") == "constant"),
    ),
    "fold": (_setting("output_size", paddle="output_sizes"), *_WINDOW),
    "unfold": _WINDOW,
    "cosine_similarity": (
        _setting("dim", 1, compared="axis", paddle="axis", unknown=(MINDSPORE, MINT)),
        _setting("eps", 1e-8, unknown=(MINDSPORE, MINT)),
    ),
    "mse_loss": (_REDUCTION,),
    "l1_loss": (_REDUCTION,),
    "smooth_l1_loss": (
        _setting("reduction", _by("mean", mindspore="none")),
        _setting("beta", 1.0, paddle="delta"),
        _setting(
            "huber",
            _by(False, paddle=True),
            fixed=(TORCH, MINDSPORE, MINT),
            paddle="is_huber",
            matters=lambda s: s.get("beta") != 1.0,
            hint="paddle's smooth_l1 with another delta than 1 is Huber's loss, delta times torch's smooth_l1_loss",
        ),
    ),
    "cross_entropy_loss": (
        _REDUCTION,
        _setting("ignore_index", -100),
        _setting("label_smoothing", 0.0),
    ),
    "nll_loss": (_REDUCTION, _setting("ignore_index", -100)),
    "bce_loss": (_setting("reduction", "mean", unknown=(MINT,)),),
    "bce_with_logits_loss": (_setting("reduction", "mean", unknown=(MINT,)),),
    "kl_div_loss": (_REDUCTION, _setting("log_target", False, fixed=(MINDSPORE,))),
}


def family(kind: str) -> str:
    """The name that kinds share whose settings mean the same: of norms the dimensions may differ.

    >>> family("sync_batch_norm"), family("batch_norm2d"), family("conv2d")
    ('batch_norm', 'batch_norm', 'conv2d')
    """
    return kind.replace("sync_", "").rstrip("d123") if "norm" in kind else kind


#: Kinds that stand for one another in a network: where the names agree and the kind does not, one was mistaken.
ROLES: dict[str, frozenset[str]] = {
    "activation": frozenset(
        """relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid tanh softplus softsign hardtanh hardswish
        hardsigmoid log_sigmoid softmax log_softmax""".split()
    ),
    "dropout": frozenset("dropout dropout1d dropout2d dropout3d alpha_dropout".split()),
    "pool": frozenset(f"{kind}_pool{d}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for d in (1, 2, 3)),
    "loss": frozenset(kind for kind in TABLE if kind.endswith("_loss")),
}


def role(kind: str) -> str:
    """What a layer without weights is there for: "activation", "dropout", "pool", "loss", or its kind."""
    return next((name for name, kinds in ROLES.items() if kind in kinds), kind)


#: Classes of `mindspore.mint` whose names do not say so.
_MINT = ("Linear", "Fold")


def flavour_of(framework: str, info: ModuleInfo) -> str:
    """Which set of layers a module is of; a user's own subclass is taken for one of its framework's plain layers."""
    own = info.type.rsplit(".", 1)[-1]
    if framework == MINDSPORE and (".mint." in info.type or own.endswith("Ext") or own in _MINT):
        return MINT
    return framework


#: Layers that are told less than others of their kind, by framework and class: what goes without saying.
IMPLIED: dict[tuple[str, str], dict[str, Any]] = {
    (PADDLE, "UpsamplingBilinear2D"): {"mode": "bilinear", "align_corners": True, "align_mode": 0},
    (PADDLE, "UpsamplingNearest2D"): {"mode": "nearest", "align_corners": False, "align_mode": 0},
}


def settings_of(kind: str) -> tuple[Setting, ...]:
    """What layers of this kind can be told; nothing for a kind that is not in the table."""
    return TABLE.get(kind, ())


def default_of(setting: Setting, flavour: str, settings: Settings) -> Any:
    """The neutral default of a layer of this flavour; UNSET where there is none, or none is known."""
    value = setting.defaults.get(flavour, UNSET)
    return settings.get("kernel_size", UNSET) if value == AS_KERNEL else value
