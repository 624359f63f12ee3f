"""From what an adapter says of a layer to neutral settings, and whether two of these mean the same.

A setting that cannot be read is left out: nothing is said of it. One that a framework's layer does not have is what
the layer always does, where the table knows it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records import ModuleInfo
from .table import IMPLIED, MINDSPORE, PADDLE, UNSET, Setting, Settings, default_of, flavour_of, settings_of

#: Padding of one axis that depends on the input's size: as much as makes ceil(size / stride) outputs.
SAME = "same"

#: Attributes of other names than the setting's.
_NAMES = {"prob": "p", "activation1": "activation", "delta": "beta", "is_huber": "huber"}


def neutral(framework: str, info: ModuleInfo) -> dict[str, Any]:
    """The settings of a layer in neutral form; those that cannot be read are not there.

    >>> given = {"kernel_size": 2, "stride": None, "padding": 0}
    >>> neutral("torch", ModuleInfo("pool", "torch.nn.MaxPool2d", "max_pool2d", True, attributes=given))
    {'kernel_size': (2, 2), 'stride': (2, 2), 'padding': ((0, 0), (0, 0)), 'channels_last': False}
    """
    kind = info.kind or ""
    flavour = flavour_of(framework, info)
    given = {_NAMES.get(name, name): value for name, value in info.attributes.items()}
    given.update(IMPLIED.get((framework, info.type.rsplit(".", 1)[-1]), {}))
    _read(kind, flavour, info, given)
    found: dict[str, Any] = {}
    for setting in settings_of(kind):
        if flavour not in setting.defaults:
            continue  # nothing is known of it there
        if setting.name in given:
            found[setting.name] = given[setting.name]
        elif setting.is_fixed(flavour):
            found[setting.name] = setting.defaults[flavour]
    dims = int(kind[-2]) if re.search(r"[123]d$", kind) else 2
    _sizes(kind, dims, flavour, info, found)
    return {s.name: found[s.name] for s in settings_of(kind) if s.name in found}


def _read(kind: str, flavour: str, info: ModuleInfo, given: dict[str, Any]) -> None:
    """What is not said by an attribute of the setting's own name."""
    roles = {p.role for p in info.params}
    if kind in ("linear", "bilinear", "layer_norm") or kind.startswith("conv"):
        if info.params:
            given["bias"] = "bias" in roles
        elif not isinstance(given.get("bias"), bool):
            given.pop("bias", None)
    elif kind.removesuffix("_cell") in ("lstm", "gru", "rnn") and flavour == PADDLE and info.params:
        # a bias that was declined is there all the same, frozen zeros
        if any(p.trainable for p in info.params if p.role.startswith("weight")):
            given["bias"] = any(p.trainable for p in info.params if p.role.startswith("bias"))
        else:
            given.pop("bias", None)
    if "data_format" in given:
        given["channels_last"] = str(given["data_format"] or "NC").upper().endswith("C")
    if "batch_norm" in kind:
        if given.get("use_global_stats"):
            given["statistics"] = "those it keeps"
        elif given.get("use_batch_statistics") is not None and flavour == MINDSPORE:
            given["statistics"] = "of the batch" if given["use_batch_statistics"] else "those it keeps"
        elif flavour in (PADDLE, MINDSPORE):
            given["statistics"] = "of the batch in training"
    elif kind == "layer_norm" and flavour == MINDSPORE:
        _normalized(given)
    elif kind == "embedding":
        row, rows = given.get("padding_idx"), given.get("num_embeddings")
        if flavour == MINDSPORE:
            given["padding_idx"] = None  # it only says how the row begins
        elif isinstance(row, int) and row < 0 and isinstance(rows, int):
            given["padding_idx"] = row + rows
    elif kind == "local_response_norm" and "depth_radius" in given:
        given["size"] = 2 * given["depth_radius"] + 1
        given["k"] = given.get("bias")
        given["alpha"] = given["alpha"] * given["size"]  # of the sum there, of the mean elsewhere
    elif kind in ("rnn", "rnn_cell") and "nonlinearity" not in given and "activation" in given:
        given["nonlinearity"] = given["activation"]
    elif kind == "pad":
        _pad(info.type, given)
    elif kind.endswith("_loss") and "reduction" not in given and "reduce" in given:
        given["reduction"] = "none" if not given["reduce"] else "mean" if given.get("average") else "sum"
    elif kind == "smooth_l1_loss" and given.get("beta") == 1.0:
        given["huber"] = False  # where the two are one
    elif kind == "upsample" and "align_corners" in given:
        given["align_corners"] = bool(given["align_corners"])
    elif "pool" in kind and flavour == MINDSPORE and str(given.get("pad_mode")).lower() != "pad":
        given.update(dilation=1, ceil_mode=False, divisor_override=None)
        if str(given.get("pad_mode")).lower() == "same":
            given["count_include_pad"] = False  # what is added there never counts
    for name in ("activation", "nonlinearity", "mode", "reduction"):
        if isinstance(given.get(name), str):
            given[name] = given[name].lower()


