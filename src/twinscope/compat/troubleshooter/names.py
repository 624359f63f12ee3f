"""What a dump calls the calls of a network: ``NN_Conv2d_0``, ``Functional_relu_3``, ``Tensor_reshape_0``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from .problems import ArgumentError

#: Where a public function lives, and what the documents call that; the longest that fits counts.
_PREFIXES = {
    "torch.nn.functional.": "Functional",
    "torch.Tensor.": "Tensor",
    "torch.": "Torch",
    "paddle.nn.functional.": "Functional",
    "paddle.Tensor.": "Tensor",
    "paddle.": "Paddle",
    "mindspore.mint.nn.functional.": "Functional",
    "mindspore.mint.": "Mint",
    "mindspore.Tensor.": "Tensor",
    "mindspore.ops.": "Functional",
    "mindspore.": "Functional",
}
#: All that names of one framework's calls may begin with.
PREFIXES = {
    "torch": ("NN", "Functional", "Torch", "Tensor"),
    "paddle": ("NN", "Functional", "Paddle", "Tensor"),
    "mindspore": ("NN", "Functional", "Mint", "Tensor"),
}
#: Classes that only hold others.
_CONTAINERS = frozenset(
    """Sequential ModuleList ModuleDict ParameterList ParameterDict LayerList LayerDict SequentialCell CellList CellDict
    GraphCell WithLossCell WithEvalCell WithGradCell TrainOneStepCell""".split()
)
MODES = ("all", "list", "range", "api_list")
_SCOPE = re.compile(r"([A-Za-z]+)_(\w+)_(\d+)")


def api_of(kind: str, type: str, builtin: bool) -> str | None:
    """The name of a call without its number; None for what the documents do not list.

    >>> api_of("module", "torch.nn.modules.conv.Conv2d", True), api_of("op", "torch.clip", False)
    ('NN_Conv2d', 'Torch_clip')
    >>> api_of("op", "mindspore.ops.clip", False), api_of("op", "paddle.Tensor.reshape", False)
    ('Functional_clip', 'Tensor_reshape')
    >>> api_of("module", "__main__.Net", False), api_of("op", "torch.relu", True)
    (None, None)
    """
    if kind == "module":
        short = type.rpartition(".")[2]
        return f"NN_{short}" if builtin and short not in _CONTAINERS else None
    if builtin:
        return None  # it is the layer's own business
    found = max((p for p in _PREFIXES if type.startswith(p)), key=len, default=None)
    if found is None:
        return None
    return f"{_PREFIXES[found]}_{re.sub(r'[^0-9A-Za-z_]', '_', type[len(found) :])}"


class Scope:
    """Which calls a dump is about: mode and names of `api_dump_start`, asked call by call in their order."""

    def __init__(self, framework: str, mode: object, scope: object) -> None:
        if mode not in MODES:
            raise ArgumentError(f"mode={mode!r} is not known", hint=f"use one of {', '.join(repr(m) for m in MODES)}")
        self.mode = str(mode)
        self.names: tuple[str, ...] = ()
        self._met: set[str] = set()
        self._begun = self._ended = False
        if mode == "all":
            if scope:
                raise ArgumentError(
                    f"scope={scope!r} says nothing in mode 'all'", hint="leave it out, or use mode='list'"
                )
            return
        if not isinstance(scope, (list, tuple)) or not scope or not all(isinstance(s, str) for s in scope):
            raise ArgumentError(
                f"scope={scope!r} is not a list of names, which mode {mode!r} needs",
                hint="write scope=['NN_Conv2d_0', 'Tensor_reshape_0']",
            )
        if mode == "range" and len(scope) != 2:
            raise ArgumentError(
                f"scope={scope!r} is not the first and the last name of a range", hint="write scope=[first, last]"
            )
        if mode != "api_list":
            legal = PREFIXES[framework]
            for name in scope:
                parts = _SCOPE.fullmatch(name)
                if parts is None or parts[1] not in legal:
                    raise ArgumentError(
                        f"scope name {name!r} is not of the form Type_Name_Number",
                        hint=f"such as NN_Conv2d_0; the type is one of {', '.join(legal)}",
                    )
        self.names = tuple(scope)

    def __contains__(self, name: str) -> bool:
        if self.mode == "all":
            return True
        if self.mode == "list":
            return self._meet(name, name in self.names)
        if self.mode == "api_list":
            low = name.lower()
            for part in self.names:
                if part.lower() in low:
                    return self._meet(part, True)
            return False
        if name == self.names[0]:
            self._begun = self._meet(name, True)
        inside = self._begun and not self._ended
        if name == self.names[1] and self._begun:
            self._ended = self._meet(name, True)
        return inside

    def _meet(self, name: str, found: bool) -> bool:
        if found:
            self._met.add(name)
        return found

    def check(self, ran: Sequence[str]) -> None:
        """Refuse names that no call has had."""
        missing = [n for n in self.names if n not in self._met and n not in ran]
        if missing and ran:
            near = list(dict.fromkeys(c for n in missing for c in get_close_matches(n, ran, 3, 0.5))) or list(ran[:8])
            raise ArgumentError(
                f"no call was named {', '.join(map(repr, missing))}, which scope has",
                hint=f"calls that ran: {', '.join(near)}{', ...' if len(near) < len(ran) else ''}",
            )
