"""A call that was judged to be another function, with what is needed to find out why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..adapters.base import Adapter, Array
from ..records import ModuleInfo, Phase
from ..replaying import KeptCall

#: "eps 1e-05 / 1e-06 (eps=1e-05; epsilon=1e-06)", as `retelling` says it: of one setting
_SETTING = re.compile(r"(\w+) ([^;]+) / ([^;(]+) \([^;]*; ([^;]*)\)")


class Again(Protocol):
    """Makes the candidate's call again as it is at this moment, and judges it as before: its rho, near 1 where it is
    right, infinite where it raised or came out in another shape."""

    def __call__(
        self,
        *,
        call: KeptCall | None = None,  # with other arguments than the call had
        given: Sequence[Array] | None = None,  # other input tensors, in the order of `Suspect.given`
        target: Any | None = None,  # another module or function
        change: Callable[[Array], Array] | None = None,  # done to every output before it is judged
    ) -> float: ...


@dataclass(frozen=True, slots=True)
class Suspect:
    """A pair of calls that differ on the same inputs."""

    phase: Phase  # FORWARD, or BACKWARD where the outputs agree and the gradients do not
    tensor: str  # which of the reference's tensors differs most: "out", "in.0", or a parameter's name
    rho: float
    adapters: tuple[Adapter, Adapter]
    calls: tuple[KeptCall, KeptCall]
    modules: tuple[ModuleInfo | None, ModuleInfo | None]  # the modules called, or those that the ops ran in
    given: tuple[Array, ...]  # what the candidate's call is given: the reference's tensors in the places of its own
    reference: Array  # the tensor that differs, as the reference has it: an output, or a gradient in backward
    candidate: Array  # the same, as the candidate has it, in the reference's layout
    truth: Array | None  # the reference's in float64, where there is one
    noise: float  # the root mean square error that is noise
    again: Again


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a call differs."""

    text: str  # "epsilon 1e-05 / 1e-06", in the words of the two frameworks
    proven: bool  # whether the call was made again without it and came out right
    rho: float | None = None  # what the call came to then

    @property
    def short(self) -> str:
        """The text without what the two frameworks call it: "epsilon 1e-05 / 1e-06", by the candidate's name."""
        found = _SETTING.fullmatch(self.text)
        if found is None:
            return self.text
        name, expected, given, spelled = found.groups()
        own, _, value = spelled.partition("=")
        return f"{own if value == given else name} {expected} / {given}"

    @property
    def replayed_with(self) -> str:
        """What the call was told when it came out right: "epsilon=1e-05"; "" where that is no one setting."""
        found = _SETTING.fullmatch(self.text)
        if found is None or not self.proven or self.rho is None:
            return ""
        name, expected, given, spelled = found.groups()
        own, _, value = spelled.partition("=")
        return f"{own if value == given else name}={expected}"

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        rho = self.rho if self.rho is None or math.isfinite(self.rho) else str(self.rho)
        return {"text": self.text, "proven": self.proven, "rho": rho}

    def __str__(self) -> str:
        if not self.proven:
            return f"{self.text} (suspected)"
        return self.text if self.rho is None else f"{self.text}; replayed without it: rho {self.rho:.2g}"
