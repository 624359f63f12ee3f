"""Paddle's layers told otherwise: they read their attributes on every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional as F

from . import SAME, Settings, axes_of, each, extents, family, flat, padded, resized, symmetric

_KERNEL = ("_kernel_size", "ksize", "kernel_sizes", "kernel_size")
_STRIDE = ("_stride", "strides", "stride")
_DILATION = ("_dilation", "dilations", "dilation")

#: By family of kinds, the settings that are one attribute each, and by which names.
_PLAIN: dict[str, dict[str, tuple[str, ...]]] = {
    "batch_norm": {"eps": ("_epsilon",)},
    "instance_norm": {"eps": ("_epsilon",)},
    "layer_norm": {"eps": ("_epsilon",)},
    "group_norm": {"eps": ("_epsilon",), "num_groups": ("_num_groups",)},
    "rms_norm": {"eps": ("_epsilon", "epsilon", "eps")},
    "local_response_norm": {name: (name,) for name in ("size", "alpha", "beta", "k")},
    "embedding": {name: (f"_{name}",) for name in ("padding_idx", "norm_type", "scale_grad_by_freq")},
    "leaky_relu": {"negative_slope": ("_negative_slope",)},
    "elu": {"alpha": ("_alpha",)},
    "celu": {"alpha": ("_alpha",)},
    "selu": {"alpha": ("_alpha",), "scale": ("_scale",)},
    "hardtanh": {"min_val": ("_min",), "max_val": ("_max",)},
    "softplus": {"beta": ("_beta",), "threshold": ("_threshold",)},
    "softmax": {"dim": ("_axis",)},
    "log_softmax": {"dim": ("_axis",)},
    "flatten": {"start_dim": ("start_axis",), "end_dim": ("stop_axis",)},
    "dropout": {"p": ("p",), "mode": ("mode",), "dim": ("axis",)},
    "alpha_dropout": {"p": ("p",)},
    "multihead_attention": {"dropout": ("dropout",)},
    "lstm": {"dropout": ("dropout",)},
    "gru": {"dropout": ("dropout",)},
    "rnn": {"dropout": ("dropout",)},
    "pixel_shuffle": {"upscale_factor": ("_upscale_factor",)},
    "pixel_unshuffle": {"downscale_factor": ("_downscale_factor",)},
    "max_pool": {"ceil_mode": ("ceil_mode",)},
    "avg_pool": {"ceil_mode": ("ceil_mode",), "divisor_override": ("divisor",)},
    "cosine_similarity": {"dim": ("_axis",), "eps": ("_eps",)},
    "mse_loss": {"reduction": ("reduction",)},
    "l1_loss": {"reduction": ("reduction",)},
    "smooth_l1_loss": {"reduction": ("reduction",)},
    "cross_entropy_loss": {name: (name,) for name in ("reduction", "ignore_index", "label_smoothing")},
    "nll_loss": {"reduction": ("_reduction",), "ignore_index": ("_ignore_index",)},
    "bce_loss": {"reduction": ("reduction",)},
    "bce_with_logits_loss": {"reduction": ("reduction",)},
    "kl_div_loss": {"reduction": ("reduction",), "log_target": ("log_target",)},
}


def alter(module: Any, kind: str, settings: Settings) -> bool:
    """As `Adapter.alter`."""
    group = family(kind)
    plain = _PLAIN.get(group, {})
    rest = {name: value for name, value in settings.items() if name not in plain}
    for name, value in settings.items():
        if name in plain and not _set(module, plain[name], value):
            return False
    special = _SPECIAL.get(group)
    return not rest if special is None else special(module, kind, rest)


def _set(module: Any, names: tuple[str, ...], value: Any) -> bool:
    """Set the attribute of the first of these names that the layer has."""
    name = next((n for n in names if n in vars(module)), None)
    if name is not None:
        setattr(module, name, value)
    return name is not None


def _without(module: Any, *names: str) -> None:
    """These parameters are declined."""
    for name in names:
        if name in module._parameters:
            module._parameters[name] = None


def _frozen(parameter: Any, value: float) -> Any:
    """What stands where Paddle wants a parameter that was declined."""
    made = paddle.full(parameter.shape, value, dtype=parameter.dtype)
    made.stop_gradient = True
    return made


def _bias_off(module: Any, _: str, rest: Settings) -> bool:
    if rest == {"bias": False}:
        _without(module, "bias")
        return True
    return not rest


def _norm(module: Any, kind: str, rest: Settings) -> bool:
    for name, value in rest.items():
        if name == "momentum":
            module._momentum = 1.0 - value
        elif name == "statistics" and "batch_norm" in kind and kind != "sync_batch_norm":
            plainly = None if isinstance(module, nn.layer.norm._BatchNormBase) else False
            words = {"those it keeps": True, "of the batch in training": plainly}
            module._use_global_stats = words[value]
        elif name in ("affine", "elementwise_affine") and value is False and kind != "sync_batch_norm":
            _without(module, "weight", "scale", "bias")
        elif name == "bias" and value is False and kind == "layer_norm":
            _without(module, "bias")
        elif name == "normalized_shape" and module._parameters.get("weight") is None and "*" not in value:
            module._normalized_shape = list(value)
        else:
            return False
    return True


def _embedding(module: Any, _: str, rest: Settings) -> bool:
    if rest and rest != {"max_norm": None}:
        return False  # with a norm the weights themselves are changed
    if rest:
        module._max_norm = None
    return True


def _gelu(module: Any, _: str, rest: Settings) -> bool:
    if set(rest) - {"approximate"} or rest.get("approximate") not in ("none", "tanh", None):
        return False
    if rest:
        module._approximate = rest["approximate"] == "tanh"
    return True


def _own_padding(padding: Any, dims: int) -> Any:
    """As a layer is told it; None where Paddle has no way to say it."""
    if set(padding) == {SAME}:
        return "SAME"
    if SAME in padding or len(padding) != dims:
        return None
    numbers = symmetric(padding)
    return flat(padding) if numbers is None else numbers


def _conv(module: Any, kind: str, rest: Settings) -> bool:
    rest, dims = dict(rest), axes_of(kind)
    if "bias" in rest:
        if rest.pop("bias") is not False:
            return False
        _without(module, "bias")
    for name, attribute in (("stride", "_stride"), ("dilation", "_dilation"), ("output_padding", "output_padding")):
        if name in rest:
            setattr(module, attribute, list(rest.pop(name)))
    own: Any = module._padding
    if "padding" in rest:
        own = _own_padding(rest.pop("padding"), dims)
        if own is None:
            return False
    mode = rest.pop("padding_mode", module._padding_mode)
    if rest or (own == "SAME" and set(module._dilation) != {1}):
        return False  # with SAME the dilation is not heeded
    module._padding, module._padding_mode = own, mode
    if "transpose" in kind:
        return True
    last = not module._data_format.startswith("NC")
    if mode != "zeros":
        if isinstance(own, str):
            return False
        pairs = list(zip(own[::2], own[1::2], strict=True)) if isinstance(own, list) and len(own) == 2 * dims else None
        pairs = [(n, n) for n in each(own, dims)] if pairs is None else pairs
        module._reversed_padding_repeated_twice = flat(pairs[::-1])
        own = 0
    if dims != 1:
        update = F.conv._update_padding_nd
        module._updated_padding, module._padding_algorithm = update(own, last, dims)
    return True


def _pool(module: Any, kind: str, rest: Settings) -> bool:
    rest, dims = dict(rest), axes_of(kind)
    if "kernel_size" in rest:
        kernel = next(name for name in _KERNEL if name in vars(module))
        if module.stride is None:
            module.stride = getattr(module, kernel)
        setattr(module, kernel, list(rest.pop("kernel_size")))
    if "stride" in rest:
        module.stride = list(rest.pop("stride"))
    if "count_include_pad" in rest:
        module.exclusive = not rest.pop("count_include_pad")
    if "padding" in rest:
        own = _own_padding(rest.pop("padding"), dims)
        if own is None:
            return False
        module.padding = own
    return not rest


def _adaptive(module: Any, kind: str, rest: Settings) -> bool:
    if set(rest) - {"output_size"}:
        return False
    if rest:
        size = rest["output_size"]
        return _set(module, ("_output_size", "output_size"), size[0] if axes_of(kind) == 1 else size)
    return True


def _attention(module: Any, _: str, rest: Settings) -> bool:
    heads = rest.get("num_heads", module.num_heads)
    if set(rest) - {"num_heads"} or module.embed_dim % heads:
        return False
    module.num_heads, module.head_dim = heads, module.embed_dim // heads
    return True


def _transformer_layer(module: Any, _: str, rest: Settings) -> bool:
    if set(rest) - {"norm_first", "activation"}:
        return False
    if "norm_first" in rest:
        module.normalize_before = module._config["normalize_before"] = rest["norm_first"]
    if "activation" in rest:
        module.activation, module._config["activation"] = getattr(F, rest["activation"]), rest["activation"]
    return True


def _recurrent(module: Any, kind: str, rest: Settings) -> bool:
    rest = dict(rest)
    if "batch_first" in rest:
        major = not rest.pop("batch_first")
        for part in (module, *module.children()):
            part.time_major = major
    if kind == "rnn" and "nonlinearity" in rest:
        word = rest.pop("nonlinearity")
        module.activation, module.mode = word, {"tanh": "RNN_TANH", "relu": "RNN_RELU"}[word]
        for cell in module.sublayers():
            if isinstance(cell, nn.SimpleRNNCell):
                _activated(cell, word)
    if rest.get("bias") is False:
        del rest["bias"]
        zeros: dict[int, Any] = {}
        for part in module.sublayers(include_self=True):
            for name, parameter in part._parameters.items():
                if name.startswith("bias") and parameter is not None:
                    part._parameters[name] = zeros.setdefault(id(parameter), _frozen(parameter, 0.0))
        if "_all_weights" in vars(module):
            module._all_weights = [zeros.get(id(weight), weight) for weight in module._all_weights]
    return not rest


def _activated(cell: Any, word: str) -> None:
    cell.activation, cell._activation_fn = word, {"tanh": paddle.tanh, "relu": F.relu}[word]


def _cell(module: Any, kind: str, rest: Settings) -> bool:
    rest = dict(rest)
    if kind == "rnn_cell" and "nonlinearity" in rest:
        _activated(module, rest.pop("nonlinearity"))
    if rest.get("bias") is False:
        del rest["bias"]
        for name in ("bias_ih", "bias_hh"):
            module._parameters[name] = _frozen(module._parameters[name], 0.0)
    return not rest


def _upsample(module: Any, _: str, rest: Settings) -> bool:
    own = vars(module)
    told = resized(own, {name: value for name, value in rest.items() if name != "align_mode"})
    if told is None or set(rest) - set(told) - {"align_mode"} or ("mode" not in own and set(rest) & {"mode"}):
        return False
    if "mode" not in own:  # UpsamplingBilinear2D: the class says the rest
        if set(rest) & {"align_corners", "align_mode"}:
            return False
        told = {"size": extents(told["size"], "bilinear", None), "scale_factor": told["scale_factor"]}
    else:
        told["size"] = extents(told["size"], told["mode"], own["size"])
        told["align_corners"] = bool(told["align_corners"])
        told["align_mode"] = rest.get("align_mode", own["align_mode"])
    for name, value in told.items():
        setattr(module, name, list(value) if isinstance(value, tuple) else value)
    return True


def _pad(module: Any, _: str, rest: Settings) -> bool:
    if set(rest) - {"padding", "mode", "value"}:
        return False
    if "padding" in rest:
        length = len(module.padding)
        module.padding = padded(rest["padding"], length)
    if "mode" in rest:
        module._mode = rest["mode"]
    if "value" in rest:
        module.value = rest["value"]
    return True


def _window(module: Any, kind: str, rest: Settings) -> bool:
    rest = dict(rest)
    for name, attribute in (("kernel_size", _KERNEL), ("stride", _STRIDE), ("dilation", _DILATION)):
        if name in rest and not _set(module, attribute, list(rest.pop(name))):
            return False
    if "output_size" in rest and not _set(module, ("output_sizes",), list(rest.pop("output_size"))):
        return False
    if "padding" in rest:
        padding = rest.pop("padding")
        if SAME in padding:
            return False
        numbers = symmetric(padding)
        module.paddings = [*(p[0] for p in padding), *(p[1] for p in padding)] if numbers is None else numbers
    return not rest


def _smooth_l1(module: Any, _: str, rest: Settings) -> bool:
    if set(rest) - {"beta", "huber"}:
        return False
    if rest:  # where beta is 1, Huber's loss is none other
        module.is_huber = rest.get("huber", module.is_huber and module.delta != 1.0)
        module.delta = rest.get("beta", module.delta)
    return True


_SPECIAL: dict[str, Callable[[Any, str, Settings], bool]] = {
    "linear": _bias_off,
    "bilinear": _bias_off,
    "conv": _conv,
    "conv_transpose": _conv,
    **dict.fromkeys(("batch_norm", "instance_norm", "layer_norm", "group_norm"), _norm),
    "embedding": _embedding,
    "gelu": _gelu,
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_avg_pool": _adaptive,
    "adaptive_max_pool": _adaptive,
    "multihead_attention": _attention,
    "transformer_encoder_layer": _transformer_layer,
    "transformer_decoder_layer": _transformer_layer,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_cell"), _cell),
    "upsample": _upsample,
    "pad": _pad,
    "fold": _window,
    "unfold": _window,
    "smooth_l1_loss": _smooth_l1,
}
