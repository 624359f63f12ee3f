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
for _kind, _names in {
    "rmsprop": ("RMSprop", "RMSProp", "RMSProp"),
    "adagrad": ("Adagrad", "Adagrad", "Adagrad"),
    "adadelta": ("Adadelta", "Adadelta", "Adadelta"),
    "adamax": ("Adamax", "Adamax", "AdaMax"),
    "plain adam": ("Adam", "Adam", "Adam"),  # of MindSpore the one that everybody takes
    "adam weight decay": ("AdamW", "AdamW", "AdamWeightDecay"),
}.items():
    CLASSES[_kind] = {
        f: f"{place}.{n}"
        for (f, place), n in zip(
            {"torch": "torch.optim", "paddle": "paddle.optimizer", "mindspore": "mindspore.nn"}.items(),
            _names,
            strict=True,
        )
    }
FIXED: dict[tuple[str, str], dict[str, Any]] = {
    **{("momentum", framework): {"momentum": 0.9} for framework in ("torch", "paddle", "mindspore")},
    ("adam", "mindspore"): {"weight_decay": 0.0},
}


def weights_of(framework: str, model: Any) -> list[Any]:
    return list(model.trainable_params()) if framework == "mindspore" else list(model.parameters())


def optimizer(
    framework: str, kind: str, model: Any, lr: float = 0.01, weights: list[Any] | None = None, **more: Any
) -> Any:
    """An optimizer of this kind over all of a model's parameters, or over these."""
    path, _, name = CLASSES[kind][framework].rpartition(".")
    cls = getattr(importlib.import_module(path), name)
    rate = "lr" if path.split(".")[0] == "torch" or ".optim" in path else "learning_rate"
    rate = "learning_rate" if framework == "paddle" else rate
    settings = {**FIXED.get((kind, framework), {}), **more, rate: lr}
    weights = weights_of(framework, model) if weights is None else weights
    return cls(parameters=weights, **settings) if framework == "paddle" else cls(weights, **settings)


def held(framework: str, model: Any) -> dict[str, Any]:
    from twinscope.adapters._registry import by_name

    adapter = by_name(framework)
    return {
        info.param_path(name): np.array(adapter.to_numpy(tensor))
        for info, module in adapter.modules(model)
        for name, tensor in adapter.state(module).items()
    }


def settings(framework: str, kind: str, **neutral: Any) -> dict[str, Any]:
    """Settings in a framework's own words."""
    path = CLASSES[kind][framework]
    like_torch = framework == "torch" or ".optim." in path.removeprefix("mindspore.nn")
    found: dict[str, Any] = {}
    if "betas" in neutral:
        betas = neutral.pop("betas")
        found.update({"betas": betas} if like_torch else dict(zip(("beta1", "beta2"), betas, strict=True)))
    eps = {"paddle": "epsilon", "torch": "eps"}.get(framework, "eps" if "Adam" in path else "epsilon")
    words = {"eps": eps, "nesterov": "nesterov" if framework == "torch" else "use_nesterov"}
    return {**found, **{words.get(name, name): value for name, value in neutral.items()}}


def set_rate(framework: str, made: Any, rate: float) -> None:
    """Change an optimizer's learning rate, as a schedule does."""
    if framework == "torch":
        for group in made.param_groups:
            group["lr"] = rate
    elif framework == "paddle":
        made.set_lr(rate)
    else:
        import mindspore as ms

        for group in made.param_groups:
            ms.ops.assign(group["lr"], ms.Tensor(rate, ms.float32))


def update(framework: str, made: Any, clip: float | None = None) -> Any:
    """A function that makes an update as a user would write it, with gradients clipped by their global norm."""
    if framework == "mindspore":
        import mindspore as ms

        def apply(gradients: Any) -> None:
            made(gradients if clip is None else ms.ops.clip_by_global_norm(gradients, clip))

        return apply

    def step() -> None:
        if clip is not None:
            parameters = [p for p in _parameters_of(framework, made) if p.grad is not None]
            if framework == "torch":
                import torch

                torch.nn.utils.clip_grad_norm_(parameters, clip)
            else:
                import paddle

                paddle.nn.utils.clip_grad_norm_(parameters, clip)
        made.step()

    return step


def _parameters_of(framework: str, made: Any) -> list[Any]:
    if framework == "torch":
        return [p for group in made.param_groups for p in group["params"]]
    return list(made._parameter_list)


def without_decay_on_biases(framework: str, model: Any, lr: float, decay: float) -> Any:
    """AdamW that leaves vectors alone, as every recipe has it."""
    weights = weights_of(framework, model)
    flat, rest = [p for p in weights if len(p.shape) < 2], [p for p in weights if len(p.shape) > 1]
    if framework == "paddle":
        import paddle

        names = {p.name for p in rest}
        return paddle.optimizer.AdamW(
            lr, parameters=weights, weight_decay=decay, apply_decay_param_fun=names.__contains__
        )
    groups = [{"params": rest, "weight_decay": decay}, {"params": flat, "weight_decay": 0.0}]
    path, _, name = CLASSES["adamw"][framework].rpartition(".")
    return getattr(importlib.import_module(path), name)(groups, lr=lr)
