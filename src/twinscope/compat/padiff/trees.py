"""Trees as the documents draw them: of a model's modules, or of the calls of a run, with the place marked."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twinscope import Phase, Record

HERE = "    <---  *** HERE ***"


@dataclass(frozen=True, slots=True)
class Node:
    """A line of a tree, with what hangs below it."""

    text: str
    children: tuple[Node, ...] = ()


def draw(root: Node, indent: str = "    ") -> list[str]:
    """The lines of a tree.

    >>> print("\\n".join(draw(Node("Net", (Node("Linear", (Node("linear"),)), Node("ReLU"))))))
        Net
         |--- Linear
         |     +--- linear
         +--- ReLU
    """
    lines = [indent + root.text]
    for i, child in enumerate(root.children):
        last = i == len(root.children) - 1
        first, *rest = draw(child, "")
        lines.append(f"{indent}{' +--- ' if last else ' |--- '}{first}")
        lines += [f"{indent}{'      ' if last else ' |    '}{line}" for line in rest]
    return lines


def titled(title: str, root: Node) -> str:
    """A tree under its title, as the documents have it."""
    return "\n".join([title, "=" * 25, *draw(root)])


def paths_wanted() -> bool:
    """Whether the environment asks for the path of each module: ``PADIFF_PATH_LOG=ON``."""
    return os.environ.get("PADIFF_PATH_LOG") == "ON"


def full_path(model: str, path: str) -> str:
    """A path as these documents write it: from the root's class on."""
    name = model.rsplit(".", 1)[-1]
    return f"{name}.{path}" if path else name


def tree_of_calls(
    records: Sequence[Record],
    model: str,
    here: Collection[int] = (),
    labels: Mapping[str, str] | None = None,
    hidden: Callable[[Record], bool] = lambda record: False,
) -> Node:
    """What a model called, in the order of the calls: ``(net)`` its modules, ``(api)`` functions and methods.

    `here` are the calls to mark. `labels` say otherwise of modules, by path: ``{"attn": "(net in map)"}``. What is
    `hidden` is left out; what it called is not.
    """
    forward = [r for r in records if r.phase is Phase.FORWARD]
    below: dict[int | None, list[Record]] = defaultdict(list)
    for record in forward:
        below[record.parent_id].append(record)
    root = next(r for r in forward if r.path == "" and r.kind.value == "module")

    def line(record: Record) -> str:
        if record.kind.value == "op":
            text = f"(api) {record.type}"
        else:
            text = f"{(labels or {}).get(record.path, '(net)')} {record.op}"
            if paths_wanted():
                text += f"  ({full_path(model, record.path)})"
        return text + (HERE if record.call_id in here else "")

    def parts(record: Record) -> tuple[Node, ...]:
        found: list[Node] = []
        for child in sorted(below[record.call_id], key=lambda r: r.call_id):
            found += parts(child) if hidden(child) else [Node(line(child), parts(child))]
        return tuple(found)

    return Node(line(root), parts(root))


def tree_of_modules(
    modules: Iterable[Any], model: str, here: Collection[str] = (), skipped: Collection[str] = ()
) -> Node:
    """The modules of a model, each with `path` and `type`; ``(skip)`` after those whose weights are not looked at."""
    infos = list(modules)
    below: dict[str | None, list[Any]] = defaultdict(list)
    for info in infos:
        below[None if info.path == "" else info.path.rpartition(".")[0]].append(info)

    def node(info: Any) -> Node:
        text = info.type.rsplit(".", 1)[-1]
        if info.path in skipped:
            text += "  (skip)"
        if paths_wanted():
            text += f"  ({full_path(model, info.path)})"
        if info.path in here:
            text += HERE
        return Node(text, tuple(node(child) for child in below[info.path]))

    return node(next(i for i in infos if i.path == ""))
