"""What goes wrong in ports of optimizers: each is found in the update, named, and its clean twin is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import twinscope
from twinscope import Overall, Phase, Verdict
from zoo.optimizers import (
    X,
    network,
    optimizer,
    set_rate,
    settings,
    squares,
    update,
    weights_of,
    without_decay_on_biases,
)

pytestmark = pytest.mark.filterwarnings("ignore")

Frameworks = tuple[str, str]
Make = Callable[[str, Any], Any]


def aligned(pair: Frameworks, reference: Make, candidate: Make, steps: int = 3, **options: Any) -> twinscope.Result:
    models = network(pair[0]), network(pair[1])
    made = reference(pair[0], models[0]), candidate(pair[1], models[1])
    return twinscope.align(*models, X, **{"loss": squares, "optimizer": made, "steps": steps, **options})


def named(result: twinscope.Result, *words: str) -> None:
    """The result says that the update differs, and why, in these words; and nothing else."""
    found = [f for f in result.findings if f.verdict is Verdict.BUG]
    assert {f.phase for f in found} == {Phase.STEP}, "\n".join(map(str, result.findings))
    causes = "\n".join(str(f.cause) for f in found)
    for word in words:
        assert word in causes, "\n".join(map(str, found))
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None
    assert result.first_divergence.phase is Phase.STEP


def clean(result: twinscope.Result) -> None:
    assert result.verdict is Overall.SAME, "\n".join(map(str, result.findings))


def plain(kind: str, **neutral: Any) -> Make:
    def make(framework: str, model: Any) -> Any:
        lr = neutral.get("lr", 0.01)
        rest = {k: v for k, v in neutral.items() if k != "lr"}
        return optimizer(framework, kind, model, lr=lr, **settings(framework, kind, **rest))

    return make


SETTINGS = [
    ("sgd", {}, {"lr": 0.012}, "learning rate 0.01 / 0.012"),
    ("sgd", {}, {"weight_decay": 0.1}, "weight decay 0 / 0.1"),
    ("momentum", {"momentum": 0.9}, {"momentum": 0.8}, "momentum 0.9 / 0.8"),
    ("adam", {}, {"betas": (0.8, 0.999)}, "beta1 0.9 / 0.8"),
    ("adam", {}, {"betas": (0.9, 0.99)}, "beta2 0.999 / 0.99"),
    ("adam", {}, {"eps": 1e-4}, "epsilon 1e-08 / 0.0001"),
    ("adamw", {}, {"weight_decay": 0.1}, "weight decay 0.01 / 0.1"),
    ("adamw", {}, {"weight_decay": 0.0}, "weight decay 0.01 / 0"),
    ("adam", {}, {"amsgrad": True}, "amsgrad False / True"),
]


@pytest.mark.parametrize(("kind", "own", "other", "cause"), SETTINGS, ids=[f"{k} {c}" for k, _, _, c in SETTINGS])
def test_a_setting_that_differs(pair: Frameworks, kind: str, own: Any, other: Any, cause: str) -> None:
    if "amsgrad" in other:  # it shows once gradients shrink
        result = aligned(pair, plain(kind, **own), plain(kind, **other), 8)
        assert any("amsgrad" in (f.cause or f.message) for f in result.findings)
        assert result.verdict is not Overall.SAME
        return
    named(aligned(pair, plain(kind, **own), plain(kind, **other)), cause)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adamw"])
def test_their_clean_twins_over_many_steps(pair: Frameworks, kind: str) -> None:
    clean(aligned(pair, plain(kind), plain(kind), 20))


def test_a_setting_that_has_not_shown_yet_is_not_called_the_same(pair: Frameworks) -> None:
    result = aligned(pair, plain("momentum"), plain("momentum", momentum=0.8), 1)
    assert result.verdict is Overall.UNDECIDED
    assert any("momentum 0.9 / 0.8" in f.message for f in result.findings)


def test_decoupled_and_l2(pair: Frameworks) -> None:
    """40: Adam with a weight decay for AdamW."""
    l2 = plain("plain adam", weight_decay=0.1)
    named(aligned(pair, plain("adamw", weight_decay=0.1), l2), "kind of weight decay decoupled / l2")


def test_decay_on_biases(pair: Frameworks) -> None:
    """40"""

    def spared(framework: str, model: Any) -> Any:
        return without_decay_on_biases(framework, model, 0.01, 0.1)

    result = aligned(pair, spared, plain("adamw", weight_decay=0.1))
    named(result, "weight decay 0 / 0.1", "on biases and norms")
    clean(aligned(pair, spared, spared))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_clipping_missing(pair: Frameworks, kind: str) -> None:
    """40"""

    def clipped(framework: str, model: Any) -> Any:
        return update(framework, optimizer(framework, kind, model), 0.01)

    def loose(framework: str, model: Any) -> Any:
        return update(framework, optimizer(framework, kind, model), 1e6)

    if kind == "sgd":
        named(aligned(pair, clipped, plain(kind)), "clipped on the reference's side only")
    clean(aligned(pair, clipped, clipped))
    clean(aligned(pair, loose, plain(kind)))


def test_a_schedule_one_step_late(pair: Frameworks) -> None:
    """40"""

    def scheduled(shift: int) -> Make:
        def make(framework: str, model: Any) -> Any:
            made = optimizer(framework, "adam", model)
            count = [shift]

            def step(*gradients: Any) -> None:
                set_rate(framework, made, 0.01 * 0.5 ** max(count[0], 0))
                count[0] += 1
                made(*gradients) if framework == "mindspore" else made.step()

            return (lambda gradients: step(gradients)) if framework == "mindspore" else (lambda: step())

        return make

    named(aligned(pair, scheduled(0), scheduled(1), 4), "one step ahead")
    named(aligned(pair, scheduled(0), scheduled(-1), 4), "one step behind")
    clean(aligned(pair, scheduled(0), scheduled(0), 4))


def tiny(output: Any) -> Any:
    """A loss whose gradients are as small as they are late in training."""
    return squares(output) * 1e-5


EPSILON = {"torch": "to the root", "paddle": "inside the root", "mindspore": "inside the root"}


def test_rmsprop_epsilon(pair: Frameworks) -> None:
    """7: in torch it is outside the root, elsewhere inside."""
    own = plain("rmsprop", eps=1e-6)

    def other(framework: str, model: Any) -> Any:
        word = {"torch": "alpha", "paddle": "rho", "mindspore": "decay"}[framework]
        words = settings(framework, "rmsprop", eps=1e-6)
        return optimizer(framework, "rmsprop", model, lr=0.01, **words, **{word: 0.9})

    result = aligned(pair, other, other, loss=tiny)
    if "mindspore" in pair and pair[0] != pair[1]:
        named(result, "initial accumulator")  # and its mean square begins with ones
    elif EPSILON[pair[0]] != EPSILON[pair[1]]:
        named(result, "epsilon is added")
    else:
        clean(result)
    if pair[0] == pair[1]:
        named(aligned(pair, own, other), "rho")


DEFAULTS = {
    "adagrad": {("torch", "paddle"): "epsilon", ("torch", "mindspore"): "initial accumulator"},
    "adadelta": {("torch", "paddle"): "rho", ("torch", "mindspore"): ""},
    "adamax": {("torch", "paddle"): "", ("torch", "mindspore"): ""},
}


@pytest.mark.parametrize("kind", list(DEFAULTS))
def test_defaults_that_differ(pair: Frameworks, kind: str) -> None:
    """8: the same name and the same learning rate, and the rest left as it is."""
    if pair not in DEFAULTS[kind]:
        pytest.skip("looked at from torch")
    cause = DEFAULTS[kind][pair]
    result = aligned(pair, plain(kind), plain(kind), loss=tiny if kind == "adagrad" else squares)
    if cause:
        named(result, cause)
    else:
        clean(result)


def test_adam_epsilon_before_the_correction(pair: Frameworks) -> None:
    """23"""
    result = aligned(pair, plain("adam"), plain("plain adam"), loss=tiny)
    if pair[1] == "mindspore":
        named(result, "epsilon is added after the bias correction in the reference and before")
    else:
        clean(result)


def test_adam_without_bias_correction(pair: Frameworks) -> None:
    """24"""
    result = aligned(pair, plain("adamw"), plain("adam weight decay", eps=1e-8, weight_decay=0.01))
    if pair[1] == "mindspore":
        named(result, "bias correction True / False")
    else:
        clean(result)


def test_one_parameter_is_forgotten(pair: Frameworks) -> None:
    def forgetful(framework: str, model: Any) -> Any:
        return optimizer(framework, "sgd", model, weights=weights_of(framework, model)[:-1])

    result = aligned(pair, plain("sgd"), forgetful)
    found = [f for f in result.findings if f.verdict is Verdict.BUG]
    assert {f.phase for f in found} == {Phase.STEP}
    assert any("updated on the reference's side only" in f.message and "fc2.bias" in f.message for f in found)
    assert result.verdict is Overall.DIFFERENT
