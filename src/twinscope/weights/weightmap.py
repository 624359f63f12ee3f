"""The map: which parameters of the reference become which of the candidate, by what transform, and why."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..adapters.base import Array
from ..errors import WeightError
from .transforms import Chain, describe, from_json, inverted, run, to_json

#: Of what can be written in a map file.
MAP_VERSION = 1

#: From here on an entry is acted upon without asking.
SURE = 0.7


@dataclass(frozen=True, slots=True)
class Held:
    """One parameter or buffer of a model, as its framework has it."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    buffer: bool = False
    names: tuple[str, ...] = ()  # further names of the same tensor: tied, or of a module met under two paths
    stored: str | None = None  # its name in the framework's checkpoint files, where that is another
    needed: bool = True  # False for what a layer gets along without: a step counter, an index table, a scratch buffer

    def __str__(self) -> str:
        return f"{self.path} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Entry:
    """What becomes of some parameters of the reference. Usually one becomes one; q, k and v may become one."""

    reference: tuple[str, ...]
    candidate: tuple[str, ...]
    transform: Chain = ()
    why: str = ""
    confidence: float = 1.0
    proof: str = ""  # what running both models showed of it
    options: tuple[str, ...] = ()  # of an entry that is not sure: which others of the candidate it could be

    @property
    def sure(self) -> bool:
        """Whether it is acted upon without asking."""
        return self.confidence >= SURE

    def inverted(self) -> Entry:
        return replace(
            self,
            reference=self.candidate,
            candidate=self.reference,
            transform=inverted(self.transform),
            options=(),
        )


