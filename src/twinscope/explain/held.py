"""Why what a module holds differs: its weights, their gradients, its running statistics. Nothing is run.

A parameter is looked at in the neutral layout, as the reference has it, so that "row 1" is the same row on both sides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..adapters.base import Array
from ..match import Pair
from ..records import Kind, ParamInfo, Phase, Record
from ..store import Trace
from ..weights.layout import from_neutral, to_neutral
from .shapes import Shape, known_factor, residual_shapes, rounded
from .suspect import Cause


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter or buffer of the candidate, with what the reference's says it should be; both in its own layout."""

    path: str
    param: ParamInfo
    expected: Array
    actual: Array


def explain_weights(held: Sequence[Held]) -> tuple[Cause, ...]:
    """What is wrong with each of these parameters; nothing of those that are right.

    >>> from twinscope.records import TensorMeta
    >>> weight = ParamInfo("weight", TensorMeta((2, 3), "float32"), "weight", True, False)
    >>> right = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> [str(cause) for cause in explain_weights([Held("fc.weight", weight, right, np.ones_like(right))])]
    ['fc.weight is all ones: at its initial value, never carried over']
    """
    return tuple(Cause(text, True) for text in dict.fromkeys(t for t in damages(held) if t is not None))


def explain_state(pair: Pair, traces: tuple[Trace, Trace]) -> tuple[Cause, ...]:
    """Why two state records of a module differ: its weights, their gradients, or its buffers after the step."""
    sides = []
    for record, trace in zip((pair.reference, pair.candidate), traces, strict=True):
        info = next((m for m in trace.manifest.modules if m.path == record.path), None)
        sides.append({} if info is None else {p.name: p for p in info.params})
    phase = pair.reference.phase
    found: list[Cause] = []
    held: list[Held] = []
    for a, b in pair.slots:
        arrays = [trace.tensor(slot) for trace, slot in zip(traces, (a, b), strict=True)]
        own, other = sides[0].get(a.name), sides[1].get(b.name)
        if arrays[0] is None or arrays[1] is None or own is None or other is None:
            continue
        theirs = to_neutral(own, arrays[0])
        if theirs.shape != other.neutral_shape():
            continue
        path = f"{pair.candidate.path}.{b.name}" if pair.candidate.path else b.name
        if phase is Phase.WEIGHT:
            held.append(Held(path, other, from_neutral(other, theirs), arrays[1]))
            continue
        mine = to_neutral(other, arrays[1])
        noise = 2.0**-22 * float(np.sqrt(np.mean(theirs.astype(np.float64) ** 2)))
        if close(theirs, mine):
            continue
        if phase is Phase.GRADIENT:
            found += _of_ties(pair, traces, a.name, b.name)
            found += explain_gradient(path, theirs, mine, noise, other)
        elif phase is Phase.BUFFER:
            before = _before(traces[0], pair.reference, a.name)
            if before is not None:
                counts = _counts(traces[0], pair.reference.path)
                found += explain_statistics(own.role, to_neutral(own, before), theirs, mine, noise, counts)
    if phase is Phase.GRADIENT:
        found += _without(pair, sides[1])
    return tuple([*explain_weights(held), *found])


def _without(pair: Pair, params: Mapping[str, ParamInfo]) -> list[Cause]:
    """Parameters of the candidate that got no gradient where the reference's did."""
    if not any(side == "reference" for side, _ in pair.unmatched_slots):
        return []
    got = {s.name for s in pair.candidate.slots}
    return [
        Cause(f"{name} is frozen in the candidate (trainable True / False): it gets no gradient", True)
        for name, param in params.items()
        if not param.trainable and not param.buffer and name not in got
    ]


def _of_ties(pair: Pair, traces: tuple[Trace, Trace], own: str, other: str) -> list[Cause]:
    """A weight that is used at several places on one side only: its gradient is the sum of theirs."""
    tied = []
    for record, trace, name in zip((pair.reference, pair.candidate), traces, (own, other), strict=True):
        path = f"{record.path}.{name}" if record.path else name
        users = {
            r.call_id
            for r in trace.records
            if r.kind is Kind.OP and r.phase is Phase.FORWARD and any(s.param == path for s in r.inputs())
        }
        tied.append(len(users))
    if tied[0] == tied[1] or min(tied) == 0:
        return []
    text = (
        f"{other} is shared by {tied[0]} calls in the reference and {tied[1]} in the candidate: tied on one side only"
    )
    return [Cause(text, False)]


