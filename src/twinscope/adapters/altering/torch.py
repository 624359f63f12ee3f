"""PyTorch's layers told otherwise: they read their attributes on every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from . import SAME, Settings, axes_of, each, family, flat, padded, resized, same_padding, symmetric

#: By family of kinds, the settings that are attributes of the same name, read on every call.
_PLAIN: dict[str, str] = {
    "batch_norm": "eps momentum",
    "instance_norm": "eps momentum",
    "layer_norm": "eps",
    "group_norm": "eps num_groups",
    "rms_norm": "eps",
    "local_response_norm": "size alpha beta k",
    "embedding": "padding_idx norm_type scale_grad_by_freq",
    "leaky_relu": "negative_slope",
    "elu": "alpha",
    "celu": "alpha",
    "gelu": "approximate",
    "hardtanh": "min_val max_val",
    "softplus": "beta threshold",
    "softmax": "dim",
    "log_softmax": "dim",
    "flatten": "start_dim end_dim",
    "dropout": "p",
    "alpha_dropout": "p",
    "adaptive_avg_pool": "output_size",
    "adaptive_max_pool": "output_size",
    "multihead_attention": "dropout batch_first add_zero_attn",
    "transformer_encoder_layer": "norm_first",
    "transformer_decoder_layer": "norm_first",
    "lstm": "batch_first dropout",
    "gru": "batch_first dropout",
    "rnn": "batch_first dropout",
    "rnn_cell": "nonlinearity",
    "pixel_shuffle": "upscale_factor",
    "pixel_unshuffle": "downscale_factor",
    "fold": "output_size kernel_size stride dilation",
    "unfold": "kernel_size stride dilation",
    "conv": "stride dilation",
    "conv_transpose": "stride dilation output_padding",
    "max_pool": "kernel_size stride dilation ceil_mode",
    "avg_pool": "kernel_size stride ceil_mode count_include_pad divisor_override",
    "cosine_similarity": "dim eps",
    "mse_loss": "reduction",
    "l1_loss": "reduction",
    "smooth_l1_loss": "reduction beta",
    "cross_entropy_loss": "reduction ignore_index label_smoothing",
    "nll_loss": "reduction ignore_index",
    "bce_loss": "reduction",
    "bce_with_logits_loss": "reduction",
    "kl_div_loss": "reduction log_target",
}


def alter(module: Any, kind: str, settings: Settings) -> bool:
    """As `Adapter.alter`."""
    group = family(kind)
    plain = _PLAIN.get(group, "").split()
    rest = {name: value for name, value in settings.items() if name not in plain}
    for name, value in settings.items():
        if name in plain:
            if name not in vars(module):
                return False
            setattr(module, name, value)
    special = _SPECIAL.get(group)
    return not rest if special is None else special(module, kind, {**settings, "rest": rest})


def _without(module: Any, *names: str) -> None:
    """These parameters are declined."""
    for name in names:
        if name in module._parameters:
            module._parameters[name] = None


def _bias_off(module: Any, _: str, settings: Settings) -> bool:
    if settings["rest"] == {"bias": False}:
        _without(module, "bias")
        return True
    return not settings["rest"]


def _norm(module: Any, _: str, settings: Settings) -> bool:
    for name, value in settings["rest"].items():
        if name in ("affine", "elementwise_affine") and value is False:
            _without(module, "weight", "bias")
            setattr(module, name, False)
        elif name == "bias" and value is False:
            _without(module, "bias")
        elif name == "track_running_stats":
            _statistics(module, bool(value))
        elif name == "normalized_shape" and not module._parameters.get("weight") and "*" not in value:
            module.normalized_shape = tuple(value)
        else:
            return False
    return True


def _statistics(module: Any, kept: bool) -> None:
    if kept and module._buffers.get("running_mean") is None:
        module._buffers["running_mean"] = torch.zeros(module.num_features)
        module._buffers["running_var"] = torch.ones(module.num_features)
        module._buffers["num_batches_tracked"] = torch.tensor(0)
    elif not kept:
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            module._buffers[name] = None
    module.track_running_stats = kept


def _embedding(module: Any, _: str, settings: Settings) -> bool:
    if settings["rest"] != {"max_norm": None} and settings["rest"]:
        return False  # with a norm the weights themselves are changed
    if "max_norm" in settings["rest"]:
        module.max_norm = None
    return True


def _conv(module: Any, kind: str, settings: Settings) -> bool:
    rest = dict(settings["rest"])
    dims = axes_of(kind)
    if rest.pop("bias", None) is False:
        _without(module, "bias")
    elif "bias" in settings["rest"]:
        return False
    padding = rest.pop("padding", None)
    mode = rest.pop("padding_mode", module.padding_mode)
    if rest:
        return False
    if padding is None:
        if "padding_mode" not in settings and not isinstance(module.padding, str):
            return True
        padding = (SAME,) * dims if module.padding == SAME else (0,) * dims if module.padding == "valid" else None
        padding = tuple((n, n) for n in each(module.padding, dims)) if padding is None else padding
    numbers = symmetric(padding)
    if "transpose" in kind:
        if numbers is not None:
            module.padding = tuple(numbers)
        return numbers is not None and mode == "zeros"
    module.padding_mode = mode
    if numbers is not None:
        module.padding = tuple(numbers)
        module._reversed_padding_repeated_twice = flat([(n, n) for n in reversed(numbers)])
        return True
    if type(module)._conv_forward is not _CONVOLUTIONS[dims][0]._conv_forward:
        return False
    if SAME in padding and set(padding) != {SAME}:
        return False
    module.padding = SAME if SAME in padding else tuple(flat(padding))
    module._conv_forward = _padded_first(module, padding, dims)
    return True


_CONVOLUTIONS: dict[int, tuple[Any, Any]] = {
    1: (nn.Conv1d, F.conv1d),
    2: (nn.Conv2d, F.conv2d),
    3: (nn.Conv3d, F.conv3d),
}


def _padding_for(input: Any, padding: Any, kernel: Any, stride: Any, dilation: Any) -> list[int]:
    """As `F.pad` takes it: the last axis first."""
    dims = len(padding)
    kernels, strides, dilations = each(kernel, dims), each(stride, dims), each(dilation, dims)
    pairs = [
        same_padding(int(input.shape[axis - dims]), kernels[axis], strides[axis], dilations[axis])
        if padding[axis] == SAME
        else tuple(padding[axis])
        for axis in range(dims)
    ]
    return flat(pairs[::-1])


def _padded_first(module: Any, padding: Any, dims: int) -> Callable[..., Any]:
    """A convolution that pads more on one side, which torch's own cannot."""

    def forward(input: Any, weight: Any, bias: Any) -> Any:
        numbers = _padding_for(input, padding, module.kernel_size, module.stride, module.dilation)
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        own = F.pad(input, numbers, mode=mode)
        return _CONVOLUTIONS[dims][1](own, weight, bias, module.stride, 0, module.dilation, module.groups)

    return forward


