"""Reads a pickle as a description: what it would build, with nothing built and nothing called.

A pickle is a program. Here its instructions are followed over plain values only: dicts, lists, tuples, numbers and
strings. A global is a name (`Global`), calling one gives a note of the call (`Call`), and long strings and bytes are
the place where they lie in the file (`Payload`). The formats that are pickles (torch's and paddle's) then look for the
few calls they know, such as numpy's for an array, and make views of the file.

Which names may occur at all is for the caller to say: the first other one is refused.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...adapters.base import Array
from ...errors import WeightError
from .base import DAMAGED, Mapped

_OPERATIONS_LIMIT = 20_000_000
_TEXT_LIMIT = 1 << 16  # bytes; longer strings are payload
_DECODED = 1 << 20  # bytes that are decoded at a time

_MARK = object()

#: Names whose calls give a dict.
_DICTS = frozenset({("collections", "OrderedDict"), ("collections", "defaultdict"), ("collections", "Counter")})


@dataclass(frozen=True, slots=True)
class Global:
    """The name of something that the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """What the pickle would call, with what, and the state it would then set."""

    function: Global
    args: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Persistent:
    """A reference to something beside the pickle: in torch's files, to a storage."""

    key: Any


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """Bytes of the file, or a long string in UTF-8."""

    offset: int
    size: int
    text: bool = False


#: Says whether a pickle may name this; raises `WeightError` with a hint where it may not.
Allow = Callable[[str, str], None]


def read_pickle(mapped: Mapped, begin: int, end: int, allow: Allow) -> tuple[Any, int]:
    """The description of the pickle at `begin`, and where it ends. Damage is a `WeightError`."""
    reader = _Reader(mapped, begin, min(end, mapped.size), allow)
    try:
        return reader.run(), reader.at
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError) as error:
        raise WeightError(
            f"{mapped.where}: its pickle is damaged near byte {reader.at} ({type(error).__name__})", hint=DAMAGED
        ) from error


