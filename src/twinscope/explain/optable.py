"""What ops can be told: the table beside `table`, for functions instead of layers.

A function's parameters are known by its signature; here is which of them mean the same in all frameworks, in what form
they are compared, and what is worth trying where nothing is known of the other side. A parameter that is not here is
known by its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .table import MINDSPORE, PADDLE, TORCH

#: Epsilons that are in use, the commonest first.
EPSILONS = (1e-5, 1e-6, 1e-3, 1e-12, 1e-8, 1e-7)


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that an op can be told."""

    name: str  # neutral
    own: tuple[str, ...] = ()  # the other names that its parameter goes by
    #: "plain"; "axis": counted from the end; "each": one number may stand for several
    form: str = "plain"
    suspects: tuple[Any, ...] = ()  # neutral values to try where nothing is known of the other side


def _flag(name: str, *own: str) -> Option:
    return Option(name, own, suspects=(True, False))


def _axis(*more: str, suspects: tuple[Any, ...] = (-1, -2, -3)) -> Option:
    return Option("dim", ("axis", "axes", *more), "axis", suspects)


_EPS = Option("eps", ("epsilon",), suspects=EPSILONS)
_DIM = _axis()
_KEEP = Option("keepdim", ("keepdims", "keep_dims"))
_REDUCTION = Option("reduction", suspects=("mean", "sum", "none"))
_TRAINING = _flag("training", "is_training")
_MODES = ("nearest", "bilinear", "bicubic", "linear", "trilinear", "area")
_KERNEL = Option("kernel_size", ("ksize", "kernel_sizes"), "each")
_STRIDE = Option("stride", ("strides",), "each", (1, 2))
_PADDING = Option("padding", ("paddings", "pads"), "each", (0, 1))
_DILATION = Option("dilation", ("dilations",), "each", (1, 2))
_CEIL = _flag("ceil_mode")
_CORRECTION = Option("correction", ("unbiased", "ddof"), suspects=(0, 1))
_CONV = (_STRIDE, _PADDING, _DILATION, Option("groups", ("group",)))
_POOL = (_KERNEL, _STRIDE, _PADDING, _CEIL)
_REDUCED = (_DIM, _KEEP)

#: By canonical op (`pairing.opnames`), the options that are worth trying first, in order of likelihood.
OPTIONS: Mapping[str, tuple[Option, ...]] = {
    "gelu": (Option("approximate", suspects=("none", "tanh")),),
    "softmax": (_DIM,),
    "log_softmax": (_DIM,),
    "interpolate": (
        _flag("align_corners"),
        Option("mode", suspects=_MODES),
        Option("align_mode", suspects=(0, 1)),
        Option("scale_factor", ("scale",), "each"),
        Option("size", (), "each"),
        _flag("antialias"),
    ),
    "grid_sample": (
        _flag("align_corners"),
        Option("padding_mode", suspects=("zeros", "border", "reflection")),
        Option("mode", suspects=("bilinear", "nearest")),
    ),
    "affine_grid": (_flag("align_corners"),),
    "avg_pool": (
        _flag("count_include_pad", "exclusive"),
        *_POOL,
        Option("divisor_override", ("divisor",)),
    ),
    "max_pool": (*_POOL, _DILATION),
    "adaptive_avg_pool": (Option("output_size", (), "each"),),
    "adaptive_max_pool": (Option("output_size", (), "each"),),
    "conv": _CONV,
    "conv_transpose": (*_CONV, Option("output_padding", (), "each", (0, 1))),
    "leaky_relu": (Option("negative_slope", ("alpha",), suspects=(0.01, 0.2, 0.1, 0.3)),),
    "elu": (Option("alpha", suspects=(1.0,)),),
    "celu": (Option("alpha", suspects=(1.0,)),),
    "hardtanh": (Option("min_val", ("min",)), Option("max_val", ("max",))),
    "softplus": (Option("beta", suspects=(1.0,)), Option("threshold", suspects=(20.0,))),
    "std": (_CORRECTION, *_REDUCED),
    "var": (_CORRECTION, *_REDUCED),
    "layer_norm": (_EPS, Option("normalized_shape", (), "each")),
    "rms_norm": (_EPS, Option("normalized_shape", (), "each")),
    "group_norm": (_EPS, Option("num_groups", ("group",))),
    "batch_norm": (_EPS, _TRAINING, Option("momentum", suspects=(0.1, 0.9))),
    "instance_norm": (_EPS, Option("use_input_stats"), Option("momentum")),
    "local_response_norm": (Option("size"), Option("alpha"), Option("beta"), Option("k")),
    "normalize": (_EPS, _DIM, Option("p", ("ord",), suspects=(2.0, 1.0))),
    "cosine_similarity": (_DIM, _EPS),
    "smooth_l1_loss": (Option("beta", ("delta",), suspects=(1.0, 0.5)), _REDUCTION, _flag("huber", "is_huber")),
    "huber_loss": (Option("delta", suspects=(1.0,)), _REDUCTION),
    "mse_loss": (_REDUCTION,),
    "l1_loss": (_REDUCTION,),
    "cross_entropy": (
        _REDUCTION,
        Option("ignore_index", suspects=(-100, 0, -1)),
        Option("label_smoothing", suspects=(0.0, 0.1)),
        _DIM,
    ),
    "nll_loss": (_REDUCTION, Option("ignore_index", suspects=(-100, 0, -1))),
    "bce": (_REDUCTION,),
    "bce_with_logits": (_REDUCTION,),
    "kl_div": (_REDUCTION, _flag("log_target")),
    "topk": (Option("k"), _flag("largest"), _DIM, _flag("sorted")),
    "sort": (_flag("descending"), _DIM, _flag("stable")),
    "argsort": (_flag("descending"), _DIM, _flag("stable")),
    "dropout": (
        Option("p", ("keep_prob", "dropout_prob"), suspects=(0.0, 0.1, 0.5)),
        _TRAINING,
        Option("mode", suspects=("upscale_in_train", "downscale_in_infer")),
    ),
    "norm": (Option("p", ("ord",), suspects=(2.0, 1.0, float("inf"))), *_REDUCED),
    "median": (Option("mode", suspects=("min", "avg")), *_REDUCED),
    "quantile": (Option("interpolation", suspects=("linear", "lower", "nearest")), *_REDUCED),
    "mean": _REDUCED,
    "sum": _REDUCED,
    "prod": _REDUCED,
    "max": _REDUCED,
    "min": _REDUCED,
    "argmax": _REDUCED,
    "argmin": _REDUCED,
    "logsumexp": _REDUCED,
    "cumsum": (_DIM,),
    "cumprod": (_DIM,),
    "cat": (_DIM,),
    "stack": (_DIM,),
    "flip": (_axis("dims"),),
    "roll": (Option("shifts"), _axis("dims")),
    "clamp": (Option("min", ("clip_value_min",)), Option("max", ("clip_value_max",))),
    "pad": (Option("mode", suspects=("constant", "reflect", "replicate", "circular")), Option("value"), Option("pad")),
    "attention": (
        _flag("is_causal"),
        Option("scale"),
        Option("dropout_p", suspects=(0.0,)),
    ),
    "embedding": (Option("padding_idx"), Option("max_norm")),
    "div": (Option("rounding_mode", suspects=(None, "floor", "trunc")),),
    "round": (Option("decimals"),),
    "tril": (Option("diagonal", ("k",), suspects=(0, 1, -1)),),
    "triu": (Option("diagonal", ("k",), suspects=(0, 1, -1)),),
    "matmul": (_flag("transpose_x", "transpose_a"), _flag("transpose_y", "transpose_b")),
}