def _normalized(given: dict[str, Any]) -> None:
    """MindSpore counts the axes to normalise apart from the shape of the weights."""
    shape, norm, params = (given.get(n) for n in ("normalized_shape", "begin_norm_axis", "begin_params_axis"))
    if not isinstance(shape, (list, tuple)) or not isinstance(norm, int) or not isinstance(params, int):
        return
    if norm < 0:
        axes = -norm
    elif params >= 0:
        axes = params + len(shape) - norm
    else:
        del given["normalized_shape"]  # it depends on the input
        return
    given["normalized_shape"] = ["*"] * (axes - len(shape)) + list(shape)[max(len(shape) - axes, 0) :]


_PAD_WORDS = {"reflection": "reflect", "replication": "replicate", "circular": "circular", "edge": "replicate"}


def _pad(type_: str, given: dict[str, Any]) -> None:
    word = given.get("mode") or re.sub(r"Pad\d?[dD]?$", "", type_.rsplit(".", 1)[-1])
    word = str(word).lower() or "constant"
    given["mode"] = _PAD_WORDS.get(word, "constant" if word == "zero" else word)
    if given["mode"] == "constant":
        given.setdefault("value", 0.0)
    padding = given.get("padding")
    if isinstance(padding, (list, tuple)):
        pairs = list(zip(padding[::2], padding[1::2], strict=False))
        while pairs and pairs[-1] == (0, 0):
            pairs.pop()
        given["padding"] = tuple(n for pair in pairs for n in pair)


def _sizes(kind: str, dims: int, flavour: str, info: ModuleInfo, found: dict[str, Any]) -> None:
    spatial = "conv" in kind or "pool" in kind or kind in ("fold", "unfold")
    for name in ("kernel_size", "stride", "dilation", "output_padding", "output_size"):
        if name not in found:
            continue
        if name == "stride" and found[name] is None:
            found[name] = found.get("kernel_size")
        found[name] = _each(found[name], dims) if spatial else found[name]
    if spatial:
        word = str(info.attributes.get("padding")).lower()
        if word == SAME and flavour == PADDLE and "dilation" in found:
            found["dilation"] = (1,) * dims  # which Paddle then does not heed
        if kind == "conv_transpose2d" and flavour == MINDSPORE and any(found.get("output_padding", ())):
            found["output_padding"] = tuple(f"{n} of zeros" for n in found["output_padding"])
        if "padding" in found:
            padding = _padding(found.pop("padding"), dims, flavour, kind)
            if padding is not None:
                transposed = "transpose" in kind and flavour != PADDLE
                found["padding"] = _settled(padding, found, transposed)
    for name in ("normalized_shape", "scale_factor", "size", "dim"):
        if isinstance(found.get(name), list):
            found[name] = tuple(found[name])
    if kind == "upsample":
        for name in ("scale_factor", "size"):
            value = found.get(name)
            if isinstance(value, tuple) and len(set(value)) == 1:
                found[name] = value[0]
    if kind in ("softmax", "log_softmax") and isinstance(found.get("dim"), tuple) and len(found["dim"]) == 1:
        found["dim"] = found["dim"][0]


def _each(value: Any, dims: int) -> Any:
    """One value for each axis; what has more is of a layer that works on more axes than it shows."""
    if isinstance(value, (list, tuple)):
        return tuple(value[-dims:]) if len(value) > 1 else tuple(value) * dims
    return (value,) * dims


def _padding(value: Any, dims: int, flavour: str, kind: str) -> tuple[Any, ...] | None:
    """(before, after) for each axis, or SAME; None where it cannot be read."""
    if isinstance(value, str):
        word = value.lower()
        return {"same": (SAME,) * dims, "valid": ((0, 0),) * dims}.get(word)
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return ((value, value),) * dims
    if not isinstance(value, (list, tuple)) or not all(isinstance(n, int) for n in value):
        return None
    if len(value) >= 2 * dims:
        value = value[-2 * dims :]
        if kind == "unfold" and flavour == PADDLE:  # top, left, bottom, right
            return tuple(zip(value[:dims], value[dims:], strict=True))
        return tuple(zip(value[::2], value[1::2], strict=True))
    return tuple((n, n) for n in _each(value, dims))


