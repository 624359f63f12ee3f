"""`map_weights`: from two models to the map of their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..adapters._registry import adapter_for
from ..capturing import Plan
from ..errors import OptionError, TwinscopeError
from ..hints import Hints
from ..match import match
from ..running import InputPair, watch_once
from ..store import Trace
from .mapper import Draft, draft
from .model import Weights
from .proof import prove, prove_recorded
from .weightmap import WeightMap

#: Below this an entry made from names and shapes alone is worth being proven by running: not all has one name.
_PLAIN = 0.99

_LOOK = Plan.parse(level="op", keep="stats", backward=False, weights="never", sources=False)


def map_weights(
    reference: Any,
    candidate: Any,
    inputs: Any = None,
    *,
    hints: Any = None,
    skip: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    seed: int = 0,
) -> WeightMap:
    """Which parameters and buffers of the reference become which of the candidate, by what transform, and why.

    Without `inputs` the models are not run: names, kinds, neutral shapes and place in the tree decide, and where they
    do not, the entry says which others it could be. With `inputs` (as in `align`) both run, in evaluation mode: the
    order and flow of their calls count too, what stays ambiguous is settled by trying, and every entry says whether
    running proved it. Both models are left as they were.

    `hints` pairs paths of modules or of parameters, patterns allowed: ``{"layers.{i}.attn.q": "blocks.{i}.q_proj"}``;
    several parameters are joined by plus signs: ``{"qkv.weight": "q.weight + k.weight + v.weight"}``. It may be the
    path of a JSON file with ``map`` and ``skip``. `skip` leaves out what its path patterns fit, on both sides, or on
    one: ``{"candidate": ["aux.**"]}``.

    ::

        mapping = twinscope.map_weights(torch_model, paddle_model, x)
        print(mapping)
        mapping.save("map.json")
    """
    said = Hints.parse(hints, skip)
    first, second = weights_of(reference), weights_of(candidate)
    if inputs is None:
        return draft(first, second, said).map()
    if isinstance(reference, Weights) or isinstance(candidate, Weights):
        raise OptionError("inputs= needs two live models", hint="hand in the models themselves")
    given = inputs if isinstance(inputs, InputPair) else InputPair(inputs, inputs)
    made = _run(reference, candidate, given, said, seed)
    return prove(made, reference, candidate, given, seed, trust_names=False)


def find_map(reference: Any, candidate: Any, inputs: InputPair, said: Hints, seed: int) -> WeightMap:
    """The map as `align` needs it: from names and shapes where these are plain, otherwise by running."""
    plain = draft(weights_of(reference), weights_of(candidate), said)
    found = plain.map()
    if _is_plain(plain, found):
        return found
    try:
        # where some names differ, equal ones are no more than hints: a block may have gone to the next stage
        made = _run(reference, candidate, inputs, said, seed)
        return prove(made, reference, candidate, inputs, seed, trust_names=False)
    except TwinscopeError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's own code: models that do not fit often take other inputs
        return _unproven(found, error)


def find_map_recorded(
    reference: Weights, trace: Trace, candidate: Any, inputs: Any, said: Hints, seed: int
) -> WeightMap:
    """`find_map` where of the reference there is no more than its weights and a trace of its run, tensors kept."""
    plain = draft(reference, weights_of(candidate), said)
    found = plain.map()
    if _is_plain(plain, found):
        return found
    adapter = adapter_for(candidate)
    try:
        made = _drafted(reference, candidate, trace, watch_once(adapter, candidate, inputs, None, _LOOK, seed), said)
        return prove_recorded(made, trace, candidate, inputs, seed)
    except TwinscopeError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        return _unproven(found, error)


def _is_plain(plain: Draft, found: WeightMap) -> bool:
    return found.complete and not plain.choices and all(e.confidence >= _PLAIN for e in found.entries)


def _unproven(found: WeightMap, error: Exception) -> WeightMap:
    why = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return replace(found, notes=(*found.notes, f"nothing was proven: a model cannot be run ({why})"))


def _run(reference: Any, candidate: Any, inputs: InputPair, said: Hints, seed: int) -> Draft:
    first, second = _look(reference, inputs.reference, seed), _look(candidate, inputs.candidate, seed)
    return _drafted(weights_of(reference), candidate, first, second, said)


def _drafted(reference: Weights, candidate: Any, first: Trace, second: Trace, said: Hints) -> Draft:
    own = weights_of(candidate)
    named = [{path: m.path for m in w.modules for path in (m.path, *m.aliases)} for w in (reference, own)]
    matching = match(first, second, hints=said.of_modules(named[0], named[1]))
    return draft(reference, own, said, (first, second), matching)


def _look(model: Any, inputs: Any, seed: int) -> Trace:
    adapter = adapter_for(model)
    with adapter.evaluating(model):
        return watch_once(adapter, model, inputs, None, _LOOK, seed)


def weights_of(model: Any) -> Weights:
    """The weights of a live model, or those handed in."""
    return model if isinstance(model, Weights) else Weights.of(model)