#: Names that mean the same whatever the op.
ALIASES: Mapping[str, str] = {
    "axis": "dim",
    "axes": "dim",
    "epsilon": "eps",
    "keepdims": "keepdim",
    "keep_dims": "keepdim",
    "is_training": "training",
}

#: What goes without saying, by framework and op, under its own name or the canonical one.
GIVEN: Mapping[tuple[str, str], Mapping[str, Any]] = {
    (TORCH, "median"): {"mode": "min"},
    (MINDSPORE, "median"): {"mode": "min"},
    (TORCH, "smooth_l1_loss"): {"huber": False},
    (MINDSPORE, "smooth_l1_loss"): {"huber": False},
    (MINDSPORE, "GeLU"): {"approximate": "tanh"},
    (TORCH, "dropout"): {"mode": "upscale_in_train"},
    (MINDSPORE, "dropout"): {"mode": "upscale_in_train"},
}

#: Signatures that neither `inspect` nor the documentation gives in full, by the op's own name.
SIGNATURES: Mapping[str, str] = {
    **{
        f"torch.nn.functional.max_pool{d}d": "input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, "
        "return_indices=False"
        for d in (1, 2, 3)
    },
    **{f"torch.{name}": "input, dim=None, keepdim=False, dtype=None" for name in ("mean", "sum", "median", "prod")},
    **{f"torch.Tensor.{name}": "dim=None, keepdim=False, dtype=None" for name in ("mean", "sum", "median", "prod")},
    **{f"torch.{name}": "input, dim=None, keepdim=False" for name in ("argmax", "argmin", "logsumexp", "max", "min")},
    **{f"torch.Tensor.{name}": "dim=None, keepdim=False" for name in ("argmax", "argmin", "logsumexp", "max", "min")},
    "torch.linalg.norm": "A, ord=None, dim=None, keepdim=False",
    "torch.linalg.vector_norm": "x, ord=2, dim=None, keepdim=False",
    "torch.linalg.matrix_norm": "A, ord='fro', dim=(-2, -1), keepdim=False",
    **{
        f"paddle.nn.functional.conv{d}d": "x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1"
        for d in (1, 2, 3)
    },
}


def _same(value: Any) -> Any:
    return value


def _not(value: Any) -> Any:
    return not value


def _of_bool(value: Any) -> Any:
    return 1 if value is None else int(value)


def _rest_of(value: Any) -> Any:
    return round(1.0 - value, 12) if isinstance(value, (int, float)) else value


def _approximation(value: Any) -> Any:
    return value if isinstance(value, str) else "tanh" if value else "none"


def _order(value: Any) -> Any:
    return 2.0 if value in (None, "fro") else float(value) if isinstance(value, (int, float)) else value


#: From a framework's own value to the neutral one and back, by the parameter's own name.
_FORMS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "exclusive": (_not, _not),
    "unbiased": (_of_bool, bool),
    "keep_prob": (_rest_of, _rest_of),
    "align_corners": (bool, bool),
    "p": (_order, _same),
    "ord": (_order, _same),
}


def forms(framework: str, op: str, own: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """How a parameter's value becomes neutral, and back.

    >>> read, write = forms("paddle", "avg_pool", "exclusive")
    >>> read(True), write(True)
    (False, False)
    """
    if own == "approximate":
        return _approximation, ((lambda v: v == "tanh") if framework == PADDLE else _same)
    if own == "momentum" and framework == PADDLE:
        return _rest_of, _rest_of
    if own in ("p", "ord") and op not in ("norm", "normalize"):
        return _same, _same
    return _FORMS.get(own, (_same, _same))
