"""How long finding a map takes, from names and shapes alone: networks of 1,000 and 10,000 parameters.

Each is mapped to a twin of the same names, one of other names in another order, and one whose names say nothing. The
ratio is the time per parameter at 10,000 over that at 1,000: 1.0 is linear.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from twinscope.hints import Hints
from twinscope.records import ModuleInfo, ParamInfo, TensorMeta
from twinscope.weights.mapper import draft
from twinscope.weights.model import Weights
from twinscope.weights.weightmap import WeightMap

WIDTH = 64
PER_BLOCK = 16
OWN = {"block": "encoder.layers.{}", "attn": "attn", "ln1": "ln1", "ln2": "ln2", "fc1": "fc1", "fc2": "fc2"}
OWN |= {"q": "q", "k": "k", "v": "v", "o": "out"}
ALIKE = {"block": "blocks.{}", "attn": "attention", "ln1": "norm1", "ln2": "norm2", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
ALIKE |= {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
STRANGE = {"block": "b{}", "attn": "x", "ln1": "a", "ln2": "b", "fc1": "g", "fc2": "h"}
STRANGE |= {"q": "c", "k": "d", "v": "e", "o": "f"}


def network(framework: str, blocks: int, names: Mapping[str, str], shuffled: bool) -> Weights:
    """The weights of a transformer, by name and shape: no array is made."""
    modules = []
    for i in range(blocks):
        path = names["block"].format(i)
        modules += [_norm(f"{path}.{names['ln1']}"), _norm(f"{path}.{names['ln2']}")]
        modules += [_linear(framework, f"{path}.{names['attn']}.{names[n]}", WIDTH, WIDTH) for n in "qkvo"]
        modules.append(_linear(framework, f"{path}.{names['fc1']}", WIDTH, 4 * WIDTH))
        modules.append(_linear(framework, f"{path}.{names['fc2']}", 4 * WIDTH, WIDTH))
    if shuffled:
        order = np.random.default_rng(0).permutation(len(modules))
        modules = [modules[i] for i in order]
    return Weights(framework, "Net", (ModuleInfo("", "Net", None, False), *modules), lambda info, param: np.empty(0))


def _param(name: str, shape: tuple[int, ...], axes: tuple[int, ...] | None = None) -> ParamInfo:
    return ParamInfo(name, TensorMeta(shape, "float32"), name, True, False, axes=axes)


def _norm(path: str) -> ModuleInfo:
    return ModuleInfo(path, "LayerNorm", "layer_norm", True, (_param("weight", (WIDTH,)), _param("bias", (WIDTH,))))


def _linear(framework: str, path: str, taken: int, given: int) -> ModuleInfo:
    turned = framework == "paddle"
    weight = _param("weight", (taken, given) if turned else (given, taken), (1, 0) if turned else None)
    return ModuleInfo(path, "Linear", "linear", True, (weight, _param("bias", (given,))))


def right(found: WeightMap) -> float:
    """The share of entries whose block is the same on both sides."""
    numbers = [
        [
            next(int(t) for t in path.replace("b", "b.").split(".") if t.isdigit())
            for path in (*e.reference, *e.candidate)
        ]
        for e in found
    ]
    return sum(len(set(n)) == 1 for n in numbers) / len(numbers)


def main() -> None:
    """Print the table."""
    print(f"{'twin':10}{'parameters':>12}{'seconds':>9}{'sure':>7}{'right':>7}{'per parameter, 10,000 over 1,000':>35}")
    for label, names, shuffled in (("same", OWN, False), ("alike", ALIKE, True), ("strange", STRANGE, False)):
        per_parameter: list[float] = []
        for size in (1_000, 10_000):
            sides = (
                network("torch", size // PER_BLOCK, OWN, False),
                network("paddle", size // PER_BLOCK, names, shuffled),
            )
            best = float("inf")
            for _ in range(3):
                start = time.perf_counter()
                found = draft(*sides, Hints()).map()
                best = min(best, time.perf_counter() - start)
            per_parameter.append(best / len(found))
            sure = 1 - len(found.unsure) / len(found)
            ratio = f"{per_parameter[1] / per_parameter[0]:.2f}" if len(per_parameter) == 2 else ""
            print(f"{label:10}{len(found):>12,}{best:>9.2f}{sure:>7.0%}{right(found):>7.0%}{ratio:>35}")


if __name__ == "__main__":
    main()
