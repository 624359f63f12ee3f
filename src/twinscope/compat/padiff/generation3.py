"""PaDiff 0.3: `auto_diff`, `assign_weight` and what belongs to them, for every pair of frameworks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from twinscope import (
    InputPair,
    Inputs,
    Result,
    TwinscopeError,
    Verdict,
    WeightMap,
    align,
    arrays_in,
    compare_arrays,
    copy_weights,
    map_weights,
    modules_of,
    snapshot,
)

from ..answer import Answer
from ..console import say
from . import special
from .checking import tolerance_of
from .failing import LOG, only_conventions, say_failed, wrongly_mapped
from .mismatch import mismatch
from .problems import ArgumentError, one_of, only_known, truth
from .proxy import ProxyModel, create_model

_PHASES = ("both", "forward", "backward")
_DEFAULTS: Mapping[str, Any] = {
    "atol": 0,
    "rtol": 1e-7,
    "auto_init": True,
    "compare_mode": "mean",
    "diff_phase": "both",
    "single_step": False,
}
_TOLERANCE = {name: _DEFAULTS[name] for name in ("atol", "rtol", "compare_mode")}


def auto_diff(
    base_model: Any,
    raw_model: Any,
    inputs: Sequence[Mapping[str, Any]],
    loss_fns: Sequence[Callable[[Any], Any]] | None = None,
    optimizers: Sequence[Any] | None = None,
    **kwargs: Any,
) -> Answer[Result]:
    """Whether `raw_model` computes what `base_model` does, within a tolerance; prints where it first does not.

    Models are proxies or native ones. `inputs` is a pair of dicts, each model is called ``model(**its_inputs)``.
    `loss_fns` and `optimizers` are pairs too; an optimizer is one of the framework's or a function that makes the
    update and clears the gradients. Options: atol (0), rtol (1e-7), auto_init (True: the base's weights are copied
    first), compare_mode ("mean", "strict"), diff_phase ("both", "forward", "backward": with single_step only),
    single_step (False; True judges every call on the base's own inputs).

    ::

        auto_diff(module, layer, ({"x": torch.as_tensor(x)}, {"x": paddle.to_tensor(x)}), atol=1e-4)

    The answer's `result` says the same without any tolerance, by what rounding explains.
    """
    only_known(kwargs, _DEFAULTS, "auto_diff")
    options = {**_DEFAULTS, **kwargs}
    tolerance = tolerance_of(options)
    one_of(options["diff_phase"], _PHASES, "diff_phase")
    single_step = truth(options["single_step"], "single_step")
    auto_init = truth(options["auto_init"], "auto_init")
    base = create_model(base_model, None if isinstance(base_model, ProxyModel) else _name(base_model, "base"))
    raw = create_model(raw_model, None if isinstance(raw_model, ProxyModel) else _name(raw_model, "raw"))
    given = _inputs(inputs)
    losses = _pair_of(loss_fns, "loss_fns", "a function of the model's output")
    updates = _pair_of(optimizers, "optimizers", "an optimizer, or a function that makes the update")
    phase = options["diff_phase"]
    if phase == "backward" and not single_step:
        say("  Not in single_step mode, diff_phase `backward` is not supported, set to `both` instead.", LOG)
        options["diff_phase"] = phase = "both"
    if phase == "forward" and updates is not None:
        say("  Diff_phase is `forward`, optimizer will not be used.", LOG)
        updates = None
    if phase == "both" and not _learns(base, given.reference) and not _learns(raw, given.candidate):
        say("  Nothing here has a gradient: no trainable parameter, no such input. Backward compare skipped.", LOG)
        phase = "forward"
    _say_options(options, losses is not None, updates is not None)
    by_running = updates is not None  # which changes the models: there is but one try
    if auto_init:
        assigned = _assign(base, raw, given, by_running)
        if not assigned:
            say("FAILED !!!", LOG)
            return assigned
    asked: dict[str, Any] = {
        "loss": losses,
        "backward": phase != "forward",
        "mapping": _mapped(base, raw) or None,
        "ignore": {"reference": base.choice.left_out(known=True), "candidate": raw.choice.left_out(known=True)},
    }

    def compared() -> Result:
        if single_step:
            return _single_step(base, raw, given, asked, tolerance, updates, phase)
        return _run(base, raw, given, {**asked, **tolerance}, updates)

    result = compared()
    if not result and auto_init and not by_running:
        again = _assign(base, raw, given, True, known=assigned.result)
        if again:  # names had led astray
            asked["mapping"] = {**_modules_by(again.result.mapping), **_mapped(base, raw)}
            result = compared()
    passed = (bool(result) or only_conventions(result)) and not wrongly_mapped(result, _mapped(base, raw))
    if not result and not passed:
        say_failed(result, (base.name, raw.name), tolerance)
    say("SUCCESS !!!" if passed else "FAILED !!!", LOG)
    return Answer(passed, result.judged)


def assign_weight(base_model: Any, raw_model: Any) -> Answer[Any]:
    """Give `raw_model` the weights and buffers of `base_model`; False, and why is printed, where that cannot be.

    Layers of the layer maps that `add_special_init` knows are carried by its functions; everything else by what the
    layers are, whatever they are called and in whatever order they were made.

    ::

        if assign_weight(module, layer):
            ...
    """
    return _assign(create_model(base_model), create_model(raw_model), None, False)


def add_special_init(
    base_framework: str, base_model_name: str, raw_framework: str, raw_model_name: str, func: Callable[[Any, Any], Any]
) -> None:
    """Carry the weights of one class to another by ``func(base_layer, raw_layer)``, where the layer maps pair them.

    ::

        add_special_init("torch", "BatchNorm2d", "paddle", "BatchNorm2D", init_batch_norm)
    """
    for framework, name in ((base_framework, base_model_name), (raw_framework, raw_model_name)):
        if not isinstance(framework, str) or not isinstance(name, str):
            raise ArgumentError(
                f"{framework!r}, {name!r} are not the names of a framework and of a class",
                hint='write add_special_init("torch", "LSTM", "paddle", "LSTM", func)',
            )
    special.add(f"{base_framework}::{base_model_name}", f"{raw_framework}::{raw_model_name}", func)


def check_dataloader(first_loader: Iterable[Any], second_loader: Iterable[Any], **kwargs: Any) -> Answer[Any]:
    """Whether two loaders give the same batches, of whatever framework; options are atol, rtol and compare_mode.

    ::

        check_dataloader(paddle_loader, torch_loader, atol=1e-6)

    `result` lists what differs.
    """
    only_known(kwargs, _TOLERANCE, "check_dataloader")
    tolerance = tolerance_of({**_TOLERANCE, **kwargs})
    missing = object()
    compared = 0
    for i, (first, second) in enumerate(zip_longest(first_loader, second_loader, fillvalue=missing)):
        if first is missing or second is missing:
            whose = "first" if first is missing else "second"
            return _unequal([f"the {whose} loader has {i} batches, the other has more"])
        arrays = (dict(arrays_in(first)), dict(arrays_in(second)))
        if list(arrays[0]) != list(arrays[1]):
            return _unequal([f"batch {i} has {list(arrays[0])} in the first loader, {list(arrays[1])} in the second"])
        for name in arrays[0]:
            left, right = arrays[0][name], arrays[1][name]
            if not _agree(left, right, **tolerance):
                where = f"batch {i}{f', {name}' if name else ''}: "
                return _unequal([where + mismatch(left, right, **tolerance)])
            compared += left.size
    if not compared:
        raise ArgumentError("the loaders gave nothing that can be compared", hint="were they used up already?")
    return Answer(True, lambda: [])


def _agree(left: Any, right: Any, atol: float, rtol: float, mode: str) -> bool:
    if left.shape != right.shape:
        return False
    found = compare_arrays(left, right, atol=atol, rtol=rtol, equal_nan=True)
    if mode == "strict" or found.nonfinite_mismatch:
        return found.within == 1.0
    scale = float(np.mean(np.abs(left.astype(np.complex128 if left.dtype.kind == "c" else np.float64))))
    return found.mean_abs <= atol + rtol * scale or left.size == 0


def _unequal(lines: list[str]) -> Answer[list[str]]:
    say("check dataloader failed!!!", LOG)
    for line in lines:
        say(line)
    return Answer(False, lambda: lines)


def _run(base: ProxyModel, raw: ProxyModel, given: InputPair, asked: Mapping[str, Any], updates: Any) -> Result:
    more = {} if updates is None else {"optimizer": updates}
    level = "module" if os.environ.get("PADIFF_API_CHECK") == "OFF" else "op"
    return align(base.model, raw.model, given, weights=False, level=level, stacks=True, hold=True, **asked, **more)


def _single_step(
    base: ProxyModel,
    raw: ProxyModel,
    given: InputPair,
    asked: Mapping[str, Any],
    tolerance: Mapping[str, Any],
    updates: Any,
    phase: str,
) -> Result:
    """Every call on the base's own inputs, by the tolerance: what accumulates from call to call does not count.

    What lies between calls, an op of one side alone that bends the gradient, is in none of them: where the whole run is
    not within the tolerance, differences that no call makes by itself count too.
    """
    if phase == "backward":
        asked = {**asked, "phases": ("backward", "gradient")}
    alone = _run(base, raw, given, {**asked, **tolerance, "alone": True}, None)
    if not alone:
        return alone
    if not _run(base, raw, given, {**asked, **tolerance}, None):
        apart = _run(base, raw, given, asked, None)
        wrong = [f for f in apart.findings if f.verdict is Verdict.BUG]
        if any(f.pair is None or f.pair.graft is None or f.pair.graft.verdict is not Verdict.BUG for f in wrong):
            return apart
    if updates is None:
        return alone
    trained = _run(base, raw, given, asked, updates)  # an update is judged by what it was given in any case
    return alone if trained else trained


# -- arguments -------------------------------------------------------------------------------------------------------


def _name(model: Any, place: str) -> str:
    return f"{type(model).__name__}_{place}_model"


def _inputs(inputs: Any) -> InputPair:
    if not isinstance(inputs, (tuple, list)) or len(inputs) != 2 or not all(isinstance(i, Mapping) for i in inputs):
        raise ArgumentError("inputs is not a pair of dicts", hint="write ({'x': for_base_model}, {'x': for_raw_model})")
    return InputPair(Inputs(**inputs[0]), Inputs(**inputs[1]))


def _learns(model: ProxyModel, inputs: Inputs) -> bool:
    """Whether a backward pass has anything to do: a parameter to train, or an input that asks for its gradient."""
    if any(p.trainable for info, _ in modules_of(model.model) for p in info.params):
        return True
    tensors = inputs.kwargs.values()
    return any(getattr(t, "requires_grad", False) or getattr(t, "stop_gradient", True) is False for t in tensors)


def _pair_of(given: Any, what: str, each: str) -> tuple[Any, Any] | None:
    if given is None:
        return None
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ArgumentError(f"{what} is not a pair", hint=f"write {what}=[for_base_model, for_raw_model]: {each}")
    if what == "loss_fns" and not all(callable(one) for one in given):
        raise ArgumentError(f"{what} has what cannot be called", hint=f"each is {each}")
    return given[0], given[1]


def _say_options(options: Mapping[str, Any], use_loss: bool, use_opt: bool) -> None:
    say("Your options:", LOG)
    say("{")
    for name, value in {**options, "use_loss": use_loss, "use_opt": use_opt}.items():
        say(f"  {name}: `{value}`")
    say("}")


# -- weights ---------------------------------------------------------------------------------------------------------


def _mapped(base: ProxyModel, raw: ProxyModel) -> dict[str, str]:
    first, second = base.choice.layer_map, raw.choice.layer_map
    if len(first) != len(second):
        raise ArgumentError(
            f"the layer map of base_model has {len(first)} layers, that of raw_model {len(second)}",
            hint="call set_layer_map on both with as many layers, in the order in which they correspond",
        )
    return dict(zip(first, second, strict=True))


def _assign(
    base: ProxyModel, raw: ProxyModel, inputs: InputPair | None, by_running: bool, known: Any = None
) -> Answer[Any]:
    """Copy the weights, and say so.

    Which belong to which is told by names, kinds and shapes, and where those leave it open by running both models;
    with `by_running` in any case, which takes longer. `known` is what was done already: False where that holds.
    """
    mapped = _mapped(base, raw)
    modules = [{info.path: module for info, module in modules_of(m.model)} for m in (base, raw)]
    carried: list[tuple[special.Init, str, str]] = []
    for first, second in mapped.items():
        names = (
            f"{base.framework}::{type(modules[0][first]).__name__}",
            f"{raw.framework}::{type(modules[1][second]).__name__}",
        )
        func = special.find(*names)
        if func is not None:
            carried.append((func, first, second))
    own = {first for _, first, _ in carried}
    hints = {a: b for a, b in mapped.items() if a not in own}
    skip = {
        "reference": [path or "**" for _, path, _ in carried],
        "candidate": [path or "**" for _, _, path in carried],
    }
    report: Any = None
    try:
        if any(info.params for model in (base, raw) for info, _ in modules_of(model.model)):
            mapping = map_weights(base.model, raw.model, inputs if by_running else None, hints=hints, skip=skip)
            if not mapping.complete and not by_running and inputs is not None:
                mapping = map_weights(base.model, raw.model, inputs, hints=hints, skip=skip)
            if known is not None and (not mapping.complete or _ways(mapping) == _ways(getattr(known, "mapping", ()))):
                return Answer(False, lambda: known)
            report = copy_weights(base.model, raw.model, mapping=_in_order(mapping))
        elif known is not None:
            return Answer(False, lambda: known)
    except TwinscopeError as error:
        return Answer(False, lambda: known) if known is not None else _not_assigned(error)
    for func, first, second in carried:
        try:
            func(modules[0][first], modules[1][second])
        except Exception as error:  # noqa: BLE001 - the user's function: assign_weight says False, as documented
            classes = [type(m[path]).__name__ for m, path in zip(modules, (first, second), strict=True)]
            say(f"Special init `{classes[0]}` and `{classes[1]}` failed.", LOG)
            return _not_assigned(error)
    say("Assign weight success !!!", LOG)
    return Answer(True, lambda: report if report is not None else snapshot(raw.model))


def _ways(mapping: Iterable[Any]) -> set[tuple[Any, ...]]:
    """What becomes of what, and how."""
    return {(e.reference, e.candidate, str(e.transform)) for e in mapping}


def _modules_by(mapping: WeightMap) -> dict[str, str]:
    """Which modules belong together, where each has its weights from one."""
    found: dict[str, set[str]] = {}
    for entry in mapping.entries:
        for path in entry.reference:
            found.setdefault(path.rpartition(".")[0], set()).update(p.rpartition(".")[0] for p in entry.candidate)
    partners = [next(iter(p)) for p in found.values() if len(p) == 1]
    return {a: b for a, (b, *more) in found.items() if a and b and not more and partners.count(b) == 1}


def _in_order(mapping: WeightMap) -> WeightMap:
    """Of layers that nothing tells apart the order of definition decides, which the document asks to be the same."""
    needed = [h for h in (*mapping.unmatched_reference, *mapping.unmatched_candidate) if h.needed]
    if mapping.complete or needed or any(e.confidence == 0 for e in mapping.unsure):
        return mapping
    for entry in mapping.unsure:
        say(f"    {' + '.join(entry.reference)} -> {' + '.join(entry.candidate)}: {entry.why}", LOG)
    return replace(mapping, entries=tuple(e if e.sure else replace(e, confidence=1.0) for e in mapping.entries))


def _not_assigned(error: Exception) -> Answer[Any]:
    say("Assign weight Failed !!!", LOG)
    say(f"{type(error).__name__}: {error}")
    return Answer(False, lambda: error)
