"""Defaults of optimizers by neutral kind and framework, in neutral words; tests hold them against what is installed.

Where a framework gives no default, a user must say it: the name is in the row under the framework's own word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

_ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "eps_corrected": True}

#: kind -> framework -> class -> settings.
DEFAULTS: Mapping[str, Mapping[str, Mapping[str, Row]]] = {
    "sgd": {
        "torch": {"torch.optim.SGD": {"lr": 1e-3, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}},
        "paddle": {
            "paddle.optimizer.SGD": {"lr": 1e-3, "weight_decay": 0.0},
            "paddle.optimizer.Momentum": {"lr": 1e-3, "momentum": 0.9, "nesterov": False},
        },
        "mindspore": {"mindspore.nn.SGD": {"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}},
    },
    "adam": {
        "torch": {
            "torch.optim.Adam": {**_ADAM, "decay": "l2"},
            "torch.optim.AdamW": {**_ADAM, "decay": "decoupled", "weight_decay": 0.01},
        },
        "paddle": {
            "paddle.optimizer.Adam": {**_ADAM, "decay": "l2"},
            "paddle.optimizer.AdamW": {**_ADAM, "decay": "decoupled", "weight_decay": 0.01},
        },
        "mindspore": {
            "mindspore.nn.Adam": {**_ADAM, "decay": "l2", "eps_corrected": False},
            "mindspore.nn.AdamWeightDecay": {**_ADAM, "eps": 1e-6, "decay": "decoupled", "bias_correction": False},
            "mindspore.experimental.optim.Adam": {**_ADAM, "decay": "l2", "eps_corrected": False},
            "mindspore.experimental.optim.AdamW": {**_ADAM, "decay": "decoupled", "weight_decay": 0.01},
        },
    },
    "adagrad": {
        "torch": {"torch.optim.Adagrad": {"lr": 1e-2, "eps": 1e-10, "initial": 0.0}},
        "paddle": {"paddle.optimizer.Adagrad": {"learning_rate": None, "eps": 1e-6, "initial": 0.0}},
        "mindspore": {"mindspore.nn.Adagrad": {"lr": 1e-3, "eps": 0.0, "initial": 0.1}},
    },
    "adadelta": {
        "torch": {"torch.optim.Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6}},
        "paddle": {"paddle.optimizer.Adadelta": {"lr": 1e-3, "rho": 0.95, "eps": 1e-6}},
        "mindspore": {"mindspore.nn.Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6}},
    },
    "rmsprop": {
        "torch": {"torch.optim.RMSprop": {"lr": 1e-2, "rho": 0.99, "eps": 1e-8, "eps_inside": False}},
        "paddle": {"paddle.optimizer.RMSProp": {"learning_rate": None, "rho": 0.95, "eps": 1e-6, "eps_inside": True}},
        "mindspore": {
            "mindspore.nn.RMSProp": {"lr": 0.1, "rho": 0.9, "eps": 1e-10, "eps_inside": True, "initial": 1.0}
        },
    },
    "adamax": {
        "torch": {"torch.optim.Adamax": {"lr": 2e-3, "eps": 1e-8, "eps_added": "gradient"}},
        "paddle": {"paddle.optimizer.Adamax": {"lr": 1e-3, "eps": 1e-8, "eps_added": "norm"}},
        "mindspore": {"mindspore.nn.AdaMax": {"lr": 1e-3, "eps": 1e-8, "eps_added": "divisor"}},
    },
    "lamb": {
        "paddle": {"paddle.optimizer.Lamb": {"lr": 1e-3, "eps": 1e-6, "weight_decay": 0.01}},
    },
}
