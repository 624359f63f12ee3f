"""MindSpore's layers told otherwise.

Half of what a layer is told it tells its primitives, once, when it is made. A primitive is never changed here, for
MindSpore may share it: another one takes its place, made with the same arguments but for those that differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.nn.layer import rnns

from . import SAME, Settings, axes_of, each, extents, family, flat, padded, resized, symmetric

#: By family of kinds, the settings that are one attribute each, read on every call, and by which names.
_PLAIN: dict[str, dict[str, tuple[str, ...]]] = {
    "group_norm": {"eps": ("eps",), "num_groups": ("num_groups",)},
    "embedding": {name: (name,) for name in ("norm_type", "scale_grad_by_freq")},
    "leaky_relu": {"negative_slope": ("alpha", "negative_slope")},
    "hardtanh": {"min_val": ("min_val",), "max_val": ("max_val",)},
    "gelu": {"approximate": ("approximate",)},
    "softplus": {"beta": ("beta",), "threshold": ("threshold",)},
    "flatten": {"start_dim": ("start_dim",), "end_dim": ("end_dim",)},
    "multihead_attention": {name: (name,) for name in ("dropout", "batch_first", "add_zero_attn")},
    "transformer_encoder_layer": {"norm_first": ("norm_first",)},
    "transformer_decoder_layer": {"norm_first": ("norm_first",)},
    "lstm": {"batch_first": ("batch_first",)},
    "gru": {"batch_first": ("batch_first",)},
    "rnn": {"batch_first": ("batch_first",)},
    "rnn_cell": {"nonlinearity": ("nonlinearity",)},
    "pixel_shuffle": {"upscale_factor": ("upscale_factor",)},
    "pixel_unshuffle": {"downscale_factor": ("downscale_factor",)},
    "cross_entropy_loss": {"ignore_index": ("ignore_index",), "label_smoothing": ("label_smoothing",)},
    "nll_loss": {"ignore_index": ("ignore_index",)},
    "kl_div_loss": {"log_target": ("log_target",)},
}
#: Of the layers of `mindspore.mint`, which keep everything in attributes.
_MINT: dict[str, str] = {
    "conv": "stride dilation",
    "conv_transpose": "stride dilation output_padding",
    "batch_norm": "eps momentum",
    "layer_norm": "eps",
    "softmax": "dim",
    "log_softmax": "dim",
    "elu": "alpha",
    "dropout": "p",
    "max_pool": "kernel_size stride dilation ceil_mode",
    "avg_pool": "kernel_size stride ceil_mode count_include_pad divisor_override",
    "adaptive_avg_pool": "output_size",
    "adaptive_max_pool": "output_size",
    "fold": "output_size kernel_size stride dilation",
    "unfold": "kernel_size stride dilation",
    "l1_loss": "reduction",
    "mse_loss": "reduction",
    "smooth_l1_loss": "reduction beta",
    "cross_entropy_loss": "reduction ignore_index label_smoothing",
    "nll_loss": "reduction ignore_index",
    "bce_loss": "reduction",
    "bce_with_logits_loss": "reduction",
    "kl_div_loss": "reduction log_target",
}


def alter(cell: Any, kind: str, settings: Settings, held: Mapping[str, Any]) -> bool:
    """As `Adapter.alter`; `held` is what the adapter reads of the layer now."""
    group = family(kind)
    plain = dict(_PLAIN.get(group, {}))
    mint = _is_mint(cell)
    if mint:
        plain.update({name: (name,) for name in _MINT.get(group, "").split()})
    rest = {name: value for name, value in settings.items() if name not in plain}
    for name, value in settings.items():
        if name in plain and not _set(cell, plain[name], value):
            return False
    special = (_OF_MINT if mint else _OF_NN).get(group)
    return not rest if special is None else special(cell, kind, rest, held)


def _is_mint(cell: Any) -> bool:
    own = next(c for c in type(cell).__mro__ if c.__module__.startswith("mindspore."))
    return ".mint." in own.__module__ or own.__name__.endswith("Ext") or own.__name__ in ("Linear", "Fold")


def _set(cell: Any, names: tuple[str, ...], value: Any) -> bool:
    """Set the attribute of the first of these names that the layer has."""
    name = next((n for n in names if n in vars(cell)), None)
    if name is not None:
        vars(cell)[name] = value
    return name is not None


def _primitive(cell: Any, name: str, **changes: Any) -> Any:
    """Another primitive in the place of the one of this name."""
    old = cell._primitives[name]
    made = made_like(old, **changes)
    made.set_prim_instance_name(name)
    cell._primitives[name] = made
    vars(cell)[name] = made
    return made


def made_like(primitive: Any, **changes: Any) -> Any:
    """Another primitive, made with the same arguments but for these."""
    return type(primitive)(**{**made_with(primitive), **changes})


def made_with(primitive: Any) -> dict[str, Any]:
    """The arguments that a primitive was made with: some keep them in `init_attrs`, some in attributes."""
    names = [n for n in inspect.signature(type(primitive).__init__).parameters if n != "self"]
    told = {**vars(primitive), **primitive.init_attrs}
    return {name: told[name] for name in names if name in told}


def _as_made(cell: Any, made: Any) -> None:
    """A layer without weights becomes one that was told otherwise."""
    every = vars(nn.Cell())
    for name, value in vars(made).items():
        if name not in every:
            vars(cell)[name] = value
    cell._primitives.update(made._primitives)


def _parameter(cell: Any, name: str, value: float | None) -> None:
    """A parameter is declined: it is None, or a constant that is not trained."""
    own = cell._params[name]
    if value is None:
        del cell._params[name]
        vars(cell)[name] = None
        return
    # from_numpy: an initializer would draw from the random state
    data = Tensor(np.full(own.shape, value, np.float32)).astype(own.dtype)
    cell._params[name] = Parameter(data, name=own.name, requires_grad=False)


def _bias_off(cell: Any, _: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    if rest == {"bias": False}:
        if "bias" in cell._params:
            _parameter(cell, "bias", None)
        cell.has_bias = False
        return True
    return not rest


# -- convolutions ------------------------------------------------------------------------------------------------------

_CONVOLUTIONS = ("conv2d", "conv3d", "conv2d_transpose", "conv3d_transpose")


def _conv(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    rest, dims = dict(rest), axes_of(kind)
    name = next(n for n in _CONVOLUTIONS if n in cell._primitives)
    if "bias" in rest and not _bias_off(cell, kind, {"bias": rest.pop("bias")}, held):
        return False
    changes: dict[str, Any] = {}
    for setting in ("stride", "dilation"):
        if setting in rest:
            before = tuple(getattr(cell, setting))
            value = before[: len(before) - dims] + tuple(rest.pop(setting))
            vars(cell)[setting] = changes[setting] = value
    if "output_padding" in rest:
        told = [int(str(n).split()[0]) if isinstance(n, (int, str)) else 0 for n in rest["output_padding"]]
        if kind != "conv_transpose2d" or any(n and isinstance(n, int) for n in rest.pop("output_padding")):
            return False  # the rows that it adds are zeros, where the others go on computing
        cell.output_padding = tuple(told)
    if "padding" in rest:
        padding = rest.pop("padding")
        own: Any
        if set(padding) == {SAME}:
            mode, own = "same", (0,) * 4 if dims == 1 else 0
        elif SAME in padding:
            return False
        else:
            mode, own = "pad", (0, 0, *flat(padding)) if dims == 1 else tuple(flat(padding))
        vars(cell)["pad_mode"], vars(cell)["padding"] = mode, own
        changes.update(pad_mode=mode, pad=own)
        if "is_pad" in vars(cell):
            cell.is_valid, cell.is_same, cell.is_pad = False, mode == "same", mode == "pad"
        if "padding_top" in vars(cell):
            each_side = own if isinstance(own, tuple) else (0,) * 4
            cell.padding_top, cell.padding_bottom, cell.padding_left, cell.padding_right = each_side
    if rest:
        return rest == {"padding_mode": "zeros"}
    if changes:
        _primitive(cell, name, **changes)
    return True


def _conv_of_mint(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    rest = dict(rest)
    if rest.get("bias") is False:
        _parameter(cell, "bias", None)
        del rest["bias"]
    if "padding" in rest and cell.padding_mode == "zeros" and not isinstance(cell.padding, str):
        numbers = symmetric(rest.pop("padding"))
        if numbers is None:
            return False
        cell.padding = tuple(numbers)
    return not rest


# -- pools -------------------------------------------------------------------------------------------------------------


def _pool(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    dims, maximum = axes_of(kind), kind.startswith("max")
    names = {"kernel_size", "stride", "padding", "ceil_mode"}
    names |= {"dilation"} if maximum else {"count_include_pad", "divisor_override"}
    if set(rest) - names:
        return False
    kernel = tuple(rest.get("kernel_size", each(held["kernel_size"], dims)))
    stride = tuple(rest.get("stride", each(held["stride"], dims)))
    padding = rest.get("padding")
    if padding is None:
        own = held.get("padding", 0)
        pairs = isinstance(own, list) and len(own) == 2 * dims
        padding = tuple(zip(own[::2], own[1::2], strict=True)) if pairs else None
        if padding is None:
            padding = (SAME,) * dims if own == SAME else tuple((n, n) for n in each(own, dims))
    more: dict[str, Any] = {"ceil_mode": rest.get("ceil_mode", bool(held.get("ceil_mode", False)))}
    if maximum:
        dilation = tuple(rest.get("dilation", each(held.get("dilation", 1), dims)))
        more["dilation"] = 1 if set(dilation) == {1} else dilation
    else:
        more["count_include_pad"] = rest.get("count_include_pad", bool(held.get("count_include_pad", True)))
        if dims > 1:
            more["divisor_override"] = rest.get("divisor_override", held.get("divisor_override"))
    mode: dict[str, Any]
    if set(padding) == {SAME}:
        if more["ceil_mode"] or more.get("dilation", 1) != 1 or more.get("divisor_override") is not None:
            return False
        if rest.get("count_include_pad"):
            return False  # what is added there never counts
        mode, more = {"pad_mode": "same"}, {}
    else:
        numbers = symmetric(padding)
        if numbers is None:
            return False
        if kind == "max_pool3d" and (any(numbers) or more.get("dilation", 1) != 1):
            return False  # it could not be read afterwards
        # without anything special the layer takes another kernel
        plain = not any(numbers) and more in (
            {"ceil_mode": False, "dilation": 1},
            {"ceil_mode": False, "count_include_pad": True},
            {"ceil_mode": False, "count_include_pad": True, "divisor_override": None},
        )
        mode = {"pad_mode": "valid"} if plain else {"pad_mode": "pad", "padding": tuple(numbers)}
        if plain:
            more = {}
        elif dims == 1:
            mode["padding"] = numbers[0]
    cls = getattr(nn, f"{'Max' if maximum else 'Avg'}Pool{dims}d")
    if maximum:
        more["return_indices"] = cell.return_indices
        if cell.return_indices and mode["pad_mode"] != "pad":
            mode = {"pad_mode": "pad"}
    sizes = (kernel[0], stride[0]) if dims == 1 else (kernel, stride)
    _as_made(cell, cls(*sizes, **mode, **more))
    return True


def _pool_of_mint(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    if set(rest) - {"padding"}:
        return False
    numbers = symmetric(rest.get("padding", ()))
    if numbers:
        cell.padding = tuple(numbers)
    return numbers is not None


def _adaptive(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    if set(rest) - {"output_size"} or kind == "adaptive_max_pool3d":
        return False
    if rest:
        size = tuple(rest["output_size"])
        cls = getattr(nn, f"Adaptive{'Max' if 'max' in kind else 'Avg'}Pool{axes_of(kind)}d")
        more = {"return_indices": cell.return_indices} if kind == "adaptive_max_pool2d" else {}
        _as_made(cell, cls(size[0] if axes_of(kind) == 1 else size, **more))
    return True


# -- norms -------------------------------------------------------------------------------------------------------------

_STATISTICS = {"of the batch in training": None, "of the batch": True, "those it keeps": False}


def _batch_norm(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    inner = cell._cells.get("bn2d", cell)
    for name, value in rest.items():
        if name == "eps":
            inner.eps = value
            _primitive(inner, "bn_train", epsilon=value)
            _primitive(inner, "bn_infer", epsilon=value)
        elif name == "momentum":
            inner.momentum = value
            _primitive(inner, "bn_train", momentum=value)
        elif name == "affine" and value is False:
            _parameter(inner, "gamma", 1.0)
            _parameter(inner, "beta", 0.0)
        elif name == "statistics" and value in _STATISTICS:
            inner.use_batch_statistics = _STATISTICS[value]
        else:
            return False
    return True


def _instance_norm(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    for name, value in rest.items():
        if name == "eps":
            cell.eps = value
            _primitive(cell, "instance_bn", epsilon=value)
        elif name == "affine" and value is False:
            _parameter(cell, "gamma", 1.0)
            _parameter(cell, "beta", 0.0)
        else:
            return False
    return True


def _layer_norm(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    for name, value in rest.items():
        if name == "eps":
            cell.epsilon = value
            _primitive(cell, "layer_norm", epsilon=value)
        elif name == "normalized_shape":
            weights = tuple(cell.normalized_shape)
            known = tuple(n for n in value if n != "*")
            if not known or known != weights[-len(known) :] or (len(known) < len(value) and known != weights):
                return False
            axis = -1 if len(value) == 1 else cell.begin_params_axis + len(weights) - len(value)
            if axis < -1 or (cell.begin_params_axis < 0 and len(value) > 1):
                return False  # the primitive takes no other negative axis
            cell.begin_norm_axis = axis
            _primitive(cell, "layer_norm", begin_norm_axis=axis)
        else:
            return False
    return True


def _affine_of_mint(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    for name, value in rest.items():
        if name == "elementwise_affine" and value is False:
            _parameter(cell, "weight", None)
            if cell._params.get("bias") is not None:
                _parameter(cell, "bias", None)
            cell.elementwise_affine = False
        elif name == "bias" and value is False:
            _parameter(cell, "bias", None)
        else:
            return False
    return True


def _group_norm(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    if set(rest) - {"affine"} or rest.get("affine"):
        return False
    if rest:
        names = ("gamma", "beta") if "gamma" in cell._params else ("weight", "bias")
        _parameter(cell, names[0], 1.0)
        _parameter(cell, names[1], 0.0)
        cell.affine = False
    return True


def _response_norm(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    told = made_with(cell._primitives["lrn_op"])
    size = 2 * told["depth_radius"] + 1
    now = {"size": size, "alpha": told["alpha"] * size, "beta": told["beta"], "k": told["bias"]} | dict(rest)
    if set(now) - {"size", "alpha", "beta", "k"} or now["size"] % 2 == 0:
        return False
    radius, alpha = (now["size"] - 1) // 2, now["alpha"] / now["size"]
    _primitive(cell, "lrn_op", depth_radius=radius, alpha=alpha, beta=now["beta"], bias=float(now["k"]))
    return True


# -- the others --------------------------------------------------------------------------------------------------------


def _by_primitive(primitive: str, setting: str, argument: str) -> Callable[..., bool]:
    def change(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
        if set(rest) - {setting}:
            return False
        if rest:
            _primitive(cell, primitive, **{argument: rest[setting]})
        return True

    return change


def _dropout(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    if set(rest) - {"p"}:
        return False
    if not rest:
        return True
    p = float(rest["p"])
    if kind == "dropout1d":
        cell.prob = p
        return True
    if kind == "dropout":
        cell.p = p
    cell.keep_prob = 1.0 - p
    _primitive(cell, kind, keep_prob=1.0 - p)
    return True


def _attention(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    heads = rest.get("num_heads", cell.num_heads)
    if set(rest) - {"num_heads"} or cell.embed_dim % heads:
        return False
    cell.num_heads, cell.head_dim = heads, cell.embed_dim // heads
    return True


def _transformer_layer(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    if set(rest) - {"activation"} or rest.get("activation", "relu") not in ("relu", "gelu"):
        return False
    if rest:
        cell.activation1 = rest["activation"]
        made = {"relu": ops.relu, "gelu": ops.gelu}[rest["activation"]]
        cell._cells.pop("activation", None)
        vars(cell)["activation"] = made
    return True


def _recurrent(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    rest = dict(rest)
    if rest.get("bias") is False:
        cell.has_bias = False
        del rest["bias"]
    if "dropout" in rest:
        cell.dropout = float(rest.pop("dropout"))
        _dropout(cell._cells["dropout_op"], "dropout", {"p": cell.dropout}, held)
    if kind == "rnn" and "nonlinearity" in rest:
        word = rest.pop("nonlinearity")
        cell._cells["rnn"] = {"relu": rnns._DynamicRNNRelu, "tanh": rnns._DynamicRNNTanh}[word]()
    return not rest


def _cell(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    if rest == {"bias": False}:
        for name in ("bias_ih", "bias_hh"):
            if name in cell._params:
                _parameter(cell, name, None)
        cell.has_bias = False
        return True
    return not rest


def _upsample(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    told = resized(vars(cell), rest)
    if told is None or set(rest) - set(told):
        return False
    told["size"] = extents(told["size"], told["mode"], cell.size)
    vars(cell).update(told)
    return True


_PADS = {"constant": "Constant", "reflect": "Reflection", "replicate": "Replication"}


def _pad(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    """Which function pads, the class says: another layer's takes its place."""
    own = next(c for c in type(cell).__mro__ if c.__module__.startswith("mindspore."))
    if set(rest) - {"padding", "mode", "value"} or "construct" not in dir(own):
        return False
    now = {"padding": held["padding"], "value": held.get("value", 0.0), **rest}
    if own.__name__ == "Pad":
        mode = str(now.get("mode", cell.mode)).upper()
        if now["value"] or mode not in ("CONSTANT", "REFLECT"):
            return False
        numbers = padded(now["padding"], 2 * len(cell.paddings))
        pairs = tuple(zip(numbers[::2], numbers[1::2], strict=True))[::-1]
        _as_made(cell, nn.Pad(pairs, mode))
        return True
    dims = int(own.__name__[-2])
    word = now.get("mode") or next((m for m, name in _PADS.items() if own.__name__.startswith(name)), "constant")
    if word not in _PADS:
        return False
    sides = tuple(padded([int(n) for n in now["padding"]], 2 * dims))
    cls = getattr(nn, f"{_PADS[word]}Pad{dims}d")
    made = cls(sides, now["value"]) if word == "constant" else cls(sides)
    # a ReflectionPad keeps pairs, the first axis first
    vars(cell)["padding"] = own(sides).padding if own.__name__.startswith("Reflection") else sides
    vars(cell).update(mode=word, value=now["value"], construct=made.construct)
    return True