def _before(trace: Trace, record: Record, name: str) -> Array | None:
    """A buffer as it was when the step began."""
    for other in trace.records:
        if other.phase is Phase.WEIGHT and other.path == record.path and other.step == record.step:
            slot = next((s for s in other.slots if s.name == name), None)
            return None if slot is None else trace.tensor(slot)
    return None


def _counts(trace: Trace, path: str) -> list[int]:
    """Over how many elements of its input a norm's statistics may have been taken: all but the channels."""
    for record in trace.records:
        if record.kind is Kind.MODULE and record.path == path and record.phase is Phase.FORWARD and record.inputs():
            shape = record.inputs()[0].meta.shape
            return [math.prod(shape) // shape[i] for i in (1, -1) if len(shape) > 1 and shape[i]]
    return []


def damages(held: Sequence[Held]) -> list[str | None]:
    """For each parameter what is wrong with it, or None."""
    found = [_damage(one) for one in held]
    wrong = [i for i, text in enumerate(found) if text is not None]
    for i, j in itertools.combinations(wrong, 2):
        a, b = held[i], held[j]
        if close(a.actual, b.expected) and close(b.actual, a.expected):
            found[i] = found[j] = f"{a.path} and {b.path} are swapped ({_short(a.path)} and {_short(b.path)})"
    return found


def explain_gradient(
    name: str, reference: Array, candidate: Array | None, noise: float, param: ParamInfo | None = None
) -> tuple[Cause, ...]:
    """Why the gradient of a parameter differs, both in one layout; `candidate` is None where it has none.

    `param` is the candidate's, and says whether it is trained.
    """
    if param is not None and not param.trainable and not param.buffer:
        return (Cause(f"{name} is frozen in the candidate (trainable True / False): it gets no gradient", True),)
    if candidate is None or (not np.any(candidate) and np.any(reference)):
        return (Cause(f"no gradient reaches {name}: detached (detach, stop_gradient), or not used", False),)
    found = []
    for shape in residual_shapes(reference, candidate, noise)[:2]:
        if shape.name == "scale":
            found.append(gradient_scaled(shape))
        elif shape.name == "index" and shape.parameters["axis"] == 0:
            rows = shape.parameters["indices"]
            said = ", ".join(map(str, rows))
            text = f"the gradient of {name} differs in row {said} alone: padding_idx (a row for padding)"
            found.append(Cause(text, False))
        else:
            found.append(Cause(f"the gradient of {name}: {shape.text}", False))
    return tuple(found)


def gradient_scaled(shape: Shape) -> Cause:
    """What a factor of a gradient is."""
    factor = float(shape.parameters["factor"])
    more = " (doubled, or accumulated twice)" if abs(factor - 2) < 1e-4 else ""
    known = (
        f", which is {shape.parameters['known']}"
        if shape.parameters.get("known", f"{factor:g}") != f"{factor:g}"
        else ""
    )
    return Cause(f"the gradient is scaled by {factor:.6g}{known}{more}: a custom backward or a detached part", False)


def explain_statistics(
    role: str, before: Array, reference: Array, candidate: Array, noise: float, count: Sequence[int] = ()
) -> tuple[Cause, ...]:
    """Why running statistics differ after one step that began with the same.

    `count` are numbers of elements that a statistic may have been taken over.

    >>> old, batch = np.linspace(1, 2, 8), np.linspace(3, 1, 8)
    >>> new = [old + m * (batch - old) for m in (0.1, 0.9)]
    >>> print(explain_statistics("running_mean", old, *new, 1e-8)[0])
    momentum: the candidate's running_mean moved 9 times as far (0.1 / 0.9: the conventions are inverse)
    """
    old, a, b = (x.astype(np.float64).ravel() for x in (before, reference, candidate))
    if not (old.size == a.size == b.size) or old.size == 0:
        return ()
    moved, other = a - old, b - old
    slack = 8 * max(noise, 2.0**-24 * float(np.sqrt(np.mean(a * a))))
    if not np.any(np.abs(other) > slack):
        text = f"{role} did not move: evaluation mode, or statistics that are not tracked (momentum 0)"
        return (Cause(text, True),)
    ratio = float(moved @ other) / max(float(moved @ moved), 1e-300)
    if float(np.sqrt(np.mean((other - ratio * moved) ** 2))) <= slack * max(1.0, abs(ratio)) and abs(ratio - 1) > 1e-6:
        more = " (0.1 / 0.9: the conventions are inverse)" if abs(ratio - 9) < 1e-3 or abs(ratio - 1 / 9) < 1e-4 else ""
        return (Cause(f"momentum: the candidate's {role} moved {ratio:.4g} times as far{more}", True),)
    if "var" in role:
        for momentum in (0.1, 0.9, 0.01, 0.99, 0.05, 0.001, 1.0):
            x, y = (z - (1 - momentum) * old for z in (a, b))
            factor = float(x @ y) / max(float(x @ x), 1e-300)
            if float(np.sqrt(np.mean((y - factor * x) ** 2))) > slack:
                continue
            known = known_factor(factor, 1e-3 / max(count, default=1000), [*count])
            for n in count:
                if n > 1 and min(abs(factor - n / (n - 1)), abs(factor - (n - 1) / n)) < 0.02 / n:
                    known = f"{n}/{n - 1}" if factor > 1 else f"{n - 1}/{n}"
            words = "unbiased / biased" if factor < 1 else "biased / unbiased"
            text = f"the batch's variance is {factor:.6g} times the reference's ({known or 'ddof'}): {words} (ddof)"
            return (Cause(text, True),)
    return ()


def close(a: Array, b: Array) -> bool:
    """Whether two arrays hold the same but for rounding."""
    return bool(a.shape == b.shape and np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-6, atol=1e-9))


