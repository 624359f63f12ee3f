"""PPAutoDiff: the one call of its document, ``autodiff``.

    autodiff(layer, module, inp, auto_weights=True, options={"atol": 1e-4})

It compares the calls of layers, not of functions. The document has a Paddle model first and a Torch model second; a
MindSpore model may stand in either place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import twinscope
from twinscope import Finding, InputPair, Overall, Phase, Result, TwinscopeError, Verdict

from .answer import Answer
from .console import say
from .padiff.naming import described, framework_of
from .padiff.options import Options
from .padiff.telling import Telling

_LEGAL = ("atol",)


def autodiff(
    layer: Any,
    module: Any,
    example_inp: Any,
    auto_weights: bool = True,
    options: Mapping[str, Any] = {},  # the signature is the document's; it is only read
) -> Answer[Result]:
    """Whether two models compute the same, as PPAutoDiff says it; what else is known hangs on the answer's `result`.

    With `auto_weights` both get the same random weights. `example_inp` is one array, whose first axis is the batch.

    ::

        answer = autodiff(layer, module, inp, auto_weights=True, options={"atol": 1e-4})
        print(answer.result)
    """
    own = Options.parse(options, _LEGAL, "autodiff")
    for model in (layer, module):
        twinscope.modules_of(model)  # says what it is not
    if (framework_of(layer), framework_of(module)) == ("torch", "paddle"):
        raise TwinscopeError(
            "the Torch model comes first: the document has the Paddle model first", hint="swap the two models"
        )
    x = twinscope.as_array(example_inp)
    inputs = InputPair((x,), (x,))
    if auto_weights:
        twinscope.copy_weights(random_weights(module), module)
        twinscope.copy_weights(module, layer, inputs=inputs)
    result = twinscope.align(
        module,
        layer,
        inputs,
        weights=False,
        level="module",
        hold=True,
        stacks=True,
        atol=own.atol,
        rtol=own.rtol,
        mode="strict",
    )
    passed = _tell(Telling(layer, module, result, own.atol, own.rtol, "strict"))
    say("SUCCESS !!!" if passed else "")
    return Answer(passed, result.judged)


def random_weights(model: Any, seed: int = 0) -> twinscope.Weights:
    """Random weights for every trainable parameter of a model, of a size that keeps activations in bounds.

    A bias or a scale is moved away from where it stands: zeros and ones would hide that one is missing.
    """
    held = twinscope.Weights.of(model)
    read = held.reader()
    random = np.random.default_rng(seed)
    tensors = {}
    for path, _, param in held.places():
        array = np.asarray(read(path))
        own = array.dtype
        if param.trainable and not param.buffer and "float" in param.meta.dtype:
            noise = random.standard_normal(array.shape)
            shape = param.neutral_shape()
            wide = len(shape) > 1
            array = noise / math.sqrt(max(array.size / shape[0], 1)) if wide else array + 0.1 * noise
        tensors[path] = np.asarray(array).astype(own)
    return twinscope.Weights.from_json(held.to_json(), tensors)


def _tell(telling: Telling) -> bool:
    """Print what the document shows; whether both agree."""
    say(f"Max output diff is {telling.max_output_diff()}")
    _tell_state(telling)
    for stage, word, phase in (
        ("Forward  Stagy", "forward", Phase.FORWARD),
        ("Backward Stagy", "bacward", Phase.BACKWARD),
    ):
        found = telling.first(phase)
        if found is not None:
            _differs(telling, stage, found)
            return False
        say(f"{word} {telling.compared(phase)} steps compared.")
    if telling.result.verdict is Overall.SAME:
        return True
    say("FAILED !!!")
    for finding in [f for f in telling.result.findings if f.verdict is not Verdict.EXACT][:5]:
        say(f"    {finding}")
    return False


def _tell_state(telling: Telling) -> None:
    """Every parameter whose value or gradient differs, with the two layers that hold it."""
    bad: dict[tuple[str, str], list[str]] = {}
    for what, phase in (("weight", Phase.WEIGHT), ("grad", Phase.GRADIENT)):
        for pair, diff in telling.differing(phase):
            places = (pair.candidate.path, pair.reference.path)
            bad.setdefault((pair.reference.path, diff.reference.name), []).append(
                f"After training, {what} value is different for param `{diff.candidate.name}`.\n"
                f"{framework_of(telling.layer)}: at `{described(telling.layer, places[0])}`.\n"
                f"{framework_of(telling.module)}: at `{described(telling.module, places[1])}`.\n"
            )
    for texts in bad.values():
        for text in texts:
            say(text)


def _differs(telling: Telling, stage: str, finding: Finding) -> None:
    assert finding.pair is not None
    compared = [p for p in telling.result.pairs if p.reference.phase is finding.phase]
    step = next(i for i, p in enumerate(compared) if p.pair is finding.pair.pair)
    records = telling.records(finding)
    ids = [telling.net_id(model, r) for model, r in zip((telling.module, telling.layer), records, strict=True)]
    types = [telling.type_of(r) for r in records]
    say("FAILED !!!")
    say(f"    Diff found in `{stage}` in step: {step}, net_id is {ids[1]} vs {ids[0]}")
    say(f"    Type of layer is  : {types[0]} vs {types[1]}\n")
    say(f"{telling.numbers(finding)}\n")
    say(f"Twinscope: {telling.known(finding)}\n\n")
    say(telling.stacks(records, "{}  Stacks:"))
