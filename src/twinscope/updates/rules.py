"""The rules of optimizers in float64: (weight, gradient, state) to the next weight. numpy in, values out.

Frameworks write one rule in several ways; what differs is a setting here, so that a rule can be told otherwise:

    decay            "l2" adds the decayed weight to the gradient, "decoupled" takes it off the weight itself
    eps_corrected    Adam: epsilon is added to the root after its bias was corrected, not before
    bias_correction  Adam: whether the moments are corrected for having begun at zero
    eps_inside       RMSProp: epsilon is added under the root, not to it
    eps_added        Adamax: to the gradient, to the norm before, or to the divisor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..adapters.base import Array

#: What a setting is called where a person reads it.
WORDS = {
    "lr": "learning rate",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "epsilon",
    "weight_decay": "weight decay",
    "decay": "kind of weight decay",
    "momentum": "momentum",
    "dampening": "dampening",
    "nesterov": "nesterov",
    "amsgrad": "amsgrad",
    "bias_correction": "bias correction",
    "eps_corrected": "epsilon added after the bias correction",
    "eps_inside": "epsilon inside the root",
    "eps_added": "epsilon added to the",
    "rho": "rho",
    "centered": "centered",
    "lr_decay": "decay of the learning rate",
    "initial": "initial accumulator",
    "maximize": "maximize",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What an optimizer does to one parameter, in neutral words.

    >>> print(Rule("sgd", {"lr": 0.1, "momentum": 0.9}))
    sgd(learning rate 0.1, momentum 0.9)
    """

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{WORDS.get(k, k)} {said(v)}' for k, v in self.settings.items())})"

    def told(self, **settings: Any) -> Rule:
        """The same rule with other settings."""
        return replace(self, settings={**self.settings, **settings})

    def __getitem__(self, name: str) -> Any:
        return self.settings.get(name, _UNTOLD.get(name))


#: What a rule does that was not told about these.
_UNTOLD: dict[str, Any] = {
    "weight_decay": 0.0,
    "decay": "l2",
    "momentum": 0.0,
    "dampening": 0.0,
    "nesterov": False,
    "amsgrad": False,
    "bias_correction": True,
    "eps_corrected": True,
    "eps_inside": False,
    "eps_added": "gradient",
    "centered": False,
    "lr_decay": 0.0,
    "initial": 0.0,
    "maximize": False,
    "eps": 0.0,
}

State = Mapping[str, Any]


def replay(rule: Rule, weight: Array, gradient: Array, state: State) -> Array | None:
    """The weight after one step, in float64; None where the rule is not known.

    `state` has what the optimizer remembers under neutral names, and nothing where it has not begun: "t" steps made,
    "momentum", "first", "second", "most", "sum", "square", "mean", "delta", "norm".

    >>> replay(Rule("sgd", {"lr": 0.5}), np.ones(2), np.array([1.0, 2.0]), {})
    array([0.5, 0. ])
    """
    step = _RULES.get(rule.kind)
    if step is None:
        return None
    w, g = weight.astype(np.float64), gradient.astype(np.float64)
    if rule["maximize"]:
        g = -g
    if rule["decay"] == "l2" and rule.kind != "lamb":
        g = g + rule["weight_decay"] * w
    elif rule["decay"] == "decoupled" and rule.kind != "lamb":
        w = w * (1.0 - rule["lr"] * rule["weight_decay"])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return step(rule, w, g, state)


def _held(state: State, name: str, like: Array, initial: float = 0.0) -> Array:
    found = state.get(name)
    return np.full(like.shape, initial) if found is None else np.asarray(found, np.float64).reshape(like.shape)


def _sgd(rule: Rule, w: Array, g: Array, state: State) -> Array:
    mu = rule["momentum"]
    if mu:
        if state.get("momentum") is None:
            buffer = g  # the first gradient is taken whole, whatever the dampening
        else:
            buffer = mu * _held(state, "momentum", g) + (1.0 - rule["dampening"]) * g
        g = g + mu * buffer if rule["nesterov"] else buffer
    moved: Array = w - rule["lr"] * g
    return moved


def _moments(rule: Rule, g: Array, state: State) -> tuple[Array, Array, float, float]:
    """Both moments of Adam, and by what each is corrected."""
    b1, b2, t = rule["beta1"], rule["beta2"], int(state.get("t", 0)) + 1
    first = b1 * _held(state, "first", g) + (1.0 - b1) * g
    second = b2 * _held(state, "second", g) + (1.0 - b2) * g * g
    corrected = (1.0 - b1**t, 1.0 - b2**t) if rule["bias_correction"] else (1.0, 1.0)
    return first, second, *corrected


def _adam(rule: Rule, w: Array, g: Array, state: State) -> Array:
    first, second, c1, c2 = _moments(rule, g, state)
    if rule["amsgrad"]:
        second = np.maximum(_held(state, "most", g), second)
    if rule["nesterov"]:
        first = rule["beta1"] * first + (1.0 - rule["beta1"]) * g
    root, eps = np.sqrt(second), rule["eps"]
    divisor = root / np.sqrt(c2) + eps if rule["eps_corrected"] else (root + eps) / np.sqrt(c2)
    moved: Array = w - rule["lr"] / c1 * first / divisor
    return moved


