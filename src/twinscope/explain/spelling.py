"""A neutral setting as the user of a framework writes it: ``momentum=0.9``, ``pad_mode='same'``."""

from __future__ import annotations

from typing import Any

from ..records import ModuleInfo
from .neutral import SAME
from .table import MINDSPORE, MINT, PADDLE, TORCH, UNSET, Effect, Setting, Settings, default_of

_CONTRARY = {"exclusive", "time_major"}


def spelled(flavour: str, kind: str, setting: Setting, settings: Settings, info: ModuleInfo | None = None) -> str:
    """What one side was told, in its own words.

    >>> from .table import TABLE
    >>> spelled("paddle", "batch_norm2d", TABLE["batch_norm2d"][1], {"momentum": 0.1})
    'momentum=0.9'
    >>> spelled("mindspore", "layer_norm", TABLE["layer_norm"][0], {"eps": 1e-7})
    'epsilon=1e-07'
    """
    if setting.is_fixed(flavour):
        return f"always {shown(settings[setting.name])}"
    raw = {} if info is None else info.attributes
    if flavour == MINDSPORE:
        if setting.name == "padding_idx" and raw.get("padding_idx") is not None:
            return f"padding_idx={raw['padding_idx']} (how that row begins)"
        if setting.name == "p" and "keep_prob" in raw:
            return f"keep_prob={raw['keep_prob']:g}"
        if setting.name == "padding" and raw.get("pad_mode") is not None:
            word = str(raw["pad_mode"]).lower()
            return f"pad_mode={word!r}" + (f", padding={_padding(settings['padding'])}" if word == "pad" else "")
        if setting.name == "normalized_shape" and "begin_norm_axis" in raw:
            shape, axis = raw.get("normalized_shape"), raw["begin_norm_axis"]
            return f"normalized_shape={tuple(shape or ())}, begin_norm_axis={axis}"
    return written(flavour, kind, setting, settings[setting.name], settings)


def written(flavour: str, kind: str, setting: Setting, value: Any, settings: Settings) -> str:
    """An option with its value, by one framework's names and conventions."""
    name = setting.own.get(flavour, setting.name)
    if setting.name == "momentum" and isinstance(value, float) and _is_inverse(flavour, kind):
        value = round(1.0 - value, 12)
    elif name in _CONTRARY:
        value = not value
    elif name == "direction":
        value = "bidirect" if value else "forward"
    elif name.endswith("_attr"):
        value = None if value else False
    elif setting.name == "channels_last":
        axes = {"1": "L", "2": "HW", "3": "DHW"}.get(kind[-2], "HW")
        value = f"N{axes}C" if value else f"NC{axes}"
    elif kind == "pad" and setting.name == "mode" and flavour in (TORCH, MINT):
        return f"{value} padding"  # which the class says
    elif setting.name == "approximate" and flavour in (PADDLE, MINDSPORE):
        value = value == "tanh"
    elif setting.name == "statistics":
        value = {"those it keeps": flavour == PADDLE, "of the batch": True}.get(value)
    elif kind == "local_response_norm" and flavour == MINDSPORE and isinstance(settings.get("size"), int):
        if setting.name == "size":
            value = (value - 1) // 2
        elif setting.name == "alpha":
            value = value / settings["size"]
    elif setting.compared == "padding" and name == "pad_mode":
        plain = {SAME: "same", (0, 0): "valid"}.get(value[0]) if len(set(value)) == 1 else None
        return f"pad_mode={plain!r}" if plain else f"pad_mode='pad', padding={_padding(value)}"
    elif setting.compared == "padding":
        return f"{name}={_padding(value)}"
    return f"{name}={shown(value)}"


def advised(flavour: str, kind: str, setting: Setting, value: Any, settings: Settings) -> str:
    """What to write in one framework for the other's value; nothing where no option says it."""
    if flavour not in setting.own or setting.effect is Effect.COSMETIC:
        return ""
    if flavour == MINDSPORE and setting.name in ("normalized_shape", "padding_idx", "padding_mode"):
        return ""
    if setting.name == "output_padding" and isinstance(value, tuple) and any(isinstance(n, str) for n in value):
        return ""
    return written(flavour, kind, setting, value, settings)


def _is_inverse(flavour: str, kind: str) -> bool:
    """Whether momentum is the weight of the old value: MindSpore's InstanceNorm is unlike its BatchNorm."""
    return flavour == PADDLE or (flavour == MINDSPORE and "batch_norm" in kind)


def default_written(flavour: str, kind: str, setting: Setting, settings: Settings) -> str | None:
    """A flavour's default in its own words; None where there is none, or none is known."""
    value = default_of(setting, flavour, settings)
    if value is UNSET:
        return None
    if setting.is_fixed(flavour):
        return f"always {shown(value)}"
    if setting.compared == "padding":
        value = (SAME if value == SAME else (value, value),)
    return written(flavour, kind, setting, value, settings)


def _padding(value: Any) -> str:
    if not isinstance(value, tuple):
        return shown(value)
    if set(value) == {SAME}:
        return repr(SAME)
    if all(pair != SAME and pair[0] == pair[1] for pair in value):
        return shown(tuple(pair[0] for pair in value))
    return repr(value)


def shown(value: Any) -> str:
    """A value as it is printed: one number for several equal ones, as layers are mostly told.

    >>> shown((3, 3)), shown((1, 2)), shown(1e-05), shown("same")
    ('3', '(1, 2)', '1e-05', "'same'")
    """
    if isinstance(value, tuple) and value and len(set(value)) == 1 and not isinstance(value[0], tuple):
        value = value[0]
    if isinstance(value, float):
        return repr(round(value, 12)) if abs(value) > 1e-6 else f"{value:g}"
    return repr(value)


_PUBLIC = {"torch": "torch.nn", "paddle": "paddle.nn", "mindspore": "mindspore.nn"}


def layer_name(framework: str, flavour: str, info: ModuleInfo) -> str:
    """A layer's class as the user writes it; of a user's own class its name."""
    own = info.type.rsplit(".", 1)[-1]
    if not info.builtin:
        return own
    return f"mint.nn.{own.removesuffix('Ext')}" if flavour == MINT else f"{_PUBLIC.get(framework, framework)}.{own}"