def _pool(module: Any, kind: str, settings: Settings) -> bool:
    rest, dims = dict(settings["rest"]), axes_of(kind)
    padding = rest.pop("padding", None)
    if rest:
        return False
    if padding is None:
        return True
    numbers = symmetric(padding)
    if numbers is not None:
        module.padding = tuple(numbers)
        return True
    if not type(module).forward.__module__.startswith("torch.") or (SAME in padding and set(padding) != {SAME}):
        return False
    if vars(module).get("return_indices") or vars(module).get("ceil_mode"):
        return False
    module.padding = SAME if SAME in padding else tuple(flat(padding))
    module.forward = _pool_padded_first(module, padding, dims, kind.startswith("max"))
    return True


def _pool_padded_first(module: Any, padding: Any, dims: int, maximum: bool) -> Callable[[Any], Any]:
    function = getattr(F, f"{'max' if maximum else 'avg'}_pool{dims}d")

    def forward(input: Any) -> Any:
        dilation = getattr(module, "dilation", 1)
        numbers = _padding_for(input, padding, module.kernel_size, module.stride, dilation)
        own = F.pad(input, numbers, value=float("-inf") if maximum else 0.0)
        if maximum:
            return function(own, module.kernel_size, module.stride, 0, dilation)
        pooled = function(own, module.kernel_size, module.stride)
        divisor = getattr(module, "divisor_override", None)
        if divisor is not None:
            size = 1
            for n in each(module.kernel_size, dims):
                size *= n
            return pooled * (size / divisor)
        if module.count_include_pad:
            return pooled
        # of SAME, what is added never counts
        return pooled / function(F.pad(torch.ones_like(input), numbers), module.kernel_size, module.stride)

    return forward


