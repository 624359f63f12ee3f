"""Whether the cases are what they say: a bug changes numbers, a benign twin none beyond rounding.

The candidate is compared with itself as it should have been, in its own framework, so nothing of another framework
blurs the answer: first in float32, then both in float64, where rounding all but vanishes and a bug does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import Case, Expected
from planting import Seen, Twins, nets, prepare, run, run_candidate, run_reference, tensors, widened

#: Relative error. Paddle rounds some constants to float32 even in float64, and so do models that hold one.
BUG_FROM, BENIGN_TO = 1e-9, 1e-8
#: float32's roundoff.
U = 6e-8
#: A precision twin is coarser than float32 and still the same network.
PRECISION = (1e-6, 0.2)
#: A clean candidate against the reference of the other framework, in float32.
CLEAN_TO = 1e-4


def check(case: Case) -> dict[str, Any]:
    """What is wrong with a case, if anything."""
    clean = prepare(case, planted=False)
    if case.expected is Expected.CLEAN:
        error, where = furthest(run_reference(clean), run_candidate(clean))
        return {"wrong": not error < CLEAN_TO and case.training != "drop", "note": f"float32 {error:.1e} {where}"}
    planted = prepare(case)
    float32, where = furthest(run_candidate(clean), run_candidate(planted))
    note = f"float32 {float32:.1e} {where}"
    if case.expected is Expected.PRECISION:
        return {"wrong": not PRECISION[0] < float32 < PRECISION[1], "note": note}
    # the reference's float64, which every case has; of the candidate itself, and of what it should have been
    true = run_reference(clean, wide=True)
    off, own = (furthest(true, run_candidate(twins))[0] for twins in (planted, clean))
    note += f"; from the reference's float64 {off:.1e}, clean {own:.1e}"
    if case.plant is not None and case.plant.how == "none":  # the frameworks differ: no clean candidate can be had
        return {"wrong": not off > 100 * U, "note": note}
    try:
        wide, where = furthest(_in_float64(clean), _in_float64(planted))
        note += f"; float64 {wide:.1e} {where}"
    except Exception as reason:  # noqa: BLE001  # no kernel in float64
        wide = None
        note += f"; no float64: {str(reason).strip().splitlines()[0][:60]}"
    if case.expected is Expected.BENIGN:
        # some kernels take float64 and compute in float32: then the planted twin must be as near the truth as the clean
        right = (wide is not None and wide <= BENIGN_TO) or off <= 4 * own + U
    else:
        right = wide > BUG_FROM if wide is not None else off > 4 * own + U or float32 == float("inf")
    return {"wrong": not right, "note": note}


def _in_float64(twins: Twins) -> Seen:
    framework = twins.frameworks[1]
    model = nets(framework).to_float64(twins.candidate)
    own = tensors(framework, model)
    if len(own) == len(twins.tensors) and twins.case.plant is not None and twins.case.plant.how == "twist":
        own = dict(twins.tensors)
    return run(framework, model, widened(twins.inputs), own)


def furthest(a: Seen, b: Seen) -> tuple[float, str]:
    """The largest relative error of any output, gradient or buffer, and of which."""
    worst, where = 0.0, ""
    every = [(f"output {i}", x, y) for i, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True))]
    every += [(path, a.gradients.get(path), b.gradients.get(path)) for path in {*a.gradients, *b.gradients}]
    every += [(path, x, b.buffers[path]) for path, x in a.buffers.items() if path in b.buffers]
    scale = max((float(np.abs(g).max()) for g in a.gradients.values()), default=1.0)
    for what, x, y in every:
        if x is None or y is None or x.shape != y.shape:
            return float("inf"), what
        x, y = x.astype(np.float64), y.astype(np.float64)
        # a gradient that should be zero is rounding: it is held against the largest of them
        size = max(float(np.abs(x).max()), 1e-2 * scale, 1e-30)
        error = float(np.abs(x - y).max()) / size if np.array_equal(np.isnan(x), np.isnan(y)) else float("inf")
        error = float("inf") if np.isnan(error) and not np.isnan(x).all() else error
        if error > worst:
            worst, where = error, what
    return worst, where
