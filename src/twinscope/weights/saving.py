"""A model's weights as a checkpoint file that its framework reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..adapters._registry import adapter_for
from ..errors import WeightError
from .files import format_for
from .files.base import Pieces, Spec, appearing, blocks, raw
from .model import Weights


def save_checkpoint(model: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[str, ...]:
    """Write the parameters and buffers of a model as a checkpoint file of its framework, and give their names.

    ::

        twinscope.save_checkpoint(torch_model, "model.pth")
        twinscope.save_checkpoint(paddle_model, "model.pdparams", overwrite=True)

    The extension says what is written: .pth, .pt, .bin (torch), .pdparams (paddle), .ckpt (mindspore) or .safetensors.
    The file appears whole, or not at all; the framework's own loader reads it. Raises `WeightError` for a file of
    another framework (`convert_checkpoint` writes those) and for a dtype that the file cannot hold.
    """
    target = Path(path)
    form = format_for(target)
    adapter = adapter_for(model)
    if form.framework not in (None, adapter.name):
        raise WeightError(
            f"{target.name} would be a file of {form.framework}, and the model is of {adapter.name}",
            hint="save it as a file of its own framework, and convert that: twinscope.convert_checkpoint",
        )
    weights, read = Weights.of(model), Weights.of(model).reader()
    left_out = adapter.unstored_names(model)
    jobs: list[tuple[Spec, str]] = []
    for held in weights.held():
        first = held.stored or held.path
        known = [name for name in (first, *held.names) if name not in left_out]
        names = known[:1] if adapter.name == "mindspore" else list(dict.fromkeys(known))
        if names:
            jobs.append((Spec(tuple(names), held.shape, held.dtype), held.path))
    wrong = [f"{s.names[0]}: {form.name} cannot hold {s.dtype}" for s, _ in jobs if s.dtype not in form.dtypes]
    wrong += [f"{s.names[0]}: {why}" for s, _ in jobs if (why := form.cannot_hold(s))]
    if wrong:
        raise WeightError(f"{target} was not written:\n  " + "\n  ".join(wrong), hint="choose another kind of file")

    def tensors() -> Iterator[tuple[Spec, Pieces]]:
        for spec, place in jobs:
            yield spec, (raw(np.ascontiguousarray(block), spec.dtype) for block in blocks(read(place)))

    with appearing(target, overwrite=overwrite) as part:
        form.write(part.file, [spec for spec, _ in jobs], tensors(), adapter.name)
    return tuple(name for spec, _ in jobs for name in spec.names)
