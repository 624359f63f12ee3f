"""The zoo: the same small networks in every framework, so that every test can run over every framework and every pair.

Each ``*_zoo.py`` fills ``ZOO`` with the same names. `NAMES` is the list; a framework that cannot have one says why in
its module's ``LACKS``. Parameter names and definition order are the same in torch and paddle; MindSpore keeps its own
parameter names (gamma, beta). Weights are made by each framework; align() copies them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

NAMES = (
    "mlp",
    "conv_bn",
    "transformer_block",
    "lstm",
    "gru",
    "shared_module",
    "tied_weights",
    "nested_outputs",
    "inplace",
    "recompute",
    "recompute_reentrant",
    "no_parameters",
    "raises",
    "makes_nan",
    "integers",
    "bfloat16",
)

FRAMEWORKS = ("torch", "paddle", "mindspore")


@dataclass(frozen=True)
class Entry:
    """One network: how to build it and numpy inputs for it (positional, keyword)."""

    build: Callable[[], Any]
    args: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]] = dict
    raises: type[Exception] | None = None
    backward: bool = True


def zoo(framework: str) -> dict[str, Entry]:
    module = importlib.import_module(f"{__name__}.{framework}_zoo")
    found: dict[str, Entry] = module.ZOO
    return found


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tokens(*shape: int, high: int = 11, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int64)
