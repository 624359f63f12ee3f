"""`ts.save` and `ts.save_grad`: tensors, and gradients as they come by, as numbered .npy files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import twinscope

from ..console import say
from .problems import ArgumentError

T = TypeVar("T")

#: What is printed in place of a file begins with this.
_MARK = "_TS_SAVE_NAME:"

#: Every file that this process saves has the next number before its name, so that their order can be told.
_numbers = itertools.count()


def save(file: str | None, data: Any, suffix: str | None = None, output_mode: str = "npy") -> None:
    """Save a tensor, or every tensor of a list, tuple or dict, as .npy with a running number: ``0_out.npy``.

    ::

        ts.save("run/out", logits)                  # run/0_out.npy
        ts.save("run/all", [a, b], suffix="fwd")    # run/1_all.0_fwd.npy, run/2_all.1_fwd.npy
        ts.save("out", logits, output_mode="print")

    Tensors of any framework are taken; bfloat16 is saved as float32, which numpy can read. None is left out.
    """
    _mode(output_mode)
    place, name = _place(file)
    for own, tensor in list(_named(name, data)):
        full = f"{own}_{suffix}" if suffix else own
        if output_mode == "print":
            say(f"{_MARK}{full} {_array(tensor)}")
        else:
            _write(place, full, tensor)


def save_grad(file: str | None, data: T, suffix: str | None = "backward", output_mode: str = "npy") -> T:
    """Save the gradient of a tensor when the backward pass reaches it: ``0_hidden_backward.npy``. Gives `data` back.

    ::

        hidden = ts.save_grad("run/hidden", hidden)
    """
    _mode(output_mode)
    place, name = _place(file)
    full = f"{name}_{suffix}" if suffix else name
    if not twinscope.is_tensor(data):
        raise ArgumentError(
            f"save_grad: {type(data).__name__} is no tensor", hint="hand in a tensor of torch, paddle or mindspore"
        )

    def keep(gradient: Any) -> None:
        if output_mode == "print":
            say(f"{_MARK}{full} {gradient}")
        else:
            _write(place, full, gradient)

    if twinscope.watch_gradient(data, keep) is None:
        raise ArgumentError(
            f"save_grad: the tensor {name!r} requires no gradient",
            hint="take one that the loss is computed from, with parameters before it",
        )
    return data


def _named(name: str, data: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _named(f"{name}.{key}", value)
    elif isinstance(data, (list, tuple)):
        for number, value in enumerate(data):
            yield from _named(f"{name}.{number}", value)
    elif data is not None:
        if not twinscope.is_tensor(data):
            raise ArgumentError(
                f"save: {name} is {type(data).__name__}, no tensor",
                hint="hand in tensors of torch, paddle or mindspore, or lists and dicts of them",
            )
        yield name, data


def _array(tensor: Any) -> Any:
    found = twinscope.as_array(tensor)
    return found if found.dtype.kind in "biufc" else found.astype(np.float32)


def _write(place: Path, name: str, tensor: Any) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{next(_numbers)}_{name}.npy", _array(tensor), allow_pickle=False)
    except OSError as error:
        raise ArgumentError(
            f"{place / name} cannot be written: {error.strerror}", hint="choose another file"
        ) from error


def _mode(output_mode: str) -> None:
    if output_mode not in ("npy", "print"):
        raise ArgumentError(f"output_mode={output_mode!r} is unknown", hint="legal are 'npy' and 'print'")


def _place(file: str | None) -> tuple[Path, str]:
    if file is None:
        return Path(), ""
    if not isinstance(file, (str, os.PathLike)):
        raise ArgumentError(f"file is {type(file).__name__}", hint='write it as a text: "run/out"')
    text = os.fspath(file)
    if text.endswith(os.sep):
        raise ArgumentError(f"file {text!r} names a directory", hint="add the name of the file")
    path = Path(text)
    return path.parent, path.name.removesuffix(".npy")
