"""A model's weights as a checkpoint file that its framework reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..adapters._registry import adapter_for
from ..adapters.base import Array
from ..errors import WeightError
from .files import format_for
from .files.base import Pieces, Spec, appearing, blocks, raw
from .model import Weights


def save_checkpoint(
    model: Any | Mapping[str, Array], path: str | os.PathLike[str], *, overwrite: bool = False
) -> tuple[str, ...]:
    """Write the parameters and buffers of a model as a checkpoint file of its framework, and give their names.

    ::

        twinscope.save_checkpoint(torch_model, "model.pth")
        twinscope.save_checkpoint(paddle_model, "model.pdparams", overwrite=True)
        twinscope.save_checkpoint({"fc.weight": array}, "model.safetensors")

    The extension says what is written: .pth, .pt, .bin (torch), .pdparams (paddle), .ckpt (mindspore) or .safetensors.
    The file appears whole, or not at all; the framework's own loader reads it. Arrays by name are written as they are,
    into any of these. Raises `WeightError` for a file of another framework than the model's (`convert_checkpoint`
    writes those) and for a dtype that the file cannot hold.
    """
    target = Path(path)
    form = format_for(target)
    if isinstance(model, Mapping):
        arrays = {name: np.asarray(array) for name, array in model.items()}
        framework, jobs = form.framework, [(Spec((n,), a.shape, a.dtype.name), n) for n, a in arrays.items()]
        read: Callable[[str], Array] = arrays.__getitem__
    else:
        framework, jobs, read = _of_model(model)
    if form.framework not in (None, framework):
        raise WeightError(
            f"{target.name} would be a file of {form.framework}, and the model is of {framework}",
            hint="save it as a file of its own framework, and convert that: twinscope.convert_checkpoint",
        )
    wrong = [f"{s.names[0]}: {form.name} cannot hold {s.dtype}" for s, _ in jobs if s.dtype not in form.dtypes]
    wrong += [f"{s.names[0]}: {why}" for s, _ in jobs if (why := form.cannot_hold(s))]
    if wrong:
        raise WeightError(f"{target} was not written:\n  " + "\n  ".join(wrong), hint="choose another kind of file")

    def tensors() -> Iterator[tuple[Spec, Pieces]]:
        for spec, place in jobs:
            yield spec, (raw(np.ascontiguousarray(block), spec.dtype) for block in blocks(read(place)))

    with appearing(target, overwrite=overwrite) as part:
        form.write(part.file, [spec for spec, _ in jobs], tensors(), framework)
    return tuple(name for spec, _ in jobs for name in spec.names)


def _of_model(model: Any) -> tuple[str, list[tuple[Spec, str]], Callable[[str], Array]]:
    adapter = adapter_for(model)
    weights = Weights.of(model)
    left_out = adapter.unstored_names(model)
    jobs: list[tuple[Spec, str]] = []
    for held in weights.held():
        first = held.stored or held.path
        known = [name for name in (first, *held.names) if name not in left_out]
        names = known[:1] if adapter.name == "mindspore" else list(dict.fromkeys(known))
        if names:
            jobs.append((Spec(tuple(names), held.shape, held.dtype), held.path))
    return adapter.name, jobs, weights.reader()
