"""Judging a candidate by a recorded run of the reference, whose framework need not be here.

The trace, captured with ``keep="tensors"``, holds all that is needed: the weights, what the network was given, every
tensor on the way, and the gradient that came back to what it returned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from .adapters._registry import adapter_for
from .adapters.base import Adapter, Array
from .capturing import Plan
from .comparing import Comparison, comparison_of
from .errors import OptionError, TraceError, WeightError
from .explain.causes import explain
from .explain.linting import lint
from .graft import Grafts, graft
from .hints import Hints
from .records import OUTSIDE, Kind, ModuleInfo, ParamInfo, Phase, Record
from .result import Result
from .running import InputPair, Inputs, watch_once
from .store import Trace
from .weights import WeightMap, Weights
from .weights.copy import as_map, give_weights
from .weights.mapping import find_map_recorded

_KEEP = 'capture the reference with keep="tensors", or with keep=N for a network of small tensors'


def judge_trace(
    trace: Trace | str | os.PathLike[str],
    candidate: Any,
    inputs: Any = None,
    *,
    weights: bool = True,
    mapping: Any = None,
    skip: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    loss: Callable[[Any], Any] | None = None,
    backward: bool = True,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """`align` where of the reference there is only a trace, made elsewhere: its framework need not be here.

    The candidate gets the weights that the trace holds, is run on the inputs that it holds, and each of its calls is
    judged alone on the tensors that it holds. The truth is the candidate's own float64, since the reference's calls
    cannot be made again.

    `inputs`: in the candidate's form, where the recorded ones are not; `loss`: of the candidate's output, where it is
    to be the reference's; else the gradient that the recorded run had for its output is pulled back. `mapping` and
    `skip` are those of `align`; `weights=False` leaves the candidate's weights as they are.

    Of the trace the first step is used, and it must hold whole tensors.

    ::

        # with twinscope.capture(model, "runs/ref", keep="tensors"): ... on the reference's machine
        result = twinscope.judge_trace("runs/ref", paddle_model)
        print(result.findings[0])
    """
    reference = _first_step(Trace.open(trace))
    root = _root(reference)
    adapter = adapter_for(candidate)
    given = _recorded_inputs(reference, root) if inputs is None else inputs
    notes: tuple[str, ...] = ()
    if weights:
        notes, carried = take_weights(recorded_weights(reference), reference, candidate, given, mapping, skip, seed)
    else:
        carried = None
    if backward and loss is None:
        loss = _gradient_of(reference, root, adapter)
        backward = loss is not None
        if not backward:
            notes = (*notes, "the trace holds no gradient of what the network returned: forward only")
        reference = _of_the_model(reference)
    plan = Plan.parse(level="op", keep="tensors", backward=backward)
    own = watch_once(adapter, candidate, given, loss if backward else None, plan, seed)
    own = _of_the_model(own)
    phases = None if backward else [Phase.WEIGHT, Phase.BUFFER, Phase.FORWARD]
    traces = (reference, own)
    comparison, grafts = judged_alone(
        traces, candidate, InputPair(given, given), mapping, backward=backward, seed=seed, phases=phases, tell=progress
    )
    result = comparison.result(grafts)
    return replace(result, notes=(*result.notes, *notes), weights=carried)


def judged_alone(
    traces: tuple[Trace, Trace],
    candidate: Any,
    inputs: InputPair,
    mapping: Any,
    *,
    backward: bool,
    seed: int,
    phases: Sequence[Phase] | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> tuple[Comparison, Grafts]:
    """Two traces compared, and the candidate's calls on the tensors of the reference's."""
    comparison = comparison_of(*traces, mapping=modules_of(mapping, traces), phases=phases, progress=tell)
    told = cache(lambda: lint(traces[0], candidate))
    grafts = graft(
        None,
        candidate,
        inputs,
        traces,
        comparison.matching,
        comparison.layers,
        backward=backward,
        seed=seed,
        explain=lambda suspect: explain(suspect, told()),
    )
    return comparison, grafts


def modules_of(mapping: Any, traces: Sequence[Trace]) -> dict[str, str]:
    """What the user's hints say of modules; what they say of parameters was for copying."""
    if as_map(mapping) is not None:
        return {}
    said = Hints.parse(mapping)
    sides = [t.manifest.modules for t in traces]
    named = [{path: m.path for m in side for path in (m.path, *m.aliases)} for side in sides]
    held = [{path: path for m in side for p in m.params for path in _names(m, p)} for side in sides]
    said.of_tensors(named[0], held[0], held[1])  # without weights nobody else would notice a hint that fits nothing
    return said.of_modules(named[0], named[1])


def _names(module: ModuleInfo, param: ParamInfo) -> list[str]:
    return [f"{path}.{param.name}" if path else param.name for path in (module.path, *module.aliases)]


# -- weights -----------------------------------------------------------------------------------------------------------


def recorded_weights(trace: Trace) -> Weights:
    """The weights that a run began with, as its trace holds them."""
    slots = {(r.path, s.name): s for r in trace.records if r.phase is Phase.WEIGHT for s in r.slots}
    if any(m.params for m in trace.manifest.modules) and not any(s.kept for s in slots.values()):
        raise WeightError("the trace does not hold the values of the weights", hint=f"{_KEEP}; or leave weights alone")

    def array(info: ModuleInfo, param: ParamInfo) -> Array:
        slot = slots.get((info.path, param.name))
        values = trace.tensor(slot) if slot is not None else None
        if values is None:
            raise WeightError(f"the trace does not hold the values of {info.param_path(param.name)}", hint=_KEEP)
        return values

    return Weights(trace.manifest.framework, trace.manifest.model, trace.manifest.modules, array)


