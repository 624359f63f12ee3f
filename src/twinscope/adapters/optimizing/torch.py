"""Optimizers of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...updates.rules import Rule
from . import Told

_STATE = {
    "momentum_buffer": "momentum",
    "exp_avg": "first",
    "exp_avg_sq": "second",
    "max_exp_avg_sq": "most",
    "exp_inf": "norm",
    "sum": "sum",
    "square_avg": "square",
    "acc_delta": "delta",
    "grad_avg": "mean",
}


def told(optimizer: Any) -> list[Told]:
    """What `optimizer` will do to each of its parameters, as it stands now."""
    found = []
    kind = next((c.__name__ for c in type(optimizer).__mro__ if c.__module__.startswith("torch.optim")), "")
    for group in optimizer.param_groups:
        rule = _rule(kind, group)
        for p in group["params"]:
            held = optimizer.state.get(p, {})
            state = {_STATE[k]: _array(v) for k, v in held.items() if k in _STATE and v is not None}
            if "step" in held:
                state["t"] = int(held["step"])
            if kind == "RMSprop" and "momentum_buffer" not in held:
                state.pop("momentum", None)
            found.append(Told(p, rule, state, None if p.grad is None else _array(p.grad)))
    return found


def _array(tensor: Any) -> Any:
    return np.array(tensor.detach().to_dense().double().cpu().numpy(), copy=True)


def _rule(kind: str, group: dict[str, Any]) -> Rule:
    settings: dict[str, Any] = {"lr": float(group["lr"]), "weight_decay": float(group.get("weight_decay", 0.0))}
    if group.get("maximize"):
        settings["maximize"] = True
    if kind in ("Adam", "AdamW", "Adamax"):
        settings["beta1"], settings["beta2"] = (float(b) for b in group["betas"])
        settings["eps"] = float(group["eps"])
    if kind in ("Adam", "AdamW"):
        decoupled = kind == "AdamW" or bool(group.get("decoupled_weight_decay"))
        settings.update(
            decay="decoupled" if decoupled else "l2",
            amsgrad=bool(group["amsgrad"]),
            bias_correction=True,
            eps_corrected=True,
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
        settings.update(
            eps=float(group["eps"]),
            lr_decay=float(group["lr_decay"]),
            initial=float(group["initial_accumulator_value"]),
        )
        return Rule("adagrad", settings)
    if kind == "Adadelta":
        return Rule("adadelta", {**settings, "rho": float(group["rho"]), "eps": float(group["eps"])})
    if kind == "RMSprop":
        settings.update(
            rho=float(group["alpha"]),
            eps=float(group["eps"]),
            momentum=float(group["momentum"]),
            centered=bool(group["centered"]),
            eps_inside=False,
        )
        return Rule("rmsprop", settings)
    return Rule(kind.lower(), settings)
