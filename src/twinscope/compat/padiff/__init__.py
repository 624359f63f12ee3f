"""PaDiff, both generations: the calls of its documents on Twinscope's public names.

`auto_diff`, `assign_weight` and `add_special_init` have one name and two meanings. Which is meant follows from the
arguments:

    auto_diff           any of auto_weights, options, layer_map, loss_fn, optimizer, steps, or the names layer, module,
                        example_inp: 0.2. Else 0.3
    assign_weight       a layer_map, or the names layer, module: 0.2. Else 0.3
    add_special_init    three arguments: 0.2, five: 0.3

A call that mixes the two is refused. In 0.2 paddle comes first and weights go from torch to paddle; in 0.3 they go from
the first model to the second.
"""

from __future__ import annotations

from typing import Any

from . import generation2, generation3
from .checking import check_grads, check_params, check_report, check_weights
from .generation3 import check_dataloader
from .layer_map import LayerMap
from .problems import ArgumentError
from .proxy import ProxyModel, create_model, get_dump_root_path, set_dump_root_path

_OLD = ("layer", "module", "example_inp", "auto_weights", "options", "layer_map", "loss_fn", "optimizer", "steps")
_NEW = ("base_model", "raw_model", "inputs", "loss_fns", "optimizers")
_NEW_OPTIONS = ("atol", "rtol", "auto_init", "compare_mode", "diff_phase", "single_step")


def auto_diff(*args: Any, **kwargs: Any) -> Any:
    """Whether two models compute the same; prints where they first do not.

    PaDiff 0.3: ``auto_diff(base_model, raw_model, inputs, loss_fns=None, optimizers=None, **kwargs)``.
    PaDiff 0.2: ``auto_diff(layer, module, example_inp, auto_weights=True, options={}, layer_map=None, loss_fn=None,
    optimizer=None, steps=1)``.
    """
    old = [name for name in kwargs if name in _OLD]
    new = [name for name in kwargs if name in (*_NEW, *_NEW_OPTIONS)]
    if len(args) > 3 and isinstance(args[3], bool):
        old.append("auto_weights")
    elif len(args) > 3 and args[3] is not None:
        new.append("loss_fns")
    if len(args) > 4 and isinstance(args[4], dict):
        old.append("options")
    elif len(args) > 4 and args[4] is not None:
        new.append("optimizers")
    if len(args) > 5:
        old.append("layer_map")
    return _generation("auto_diff", args, old, new).auto_diff(*args, **kwargs)


def assign_weight(*args: Any, **kwargs: Any) -> Any:
    """Give one model the weights of the other; False where that cannot be, and why is printed.

    PaDiff 0.3: ``assign_weight(base_model, raw_model)``, base to raw. PaDiff 0.2: ``assign_weight(layer, module,
    layer_map=LayerMap())``, torch to paddle.
    """
    old = [name for name in kwargs if name in ("layer", "module", "layer_map")]
    new = [name for name in kwargs if name in ("base_model", "raw_model")]
    if len(args) > 2:
        old.append("layer_map")
    return _generation("assign_weight", args, old, new).assign_weight(*args, **kwargs)


def add_special_init(*args: Any, **kwargs: Any) -> None:
    """Have a function carry the weights of one class to another.

    PaDiff 0.3: ``add_special_init(base_framework, base_model_name, raw_framework, raw_model_name, func)``.
    PaDiff 0.2: ``add_special_init(paddle_name, torch_name, func)``.
    """
    given = len(args) + len(kwargs)
    if given not in (3, 5):
        raise ArgumentError(
            f"add_special_init takes three arguments (PaDiff 0.2) or five (0.3), not {given}",
            hint='write add_special_init("torch", "LSTM", "paddle", "LSTM", func)',
        )
    old = ["three arguments"] if given == 3 else []
    _generation("add_special_init", (), old, []).add_special_init(*args, **kwargs)


def _generation(call: str, args: tuple[Any, ...], old: list[str], new: list[str]) -> Any:
    """The module of the generation that a call means."""
    if any(isinstance(arg, ProxyModel) for arg in args):
        new = [*new, "a model made by create_model"]
    if old and new:
        raise ArgumentError(
            f"{call} mixes PaDiff 0.2 ({', '.join(old)}) with 0.3 ({', '.join(new)})",
            hint="0.2 has options={'atol': ...}, loss_fn=, optimizer=, layer_map=, steps=, auto_weights=; "
            "0.3 has atol=..., loss_fns=, optimizers=, auto_init= and create_model",
        )
    return generation2 if old else generation3


__all__ = [
    "LayerMap",
    "add_special_init",
    "assign_weight",
    "auto_diff",
    "check_dataloader",
    "check_grads",
    "check_params",
    "check_report",
    "check_weights",
    "create_model",
    "get_dump_root_path",
    "set_dump_root_path",
]
