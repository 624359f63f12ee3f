"""The nouns: what a watched run consists of. Plain values, no framework, no behaviour beyond reading them.

A `Record` is one call that was watched, forward or backward, with its tensors in named slots. A forward record and its
backward record use the same slot names: slot ``out`` of a forward record holds the output, slot ``out`` of the backward
record holds the gradient of the loss with respect to that output.

Slot names: ``in.0`` (first positional argument), ``in.mask`` (keyword), ``in.0.hidden.1`` (nested), ``out`` (a single
tensor), ``out.0``, ``out.logits``. State records use the parameter's own name: ``weight``, ``running_mean``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .errors import OptionError

SCHEMA_VERSION = 1

#: Where an op ran when no watched module was running: the loss, for one.
OUTSIDE = "<outside>"

E = TypeVar("E", bound="Choice")


class Choice(str, enum.Enum):
    """An enum parsed at the boundary: a misspelt value fails at once, with the legal ones listed.

    >>> Level.parse("op", "level") is Level.OP
    True
    >>> Level.parse("layer", "level")
    Traceback (most recent call last):
    ...
    twinscope.errors.OptionError: level='layer' is not known
    Hint: use one of 'module', 'op'
    """

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def parse(cls: type[E], value: object, option: str) -> E:
        try:
            return cls(value)
        except ValueError:
            legal = ", ".join(repr(item.value) for item in cls)
            raise OptionError(f"{option}={value!r} is not known", hint=f"use one of {legal}") from None


class Level(Choice):
    """How finely a run is watched."""

    MODULE = "module"
    OP = "op"


class Kind(Choice):
    """What a record is about."""

    MODULE = "module"  # a call of a module
    OP = "op"  # a call of a public function, Tensor method or operator
    STATE = "state"  # what a module holds: its own parameters, their gradients, its buffers


class Phase(Choice):
    """When a record was made, or what a finding is about."""

    WEIGHT = "weight"  # parameters, as they were when the step began
    BUFFER = "buffer"  # buffers, as they were when the step began
    FORWARD = "forward"
    BACKWARD = "backward"
    LOSS = "loss"  # what the loss function made of the outputs, in a training step
    GRADIENT = "gradient"  # gradients of parameters
    STEP = "step"  # the update made by an optimizer: parameters as they are after it


class Verdict(Choice):
    """What is said of a pair."""

    EXACT = "EXACT"
    NOISE = "NOISE"
    PRECISION = "PRECISION"
    BUG = "BUG"
    UNDECIDED = "UNDECIDED"
    MISSING = "MISSING"


class Overall(Choice):
    """What is said of two whole runs."""

    SAME = "SAME"
    DIFFERENT = "DIFFERENT"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class Stats:
    """A tensor in a few numbers, all independent of the order of its axes.

    min, max, mean, std and l2 are over the finite elements; `nan` and `inf` count the others. `fingerprint` is the sum
    of the elements' bit patterns, read as unsigned integers of the element's width, modulo 2 to the power of that
    width: equal for the same values in any order, cheap, and not meant to withstand an adversary.
    """

    min: float
    max: float
    mean: float
    std: float
    l2: float
    nan: int
    inf: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What a tensor is, without its values. `dtype` is numpy's name for it (``float32``, ``bfloat16``, ``bool``)."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    @property
    def size(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a record.

    `value` identifies the tensor's content within its trace: two slots of one trace with equal `value` held the very
    same tensor at the same version, so an input slot whose value is some earlier output slot's is the edge of the data
    flow. Full data, where it was kept, is stored once per value.
    """

    name: str
    meta: TensorMeta
    value: int
    stats: Stats | None = None
    kept: bool = False  # whether the trace holds the full tensor
    param: str | None = None  # full path of the parameter or buffer that this tensor is, where it is one

    @property
    def side(self) -> str:
        """Of a call's tensor "in" or "out"; of a state record's the parameter's name."""
        return self.name.split(".", 1)[0]


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code. `file` is relative to the working directory or to an import root, never absolute."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Record:
    """One call that was watched, or the state of one module.

    `index` counts records in completion order (a child before its parent); `parent` is the index that the enclosing
    call will have been given, known only once that call is complete, so the tree is kept by `call_id` / `parent_id`
    instead, which are given out in the order in which calls begin. A backward record has the `call_id` of its forward.
    """

    index: int
    step: int
    kind: Kind
    phase: Phase
    path: str  # of the module called, or of the module that an op ran in; "" is the root, OUTSIDE is none
    type: str  # module: qualified class name. op: the op's name, such as "torch.nn.functional.linear"
    call_id: int
    parent_id: int | None
    nth: int  # how many times this path (and for an op: this op within that call) had been called in this step before
    slots: tuple[Slot, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)  # what was not a tensor, in JSON's types
    source: Source | None = None
    builtin: bool = False  # module: its class is the framework's own. op: it ran inside such a module
    training: bool | None = None
    failed: bool = False  # the call raised
    stack: tuple[Source, ...] = ()  # where the plan asked for it: all frames but Twinscope's, the innermost first

    def inputs(self) -> tuple[Slot, ...]:
        return tuple(s for s in self.slots if s.side == "in")

    def outputs(self) -> tuple[Slot, ...]:
        return tuple(s for s in self.slots if s.side == "out")

    @property
    def where(self) -> str:
        """The path, with the op's name where there is one: ``encoder.0.attn · softmax``."""
        place = "outside the model" if self.path == OUTSIDE else self.path or "(root)"
        return f"{place} · {self.op}" if self.kind is Kind.OP else place

    @property
    def op(self) -> str:
        """The op's or class's name without its package: ``softmax``, ``Linear``."""
        return self.type.rsplit(".", 1)[-1]


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """One parameter or buffer of a module."""

    name: str  # within its module
    meta: TensorMeta
    role: str  # neutral: "weight", "bias", "running_mean"...; the own name where the framework has no better
    trainable: bool
    buffer: bool
    tied_to: str | None = None  # full path of the first place where the same tensor appeared
    #: Which of its own axes stand where in the neutral layout, which is PyTorch's (a Linear's weight is [out, in]); an
    #: axis that is not listed has extent 1 there and is dropped. None where the two layouts are one.
    axes: tuple[int, ...] | None = None

    def neutral_shape(self) -> tuple[int, ...]:
        """The shape in the neutral layout."""
        return self.meta.shape if self.axes is None else tuple(self.meta.shape[a] for a in self.axes)


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """One module of a model, found before anything ran."""

    path: str
    type: str  # qualified class name
    kind: str | None  # neutral layer kind ("linear", "layer_norm"), None for what is not the framework's own
    builtin: bool
    params: tuple[ParamInfo, ...] = ()
    aliases: tuple[str, ...] = ()  # other paths of the same object
    attributes: Mapping[str, Any] = field(default_factory=dict)  # neutral names: eps, momentum, affine...

    def param_path(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a trace says about itself."""

    framework: str
    versions: Mapping[str, str]
    model: str  # class name of the root
    modules: tuple[ModuleInfo, ...]
    plan: Mapping[str, Any]
    rank: int = 0
    world: int = 1
    schema: int = SCHEMA_VERSION
    created: str = ""  # ISO 8601, UTC
    complete: bool = False  # set when the capture ended; a crash leaves it False
    error: str | None = None  # what the user's code raised, where it did
    notes: tuple[str, ...] = ()