@dataclass(frozen=True, slots=True)
class WeightMap:
    """How to carry a model's weights to its twin. A value: it holds no model and no weights.

    ::

        mapping = twinscope.map_weights(torch_model, paddle_model, inputs)
        print(mapping)
        mapping.save("map.json")
        mapping = twinscope.WeightMap.load("map.json")
        mapping.inverted()                     # from the candidate back to the reference
    """

    frameworks: tuple[str, str]
    models: tuple[str, str]
    reference: tuple[Held, ...]
    candidate: tuple[Held, ...]
    entries: tuple[Entry, ...]
    skipped_reference: tuple[str, ...] = ()  # left out on purpose
    skipped_candidate: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def unmatched_reference(self) -> tuple[Held, ...]:
        """What the reference holds and no entry takes."""
        taken = {path for e in self.entries for path in e.reference} | set(self.skipped_reference)
        return tuple(h for h in self.reference if h.path not in taken)

    @property
    def unmatched_candidate(self) -> tuple[Held, ...]:
        """What the candidate holds and no entry fills."""
        taken = {path for e in self.entries for path in e.candidate} | set(self.skipped_candidate)
        return tuple(h for h in self.candidate if h.path not in taken)

    @property
    def unsure(self) -> tuple[Entry, ...]:
        """Entries whose evidence does not decide."""
        return tuple(e for e in self.entries if not e.sure)

    @property
    def complete(self) -> bool:
        """Whether everything that matters on both sides is in an entry that is sure."""
        return not self.unsure and not any(h.needed for h in (*self.unmatched_reference, *self.unmatched_candidate))

    def inverted(self) -> WeightMap:
        """The same map from the candidate to the reference."""
        return replace(
            self,
            frameworks=self.frameworks[::-1],
            models=self.models[::-1],
            reference=self.candidate,
            candidate=self.reference,
            entries=tuple(e.inverted() for e in self.entries),
            skipped_reference=self.skipped_candidate,
            skipped_candidate=self.skipped_reference,
        )

    def arrays(
        self, source: Callable[[str], Array], entries: Iterable[Entry] | None = None
    ) -> Iterator[tuple[Entry, str, Array]]:
        """What the candidate's tensors become, an entry at a time; `source` gives those of the reference by path.

        Raises `WeightError` naming the entry when a transform does not fit what it is given.
        """
        held = {h.path: h for h in self.candidate}
        for entry in self.entries if entries is None else entries:
            for path, array in carried(entry, source, held):
                yield entry, path, array

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the map as JSON."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False)
        target = Path(path)
        part = target.parent / (target.name + ".part")
        try:
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(target)
        except (OSError, ValueError) as error:  # ValueError: of a name that no file, or no file's text, can have
            with suppress(OSError, ValueError):
                part.unlink(missing_ok=True)
            why = getattr(error, "strerror", None) or error
            raise WeightError(f"{target} cannot be written: {why}", hint="choose another place") from error

    def to_json(self) -> dict[str, Any]:
        """The map in JSON's types."""
        return {
            "twinscope_map": MAP_VERSION,
            "frameworks": list(self.frameworks),
            "models": list(self.models),
            "entries": [
                {
                    "reference": list(e.reference),
                    "candidate": list(e.candidate),
                    "transform": to_json(e.transform),
                    "why": e.why,
                    "confidence": e.confidence,
                    **({"proof": e.proof} if e.proof else {}),
                    **({"options": list(e.options)} if e.options else {}),
                }
                for e in self.entries
            ],
            "reference": [_held_json(h) for h in self.reference],
            "candidate": [_held_json(h) for h in self.candidate],
            "skipped": {"reference": list(self.skipped_reference), "candidate": list(self.skipped_candidate)},
            "notes": list(self.notes),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WeightMap:
        """Read a map that `save` wrote. Anything else is refused with what is wrong and where."""
        try:
            given = json.loads(Path(path).read_text(encoding="utf-8-sig"))  # some editors put a mark first
        except OSError as error:
            raise WeightError(f"{os.fspath(path)} cannot be read: {error.strerror}", hint="check the path") from error
        except (ValueError, RecursionError) as error:
            raise WeightError(
                f"{os.fspath(path)} is not JSON: {error}", hint="a map is written by WeightMap.save"
            ) from None
        return cls.from_json(given, os.fspath(path))

    @classmethod
    def is_saved(cls, path: str | os.PathLike[str]) -> bool:
        """Whether a file looks like a saved map, and not like hints."""
        try:
            with open(path, encoding="utf-8") as file:
                return '"twinscope_map"' in file.read(200)
        except (OSError, UnicodeDecodeError):
            return False

    @classmethod
    def from_json(cls, given: Any, where: str = "the map") -> WeightMap:
        """The inverse of `to_json`."""
        if not isinstance(given, dict) or "twinscope_map" not in given:
            raise WeightError(f"{where} is not a weight map", hint="a map is written by WeightMap.save")
        if given["twinscope_map"] != MAP_VERSION:
            raise WeightError(
                f"{where} has version {reprlib.repr(given['twinscope_map'])}, this is version {MAP_VERSION}",
                hint="write it again with this version of twinscope",
            )
        read = _Reader(where)
        entries = tuple(
            Entry(
                read.names(e, "reference", f"entries[{i}]"),
                read.names(e, "candidate", f"entries[{i}]"),
                _chain(e, f"{where}: entries[{i}]"),
                read.text(e, "why", f"entries[{i}]", ""),
                read.number(e, "confidence", f"entries[{i}]", 1.0),
                read.text(e, "proof", f"entries[{i}]", ""),
                read.names(e, "options", f"entries[{i}]", ()),
            )
            for i, e in enumerate(read.items(given, "entries"))
        )
        sides = [
            tuple(read.held(h, f"{side}[{i}]") for i, h in enumerate(read.items(given, side)))
            for side in ("reference", "candidate")
        ]
        frameworks = read.names(given, "frameworks", "the top")
        models = read.names(given, "models", "the top")
        if len(frameworks) != 2 or len(models) != 2:
            raise WeightError(f"{where}: frameworks and models must be two each", hint="the map is damaged")
        skipped = given.get("skipped", {})
        found = cls(
            (frameworks[0], frameworks[1]),
            (models[0], models[1]),
            sides[0],
            sides[1],
            entries,
            read.names(skipped, "reference", "skipped", ()),
            read.names(skipped, "candidate", "skipped", ()),
            read.names(given, "notes", "the top", ()),
        )
        _consistent(found, where)
        return found

    def __str__(self) -> str:
        rows = [("reference", "candidate", "transform", "why", "sure")]
        for e in self.entries:
            proof = f"; {e.proof}" if e.proof else ""
            rows.append(
                (
                    _joined(e.reference) or "(nothing)",
                    _joined(e.candidate) or "(nothing)",
                    describe(e.transform) or ("rename" if e.reference != e.candidate else "as is"),
                    e.why + proof,
                    f"{e.confidence:.2f}",
                )
            )
        widths = [min(max(len(row[i]) for row in rows), 60) for i in range(5)]
        lines = [f"{self.models[0]} ({self.frameworks[0]}) -> {self.models[1]} ({self.frameworks[1]}): {self.summary}"]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        for e in self.unsure:
            lines.append(_ask(e))
        for whose, unmatched in (("reference", self.unmatched_reference), ("candidate", self.unmatched_candidate)):
            for h in unmatched:
                kind = "buffer" if h.buffer else "parameter" if h.trainable else "frozen parameter"
                rest = "" if h.needed else ", not needed"
                lines.append(f"only in the {whose}: {h} {h.dtype} ({kind}{rest})")
        return "\n".join([*lines, *self.notes])

    @property
    def summary(self) -> str:
        """One line: how much is mapped, proven, unsure and left over."""
        proven = sum(1 for e in self.entries if e.proof)
        unsure = len(self.unsure)
        left = [sum(h.needed for h in side) for side in (self.unmatched_reference, self.unmatched_candidate)]
        parts = [f"{len(self.entries)} entries", f"{proven} proven by running"]
        if unsure:
            parts.append(f"{unsure} not sure")
        if any(left):
            parts.append(f"unmatched: {left[0]} of the reference, {left[1]} of the candidate")
        return ", ".join(parts)


def carried(entry: Entry, source: Callable[[str], Array], held: Mapping[str, Held]) -> list[tuple[str, Array]]:
    """What one entry makes of the reference's arrays, by path of the candidate, whose tensors are `held`."""
    name = _joined(entry.reference) or "(nothing)"
    try:
        made = run(entry.transform, [source(path) for path in entry.reference])
    except WeightError as error:
        raise WeightError(f"{name} -> {_joined(entry.candidate)}: {error.message}", hint=error.hint) from error
    if len(made) != len(entry.candidate):
        raise WeightError(
            f"{name}: the transform gives {len(made)} tensors for {len(entry.candidate)} places",
            hint="the map is damaged, or a function of yours returns too few arrays",
        )
    for path, array in zip(entry.candidate, made, strict=True):
        target = held.get(path)
        if target is not None and array.shape != target.shape:
            raise WeightError(
                f"{name} becomes {list(array.shape)} and does not fit {target}",
                hint="the map was made for other models",
            )
    return list(zip(entry.candidate, made, strict=True))


def _ask(entry: Entry) -> str:
    others = ", ".join(entry.options) or "nothing better"
    return (
        f"not sure: {_joined(entry.reference)} -> {_joined(entry.candidate)} ({entry.why}); could also be {others}. "
        f'Decide with hints={{"{entry.reference[0] if entry.reference else ""}": "..."}} or pass inputs'
    )


def _joined(paths: Sequence[str]) -> str:
    return " + ".join(paths)


def _held_json(held: Held) -> dict[str, Any]:
    found: dict[str, Any] = {"path": held.path, "shape": list(held.shape), "dtype": held.dtype}
    if held.buffer:
        found["buffer"] = True
    if not held.trainable:
        found["trainable"] = False
    if held.names:
        found["names"] = list(held.names)
    if held.stored is not None:
        found["stored"] = held.stored
    if not held.needed:
        found["needed"] = False
    return found


def _chain(entry: Any, where: str) -> Chain:
    try:
        return from_json(entry.get("transform", []))
    except WeightError as error:
        raise WeightError(f"{where}: {error.message}", hint=error.hint) from None


def _consistent(found: WeightMap, where: str) -> None:
    """A map that fills one place twice, or names what neither side holds, was tampered with or edited by mistake."""
    known = ({h.path for h in found.reference}, {h.path for h in found.candidate})
    if [len(paths) for paths in known] != [len(found.reference), len(found.candidate)]:
        raise WeightError(f"{where}: a path is listed twice on one side", hint="list every tensor once")
    filled: set[str] = set()
    for e in found.entries:
        for side, paths in ((0, e.reference), (1, e.candidate)):
            for path in paths:
                if path not in known[side]:
                    whose = "reference" if side == 0 else "candidate"
                    raise WeightError(f"{where}: the {whose} holds no {path!r}", hint="list it under that side too")
        for path in e.candidate:
            if path in filled:
                raise WeightError(f"{where}: two entries fill {path!r}", hint="a place is filled once")
            filled.add(path)


class _Reader:
    """Reads JSON that anyone may have written."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _get(self, holder: Any, key: str, at: str, default: Any) -> Any:
        if not isinstance(holder, dict) or (key not in holder and default is None):
            raise WeightError(f"{self.where}: {at} has no {key!r}", hint="the map is damaged")
        return holder.get(key, default)

    def _wrong(self, at: str, key: str, value: Any) -> WeightError:
        return WeightError(f"{self.where}: {at}.{key} cannot be {reprlib.repr(value)}", hint="the map is damaged")

    def items(self, holder: Any, key: str) -> list[Any]:
        value = self._get(holder, key, "the top", None)
        if not isinstance(value, list):
            raise self._wrong("the top", key, value)
        return value

    def names(self, holder: Any, key: str, at: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._get(holder, key, at, default)
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise self._wrong(at, key, value)
        return tuple(value)

    def text(self, holder: Any, key: str, at: str, default: str | None = None) -> str:
        value = self._get(holder, key, at, default)
        if not isinstance(value, str):
            raise self._wrong(at, key, value)
        return value

    def number(self, holder: Any, key: str, at: str, default: float) -> float:
        value = self._get(holder, key, at, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.0 <= value <= 1.0:
            raise self._wrong(at, key, value)
        return float(value)

    def flag(self, holder: Any, key: str, at: str, default: bool) -> bool:
        value = self._get(holder, key, at, default)
        if not isinstance(value, bool):
            raise self._wrong(at, key, value)
        return value

    def held(self, holder: Any, at: str) -> Held:
        shape = self._get(holder, "shape", at, None)
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise self._wrong(at, "shape", shape)
        return Held(
            self.text(holder, "path", at),
            tuple(shape),
            self.text(holder, "dtype", at),
            self.flag(holder, "trainable", at, True),
            self.flag(holder, "buffer", at, False),
            self.names(holder, "names", at, ()),
            self.text(holder, "stored", at) if "stored" in holder else None,
            self.flag(holder, "needed", at, True),
        )