def _short(path: str) -> str:
    return path.replace("_proj", "").rpartition(".")[0].rpartition(".")[2] or path


def _damage(one: Held) -> str | None:
    a, b = (to_neutral(one.param, np.asarray(x)).astype(np.float64) for x in (one.expected, one.actual))
    path = one.path
    if a.shape != b.shape or a.size == 0 or np.array_equal(a, b):
        return None
    level = float(np.sqrt(np.mean(a * a)))
    for mode in ("bfloat16", "float16"):
        if np.array_equal(rounded(a, mode), b):
            return f"{path} is rounded to {mode}"
    if float(np.sqrt(np.mean((a - b) ** 2))) <= 2.0**-22 * level:
        return None
    if b.size > 1 and (b == b.flat[0]).all():
        word = {0.0: "zero", 1.0: "all ones"}.get(float(b.flat[0]), f"{b.flat[0]:g} everywhere")
        return f"{path} is {word}: at its initial value, never carried over"
    found = residual_shapes(a, b, max(2.0**-25 * level, 1e-30))
    if not found:
        return f"{path} is another weight altogether: at its initial value, or that of another layer"
    return f"{path}: {_of_weight(found[0], path, a, b)}"


def _of_weight(shape: Shape, path: str, a: Array, b: Array) -> str:
    parameters = shape.parameters
    if shape.name == "scale":
        factor = float(parameters["factor"])
        by = (
            f"{abs(factor - 1) * 100:.3g} % too {'large' if factor > 1 else 'small'}, " if abs(factor - 1) < 0.5 else ""
        )
        return f"{by}a scale of {factor:.6g}"
    if shape.name == "transposed":
        return "the weight is transposed"
    if shape.name == "index":
        axis, indices = parameters["axis"], parameters["indices"]
        here = tuple(indices if i == axis else slice(None) for i in range(a.ndim))
        x, y = a[here].ravel(), b[here].ravel()
        factor = float(x @ y) / max(float(x @ x), 1e-300)
        exact = float(np.sqrt(np.mean((y - factor * x) ** 2))) <= 1e-5 * (float(np.sqrt(np.mean(y * y))) + 1e-300)
        word = "row" if axis == 0 else "channel"
        many = f"{word} {indices[0]}" if len(indices) == 1 else f"{word}s {', '.join(map(str, indices))}"
        how = f"off by a factor {factor:.6g}" if exact and math.isfinite(factor) else "wrong"
        return f"{many} of the weight (axis {axis} of {a.shape[axis]}) {'is' if len(indices) == 1 else 'are'} {how}"
    if parameters.get("axis") == 0 and "how" in parameters:
        how = str(parameters["how"])
        if "in_proj" in path or "qkv" in path:
            for i, letter in enumerate("qkv"):
                how = how.replace(f"parts {i} and", f"{letter} and").replace(f"and {i} of 3", f"and {letter}")
        elif "_ih" in path or "_hh" in path:
            how = f"its gates, {how}"
        return f"in another order: {how} (a permutation of axis 0)"
    if shape.name == "zeros":
        return "is zero: at its initial value"
    return shape.text.replace("the candidate", "it")