def _lamb(rule: Rule, w: Array, g: Array, state: State) -> Array:
    first, second, c1, c2 = _moments(rule, g, state)
    update = first / c1 / (np.sqrt(second / c2) + rule["eps"]) + rule["weight_decay"] * w
    sizes = float(np.linalg.norm(w)), float(np.linalg.norm(update))
    trust = sizes[0] / sizes[1] if min(sizes) > 0 else 1.0
    moved: Array = w - rule["lr"] * trust * update
    return moved


def _adagrad(rule: Rule, w: Array, g: Array, state: State) -> Array:
    lr = rule["lr"] / (1.0 + int(state.get("t", 0)) * rule["lr_decay"])
    total = _held(state, "sum", g, rule["initial"]) + g * g
    moved: Array = w - lr * g / (np.sqrt(total) + rule["eps"])
    return moved


def _adadelta(rule: Rule, w: Array, g: Array, state: State) -> Array:
    rho, eps = rule["rho"], rule["eps"]
    square = rho * _held(state, "square", g) + (1.0 - rho) * g * g
    moved: Array = w - rule["lr"] * np.sqrt((_held(state, "delta", g) + eps) / (square + eps)) * g
    return moved


def _rmsprop(rule: Rule, w: Array, g: Array, state: State) -> Array:
    rho, eps = rule["rho"], rule["eps"]
    square = rho * _held(state, "square", g, rule["initial"]) + (1.0 - rho) * g * g
    if rule["centered"]:
        mean = rho * _held(state, "mean", g) + (1.0 - rho) * g
        square = square - mean * mean
    divisor = np.sqrt(square + eps) if rule["eps_inside"] else np.sqrt(square) + eps
    step = g / divisor
    if rule["momentum"]:
        step = rule["momentum"] * _held(state, "momentum", g) + step
    moved: Array = w - rule["lr"] * step
    return moved


def _adamax(rule: Rule, w: Array, g: Array, state: State) -> Array:
    b1, b2, t, eps = rule["beta1"], rule["beta2"], int(state.get("t", 0)) + 1, rule["eps"]
    first = b1 * _held(state, "first", g) + (1.0 - b1) * g
    before, size = b2 * _held(state, "norm", g), np.abs(g)
    added = rule["eps_added"]
    norm = np.maximum(before + (eps if added == "norm" else 0.0), size + (eps if added == "gradient" else 0.0))
    moved: Array = w - rule["lr"] / (1.0 - b1**t) * first / (norm + (eps if added == "divisor" else 0.0))
    return moved


_RULES: Mapping[str, Callable[[Rule, Array, Array, State], Array]] = {
    "sgd": _sgd,
    "adam": _adam,
    "lamb": _lamb,
    "adagrad": _adagrad,
    "adadelta": _adadelta,
    "rmsprop": _rmsprop,
    "adamax": _adamax,
}

KINDS = frozenset(_RULES)


def differences(reference: Rule, candidate: Rule) -> dict[str, tuple[Any, Any]]:
    """The settings in which two rules of a kind differ, by neutral name.

    >>> differences(Rule("sgd", {"lr": 0.1}), Rule("sgd", {"lr": 0.1, "momentum": 0.9}))
    {'momentum': (0.0, 0.9)}
    """
    names = dict.fromkeys([*reference.settings, *candidate.settings])
    found = {n: (reference[n], candidate[n]) for n in names if not _equal(reference[n], candidate[n])}
    if reference["weight_decay"] == candidate["weight_decay"] == 0.0:
        found.pop("decay", None)
    if reference["momentum"] == candidate["momentum"] == 0.0:
        found.pop("dampening", None)
    if reference["eps"] == candidate["eps"] == 0.0:
        for name in ("eps_corrected", "eps_inside", "eps_added"):
            found.pop(name, None)
    return found


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return bool(a == b or (a is not None and b is not None and abs(a - b) <= 1e-6 * max(abs(a), abs(b))))
    return bool(a == b)


def said(value: Any) -> str:
    """A setting as a person reads it: without the digits that float32 adds."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def variations(rule: Rule) -> dict[str, Rule]:
    """The ways in which this rule is written elsewhere, and the usual mistakes, with what they are called.

    >>> list(variations(Rule("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True})))
    ['without nesterov', 'without momentum']
    """
    found: dict[str, Rule] = {}
    if rule.kind in ("adam", "lamb"):
        if rule["bias_correction"]:
            found["without bias correction"] = rule.told(bias_correction=False)
        if rule["eps_corrected"]:
            found["epsilon added before the bias correction"] = rule.told(eps_corrected=False)
        else:
            found["epsilon added after the bias correction"] = rule.told(eps_corrected=True)
    if rule.kind == "rmsprop":
        inside = not rule["eps_inside"]
        found[f"epsilon {'inside' if inside else 'outside'} the root"] = rule.told(eps_inside=inside)
    if rule["weight_decay"]:
        other = "decoupled" if rule["decay"] == "l2" else "l2"
        found[f"{other} weight decay"] = rule.told(decay=other)
        found["without weight decay"] = rule.told(weight_decay=0.0)
    if rule["nesterov"]:
        found["without nesterov"] = rule.told(nesterov=False)
    if rule["momentum"]:
        found["without momentum"] = rule.told(momentum=0.0, nesterov=False)
    return found