def _settled(padding: tuple[Any, ...], found: Settings, transposed: bool) -> tuple[Any, ...]:
    """With SAME as numbers on those axes where it does not depend on the input."""
    if SAME not in padding:
        return padding
    settled = []
    for axis, value in enumerate(padding):
        window, stride = _window(found, axis), _on(found, "stride", axis)
        if value == SAME and window is not None and stride is not None:
            total = window - stride if transposed else window - 1
            if (transposed and total >= 0) or (not transposed and (stride == 1 or window == 1)):
                value = (total // 2, total - total // 2)
        settled.append(value)
    return tuple(settled)


def _on(found: Settings, name: str, axis: int) -> int | None:
    value = found.get(name)
    return value[axis] if isinstance(value, tuple) and isinstance(value[axis], int) else None


def _window(found: Settings, axis: int) -> int | None:
    kernel, dilation = _on(found, "kernel_size", axis), _on(found, "dilation", axis)
    return None if kernel is None else (kernel - 1) * (dilation or 1) + 1


# -- comparing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """That two settings differ; with a reservation, that they may."""

    reservation: str = ""

    @property
    def sure(self) -> bool:
        return not self.reservation


def difference(setting: Setting, a: Settings, b: Settings) -> Difference | None:
    """Whether two layers differ in one setting; None where they do not, or it changes nothing, or is not known.

    >>> from .table import TABLE
    >>> eps = TABLE["layer_norm"][0]
    >>> difference(eps, {"eps": 1e-5}, {"eps": 1e-7})
    Difference(reservation='')
    >>> difference(eps, {"eps": 1e-5}, {"eps": 0.00001}) is None
    True
    """
    if setting.name not in a or setting.name not in b:
        return None
    if setting.matters is not None and not (setting.matters(a) or setting.matters(b)):
        return None
    x, y = a[setting.name], b[setting.name]
    if _equal(x, y):
        return None
    if setting.compared == "axis":
        return _axes(x, y)
    if setting.compared == "padding":
        return _paddings(x, y, a)
    if setting.compared == "layout":
        return Difference("none where the axes of the input are moved to match")
    if setting.compared == "extent" and None in (x, y):
        return Difference("one is told a size, the other a factor")
    return Difference()


def is_default(setting: Setting, flavour: str, settings: Settings) -> bool | None:
    """Whether a layer was left at its default; None where that is not known."""
    default = default_of(setting, flavour, settings)
    if default is UNSET or setting.name not in settings:
        return None
    value = settings[setting.name]
    if setting.compared == "padding":
        each = (SAME,) if default == SAME else ((default, default),)
        return bool(value == _settled(each * len(value), settings, transposed="output_padding" in settings))
    if isinstance(value, tuple) and not isinstance(default, tuple):
        return all(_equal(v, default) for v in value)
    return _equal(value, default)


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(_equal(p, q) for p, q in zip(x, y, strict=True))
    if isinstance(x, bool) or isinstance(y, bool):
        return bool(x) == bool(y) if isinstance(x, (bool, int)) and isinstance(y, (bool, int)) else x is y
    if isinstance(x, (int, float)) and isinstance(y, (int, float)):
        return math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-30)
    return bool(x == y)


def _axes(x: Any, y: Any) -> Difference | None:
    """Axes counted from the front and from the end may be the same one."""
    if x is None or y is None:
        return Difference("dim=None is axis 0 of one or three axes, otherwise axis 1")
    if isinstance(x, int) and isinstance(y, int) and (x < 0) != (y < 0):
        front, end = max(x, y), min(x, y)
        return Difference(f"on an input of {front - end} axes the two are one")
    return Difference()


def _paddings(x: Sequence[Any], y: Sequence[Any], settings: Mapping[str, Any]) -> Difference | None:
    """Axis by axis; against SAME with a stride it depends on the input."""
    reservation = ""
    for axis, (p, q) in enumerate(zip(x, y, strict=False)):
        if p == q:
            continue
        if SAME not in (p, q):
            return Difference()
        explicit = q if p == SAME else p
        window, stride = _window(settings, axis), _on(settings, "stride", axis)
        if window is None or stride is None:
            return Difference("whether the two are one depends on the input's size")
        # n = count * stride - rest: what SAME adds for each rest
        fitting = [
            rest
            for rest in range(stride)
            if _split(max(window - stride + rest, 0)) == tuple(explicit)
            and ("output_padding" in settings or _as_many(window, stride, rest, explicit))
        ]
        if not fitting:
            return Difference()
        modulo = " or ".join(str((stride - rest) % stride) for rest in sorted(fitting, reverse=True))
        reservation = f"the two are one where the input's size modulo {stride} is {modulo}"
    return Difference(reservation) if reservation else None


def _split(total: int) -> tuple[int, int]:
    return total // 2, total - total // 2


def _as_many(window: int, stride: int, rest: int, explicit: Sequence[int]) -> bool:
    """Whether explicit padding gives as many outputs as SAME, ceil(n / stride), on an input of such a size."""
    count = 1000
    size = count * stride - rest
    return (size + sum(explicit) - window) // stride + 1 == count
