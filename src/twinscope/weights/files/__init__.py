"""Checkpoint files of every framework, read and written without any of them, and without running what they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...adapters.base import Array
from ...errors import WeightError
from ...patterns import did_you_mean
from .base import Contents, FileFormat, StateDict, mapped_file
from .mindspore_proto import MINDSPORE, is_encrypted, refuse_encrypted
from .paddle_pickle import PADDLE, is_pickle, read_with_pickle
from .safetensors_file import SAFETENSORS, is_safetensors, read_index
from .torch_zip import TORCH, is_zip, refuse_legacy

FORMATS = (TORCH, PADDLE, MINDSPORE, SAFETENSORS)

#: What people call the state dict that lies beside an optimizer, likeliest first.
_USUAL = ("", "state_dict", "model_state_dict", "model", "net", "network", "weights", "params", "module")

_LEGACY = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."  # what torch's old files begin with, after the protocol


class Checkpoint(Mapping[str, Array]):
    """The tensors of a checkpoint file by name. Each is read when it is asked for: a read-only view where possible."""

    def __init__(self, contents: Contents, state: StateDict) -> None:
        self.contents = contents
        self.state = state

    def __getitem__(self, name: str) -> Array:
        return self.state.tensors[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.state.tensors)

    def __len__(self) -> int:
        return len(self.state.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.state.tensors

    def __repr__(self) -> str:
        return f"<Checkpoint {self.contents.path} ({self.contents.format}), {len(self)} tensors>"


def read_checkpoint(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Checkpoint:
    """The tensors of a checkpoint file of any framework, as a read-only mapping from names to arrays.

    ::

        weights = read_checkpoint("model.pdparams")
        weights["linear.weight"].shape

    The kind of file is told from its contents. No framework is imported, and nothing in the file is run, unless
    `allow_pickle` is given, which concerns .pdparams only. Where there are several state dicts, the one is taken that
    is named as people name it.
    """
    contents = read_file(path, allow_pickle=allow_pickle)
    return Checkpoint(contents, usual_state(contents))


def usual_rank(where: str) -> int:
    """How likely the state dict in this place is the one that is meant: the lower, the likelier."""
    return _USUAL.index(where) if where in _USUAL else len(_USUAL)


def usual_state(contents: Contents) -> StateDict:
    """The state dict that is meant when nothing else tells: the one at the top, or under one of the usual names."""
    states = {state.where: state for state in contents.states}
    for where in _USUAL:
        if where in states:
            return states[where]
    if len(states) != 1:
        found = ", ".join(repr(where) for where in list(states)[:8]) or "no tensors at all"
        raise WeightError(
            f"{contents.path} holds several state dicts, and none has a usual name: {found}"
            if states
            else f"{contents.path} holds no tensors",
            hint="save the one that is meant alone: model.state_dict()",
        )
    return next(iter(states.values()))


def read_file(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Contents:
    """All that a checkpoint file holds; whatever cannot be read is a `WeightError` that says why."""
    place = Path(path)
    mapped = mapped_file(place)
    start = mapped.bytes(0, min(mapped.size, 64))
    if is_safetensors(start):  # first: its length may look like the beginning of another
        return SAFETENSORS.read(mapped, place)
    if is_zip(start):
        return TORCH.read(mapped, place)
    if is_pickle(start):
        if start[2:].startswith(_LEGACY):
            raise refuse_legacy(place)
        if allow_pickle:
            return read_with_pickle(mapped, place)
        return PADDLE.read(mapped, place)
    if is_encrypted(start):
        raise refuse_encrypted(place)
    if place.suffix == ".json":
        return read_index(mapped, place, lambda shard: read_file(shard, allow_pickle=allow_pickle))
    if start[:1] == b"\n":
        return MINDSPORE.read(mapped, place)
    raise WeightError(
        f"{place} is not a checkpoint that is known here: it begins with {start[:8].hex(' ')}",
        hint="known are torch's zip files, paddle's .pdparams, mindspore's .ckpt and safetensors"
        + ("; a tar archive must be unpacked first" if place.suffix in (".tar", ".gz", ".tgz") else ""),
    )


def format_for(target: Path) -> FileFormat:
    """The kind of file that a name asks for, by its extension."""
    for known in FORMATS:
        if target.suffix in known.extensions:
            return known
    legal = [extension for known in FORMATS for extension in known.extensions]
    raise WeightError(
        f"{target}: no checkpoint format has the extension {target.suffix!r}; legal are {', '.join(legal)}",
        hint=did_you_mean(target.suffix, legal),
    )
