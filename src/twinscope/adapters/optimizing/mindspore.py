"""Optimizers of MindSpore: those of nn, and those of experimental and mint, which are written like PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...updates.rules import Rule
from . import Told

#: Class name -> own name of what it remembers -> neutral name.
_STATE: dict[str, dict[str, str]] = {
    "SGD": {"accum": "momentum", "momentum_buf": "momentum"},
    "Momentum": {"moments": "momentum"},
    "Adam": {"moment1": "first", "moment2": "second", "vhat": "most", "exp_avg": "first", "exp_avg_sq": "second"},
    "AdamW": {"exp_avg": "first", "exp_avg_sq": "second", "max_exp_avg_sq": "most"},
    "AdamWeightDecay": {"moments1": "first", "moments2": "second"},
    "Lamb": {"moments1": "first", "moments2": "second"},
    "Adagrad": {"accum": "sum"},
    "Adadelta": {"accum": "square", "accum_update": "delta"},
    "RMSProp": {"moment": "momentum", "ms": "square", "mg": "mean"},
    "RMSprop": {"moment": "momentum", "mean_square": "square", "mean_grad": "mean"},
    "AdaMax": {"moment1": "first", "moment2": "norm"},
    "Adamax": {"exp_avg": "first", "exp_inf": "norm"},
}
_STATE["Adam"]["max_exp_avg_sq"] = "most"


def told(optimizer: Any, gradients: Sequence[Any] | None) -> list[Told]:
    """What `optimizer` will do to each of its parameters with these gradients, as it stands now."""
    kind = next((c.__name__ for c in type(optimizer).__mro__ if c.__name__ in _STATE), type(optimizer).__name__)
    newer = hasattr(optimizer, "param_groups")
    found = []
    for i, p in enumerate(optimizer.parameters):
        rule = _newer_rule(kind, optimizer, i) if newer else _rule(kind, optimizer, i)
        state = _state(kind, optimizer, i, newer, rule)
        gradient = None if gradients is None or gradients[i] is None else _array(gradients[i])
        scale = 1.0 if newer else float(getattr(optimizer, "loss_scale", 1.0))
        if gradient is not None and scale != 1.0:
            gradient = gradient / scale
        found.append(Told(p, rule, state, gradient))
    return found


def _array(tensor: Any) -> Any:
    return np.array(tensor.asnumpy(), dtype=np.float64)


def _state(kind: str, optimizer: Any, i: int, newer: bool, rule: Rule) -> dict[str, Any]:
    step = getattr(optimizer, "state_step", None) if newer else optimizer.global_step
    steps = getattr(optimizer, "step_t", None) if step is None else step
    state: dict[str, Any] = {}
    if steps is not None and not isinstance(steps, (tuple, list)):
        state["t"] = int(steps.asnumpy().reshape(-1)[0])
    for own, name in _STATE.get(kind, {}).items():
        held = getattr(optimizer, own, None)
        if isinstance(held, (tuple, list)) and len(held) > i:
            state[name] = _array(held[i])
    stat = getattr(optimizer, "stat", None)
    if kind == "SGD" and stat is not None and len(stat) > i and float(stat[i].asnumpy().reshape(-1)[0]) > 0:
        state.pop("momentum", None)  # it has not begun
    if kind == "RMSProp" and "momentum" in state and rule["lr"]:
        state["momentum"] = state["momentum"] / rule["lr"]  # the learning rate is inside the momentum here
    return state


def _number(value: Any) -> float:
    return float(value.asnumpy().reshape(-1)[0]) if hasattr(value, "asnumpy") else float(value)


def _of(values: Any, i: int) -> Any:
    return values[i] if isinstance(values, (tuple, list)) else values


def _rule(kind: str, optimizer: Any, i: int) -> Rule:
    rate = _number(_of(optimizer.get_lr(), i)) if kind else 0.0
    decays = bool(optimizer.decay_flags[i]) if optimizer.exec_weight_decay else False
    settings: dict[str, Any] = {
        "lr": rate,
        "weight_decay": _number(_of(optimizer.get_weight_decay(), i)) if decays else 0.0,
    }
    if kind in ("Adam", "AdamWeightDecay", "AdaMax", "Lamb"):
        settings.update(beta1=_number(optimizer.beta1), beta2=_number(optimizer.beta2), eps=_number(optimizer.eps))
    if kind == "Adam":
        settings.update(
            decay="l2",
            amsgrad=bool(getattr(optimizer, "use_amsgrad", False)),
            nesterov=bool(optimizer.use_nesterov),
            bias_correction=True,
            eps_corrected=False,
        )
        return Rule("adam", settings)
    if kind == "AdamWeightDecay":
        settings.update(decay="decoupled", amsgrad=False, bias_correction=False, eps_corrected=True)
        return Rule("adam", settings)
    if kind == "AdaMax":
        return Rule("adamax", {**settings, "eps_added": "divisor"})
    if kind == "Lamb":
        return Rule("lamb", settings)
    if kind in ("SGD", "Momentum"):
        settings.update(momentum=_number(optimizer.momentum), dampening=0.0, nesterov=False)
        settings["nesterov"] = bool(getattr(optimizer, "nesterov", getattr(optimizer, "use_nesterov", False)))
        if kind == "SGD":
            settings["dampening"] = float(getattr(optimizer, "dampening", 0.0))
        return Rule("sgd", settings)
    if kind == "Adagrad":
        return Rule("adagrad", {**settings, "eps": 0.0, "lr_decay": 0.0, "initial": 0.1})
    if kind == "Adadelta":
        return Rule("adadelta", {**settings, "rho": _number(optimizer.rho), "eps": _number(optimizer.epsilon)})
    if kind == "RMSProp":
        settings.update(
            rho=float(optimizer.decay),
            eps=float(optimizer.epsilon),
            momentum=_number(optimizer.momentum),
            centered=bool(optimizer.centered),
            eps_inside=True,
            initial=1.0,  # the mean square begins with ones
        )
        return Rule("rmsprop", settings)
    return Rule(kind.lower(), settings)


def _newer_rule(kind: str, optimizer: Any, i: int) -> Rule:
    starts = list(optimizer.group_start_id)
    number = max(n for n in range(len(optimizer.param_groups)) if starts[n] <= i)
    group = optimizer.param_groups[number]
    settings: dict[str, Any] = {
        "lr": _number(group["lr"]),
        "weight_decay": _number(group.get("weight_decay", 0.0)),
    }
    if group.get("maximize"):
        settings["maximize"] = True
    if "betas" in group:
        settings["beta1"], settings["beta2"] = (float(b) for b in group["betas"])
    if "eps" in group:
        settings["eps"] = float(group["eps"])
    if kind in ("Adam", "AdamW"):
        older = kind == "Adam" and type(optimizer).__module__.startswith("mindspore.experimental")
        settings.update(
            decay="decoupled" if kind == "AdamW" else "l2",
            amsgrad=bool(group.get("amsgrad")),
            bias_correction=True,
            eps_corrected=not older,
        )
        return Rule("adam", settings)
    if kind == "Adamax":
        return Rule("adamax", {**settings, "eps_added": "gradient"})
    if kind == "SGD":
        settings.update(
            momentum=float(group["momentum"]), dampening=float(group["dampening"]), nesterov=bool(group["nesterov"])
        )
        return Rule("sgd", settings)
    if kind == "Adagrad":
        settings.update(lr_decay=float(group["lr_decay"]), initial=float(group["initial_accumulator_value"]))
        return Rule("adagrad", settings)
    if kind == "Adadelta":
        return Rule("adadelta", {**settings, "rho": float(group["rho"])})
    if kind == "RMSprop":
        settings.update(
            rho=float(group["alpha"]),
            momentum=float(group["momentum"]),
            centered=bool(group["centered"]),
            eps_inside=False,
        )
        return Rule("rmsprop", settings)
    return Rule(kind.lower(), settings)
