"""The line of the user's code that makes a layer, read from the source of the class that holds it; nothing is run."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from ..records import ModuleInfo, Source


class Sources:
    """Where the layers of one model are made."""

    def __init__(self, modules: list[tuple[ModuleInfo, Any]]) -> None:
        self._modules = {info.path: (info, module) for info, module in modules}
        self._trees: dict[type, tuple[str, int, ast.AST] | None] = {}
        roots = {os.getcwd(), *(p for p in sys.path if p)}
        # the longest import root that a file lies under gives its relative name
        self._roots = sorted((os.path.abspath(r) + os.sep for r in roots), key=len, reverse=True)

    def line(self, path: str) -> Source | None:
        """The line that makes the layer at `path`, or the class that holds it; None where there is no source."""
        above, _, name = path.rpartition(".")
        below = [name] if path else []
        while True:
            if above in self._modules and below:
                info, module = self._modules[above]
                if not info.builtin:
                    return self._within(type(module), below)
            elif not below:
                info, module = self._modules[path]
                return None if info.builtin else self._within(type(module), [])
            if not above:
                return None
            above, _, name = above.rpartition(".")
            below.insert(0, name)

    def _within(self, cls: type, names: list[str]) -> Source | None:
        for one in cls.__mro__:
            tree = self._tree(one)
            if tree is None:
                continue
            file, first, body = tree
            found = self._made(body, names)
            if found is not None:
                return Source(file, first + found[0] - 1, f"{one.__qualname__}.{found[1]}")
        own = self._tree(cls)
        return None if own is None else Source(own[0], own[1], cls.__qualname__)

    def _made(self, tree: ast.AST, names: list[str]) -> tuple[int, str] | None:
        """The line of ``self.NAME = ...`` and the function that it is in."""
        if not names:
            return None
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for target, value in _assignments(function):
                if target == names[0]:
                    return _argument(value, names[1:]).lineno, function.name
        return None

    def _tree(self, cls: type) -> tuple[str, int, ast.AST] | None:
        if cls not in self._trees:
            self._trees[cls] = self._parsed(cls)
        return self._trees[cls]

    def _parsed(self, cls: type) -> tuple[str, int, ast.AST] | None:
        if cls.__module__.split(".", 1)[0] in ("torch", "paddle", "mindspore", "builtins"):
            return None
        try:
            lines, first = inspect.getsourcelines(cls)
            file = inspect.getsourcefile(cls) or ""
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            return None  # made in a shell, or by exec
        return self._relative(file), max(first, 1), tree

    def _relative(self, file: str) -> str:
        for root in self._roots:
            if file.startswith(root):
                return file[len(root) :].replace(os.sep, "/")
        return os.path.basename(file)


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                assert isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
                yield target.attr, node.value


def _argument(value: ast.expr, names: list[str]) -> ast.expr:
    """Of ``Sequential(a, b, c)`` or ``ModuleList([a, b, c])`` the part that the name is the number of."""
    for name in names:
        if not isinstance(value, ast.Call) or not name.isdigit():
            break
        parts = value.args
        if len(parts) == 1 and isinstance(parts[0], (ast.List, ast.Tuple)):
            parts = parts[0].elts
        if int(name) >= len(parts) or any(isinstance(p, ast.Starred) for p in parts):
            break
        value = parts[int(name)]
    return value
