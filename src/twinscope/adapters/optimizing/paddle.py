"""Optimizers of PaddlePaddle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import paddle

from ...updates.rules import Rule
from . import Told

_STATE = {
    "SGD": {},
    "Momentum": {"velocity": "momentum"},
    "Adam": {"moment1": "first", "moment2": "second", "moment2_max": "most"},
    "Lamb": {"moment1": "first", "moment2": "second"},
    "Adagrad": {"moment": "sum"},
    "Adadelta": {"_avg_squared_grad": "square", "_avg_squared_update": "delta"},
    "RMSProp": {"momentum": "momentum", "mean_square": "square", "mean_grad": "mean"},
    "Adamax": {"moment": "first", "inf_norm": "norm"},
}
_STATE["AdamW"] = _STATE["Adam"]


def told(optimizer: Any) -> list[Told]:
    """What `optimizer` will do to each of its parameters, as it stands now."""
    kind = next((c.__name__ for c in type(optimizer).__mro__ if c.__name__ in _STATE), type(optimizer).__name__)
    held = optimizer._parameter_list or []
    groups = held if held and isinstance(held[0], dict) else [{"params": held}]
    found = []
    for group in groups:
        for p in group["params"]:
            rule = _rule(kind, optimizer, group, p)
            gradient = None if p.grad is None else _array(p.grad)
            found.append(Told(p, rule, _state(kind, optimizer, p, rule), gradient))
    return _clipped(found, optimizer._grad_clip)


def _array(tensor: Any) -> Any:
    return np.array(tensor.astype("float32").numpy(), dtype=np.float64)


def _state(kind: str, optimizer: Any, p: Any, rule: Rule) -> dict[str, Any]:
    accumulators = optimizer._accumulators
    state = {}
    for own, name in _STATE.get(kind, {}).items():
        tensor = accumulators.get(own, {}).get(p.name)
        if tensor is not None:
            state[name] = _array(tensor)
    power = accumulators.get("beta1_pow_acc", {}).get(p.name)
    if power is not None and 0.0 < rule["beta1"] < 1.0:  # it holds the power that the next step needs
        value = float(power.astype("float32").numpy().reshape(-1)[0])
        state["t"] = max(round(math.log(value) / math.log(rule["beta1"])) - 1, 0) if value > 0 else 10**6
    if kind == "RMSProp" and "momentum" in state:
        rate = rule["lr"]  # which is inside the momentum here
        state["momentum"] = state["momentum"] / rate if rate else state["momentum"]
    return state


def _rule(kind: str, optimizer: Any, group: dict[str, Any], p: Any) -> Rule:
    rate = float(optimizer.get_lr()) * float(p.optimize_attr.get("learning_rate", 1.0))
    own = group.get("learning_rate")
    if isinstance(own, (int, float)) and "learning_rate" not in p.optimize_attr:
        rate *= float(own)
    settings: dict[str, Any] = {"lr": rate, "weight_decay": _decay(optimizer, group, p)}
    if kind in ("Adam", "AdamW", "Adamax", "Lamb"):
        settings["beta1"], settings["beta2"] = (
            _number(group.get(f"beta{i}", getattr(optimizer, f"_beta{i}"))) for i in (1, 2)
        )
        settings["eps"] = _number(group.get("epsilon", optimizer._epsilon))
    if kind in ("Adam", "AdamW"):
        if kind == "AdamW":
            keeps = getattr(optimizer, "_apply_decay_param_fun", None)
            settings["weight_decay"] = _number(group.get("weight_decay", optimizer._weight_decay))
            if keeps is not None and not keeps(p.name):
                settings["weight_decay"] = 0.0
            ratio = getattr(optimizer, "_lr_ratio", None)
            if ratio is not None:
                settings["lr"] *= float(ratio(p))
        settings.update(
            decay="decoupled" if kind == "AdamW" else "l2",
            amsgrad=bool(optimizer._amsgrad),
            bias_correction=True,
            eps_corrected=True,
        )
        return Rule("adam", settings)
    if kind == "Adamax":
        return Rule("adamax", {**settings, "eps_added": "norm"})
    if kind == "Lamb":
        excluded = optimizer._exclude_from_weight_decay_fn
        decays = excluded is None or not excluded(p)
        return Rule("lamb", {**settings, "weight_decay": float(optimizer._lamb_weight_decay) if decays else 0.0})
    if kind in ("SGD", "Momentum"):
        settings.update(momentum=0.0, dampening=0.0, nesterov=False)
        if kind == "Momentum":
            settings.update(momentum=float(optimizer._momentum), nesterov=bool(optimizer._use_nesterov))
        return Rule("sgd", settings)
    if kind == "Adagrad":
        settings.update(eps=float(optimizer._epsilon), lr_decay=0.0, initial=float(optimizer.initial_accumulator_value))
        return Rule("adagrad", settings)
    if kind == "Adadelta":
        return Rule("adadelta", {**settings, "rho": float(optimizer._rho), "eps": float(optimizer._epsilon)})
    if kind == "RMSProp":
        settings.update(
            rho=float(optimizer._rho),
            eps=float(optimizer._epsilon),
            momentum=float(optimizer._momentum),
            centered=bool(optimizer._centered),
            eps_inside=True,
        )
        return Rule("rmsprop", settings)
    return Rule(kind.lower(), settings)


def _number(value: Any) -> float:
    return float(value.numpy().reshape(-1)[0]) if isinstance(value, paddle.Tensor) else float(value)


def _decay(optimizer: Any, group: dict[str, Any], p: Any) -> float:
    """The factor of the L2 decay: a parameter's own regularizer before its group's, that before the optimizer's."""
    for given in (p.regularizer, group.get("weight_decay"), optimizer.regularization):
        if isinstance(given, (int, float)):
            return float(given)
        if given is not None and hasattr(given, "_coeff"):
            return float(given._coeff) if type(given).__name__ == "L2Decay" else math.nan
    if getattr(optimizer, "_regularization_method", "") == "l2_decay":
        return float(optimizer._regularization_coeff)
    return 0.0


def _clipped(found: Sequence[Told], clip: Any) -> list[Told]:
    """What the optimizer itself makes of the gradients first."""
    name = type(clip).__name__
    parts = [t for t in found if t.gradient is not None and getattr(t.parameter, "need_clip", True)]
    if clip is None or not parts:
        return list(found)
    if name == "ClipGradByValue":
        text, factors = f"to values from {clip.min:g} to {clip.max:g}", {}
    else:
        text = f"by {'global ' if name == 'ClipGradByGlobalNorm' else ''}norm {clip.clip_norm:g}"
        sizes = {id(t.parameter): float(np.linalg.norm(t.gradient)) for t in parts if t.gradient is not None}
        if name == "ClipGradByGlobalNorm":
            sizes = dict.fromkeys(sizes, math.sqrt(sum(s * s for s in sizes.values())))
        factors = {key: clip.clip_norm / max(size, clip.clip_norm) for key, size in sizes.items()}
    made = []
    for t in found:
        gradient = t.gradient
        if gradient is not None and getattr(t.parameter, "need_clip", True):
            gradient = np.clip(gradient, clip.min, clip.max) if not factors else gradient * factors[id(t.parameter)]
        made.append(replace(t, gradient=gradient, clipping=text))
    return made