class _Reader:
    """One run over the instructions. https://docs.python.org/3/library/pickletools.html lists them."""

    def __init__(self, mapped: Mapped, begin: int, end: int, allow: Allow) -> None:
        self.mapped = mapped
        self.at = begin
        self.end = end
        self.allow = allow
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(_OPERATIONS_LIMIT):
            if self.at >= self.end:
                raise ValueError("no STOP")
            operation = self.mapped.data[self.at]
            self.at += 1
            if operation == 0x2E:  # STOP
                (found,) = self.stack
                return found
            step = _STEPS.get(operation)
            if step is None:
                raise WeightError(
                    f"{self.mapped.where}: its pickle has the instruction 0x{operation:02x}, which is not read here",
                    hint=DAMAGED + ", with pickle protocol 2 to 5",
                )
            step(self)
        raise WeightError(f"{self.mapped.where}: its pickle is too long", hint="save the weights alone")

    # what instructions are made of

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > self.end:
            raise ValueError("cut short")
        found = self.mapped.data[self.at : self.at + count]
        self.at += count
        return bytes(found)

    def number(self, layout: str) -> int:
        (found,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(found)

    def line(self) -> str:
        stop = self.mapped.data.find(b"\n", self.at, min(self.end, self.at + 1000))
        if stop < 0:
            raise ValueError("no end of line")
        found = self.take(stop - self.at)
        self.at += 1
        return found.decode("utf-8")

    def payload(self, size: int, *, text: bool = False) -> Any:
        if size < 0 or self.at + size > self.end:
            raise ValueError("cut short")
        if text and size <= _TEXT_LIMIT:
            return self.take(size).decode("utf-8", "surrogatepass")
        self.at += size
        return Payload(self.at - size, size, text)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        found: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    # instructions

    def skip(self, count: int) -> None:
        self.take(count)

    def long(self, size: int) -> None:
        if size > 255:
            raise ValueError("a number of more than 255 bytes")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def byte_string(self, size: int) -> None:
        """Python 2's str: text, unless it is long."""
        self.push(self.payload(size) if size > _TEXT_LIMIT else self.take(size).decode("latin1"))

    def tuple_of(self, count: int) -> None:
        if count > len(self.stack) or any(value is _MARK for value in self.stack[-count:]):
            raise ValueError("too few values")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def found_global(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise ValueError("a global without a name")
        self.allow(module, name)
        self.push(Global(module, name))

    def global_on_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.found_global(module, name)

    def reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Global) or type(args) is not tuple:
            raise ValueError("not a call")
        if (function.module, function.name) not in _DICTS:
            self.push(Call(function, args))
            return
        made: dict[Any, Any] = {}
        pairs = args[-1] if args and type(args[-1]) in (list, dict) else []
        for key, value in pairs.items() if isinstance(pairs, dict) else pairs:
            self._set(made, key, value)
        self.push(made)

    def new_object_ex(self) -> None:
        if self.stack.pop() != {}:
            raise ValueError("an object with keywords")
        self.reduce()

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Call):
            target.state = state
        elif type(target) is not dict:  # of a dict these are attributes, such as torch's _metadata
            raise ValueError("state for nothing")

    def append(self) -> None:
        value = self.stack.pop()
        self._list().append(value)

    def appends(self) -> None:
        values = self.since_mark()
        self._list().extend(values)

    def _list(self) -> list[Any]:
        if type(self.stack[-1]) is not list:
            raise ValueError("not a list")
        found: list[Any] = self.stack[-1]
        return found

    def _dict(self) -> dict[Any, Any]:
        if type(self.stack[-1]) is not dict:
            raise ValueError("not a dict")
        found: dict[Any, Any] = self.stack[-1]
        return found

    def _set(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        parts = key if type(key) is tuple else (key,)
        if not all(type(part) in (str, int, float, bool, type(None)) for part in parts):
            raise ValueError("a key that is not a plain value")
        if key in target and type(key) is str:
            raise WeightError(f"{self.mapped.where}: {key[:200]!r} is there twice in one dict", hint=DAMAGED)
        target[key] = value

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set(self._dict(), key, value)

    def set_items(self) -> None:
        values = self.since_mark()
        target = self._dict()
        for key, value in zip(values[::2], values[1::2], strict=True):
            self._set(target, key, value)

    def new_dict(self) -> None:
        values = self.since_mark()
        self.push({})
        for key, value in zip(values[::2], values[1::2], strict=True):
            self._set(self._dict(), key, value)

    def add_items(self) -> None:
        values = self.since_mark()
        if type(self.stack[-1]) is not list:  # sets are kept as lists: their elements may not be hashable here
            raise ValueError("not a set")
        self.stack[-1].extend(values)

    def pop(self) -> None:
        self.stack.pop()

    def pop_mark(self) -> None:
        self.since_mark()

    def duplicate(self) -> None:
        self.push(self.stack[-1])

    def put(self, index: int) -> None:
        if self.stack[-1] is _MARK:
            raise ValueError("a mark to be remembered")
        self.memo[index] = self.stack[-1]


_STEPS: dict[int, Callable[[_Reader], None]] = {
    0x80: lambda r: r.skip(1),  # PROTO
    0x95: lambda r: r.skip(8),  # FRAME
    ord("("): lambda r: r.push(_MARK),
    ord("N"): lambda r: r.push(None),
    0x88: lambda r: r.push(True),
    0x89: lambda r: r.push(False),
    ord("K"): lambda r: r.push(r.number("<B")),
    ord("M"): lambda r: r.push(r.number("<H")),
    ord("J"): lambda r: r.push(r.number("<i")),
    0x8A: lambda r: r.long(r.number("<B")),
    0x8B: lambda r: r.long(r.number("<I")),
    ord("G"): lambda r: r.push(struct.unpack(">d", r.take(8))[0]),
    ord("U"): lambda r: r.byte_string(r.number("<B")),
    ord("T"): lambda r: r.byte_string(r.number("<I")),
    ord("C"): lambda r: r.push(r.payload(r.number("<B"))),
    ord("B"): lambda r: r.push(r.payload(r.number("<I"))),
    0x8E: lambda r: r.push(r.payload(r.number("<Q"))),
    0x96: lambda r: r.push(r.payload(r.number("<Q"))),  # BYTEARRAY8
    0x8C: lambda r: r.push(r.payload(r.number("<B"), text=True)),
    ord("X"): lambda r: r.push(r.payload(r.number("<I"), text=True)),
    0x8D: lambda r: r.push(r.payload(r.number("<Q"), text=True)),
    ord(")"): lambda r: r.push(()),
    0x85: lambda r: r.tuple_of(1),
    0x86: lambda r: r.tuple_of(2),
    0x87: lambda r: r.tuple_of(3),
    ord("t"): lambda r: r.push(tuple(r.since_mark())),
    ord("]"): lambda r: r.push([]),
    ord("l"): lambda r: r.push(r.since_mark()),
    ord("a"): _Reader.append,
    ord("e"): _Reader.appends,
    ord("}"): lambda r: r.push({}),
    ord("d"): _Reader.new_dict,
    ord("s"): _Reader.set_item,
    ord("u"): _Reader.set_items,
    0x8F: lambda r: r.push([]),  # EMPTY_SET
    0x90: _Reader.add_items,
    0x91: lambda r: r.push(r.since_mark()),  # FROZENSET
    ord("c"): lambda r: r.found_global(r.line(), r.line()),
    0x93: _Reader.global_on_stack,
    ord("R"): _Reader.reduce,
    0x81: _Reader.reduce,  # NEWOBJ
    0x92: _Reader.new_object_ex,
    ord("b"): _Reader.build,
    ord("Q"): lambda r: r.push(Persistent(r.stack.pop())),
    ord("0"): _Reader.pop,
    ord("1"): _Reader.pop_mark,
    ord("2"): _Reader.duplicate,
    ord("q"): lambda r: r.put(r.number("<B")),
    ord("r"): lambda r: r.put(r.number("<I")),
    0x94: lambda r: r.put(len(r.memo)),
    ord("h"): lambda r: r.push(r.memo[r.number("<B")]),
    ord("j"): lambda r: r.push(r.memo[r.number("<I")]),
}


def latin1(mapped: Mapped, payload: Payload, count: int) -> Array:
    """`count` bytes that protocol 2 wrote as a string: UTF-8 of characters up to 255. A copy, made piece by piece."""
    if not payload.size // 2 <= count <= payload.size:
        raise WeightError(f"{mapped.where}: an array has not as many bytes as its shape says", hint=DAMAGED)
    found = np.empty(count, np.uint8)
    decode = codecs.getincrementaldecoder("utf-8")().decode
    filled = 0
    stop = payload.offset + payload.size
    try:
        for begin in range(payload.offset, stop, _DECODED):
            end = min(begin + _DECODED, stop)
            piece = decode(mapped.bytes(begin, end - begin), end == stop).encode("latin1")
            found[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
    except ValueError as error:  # not UTF-8, or more characters than there is room for
        raise WeightError(f"{mapped.where}: the bytes of an array are damaged", hint=DAMAGED) from error
    if filled != count:
        raise WeightError(f"{mapped.where}: an array has not as many bytes as its shape says", hint=DAMAGED)
    return found
