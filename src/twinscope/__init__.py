"""Twinscope: are these two networks the same, where do they first stop being the same, and why?

    with twinscope.capture(model, "runs/torch"):
        loss = loss_fn(model(x))
        loss.backward()

    result = twinscope.compare("runs/torch", "runs/paddle")
    result = twinscope.align(torch_model, paddle_model, x)

Names are loaded when they are first used, and no framework is imported before one of its models is handed in.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters._registry import modules_of as modules_of
    from .aligning import align as align
    from .capturing import Capture as Capture
    from .capturing import Plan as Plan
    from .capturing import TwinscopeWarning as TwinscopeWarning
    from .capturing import capture as capture
    from .comparing import compare as compare
    from .errors import TwinscopeError as TwinscopeError
    from .explain.linting import LintFinding as LintFinding
    from .explain.linting import LintReport as LintReport
    from .explain.linting import lint as lint
    from .isolated import align_isolated as align_isolated
    from .metrics import array_stats as array_stats
    from .metrics import compare_arrays as compare_arrays
    from .offline import judge_trace as judge_trace
    from .records import Overall as Overall
    from .records import Phase as Phase
    from .records import Record as Record
    from .records import Verdict as Verdict
    from .result import Finding as Finding
    from .result import Result as Result
    from .running import InputPair as InputPair
    from .running import Inputs as Inputs
    from .running import no_dropout as no_dropout
    from .running import seed as seed
    from .store import MemoryWriter as MemoryWriter
    from .store import Trace as Trace
    from .store import TraceWriter as TraceWriter
    from .store import Writer as Writer
    from .tensors import as_array as as_array
    from .tensors import is_tensor as is_tensor
    from .tensors import outputs_of as outputs_of
    from .tensors import watch_gradient as watch_gradient
    from .watching import Watched as Watched
    from .watching import arrays_in as arrays_in
    from .watching import snapshot as snapshot
    from .weights import Entry as Entry
    from .weights import WeightMap as WeightMap
    from .weights import Weights as Weights
    from .weights import copy_weights as copy_weights
    from .weights import map_weights as map_weights
    from .weights import register_transform as register_transform
    from .weights import weight_rule as weight_rule
    from .weights.convert import ConvertReport as ConvertReport
    from .weights.convert import convert_checkpoint as convert_checkpoint
    from .weights.files import read_checkpoint as read_checkpoint
    from .weights.saving import save_checkpoint as save_checkpoint

__version__ = "0.1.0"

_PLACES = {
    "adapters._registry": ("modules_of",),
    "aligning": ("align",),
    "capturing": ("Capture", "Plan", "TwinscopeWarning", "capture"),
    "comparing": ("compare",),
    "errors": ("TwinscopeError",),
    "explain.linting": ("LintFinding", "LintReport", "lint"),
    "isolated": ("align_isolated",),
    "metrics": ("array_stats", "compare_arrays"),
    "offline": ("judge_trace",),
    "records": ("Overall", "Phase", "Record", "Verdict"),
    "result": ("Finding", "Result"),
    "running": ("InputPair", "Inputs", "no_dropout", "seed"),
    "store": ("MemoryWriter", "Trace", "TraceWriter", "Writer"),
    "watching": ("Watched", "arrays_in", "snapshot"),
    "tensors": ("as_array", "is_tensor", "outputs_of", "watch_gradient"),
    "weights": ("Entry", "WeightMap", "Weights", "copy_weights", "map_weights", "register_transform", "weight_rule"),
    "weights.convert": ("ConvertReport", "convert_checkpoint"),
    "weights.files": ("read_checkpoint",),
    "weights.saving": ("save_checkpoint",),
}
#: No public name is a module's name: importing the module would shadow it.
_HOME = {name: module for module, names in _PLACES.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
