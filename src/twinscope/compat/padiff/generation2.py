"""PaDiff 0.2: the calls of its documents. The first model is compared with the second, whose weights it is given.

    auto_diff(layer, module, (paddle_dict, torch_dict), options={"atol": 1e-4})

The documents have a Paddle model first and a Torch model second; a MindSpore model may stand in either place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import twinscope
from twinscope import Finding, InputPair, Overall, Phase, Result, TwinscopeError, Verdict
from twinscope.compat.answer import Answer
from twinscope.compat.console import say

from .assigning import assign
from .layer_map import PREFIX, LayerMap, Resolved, add_special_init, as_layer_map
from .naming import framework_of
from .options import Options
from .telling import Telling

__all__ = ("LayerMap", "add_special_init", "assign_weight", "auto_diff")


def auto_diff(
    layer: Any,
    module: Any,
    example_inp: Any,
    auto_weights: bool = True,
    options: Mapping[str, Any] = {},  # the signature is the document's; it is only read
    layer_map: Any = None,
    loss_fn: Sequence[Callable[[Any], Any]] | None = None,
    optimizer: Sequence[Any] | None = None,
    steps: int = 1,
) -> Answer[Result]:
    """Whether two models compute the same, as PaDiff 0.2 says it; what else is known hangs on the answer's `result`.

    ::

        inp = ({"x": paddle.to_tensor(x)}, {"x": torch.as_tensor(x)})
        answer = auto_diff(layer, module, inp, options={"atol": 1e-4})
        print(answer.result)
    """
    own = Options.parse(options)
    _check_order(layer, module)
    inputs = _inputs(example_inp)
    losses = _two(loss_fn, "loss_fn", "a function of the model's output")
    optimizers = _two(optimizer, "optimizer", "an optimizer, or a function without arguments")
    said = as_layer_map(layer_map).resolved(layer, module)
    own, optimizers, steps, words = _reconciled(own, optimizers, steps)
    for line in words:
        say(f"  {line}", PREFIX)
    say("Your options:", PREFIX)
    say(str(own))
    if auto_weights and not assign(layer, module, said, inputs):
        return Answer(False, lambda: twinscope.align(module, layer, inputs, mapping=said.hints, hold=True))
    for step in range(steps):
        say(f"=================Train Step {step}=================", PREFIX)
        result = _run(layer, module, inputs, own, said, losses, optimizers)
        labels = (
            {p.first.path: "(net in map)" for p in said.pairs},
            {p.second.path: "(net in map)" for p in said.pairs},
        )
        telling = Telling(layer, module, result, own.atol, own.rtol, own.compare_mode, labels, said)
        passed = _Step(telling, own, step, losses is not None).tell()
        if not passed:
            break
    say("SUCCESS !!!\n" if passed else "FAILED !!!\n", PREFIX)
    return Answer(passed, result.judged)


def assign_weight(layer: Any, module: Any, layer_map: LayerMap = LayerMap()) -> bool:  # noqa: B008
    """Give `layer` the weights of `module`: True, or False with the reason printed. Never raises.

    ::

        layer_map = LayerMap()
        layer_map.auto(layer, module)
        assign_weight(layer, module, layer_map)
    """
    try:
        _check_order(layer, module)
        said = as_layer_map(layer_map).resolved(layer, module)
    except TwinscopeError as error:
        say("Assign weight Failed !!!\n", PREFIX)
        say(f"{type(error).__name__}:  {error}")
        return False
    return assign(layer, module, said)


# -- what was handed in ------------------------------------------------------------------------------------------------


def _check_order(layer: Any, module: Any) -> None:
    if (framework_of(layer), framework_of(module)) == ("torch", "paddle"):
        raise TwinscopeError(
            "the Torch model comes first: the documents have the Paddle model first, and weights go to it",
            hint="swap the two models, and the two parts of the inputs",
        )


def _inputs(given: Any) -> InputPair:
    hint = "write ({'x': paddle_tensor}, {'x': torch_tensor})"
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TwinscopeError("example_inp is not a pair, the first model's inputs and the second one's", hint=hint)
    for side in given:
        if not isinstance(side, Mapping):
            raise TwinscopeError(f"example_inp has a {type(side).__name__} where a dict should be", hint=hint)
    return InputPair(given[1], given[0])


def _two(given: Any, name: str, what: str) -> tuple[Any, Any] | None:
    """A pair as these documents order it, turned: the second model is the reference."""
    if given is None:
        return None
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TwinscopeError(f"{name} is not a pair", hint=f"write {name}=[of the first model, of the second]: {what}")
    return given[1], given[0]


def _reconciled(
    own: Options, optimizers: tuple[Any, Any] | None, steps: Any
) -> tuple[Options, tuple[Any, Any] | None, int, list[str]]:
    """What is meant where options contradict each other, with the words about it."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise TwinscopeError(f"steps={steps!r} is not a whole number of at least 1", hint="write steps=1 or more")
    words = []
    alone = "In single_step mode" if own.single_step else "Diff_phase is `forward`" if not own.backward else ""
    if alone and optimizers is not None:
        optimizers = None
        words.append(f"{alone}, optimizer will not be used.")
    if alone and steps > 1:
        steps = 1
        words.append(f"{alone}, steps is set to `1`.")
    if steps > 1 and optimizers is None:
        steps = 1
        words.append("Steps is set to `1`, because optimizers are not given.")
    return own, optimizers, steps, words


