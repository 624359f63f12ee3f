"""What adapters read of optimizers, and the rules in float64, held against what the installed frameworks do."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from twinscope.adapters._registry import by_name
from twinscope.adapters.base import Learned
from twinscope.updates.rules import KINDS, replay, variations
from twinscope.updates.table import DEFAULTS

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 4

#: framework -> (class, settings): every class with a rule, with its defaults and with what is seldom asked for.
CASES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "torch": [
        *[(f"torch.optim.{n}", {}) for n in "SGD Adam AdamW Adamax Adagrad Adadelta RMSprop".split()],
        ("torch.optim.SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
        ("torch.optim.SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        ("torch.optim.SGD", {"lr": 0.1, "maximize": True}),
        ("torch.optim.Adam", {"amsgrad": True, "weight_decay": 0.1, "eps": 1e-3}),
        ("torch.optim.AdamW", {"weight_decay": 0.2, "betas": (0.8, 0.9)}),
        ("torch.optim.Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.3, "weight_decay": 0.1}),
        ("torch.optim.RMSprop", {"momentum": 0.9, "centered": True, "eps": 1e-2}),
    ],
    "paddle": [
        *[(f"paddle.optimizer.{n}", {}) for n in "SGD Momentum Adam AdamW Adamax Lamb".split()],
        *[(f"paddle.optimizer.{n}", {"learning_rate": 0.1}) for n in "Adagrad RMSProp Adadelta".split()],
        ("paddle.optimizer.SGD", {"learning_rate": 0.1, "weight_decay": 0.1}),
        ("paddle.optimizer.Momentum", {"learning_rate": 0.1, "use_nesterov": True, "weight_decay": 0.1}),
        ("paddle.optimizer.Adam", {"amsgrad": True, "weight_decay": 0.1, "epsilon": 1e-3}),
        ("paddle.optimizer.AdamW", {"weight_decay": 0.2, "beta1": 0.8, "beta2": 0.9}),
        ("paddle.optimizer.Adagrad", {"learning_rate": 0.1, "initial_accumulator_value": 0.3}),
        ("paddle.optimizer.RMSProp", {"learning_rate": 0.1, "momentum": 0.9, "centered": True, "epsilon": 1e-2}),
        ("paddle.optimizer.SGD", {"learning_rate": 0.1, "grad_clip": "global norm 0.5"}),
    ],
    "mindspore": [
        *[(f"mindspore.nn.{n}", {}) for n in "SGD Adam AdamWeightDecay AdaMax Adagrad Adadelta RMSProp".split()],
        ("mindspore.nn.Momentum", {"learning_rate": 0.1, "momentum": 0.9}),
        ("mindspore.nn.Momentum", {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
        ("mindspore.nn.SGD", {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
        ("mindspore.nn.SGD", {"momentum": 0.9, "nesterov": True}),
        ("mindspore.nn.Adam", {"weight_decay": 0.1, "eps": 1e-3}),
        ("mindspore.nn.Adam", {"use_nesterov": True}),
        ("mindspore.nn.Adam", {"use_amsgrad": True}),
        ("mindspore.nn.AdamWeightDecay", {"weight_decay": 0.1}),
        ("mindspore.nn.RMSProp", {"learning_rate": 0.1, "momentum": 0.9, "centered": True, "epsilon": 1e-2}),
        *[(f"mindspore.experimental.optim.{n}", {}) for n in "Adam AdamW Adamax Adagrad Adadelta RMSprop".split()],
        ("mindspore.experimental.optim.SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
        ("mindspore.experimental.optim.AdamW", {"amsgrad": True}),
        ("mindspore.experimental.optim.RMSprop", {"momentum": 0.9, "centered": True}),
    ],
}


def made(framework: str, path: str, settings: dict[str, Any]) -> tuple[Any, list[Any]]:
    """An optimizer of two parameters, a matrix and a vector."""
    draw = np.random.default_rng(1)
    arrays = [draw.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (5,))]
    place, _, name = path.rpartition(".")
    cls = getattr(importlib.import_module(place), name)
    if framework == "torch":
        import torch

        parameters = [torch.nn.Parameter(torch.tensor(a)) for a in arrays]
        return cls(parameters, **settings), parameters
    if framework == "paddle":
        import paddle

        settings = dict(settings)
        if "grad_clip" in settings:
            settings["grad_clip"] = paddle.nn.ClipGradByGlobalNorm(0.5)
        parameters = [paddle.create_parameter(list(a.shape), "float32") for a in arrays]
        for p, a in zip(parameters, arrays, strict=True):
            p.set_value(a)
        return cls(parameters=parameters, **settings), parameters
    import mindspore as ms

    parameters = [ms.Parameter(ms.Tensor(a), name=f"p{i}") for i, a in enumerate(arrays)]
    return cls(parameters, **settings), parameters


def gradients_for(framework: str, parameters: list[Any], number: int) -> Learned:
    adapter = by_name(framework)
    draw = np.random.default_rng(100 + number)
    found = []
    for p in parameters:
        array = draw.standard_normal(tuple(p.shape)) * 10.0 ** draw.uniform(-6, 0, tuple(p.shape))
        gradient = adapter.from_numpy(array.astype(np.float32), like=p)
        if framework == "torch":
            p.grad = gradient
        elif framework == "paddle":
            p.clear_gradient(False)
            (p * gradient).sum().backward()
        found.append((p, gradient))
    return Learned(None, None, tuple(found))


def stepped(framework: str, path: str, settings: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """(what was told before each step, the weight before, the weight after)."""
    adapter = by_name(framework)
    optimizer, parameters = made(framework, path, settings)
    found = []
    for number in range(STEPS):
        learned = gradients_for(framework, parameters, number)
        seen: list[Any] = []
        with adapter.watching_updates(optimizer, lambda given, seen=seen: seen.append(adapter.rules(optimizer, given))):
            before = [np.array(adapter.to_numpy(p), copy=True) for p in parameters]
            adapter.update(optimizer, learned)
        assert len(seen) == 1, "a step is told once"
        after = [np.array(adapter.to_numpy(p), copy=True) for p in parameters]
        found += [(told, *pair) for told, pair in zip(seen[0], zip(before, after, strict=True), strict=True)]
    return found


def worst(found: list[tuple[Any, Any, Any]], change: Any = None) -> float:
    """How far the rule is off, in units of what float32 explains."""
    off = 0.0
    for told, before, after in found:
        rule = told.rule if change is None else change(told.rule)
        predicted = replay(rule, before, told.gradient, told.state)
        assert predicted is not None
        allowed = 4 * 2.0**-24 * np.abs(before) + 1e-3 * np.abs(after - before.astype(np.float64))
        error = float(np.sqrt(np.mean((predicted - after) ** 2)))
        off = max(off, error / (float(np.sqrt(np.mean(allowed**2))) or 1e-30))
    return off


def test_every_rule_is_what_the_framework_does(framework: str) -> None:
    wrong = []
    for path, settings in CASES[framework]:
        found = stepped(framework, path, settings)
        assert all(told.rule.kind in KINDS for told, _, _ in found)
        off = worst(found)
        if not off < 1.0:
            wrong.append((path, settings, off, str(found[0][0].rule)))
    assert not wrong, "\n".join(map(str, wrong))


def test_mindspore_forgets_nesterov_on_cpu(framework: str) -> None:
    """What an optimizer was told is not always what it does: then another rule fits, and is found among variations."""
    if framework != "mindspore":
        pytest.skip("a matter of MindSpore's")
    settings = {"learning_rate": 0.1, "momentum": 0.9, "use_nesterov": True}
    found = stepped(framework, "mindspore.nn.Momentum", settings)
    assert worst(found) > 1.0
    assert worst(found, lambda rule: variations(rule)["without nesterov"]) < 1.0


def test_and_another_rule_is_not(framework: str) -> None:
    """The negative twin: told otherwise, the rule no longer fits."""
    kept = []
    for path, settings in CASES[framework]:
        found = stepped(framework, path, settings)
        if not worst(found, lambda rule: rule.told(lr=rule["lr"] * 1.01)) > 1.0:
            kept.append(path)
    assert not kept


def test_watching_an_optimizer_leaves_nothing_on_it(framework: str) -> None:
    adapter = by_name(framework)
    path, settings = CASES[framework][0]
    optimizer, parameters = made(framework, path, settings)
    before = {name: v for name, v in vars(optimizer).items() if v is not None and not hasattr(v, "__len__")}
    told: list[Any] = []
    with pytest.raises(ValueError, match="mine"), adapter.watching_updates(optimizer, told.append):
        raise ValueError("mine")
    assert {name: vars(optimizer).get(name) for name in before} == before
    assert "step" not in vars(optimizer)
    adapter.update(optimizer, gradients_for(framework, parameters, 0))
    assert told == []


def test_defaults_are_those_of_the_table(framework: str) -> None:
    for kind, rows in DEFAULTS.items():
        for path, expected in rows.get(framework, {}).items():
            given = {"learning_rate": 0.01} if "learning_rate" in expected else {}
            optimizer, _ = made(framework, path, given)
            rule = by_name(framework).rules(optimizer, None)[0].rule
            assert rule.kind == kind
            for name, value in expected.items():
                if name != "learning_rate":
                    assert rule[name] == pytest.approx(value), (path, name)


def test_variations_change_something(framework: str) -> None:
    path = {"torch": "torch.optim.Adam", "paddle": "paddle.optimizer.Adam", "mindspore": "mindspore.nn.Adam"}
    told, before, _ = stepped(framework, path[framework], {})[-1]
    own = replay(told.rule, before, told.gradient, told.state)
    assert own is not None
    for name, rule in variations(told.rule).items():
        other = replay(rule, before, told.gradient, told.state)
        assert other is not None, name
        assert not np.allclose(own, other, rtol=1e-12, atol=0), name