def _attention(module: Any, _: str, settings: Settings) -> bool:
    rest = dict(settings["rest"])
    heads = rest.pop("num_heads", module.num_heads)
    if rest or module.embed_dim % heads:
        return False
    module.num_heads, module.head_dim = heads, module.embed_dim // heads
    return True


_ACTIVATIONS: dict[str, tuple[Any, int]] = {"relu": (F.relu, 1), "gelu": (F.gelu, 2)}


def _transformer_layer(module: Any, _: str, settings: Settings) -> bool:
    rest = dict(settings["rest"])
    name = rest.pop("activation", None)
    if name is not None:
        if name not in _ACTIVATIONS:
            return False
        module.activation, fast = _ACTIVATIONS[name]
        if "activation_relu_or_gelu" in vars(module):
            module.activation_relu_or_gelu = fast
    return not rest


def _recurrent(module: Any, kind: str, settings: Settings) -> bool:
    rest = dict(settings["rest"])
    if rest.pop("bias", None) is False:
        kept = [n for n, name in enumerate(module._flat_weights_names) if not name.startswith("bias")]
        module._flat_weights = [module._flat_weights[n] for n in kept]
        module._flat_weights_names = [module._flat_weights_names[n] for n in kept]
        module._all_weights = [[n for n in names if not n.startswith("bias")] for names in module._all_weights]
        module.bias = False
    elif "bias" in settings["rest"]:
        return False
    if kind == "rnn" and "nonlinearity" in rest:
        module.nonlinearity = rest.pop("nonlinearity")
        module.mode = {"tanh": "RNN_TANH", "relu": "RNN_RELU"}[module.nonlinearity]
    return not rest


def _cell(module: Any, _: str, settings: Settings) -> bool:
    if settings["rest"] == {"bias": False}:
        _without(module, "bias_ih", "bias_hh")
        module.bias = False
        return True
    return not settings["rest"]


def _upsample(module: Any, _: str, settings: Settings) -> bool:
    told = resized(vars(module), settings["rest"])
    if told is None or set(settings["rest"]) - set(told):
        return False
    for name, value in told.items():
        setattr(module, name, value)
    return True


def _pad(module: Any, _: str, settings: Settings) -> bool:
    if not type(module).forward.__module__.startswith("torch.") or set(settings["rest"]) - {"padding", "mode", "value"}:
        return False
    if "padding" in settings:
        module.padding = tuple(padded(settings["padding"], len(module.padding)))
    if "value" in settings:
        module.value = settings["value"]
    mode = settings.get("mode")
    if mode is not None:
        module.mode = mode

        def forward(input: Any) -> Any:
            value = getattr(module, "value", 0.0) if mode == "constant" else None
            return F.pad(input, module.padding, mode=mode, value=value)

        module.forward = forward
    return True


def _window(module: Any, _: str, settings: Settings) -> bool:
    rest = dict(settings["rest"])
    numbers = symmetric(rest.pop("padding", ()))
    if numbers:
        module.padding = tuple(numbers)
    return numbers is not None and not rest


_SPECIAL: dict[str, Callable[[Any, str, Settings], bool]] = {
    "linear": _bias_off,
    "bilinear": _bias_off,
    "conv": _conv,
    "conv_transpose": _conv,
    **dict.fromkeys(("batch_norm", "instance_norm", "layer_norm", "group_norm"), _norm),
    "embedding": _embedding,
    "max_pool": _pool,
    "avg_pool": _pool,
    "multihead_attention": _attention,
    "transformer_encoder_layer": _transformer_layer,
    "transformer_decoder_layer": _transformer_layer,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_cell"), _cell),
    "upsample": _upsample,
    "pad": _pad,
    "fold": _window,
    "unfold": _window,
}