def _run(
    layer: Any,
    module: Any,
    inputs: InputPair,
    own: Options,
    said: Resolved,
    losses: tuple[Any, Any] | None,
    optimizers: tuple[Any, Any] | None,
) -> Result:
    """One step of both models, compared by the tolerance that was asked for."""
    watched: dict[str, Any] = {"level": "op" if os.environ.get("PADIFF_API_CHECK") != "OFF" else "module"}
    if os.environ.get("PADIFF_TENSOR_METHOD") == "OFF":
        watched["exclude_ops"] = ["torch.Tensor.*", "paddle.Tensor.*", "mindspore.Tensor.*"]
    if optimizers is not None:
        watched["optimizer"] = optimizers
    if own.single_step:
        watched["alone"] = True
        if own.diff_phase != "both":
            watched["phases"] = ["weight", "loss", own.diff_phase]
    return twinscope.align(
        module,
        layer,
        inputs,
        weights=False,
        loss=losses,
        backward=own.backward,
        hold=True,
        stacks=True,
        atol=own.atol,
        rtol=own.rtol,
        mode=own.compare_mode,
        mapping=said.hints,
        whole=said.whole,
        ignore=said.left_out(),
        **watched,
    )


# -- what is said of it ------------------------------------------------------------------------------------------------


class _Step:
    """One step of both models, told line by line; it stops at the first that differs, but for weights and gradients."""

    def __init__(self, telling: Telling, own: Options, step: int, losses: bool) -> None:
        self.telling, self.result = telling, telling.result
        self.own, self.step, self.losses = own, step, losses

    def tell(self) -> bool:
        """Whether all of it agrees."""
        if not self.own.single_step:
            say(f"Max elementwise output diff is {self.telling.max_output_diff()}", PREFIX)
        before = self.telling.differing(Phase.WEIGHT)
        if before:
            path = self.telling.state_log("weight_diff.log", "Before training, weight", before)
            say(f"Diff found in model weights, check report `{path}`.", PREFIX)
        found = self.telling.first(Phase.FORWARD)
        if found is not None:
            return self._differs("Forward Stage", found)
        if self.own.diff_phase != "backward" or not self.own.single_step:
            say("forward stage compared.", PREFIX)
        if self.losses and not self._loss():
            return False
        if not self.own.backward:
            say("Diff_phase is `forward`. Backward compare skipped.", PREFIX)
            return self._rest()
        found = self.telling.first(Phase.BACKWARD)
        if found is not None:
            self._gradients()
            return self._differs("Backward Stage", found)
        say("backward stage compared.", PREFIX)
        agreed = [self._gradients(), self._updated(), not before]
        if all(agreed) and self._rest():
            say("weight and grad compared.", PREFIX)
            return True
        return False

    def _differs(self, stage: str, finding: Finding) -> bool:
        telling = self.telling
        records = telling.records(finding)
        say("FAILED !!!", PREFIX)
        ids = [telling.net_id(model, r) for model, r in zip((telling.module, telling.layer), records, strict=True)]
        say(f"    Diff found in `{stage}` in step: {self.step}, net_id is {ids[1]} vs {ids[0]}", PREFIX)
        types = [telling.type_of(r) for r in records]
        say(f"    Type of layer is : {types[0]} vs {types[1]}", PREFIX)
        say(telling.numbers(finding))
        say(f"\nTwinscope: {telling.known(finding)}\n")
        say("Check model struct:", PREFIX)
        for text in telling.struct(records):
            say(text)
        say(f"\n\n{telling.stacks(records)}\n")
        return False

    def _loss(self) -> bool:
        bad = self.telling.differing("loss")
        if not bad:
            say("loss compared.", PREFIX)
            return True
        say("*** Diff found in loss, Checkout your loss function! ***", PREFIX)
        say("loss compare:\n", PREFIX)
        say(self.telling.mismatch(*bad[0]))
        return False

    def _gradients(self) -> bool:
        bad = self.telling.differing(Phase.GRADIENT)
        lost = [f for f in self.result.findings if f.phase is Phase.GRADIENT and f.verdict is Verdict.BUG]
        if not bad and not lost:
            return True
        said = "" if bad else "".join(f"{f}\n" for f in lost)
        path = self.telling.state_log("grad_diff.log", "After training, grad", bad, said)
        say(f"Diff found in model grad, check report `{path}`.", PREFIX)
        for finding in lost[:3]:
            say(f"  {finding.reference}: {self.telling.known(finding)}", PREFIX)
        return False

    def _updated(self) -> bool:
        """Whether the weights agree after the update."""
        wrong = [f for f in self.result.findings if f.phase is Phase.STEP and f.verdict is Verdict.BUG]
        if not wrong and not self.telling.differing(Phase.STEP):
            return True
        now = self.telling.held_now()
        bad = now.differing(Phase.WEIGHT)
        path = now.state_log("weight_diff.log", "After training, weight", bad)
        say(f"Diff found in model weights, check report `{path}`.", PREFIX)
        for finding in wrong[:3]:
            say(f"  {finding.reference}: {self.telling.known(finding)}", PREFIX)
        return False

    def _rest(self) -> bool:
        """Whether nothing else keeps "the same" from being said: buffers, layers of one side, what was not compared."""
        if self.result.verdict is Overall.SAME:
            return True
        bad = [f for f in self.result.findings if f.verdict is not Verdict.EXACT]
        for finding in bad[:5]:
            say(f"  {finding}", PREFIX)
        if not bad:
            for note in self.result.notes[:5]:
                say(f"  {note}", PREFIX)
        return False