def take_weights(
    weights: Weights,
    trace: Trace,
    candidate: Any,
    inputs: Any,
    mapping: Any,
    skip: Any,
    seed: int,
) -> tuple[tuple[str, ...], WeightMap]:
    """Give the candidate weights whose model is not here, by a map, or by one found with the help of its recorded run;
    what a person should know, and the map."""
    found = as_map(mapping)
    try:
        if found is None:
            found = find_map_recorded(weights, trace, candidate, inputs, Hints.parse(mapping, skip), seed)
        return give_weights(weights, candidate, found).notes, found
    except WeightError as error:
        if mapping is not None and as_map(mapping) is not None:
            raise
        raise WeightError(
            error.message,
            hint="make the map where both frameworks are, with inputs to prove it: "
            "twinscope map REF CAND --inputs X -o map.json; and hand it in: --map map.json, or mapping=",
        ) from error


# -- what the trace holds ----------------------------------------------------------------------------------------------


def _first_step(trace: Trace) -> Trace:
    steps = trace.steps
    if not steps:
        raise TraceError(f"{trace!r} holds no records", hint="did the run end before anything was called?")
    if steps[0] != 0:
        raise OptionError(
            f"the trace begins with step {steps[0]}", hint="capture step 0, with which the weights belong"
        )
    return trace if len(steps) == 1 else replace(trace, records=[r for r in trace.records if r.step == 0])


def _of_the_model(trace: Trace) -> Trace:
    """Without what ran outside: the loss, which the two sides do not share."""
    return replace(trace, records=[r for r in trace.records if r.path != OUTSIDE])


def _root(trace: Trace) -> Record:
    roots = [r for r in trace.records if r.path == "" and r.kind is Kind.MODULE and r.phase is Phase.FORWARD]
    if not roots:
        raise TraceError(
            f"{trace!r} holds no call of the model itself",
            hint="capture the whole model, without include=, types= or phases=",
        )
    if len(roots) > 1:
        raise OptionError(
            f"the model was called {len(roots)} times in the first step", hint="capture a step with one call"
        )
    return roots[0]


def _recorded_inputs(trace: Trace, root: Record) -> Inputs:
    """What the model was called with: `Slot.name` says where each tensor stood."""
    found: dict[str, Any] = {str(k): _told(k, v) for k, v in root.args.items()}
    nested: dict[str, dict[str, Array]] = {}
    for slot in root.inputs():
        values = trace.tensor(slot)
        if values is None:
            raise TraceError(f"the trace does not hold the values of the model's input {slot.name}", hint=_KEEP)
        key, _, rest = slot.name.removeprefix("in.").partition(".")
        if rest:
            nested.setdefault(key, {})[rest] = values
        else:
            found[key] = values
    found |= {key: _nested(parts) for key, parts in nested.items()}
    positions = sorted((k for k in found if k.isdecimal()), key=int)
    if [int(k) for k in positions] != list(range(len(positions))):
        raise TraceError(
            f"of the model's inputs only {', '.join(sorted(found))} can be had from the trace",
            hint="hand in inputs=, or --inputs",
        )
    return Inputs(*(found[k] for k in positions), **{k: v for k, v in found.items() if not k.isdecimal()})


def _told(name: object, value: Any) -> Any:
    if isinstance(value, str) and value.startswith("<") and value.endswith(">"):
        raise TraceError(
            f"the model's input {name} was a {value[1:-1]}, which a trace does not hold",
            hint="hand in inputs=, or --inputs",
        )
    return value


def _nested(parts: Mapping[str, Array]) -> Any:
    """A list where all names are numbers, else a dict."""
    groups: dict[str, Any] = {}
    for name, values in parts.items():
        key, _, rest = name.partition(".")
        if rest:
            groups.setdefault(key, {})[rest] = values
        else:
            groups[key] = values
    made = {k: _nested(v) if isinstance(v, dict) else v for k, v in groups.items()}
    return [made[k] for k in sorted(made, key=int)] if all(k.isdecimal() for k in made) else made


def _gradient_of(trace: Trace, root: Record, adapter: Adapter) -> Callable[[Any], Any] | None:
    """A loss of the candidate's output whose gradient is the recorded one; None where none was recorded."""
    back = next(
        (r for r in trace.records if r.phase is Phase.BACKWARD and r.call_id == root.call_id and r.kind is Kind.MODULE),
        None,
    )
    gradients = {} if back is None else {s.name: trace.tensor(s) for s in back.outputs()}
    known = {name: g for name, g in gradients.items() if g is not None}
    if not known:
        return None

    def loss(output: Any) -> Any:
        total: Any = None
        for name, tensor in adapter.leaves(output):
            gradient = known.get(f"out.{name}" if name else "out")
            if gradient is None or tuple(gradient.shape) != adapter.meta(tensor).shape:
                continue
            part = adapter.mean(tensor * adapter.from_numpy(gradient, like=tensor)) * float(gradient.size)
            total = part if total is None else total + part
        if total is None:
            raise OptionError(
                "the candidate returns nothing of the shape of what the reference returned",
                hint="hand in loss=, or backward=False",
            )
        return total

    return loss
