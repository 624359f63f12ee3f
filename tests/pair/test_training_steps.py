"""Training steps of two models: each part of a step is compared in its own right, and noise is never called a bug."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import twinscope
from twinscope import Overall, Phase, Verdict
from twinscope.errors import OptionError
from zoo.kits import kit
from zoo.optimizers import X, held, network, optimizer, squares

pytestmark = pytest.mark.filterwarnings("ignore")

Frameworks = tuple[str, str]


def trained(pair: Frameworks, kind: str, steps: int = 3, **more: Any) -> tuple[Any, Any, twinscope.Result]:
    reference, candidate = network(pair[0]), network(pair[1])
    own = optimizer(pair[0], kind, reference)
    other = optimizer(pair[1], kind, candidate, **more)
    result = twinscope.align(reference, candidate, X, loss=squares, optimizer=(own, other), steps=steps)
    return reference, candidate, result


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adamw"])
def test_the_same_optimizer_for_several_steps(pair: Frameworks, kind: str) -> None:
    _, _, result = trained(pair, kind, 6)
    assert result.verdict is Overall.SAME, "\n".join(map(str, result.findings))
    phases = {(p.reference.step, p.reference.phase) for p in result.pairs}
    for step in range(6):
        for phase in (Phase.WEIGHT, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.GRADIENT, Phase.STEP):
            assert (step, phase) in phases


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_another_learning_rate_is_the_optimizers_doing(pair: Frameworks, kind: str) -> None:
    _, _, result = trained(pair, kind, 2, lr=0.011)
    assert result.verdict is Overall.DIFFERENT
    assert result.first_divergence is not None
    assert (result.first_divergence.phase, result.first_divergence.step) == (Phase.STEP, 0)
    assert "optimizer" in result.first_divergence.message
    assert {f.phase for f in result.findings if f.verdict is Verdict.BUG} == {Phase.STEP}


def test_the_steps_are_real_and_without_an_optimizer_nothing_moves(pair: Frameworks) -> None:
    reference, candidate, _ = trained(pair, "sgd", 2)
    before = held(pair[0], reference), held(pair[1], candidate)
    twinscope.align(reference, candidate, X, loss=squares, weights=False)
    after = held(pair[0], reference), held(pair[1], candidate)
    for was, now in zip(before, after, strict=True):
        assert all(np.array_equal(was[path], now[path]) for path in was)
    twin = network(pair[0])
    twinscope.copy_weights(reference, twin)
    update = optimizer(pair[0], "sgd", reference)
    twinscope.align(reference, twin, X, loss=squares, optimizer=(update, lambda *_: None), weights=False)
    assert not np.array_equal(held(pair[0], reference)["fc2.weight"], after[0]["fc2.weight"])


def test_the_next_batch_continues(pair: Frameworks) -> None:
    reference, candidate = network(pair[0]), network(pair[1])
    both = optimizer(pair[0], "adam", reference), optimizer(pair[1], "adam", candidate)
    for number in range(4):
        batch = np.random.default_rng(number).standard_normal((6, 5)).astype("float32")
        result = twinscope.align(
            reference, candidate, batch, loss=squares, optimizer=both, weights=number == 0, seed=number
        )
        assert result.verdict is Overall.SAME, (number, "\n".join(map(str, result.findings)))


def test_functions_make_the_update(pair: Frameworks) -> None:
    reference, candidate = network(pair[0]), network(pair[1])
    own, other = optimizer(pair[0], "sgd", reference), optimizer(pair[1], "sgd", candidate)

    def by(framework: str, made: Any) -> Any:
        return (lambda gradients: made(gradients)) if framework == "mindspore" else (lambda: made.step())

    result = twinscope.align(
        reference, candidate, X, loss=squares, optimizer=(by(pair[0], own), by(pair[1], other)), steps=3
    )
    assert result.verdict is Overall.SAME, "\n".join(map(str, result.findings))
    result = twinscope.align(reference, candidate, X, loss=squares, optimizer=(by(pair[0], own), lambda *_: None))
    assert result.verdict is Overall.DIFFERENT
    assert any("reference's side only" in f.message for f in result.findings if f.phase is Phase.STEP)


def test_a_loss_that_differs_is_named(pair: Frameworks) -> None:
    reference, candidate = network(pair[0]), network(pair[1])
    both = optimizer(pair[0], "sgd", reference), optimizer(pair[1], "sgd", candidate)
    losses = (squares, lambda output: (output * output).sum())
    result = twinscope.align(reference, candidate, X, loss=losses, optimizer=both, level="module")
    assert result.verdict is Overall.DIFFERENT
    assert Phase.LOSS in {f.phase for f in result.findings if f.verdict is Verdict.BUG}


def test_what_cannot_be_is_said(pair: Frameworks) -> None:
    reference, candidate = network(pair[0]), network(pair[1])
    both = optimizer(pair[0], "sgd", reference), optimizer(pair[1], "sgd", candidate)
    with pytest.raises(OptionError, match="needs an optimizer"):
        twinscope.align(reference, candidate, X, steps=2)
    with pytest.raises(OptionError, match="candidate has no optimizer"):
        twinscope.align(reference, candidate, X, optimizer=(both[0], None))
    with pytest.raises(OptionError, match="not a pair"):
        twinscope.align(reference, candidate, X, optimizer=both[0])
    with pytest.raises(OptionError, match=r"updates none of|neither an optimizer|no gradient"):
        twinscope.align(reference, candidate, X, optimizer=both[::-1])
    with pytest.raises(OptionError, match="whole number"):
        twinscope.align(reference, candidate, X, optimizer=both, steps=0)
    with pytest.raises(OptionError, match="needs gradients"):
        twinscope.align(reference, candidate, X, optimizer=both, backward=False)


def test_an_optimizer_that_raises_leaves_nothing_behind(pair: Frameworks) -> None:
    reference, candidate = network(pair[0]), network(pair[1])

    def fails(*_: Any) -> None:
        raise RuntimeError("out of ideas")

    with pytest.raises(RuntimeError, match="out of ideas"):
        twinscope.align(reference, candidate, X, loss=squares, optimizer=(lambda *_: None, fails))
    for model in (reference, candidate):
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_forward_post_hooks"):
            assert not getattr(model, hooks, None)
    result = twinscope.align(reference, candidate, X, loss=squares)
    assert result.verdict is Overall.SAME


def test_frozen_parameters_stay_and_those_frozen_on_one_side_are_found(pair: Frameworks) -> None:
    def freeze(framework: str, model: Any) -> None:
        if framework == "torch":
            model.fc1.weight.requires_grad_(False)
        elif framework == "paddle":
            model.fc1.weight.stop_gradient = True
        else:
            model.fc1.weight.requires_grad = False

    for sides, verdict in (((0, 1), Overall.SAME), ((1,), Overall.DIFFERENT)):
        models = [network(f) for f in pair]
        for side in sides:
            freeze(pair[side], models[side])
        both = tuple(optimizer(f, "sgd", m) for f, m in zip(pair, models, strict=True))
        result = twinscope.align(*models, X, loss=squares, optimizer=both, steps=2, weights=True)
        assert result.verdict is verdict, "\n".join(map(str, result.findings))


def test_a_batch_after_one_that_led_apart_is_judged_by_itself(pair: Frameworks) -> None:
    """What the last call left behind was said then; weights that somebody else has changed are said now."""
    reference, candidate = network(pair[0]), network(pair[1])
    wrong = optimizer(pair[0], "sgd", reference, lr=3.0), optimizer(pair[1], "sgd", candidate, lr=1.0)
    first = twinscope.align(reference, candidate, X, loss=squares, optimizer=wrong)
    assert first.verdict is Overall.DIFFERENT
    right = optimizer(pair[0], "sgd", reference), optimizer(pair[1], "sgd", candidate)
    second = twinscope.align(reference, candidate, X, loss=squares, optimizer=right, weights=False)
    assert second.verdict is Overall.SAME, "\n".join(map(str, second.findings))
    assert any("have come" in note for note in second.notes)
    twinscope.copy_weights(network(pair[0]), candidate)
    third = twinscope.align(reference, candidate, X, loss=squares, optimizer=right, weights=False)
    assert Phase.WEIGHT in {f.phase for f in third.findings if f.verdict is Verdict.BUG}


def test_a_tolerance_is_applied_to_the_weights_after_the_update_and_results_can_be_judged_again(
    pair: Frameworks,
) -> None:
    reference, candidate = network(pair[0]), network(pair[1])
    both = optimizer(pair[0], "sgd", reference), optimizer(pair[1], "sgd", candidate, lr=0.0101)
    result = twinscope.align(reference, candidate, X, loss=squares, optimizer=both, steps=2, hold=True)
    assert result.verdict is Overall.DIFFERENT
    loose = result.judged(atol=1.0)
    assert loose.verdict is Overall.SAME
    strict = result.judged(atol=1e-12)
    assert (0, Phase.STEP) in {(p.reference.step, p.reference.phase) for p in strict.pairs if p.verdict is Verdict.BUG}
    for pair_ in (p for p in result.pairs if p.reference.phase is Phase.STEP):
        for diff in pair_.diffs:
            left, right = result.tensors(pair_, diff)
            assert left is not None
            assert right is not None
            assert left.shape == right.shape
    assert not twinscope.align(reference, candidate, X, optimizer=both, weights=False).traces


def test_buffers_are_compared_and_moved(pair: Frameworks) -> None:
    def with_norm(framework: str) -> Any:
        k = kit(framework)

        class Net(k.Module):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__()
                self.fc = k.linear(5, 4)
                self.norm = batch_norm(framework, 4)

            def forward(self, x: Any) -> Any:
                return k.tanh(self.norm(self.fc(x)) + 0.3)

        made = Net()
        made.set_train() if framework == "mindspore" else made.train()
        return made

    reference, candidate = with_norm(pair[0]), with_norm(pair[1])
    before = held(pair[0], reference)
    both = optimizer(pair[0], "sgd", reference), optimizer(pair[1], "sgd", candidate)
    result = twinscope.align(reference, candidate, X, loss=squares, optimizer=both, steps=2)
    assert {0, 1} == {p.reference.step for p in result.pairs if p.reference.phase is Phase.BUFFER}
    found = {f.phase for f in result.findings if f.verdict is Verdict.BUG}
    # Paddle's running variance is the biased one
    assert found == (set() if ("paddle" in pair) == (set(pair) == {"paddle"}) else {Phase.BUFFER})
    after = held(pair[0], reference)
    moved = [path for path in before if "mean" in path]
    assert moved
    assert all(not np.array_equal(before[path], after[path]) for path in moved)


def batch_norm(framework: str, features: int) -> Any:
    if framework == "torch":
        import torch

        return torch.nn.BatchNorm1d(features)
    if framework == "paddle":
        import paddle

        return paddle.nn.BatchNorm1D(features)
    import mindspore as ms

    return ms.nn.BatchNorm1d(features, momentum=0.9)
