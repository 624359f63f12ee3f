"""What the optimizers of each framework were told and remember, in neutral words: one module a framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...updates.rules import Rule
from ..base import Array


@dataclass(frozen=True, slots=True)
class Told:
    """What an optimizer is about to do to one parameter."""

    parameter: Any  # the framework's own
    rule: Rule
    state: Mapping[str, Any] = field(default_factory=dict)  # what it remembers: see `updates.rules.replay`
    gradient: Array | None = None  # as it will be applied: clipped where the optimizer itself does that
    clipping: str = ""  # how the optimizer itself clips gradients
