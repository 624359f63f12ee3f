"""What judging costs: time in plain forward and backward passes of both models, memory in the larger model.

    python benchmarks/judging.py [--network vit|deep] [--repeat N]

The time is that of `align` without the copying of weights, which is done before: capture, matching, comparing, every
call judged alone. A plain pass is forward, loss and backward of the reference and of the candidate, one after the
other. The memory is the most that numpy and Python hold at once beyond what they held before (tracemalloc), against
twice the parameters of the larger model plus its largest activation; tensors that a framework holds by itself while it
runs are the plain pass's own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import torch
from vit import build

from twinscope import align, capture, copy_weights
from twinscope.adapters._registry import adapter_for

sys.path.insert(0, str(Path(__file__).resolve().parent / "portbugs"))

#: What judging may cost: so many plain passes.
MOST_PASSES, MOST_MODELS = 6.0, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description="what judging costs")
    parser.add_argument("--network", choices=("vit", "deep"))
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"{'network':10}{'plain s':>10}{'judging s':>11}{'passes':>9}{'bound':>7}{'MiB':>9}{'bound MiB':>11}")
    for network in (options.network,) if options.network else ("vit", "deep"):
        models, inputs = _networks(network)
        copy_weights(*models, inputs=inputs)
        plain = _median(partial(_plain, models, inputs), options.repeat)
        judging = _median(partial(align, *models, inputs, weights=False), options.repeat)
        tracemalloc.start()
        align(*models, inputs, weights=False)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        size, largest = _sizes(models[0], inputs)
        bound = MOST_MODELS * size + largest
        print(
            f"{network:10}{plain:10.3f}{judging:11.3f}{judging / plain:9.1f}{MOST_PASSES:7.0f}"
            f"{peak / 2**20:9.1f}{bound / 2**20:11.1f}"
        )


def _networks(network: str) -> tuple[tuple[Any, Any], Any]:
    random = np.random.default_rng(0)
    if network == "vit":
        models = tuple(build(framework, 4)[0] for framework in ("torch", "paddle"))
        for model in models:
            model.eval()
        return (models[0], models[1]), random.standard_normal((4, 3, 128, 128)).astype(np.float32)
    from planting import build_reference, inputs, nets

    candidate = nets("paddle").NETWORKS["deep"]()
    reference = build_reference("deep")
    reference.eval()
    candidate.eval()
    return (reference, candidate), inputs("deep")


def _plain(models: tuple[Any, Any], inputs: Any) -> None:
    array = getattr(inputs, "args", (inputs,))[0]
    models[0](torch.from_numpy(array)).mean().backward()
    models[0].zero_grad()
    models[1](paddle.to_tensor(array)).mean().backward()
    models[1].clear_gradients()


def _median(job: Callable[[], Any], repeat: int) -> float:
    """The median time of a job in this process's own seconds, the first run left out."""
    job()
    seconds = []
    for _ in range(repeat):
        began = time.process_time()
        job()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def _sizes(model: Any, inputs: Any) -> tuple[int, int]:
    """Bytes of all parameters, and of the largest tensor that a call returned."""
    adapter = adapter_for(model)
    size = sum(
        int(np.prod(p.meta.shape)) * 4 for info, _ in adapter.modules(model) for p in info.params if p.tied_to is None
    )
    array = getattr(inputs, "args", (inputs,))[0]
    with capture(model, keep="stats", backward=False) as run:
        model(torch.from_numpy(array))
    largest = max(s.meta.size * 4 for r in run.trace.records for s in r.outputs())
    return size, largest


if __name__ == "__main__":
    main()
