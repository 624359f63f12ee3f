"""Small networks and optimizers under one name in every framework, for tests of training steps."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import twinscope

from .kits import kit

X = np.random.default_rng(5).standard_normal((6, 5)).astype("float32")


def network(framework: str) -> Any:
    """Two layers with a normalisation between them, and everything at a value that is not special."""
    k = kit(framework)

    class Net(k.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = k.linear(5, 8)
            self.norm = k.layer_norm(8)
            self.fc2 = k.linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.fc2(k.tanh(self.norm(self.fc1(x))))

    twinscope.seed(3)
    return Net()


def squares(output: Any) -> Any:
    return (output * output).mean()


#: By neutral kind: the class in each framework and how its settings are written there. Where a framework has more than
#: one, the one that computes what the others do.
CLASSES = {
    "sgd": {"torch": "torch.optim.SGD", "paddle": "paddle.optimizer.SGD", "mindspore": "mindspore.nn.SGD"},
    "momentum": {
        "torch": "torch.optim.SGD",
        "paddle": "paddle.optimizer.Momentum",
        "mindspore": "mindspore.nn.Momentum",
    },
    "adam": {
        "torch": "torch.optim.Adam",
        "paddle": "paddle.optimizer.Adam",
        # mint's does nothing on CPU, and the epsilon of the others is another one: see the table of optimizers
        "mindspore": "mindspore.experimental.optim.AdamW",
    },
    "adamw": {
        "torch": "torch.optim.AdamW",
        "paddle": "paddle.optimizer.AdamW",
        "mindspore": "mindspore.experimental.optim.AdamW",
    },
}
FIXED: dict[tuple[str, str], dict[str, Any]] = {
    **{("momentum", framework): {"momentum": 0.9} for framework in ("torch", "paddle", "mindspore")},
    ("adam", "mindspore"): {"weight_decay": 0.0},
}


def weights_of(framework: str, model: Any) -> list[Any]:
    return list(model.trainable_params()) if framework == "mindspore" else list(model.parameters())


def optimizer(framework: str, kind: str, model: Any, lr: float = 0.01, **more: Any) -> Any:
    """An optimizer of this kind over all of a model's parameters."""
    path, _, name = CLASSES[kind][framework].rpartition(".")
    cls = getattr(importlib.import_module(path), name)
    rate = "lr" if path.split(".")[0] == "torch" or ".optim" in path else "learning_rate"
    rate = "learning_rate" if framework == "paddle" else rate
    settings = {**FIXED.get((kind, framework), {}), **more, rate: lr}
    if framework == "paddle":
        return cls(parameters=weights_of(framework, model), **settings)
    return cls(weights_of(framework, model), **settings)


def held(framework: str, model: Any) -> dict[str, Any]:
    from twinscope.adapters._registry import by_name

    adapter = by_name(framework)
    return {
        info.param_path(name): np.array(adapter.to_numpy(tensor))
        for info, module in adapter.modules(model)
        for name, tensor in adapter.state(module).items()
    }
