"""Small networks for the tests of PaDiff 0.3, written once for every framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from twinscope.adapters._registry import by_name
from zoo.kits import kit

X = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)


def tensor(framework: str, array: Any) -> Any:
    return by_name(framework).from_numpy(np.asarray(array))


def array(framework: str, value: Any) -> Any:
    return np.array(by_name(framework).to_numpy(value), copy=True)


def net(framework: str, scale: float = 1.0, raises: bool = False, act: bool = True) -> Any:
    """Two linear layers in a block, relu between, a head; `scale` multiplies between block and head."""
    k = kit(framework)

    class Block(k.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = k.linear(8, 8)
            self.second = k.linear(8, 8)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            return self.second(k.relu(y) if act else y) + x

    class Net(k.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.head = k.linear(8, 4)

        def forward(self, x: Any) -> Any:
            y = self.block(x) * scale
            if raises:
                raise KeyError("on purpose")
            return self.head(y)

    seeded(framework)
    return Net()


def seeded(framework: str) -> None:
    by_name(framework).seed(3)
    np.random.seed(3)


def trainable(framework: str, model: Any) -> dict[str, Any]:
    return by_name(framework).trainable(model)


def gradients_of(framework: str, proxy: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Those that `backward` returned, or those that the framework stores, as numpy."""
    adapter = by_name(framework)
    stored = {p: adapter.gradient(t) for p, t in adapter.trainable(proxy.model).items()}
    found = given or {p: g for p, g in stored.items() if g is not None}
    return {p: np.array(adapter.to_numpy(g), copy=True) for p, g in found.items()}


def update(framework: str, proxy: Any, given: dict[str, Any], rate: float = 0.1) -> None:
    """Plain gradient descent, and the gradients are gone."""
    adapter = by_name(framework)
    gradients = gradients_of(framework, proxy, given)
    for path, parameter in adapter.trainable(proxy.model).items():
        adapter.assign(parameter, adapter.to_numpy(parameter) - np.float32(rate) * gradients[path])
        if hasattr(parameter, "clear_gradient"):
            parameter.clear_gradient()
        elif framework == "torch":
            parameter.grad = None


def shift(framework: str, model: Any, path: str, by: float) -> None:
    """Add to one parameter."""
    adapter = by_name(framework)
    parameter = adapter.trainable(model)[path]
    adapter.assign(parameter, adapter.to_numpy(parameter) + np.float32(by))
