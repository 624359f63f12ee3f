"""The one call that strings everything together: copy the weights, run both models alike, compare what was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from .adapters._registry import adapter_for
from .alone import judged_alone
from .capturing import Plan
from .comparing import Comparison, comparison_of, wanted_phases
from .confirming import confirmed, run_in_float64, wants_confirmation
from .errors import OptionError
from .explain.causes import explain
from .explain.linting import lint
from .graft import Grafts, graft
from .hints import Hints
from .judge import RoundoffJudge
from .records import Phase
from .result import Result
from .running import InputPair, watch_once
from .store import Trace
from .training import Side, parse_optimizers, train
from .weights.copy import as_map, copy_weights

_COMPARE = frozenset({"atol", "rtol", "mode", "mapping", "phases", "fold", "whole", "ignore", "judge"})


def align(
    reference: Any,
    candidate: Any,
    inputs: Any,
    *,
    weights: bool = True,
    loss: Callable[[Any], Any] | tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None] | None = None,
    backward: bool = True,
    skip: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    optimizer: tuple[Any, Any] | None = None,
    steps: int = 1,
    seed: int = 0,
    level: str = "op",
    keep: str | int = "tensors",
    hold: bool = False,
    alone: bool = False,
    confirm: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Result:
    """Whether two models that live in this process compute the same, forward and backward.

    Copies the reference's weights into the candidate (`weights=False` leaves them), runs both on the same `inputs` with
    the same seed, and compares the two traces. The reference is left as it was: parameters, gradients, buffers, random
    state. So is the candidate, but for the weights that were copied into it.

    `inputs`: a numpy array, a tuple of positional arguments, a dict of keyword arguments, or for both kinds
    ``Inputs(*args, **kwargs)``, numpy at the leaves; ``InputPair(for_reference, for_candidate)`` where the two differ.
    `loss`: one function of the output for both, or a pair; by default the mean of the outputs. Further options are
    those of `compare` (`atol`, `rtol`, `mode`, `mapping`, `phases`, `fold`, `whole`, `ignore`) and of `capture`
    (`include`, `exclude`...). With `hold` the result keeps both traces: it can be judged again by another measure
    (`Result.judged`), and its tensors can be looked at.

    `confirm`: run both networks in float64, too, where noise collapses and a bug stays (`Result.confirmation`); None
    does so where a call judged alone lies between noise and bug.

    With `alone` the tolerance that was asked for is held against every call alone: against what it makes of the
    reference's own inputs, and of the reference's gradients on the way back. Without a tolerance that is done anyway.

    With ``optimizer=(for_reference, for_candidate)`` both make `steps` training steps: forward, loss, backward, update,
    each compared in its own right, and the models and optimizers stay where that brings them. An optimizer is one of
    the side's framework, or a function that makes the update: without arguments, or taking the gradients, as MindSpore
    needs it. To go on with the next batch, call again with ``weights=False``. See docs/training.md.

    ::

        result = twinscope.align(torch_model, paddle_model, np.random.randn(2, 3, 224, 224).astype("float32"))
        print(result)
    """
    for name, value in (("hold", hold), ("alone", alone)):
        if not isinstance(value, bool):
            raise OptionError(f"{name}={value!r} is neither True nor False", hint=f"write {name}=True")
    if alone and optimizer is not None:
        raise OptionError("alone=True and an optimizer contradict each other", hint="leave one of them out")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise OptionError(f"seed={seed!r} is not a whole number", hint="write seed=0")
    first, second = adapter_for(reference), adapter_for(candidate)
    comparing = {k: options.pop(k) for k in list(options) if k in _COMPARE}
    plan = Plan.parse(level=level, keep=keep, backward=backward, **options)
    losses = loss if isinstance(loss, (tuple, list)) else (loss, loss)
    for own in losses:
        if own is not None and not callable(own):
            raise OptionError(f"loss={own!r} cannot be called", hint="hand in a function of the model's output")
    if len(losses) != 2:
        raise OptionError(
            f"loss has {len(losses)} parts", hint="hand in one function, or (for reference, for candidate)"
        )
    given = inputs if isinstance(inputs, InputPair) else InputPair(inputs, inputs)
    updates = parse_optimizers(optimizer, reference, candidate, steps, backward)
    if updates is not None and confirm:
        raise OptionError("a training step cannot be confirmed in float64", hint="leave confirm= or optimizer= out")
    notes: list[str] = []
    mapping = comparing.pop("mapping", None)
    carried = None
    if weights:
        report = copy_weights(reference, candidate, mapping=mapping, inputs=given, skip=skip, seed=seed)
        carried = report.mapping
        notes += report.notes
    comparing["mapping"] = _module_hints(mapping, reference, candidate)

    def judging(comparison: Comparison, traces: tuple[Trace, Trace], own_seed: int) -> Grafts:
        told = cache(lambda: lint(reference, candidate))
        return graft(
            reference,
            candidate,
            given,
            traces,
            comparison.matching,
            comparison.layers,
            backward=backward,
            seed=own_seed,
            explain=lambda suspect: explain(suspect, told()),
        )

    def finished(result: Result) -> Result:
        if not hold:  # many results may be kept, and traces are large
            result = replace(result, traces=None, again=None)
        return replace(result, notes=(*result.notes, *notes), weights=carried)

    if updates is not None:
        trained = (
            Side("reference", first, reference, given.reference, losses[0], *updates[0]),
            Side("candidate", second, candidate, given.candidate, losses[1], *updates[1]),
        )
        known = carried if carried is not None else as_map(mapping)
        hints = None if known is not None else mapping
        result = train(trained, plan, steps, seed, known, hints, {**comparing, "progress": progress}, judging, hold)
        return finished(result)
    sides = (
        (first, reference, given.reference, losses[0]),
        (second, candidate, given.candidate, losses[1]),
    )
    traces = [
        watch_once(adapter, model, own, own_loss, plan, seed, step=None if own_loss is None else 0)
        for adapter, model, own, own_loss in sides
    ]
    if backward and not (plan.phases or plan.include or plan.exclude or plan.types):
        for trace, side in zip(traces, ("reference", "candidate"), strict=True):
            _refuse_no_gradient(trace, side)
    alone = alone and any(comparing.get(name) is not None for name in ("atol", "rtol", "mode", "judge"))
    phases = comparing.pop("phases", None) if alone else None  # what is not asked for still explains the rest
    comparison = comparison_of(traces[0], traces[1], progress=progress, **comparing)
    grafts = None
    if isinstance(comparison.judge, RoundoffJudge):  # who asks for a tolerance gets exactly that
        grafts = judging(comparison, (traces[0], traces[1]), seed)
    elif alone:
        wanted = wanted_phases(phases)
        return finished(
            judged_alone(reference, candidate, given, comparison, phases=wanted, backward=backward, seed=seed)
        )
    result = comparison.result(grafts)
    if confirm or (confirm is None and wants_confirmation(result, grafts)):
        runs = tuple(
            run_in_float64(adapter, model, own, own_loss, backward=backward, seed=seed)
            for adapter, model, own, own_loss in sides
        )
        result = confirmed(comparison, result, grafts, (runs[0], runs[1]), comparing["mapping"])
    return finished(result)


def _refuse_no_gradient(trace: Trace, side: str) -> None:
    """A backward pass that was asked for and did not happen must not pass for one that agreed."""
    trainable = any(p.trainable for m in trace.manifest.modules for p in m.params)
    if trainable and not any(r.phase in (Phase.BACKWARD, Phase.GRADIENT) for r in trace.records):
        raise OptionError(
            f"the {side}'s loss led to no gradient, and a backward pass was asked for",
            hint="loss must return a scalar that depends on the model's output; or pass backward=False",
        )


def _module_hints(mapping: Any, reference: Any, candidate: Any) -> dict[str, str]:
    """What the user's hints say of modules; what they say of parameters was for copying."""
    if not mapping or as_map(mapping) is not None:
        return {}
    modules = [
        {path: info.path for info, _ in adapter_for(model).modules(model) for path in (info.path, *info.aliases)}
        for model in (reference, candidate)
    ]
    return Hints.parse(mapping).of_modules(modules[0], modules[1])