def _loss(cell: Any, kind: str, rest: Settings, held: Mapping[str, Any]) -> bool:
    if set(rest) - {"reduction", "beta"} or ("beta" in rest and kind != "smooth_l1_loss"):
        return False
    if kind == "smooth_l1_loss" and rest:
        vars(cell).update(rest)
        _primitive(cell, "smooth_l1_loss", **rest)
    if "reduction" in rest:
        word = rest["reduction"]
        if word not in ("mean", "sum", "none"):
            return False
        if "reduction" in vars(cell):
            cell.reduction = word
        cell.average, cell.reduce = word != "sum", word != "none"
    return True


_Special = Callable[[Any, str, Settings, Mapping[str, Any]], bool]
_OF_BOTH: dict[str, _Special] = {
    "linear": _bias_off,
    "bilinear": _bias_off,
    "group_norm": _group_norm,
    "multihead_attention": _attention,
    "transformer_encoder_layer": _transformer_layer,
    "transformer_decoder_layer": _transformer_layer,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_cell"), _cell),
    "upsample": _upsample,
}
_OF_NN: dict[str, _Special] = {
    **_OF_BOTH,
    "conv": _conv,
    "conv_transpose": _conv,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "local_response_norm": _response_norm,
    "elu": _by_primitive("elu", "alpha", "alpha"),
    "celu": _by_primitive("celu", "alpha", "alpha"),
    "softmax": _by_primitive("softmax", "dim", "axis"),
    "log_softmax": _by_primitive("log_softmax", "dim", "axis"),
    "dropout": _dropout,
    "max_pool": _pool,
    "avg_pool": _pool,
    "adaptive_avg_pool": _adaptive,
    "adaptive_max_pool": _adaptive,
    "pad": _pad,
    **{
        f"{name}_loss": _loss
        for name in ("mse", "l1", "smooth_l1", "cross_entropy", "nll", "bce", "bce_with_logits", "kl_div")
    },
}
_OF_MINT: dict[str, _Special] = {
    **_OF_BOTH,
    "conv": _conv_of_mint,
    "conv_transpose": _conv_of_mint,
    "layer_norm": _affine_of_mint,
    "max_pool": _pool_of_mint,
    "avg_pool": _pool_of_mint,
    "fold": _pool_of_mint,
    "unfold": _pool_of_mint,
}
