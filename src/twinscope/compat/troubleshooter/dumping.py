"""The files of a dump, written while the network runs.

    <output>/rank0/torch_api_dump_info.csv    a line of JSON for every tensor
    <output>/rank0/torch_api_dump_stack.json  where each call was made
    <output>/rank0/torch_api_dump/*.npy       a file for every tensor
    <output>/rank0/torch_api_dump_trace/000   the trace of the first stretch between start and stop: all that the
                                              documented files have no place for

One tensor that several calls have is one file on the disk, under several names.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import twinscope

from .names import Scope

#: What a file of a dump's own is called; nothing else in its folder is ever touched.
FILE = re.compile(r"[A-Za-z]+_\w+_\d+_(?:forward|backward)_(?:input|output)(?:\.\w+)*\.npy")
TYPES = ("all", "statistics", "stack", "npy")
CATEGORIES = ("max", "min", "avg", "l2norm", "md5")
_OWN = ("torch", "mindspore", "paddle", "twinscope")


@dataclass(frozen=True, slots=True)
class Wish:
    """What of a call a dump is to keep."""

    type: str = "all"
    filter_data: bool = True
    filter_stack: bool = True
    overflow: bool = False
    categories: frozenset[str] = frozenset(("max", "min", "l2norm"))
    backward: bool = False

    @property
    def npy(self) -> bool:
        return self.type in ("all", "npy")

    @property
    def numbers(self) -> bool:
        return self.type in ("all", "statistics")

    @property
    def keep(self) -> str:
        return "tensors" if self.npy or (self.numbers and "md5" in self.categories) else "stats"


@dataclass(slots=True)
class Files:
    """The folder of one rank, from one `api_dump_init` to the next."""

    place: Path
    framework: str
    counts: dict[str, int] = field(default_factory=dict)  # calls by name, so that the next has its number
    ran: list[str] = field(default_factory=list)  # names of all calls, dumped or not
    stacks: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    stretches: int = 0
    written: int = 0  # lines
    _begun: bool = False

    @property
    def data(self) -> Path:
        return self.place / f"{self.framework}_api_dump"

    @property
    def info(self) -> Path:
        return self.place / f"{self.framework}_api_dump_info.csv"

    @property
    def stack(self) -> Path:
        return self.place / f"{self.framework}_api_dump_stack.json"

    @property
    def trace(self) -> Path:
        return self.place / f"{self.framework}_api_dump_trace"

    def begin(self) -> None:
        """Make room: what an earlier dump left here goes, and nothing else."""
        if self._begun:
            return
        self.data.mkdir(parents=True, exist_ok=True)
        for old in self.data.iterdir():
            if FILE.fullmatch(old.name) and not old.is_dir():
                old.unlink()
        for path in (self.info, self.stack):
            path.unlink(missing_ok=True)
        self.info.touch()
        if self.trace.is_dir() and not self.trace.is_symlink():
            for old in self.trace.iterdir():
                manifest = old / "manifest.json"
                ours = re.fullmatch(r"\d{3,}", old.name) and not old.is_symlink() and manifest.is_file()
                if ours and "twinscope-trace" in manifest.read_text(encoding="utf-8"):
                    shutil.rmtree(old)
        self._begun = True

    def number(self, api: str) -> str:
        count = self.counts.get(api, 0)
        self.counts[api] = count + 1
        name = f"{api}_{count}"
        self.ran.append(name)
        return name

    def write_stacks(self, filtered: bool) -> None:
        blocks: dict[int, str] = {}  # most calls share a few stacks, and equal ones are one object
        for stack in self.stacks.values():
            if id(stack) not in blocks:
                lines = [_frame(source) for source in stack if not (filtered and _is_frameworks(source.file))]
                blocks[id(stack)] = json.dumps(lines, indent=4).replace("\n", "\n    ")
        text = ",\n".join(
            [f'    "{self._stack_name(name)}": {blocks[id(stack)]}' for name, stack in self.stacks.items()]
        )
        self.stack.write_text(f"{{\n{text}\n}}" if text else "{}", encoding="utf-8")

    def _stack_name(self, name: str) -> str:
        """The documents of one age say it for torch like this, and like that for MindSpore."""
        if self.framework != "torch":
            return f"{name}_forward_stack_info"
        prefix, _, rest = name.partition("_")
        api, _, number = rest.rpartition("_")
        space = {"NN": "nn.", "Functional": "nn.functional.", "Tensor": "Tensor.", "Torch": ""}[prefix]
        return f"torch.{space}{api}({number}) forward"


class DumpWriter:
    """What a capture hands its records and tensors to: a trace, and the documented files beside it."""

    def __init__(self, files: Files, wish: Wish, names: Mapping[int, str], manifest: Any) -> None:
        self._files, self._wish, self._names = files, wish, names
        place = files.trace / f"{files.stretches:03d}"
        self._trace = twinscope.TraceWriter(
            place, manifest, format="npy" if wish.npy else "safetensors", overwrite=True
        )
        self._tensors = place / "tensors"
        self._digests: dict[int, str] = {}
        self._lines: list[str] = []
        self._shown: dict[str, str] = {}
        self._told: dict[int, str] = {}
        self._skipped: set[int] = set()
        #: calls of dropout that did drop
        self.dropping: list[str] = []

    def __contains__(self, value: object) -> bool:
        return value in self._trace

    def tensor(self, value: int, array: Any, *, name: str | None = None) -> None:
        array = np.asarray(array)
        if self._wish.numbers and "md5" in self._wish.categories:
            self._digests[value] = hashlib.md5(np.ascontiguousarray(array).tobytes(), usedforsecurity=False).hexdigest()
        if self._wish.npy:
            self._trace.tensor(value, array, name=f"{value:06d}")

    def alias(self, value: int, of: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        return False  # every name in a dump is a file that numpy reads

    def record(self, record: Any) -> None:
        name = self._names.get(record.call_id)
        if name is not None and record.kind != "state":
            self._dump(record, name)
        if not self._wish.npy and any(s.kept for s in record.slots):
            record = replace(record, slots=tuple(replace(s, kept=False) for s in record.slots))
        self._trace.record(replace(record, stack=()) if record.stack else record)

    def flush(self) -> None:
        self._write_lines()
        self._trace.flush()

    def close(self, manifest: Any = None) -> None:
        try:
            self._write_lines()
            if self._files.stacks:
                self._files.write_stacks(self._wish.filter_stack)
        finally:
            self._trace.close(manifest)

    # -- the documented files --------------------------------------------------------------------------------------

    def _dump(self, record: Any, name: str) -> None:
        wish = self._wish
        if record.phase == "forward":
            if wish.overflow and not any(s.stats and (s.stats.nan or s.stats.inf) for s in record.outputs()):
                self._skipped.add(record.call_id)
                return
            self._files.stacks[name] = record.stack
            if "ropout" in name:
                self._look_at_dropout(record, name)
            if wish.filter_data or not record.args:
                for slot in record.slots:
                    self._slot(name, "forward", slot)
            else:
                for _, key, item in sorted(_arguments(record), key=lambda a: a[:2]):
                    if isinstance(item, (bool, int, float)):
                        self._scalar(f"{name}_forward_input.{key}", item)
                    else:
                        self._slot(name, "forward", item)
                for slot in record.outputs():
                    self._slot(name, "forward", slot)
        elif wish.backward and record.phase == "backward" and record.call_id not in self._skipped:
            for slot in record.slots:
                if slot.side == "out":
                    self._slot(name, "backward", slot)

    def _slot(self, name: str, phase: str, slot: Any) -> None:
        meta = slot.meta
        if self._wish.filter_data and (not meta.shape or 0 in meta.shape or "float" not in meta.dtype):
            return
        side, _, rest = slot.name.partition(".")
        kind = "output" if side == "out" and phase == "forward" else "input"
        rest = "".join(f".{re.sub(r'[^0-9A-Za-z_]', '_', part)}" for part in rest.split(".") if part)
        full = f"{name}_{phase}_{kind}{rest}"
        told = self._told.get(slot.value)
        if told is None:
            numbers, digest, norm = [math.nan] * 3, "[]", "[]"
            if self._wish.numbers:
                numbers, digest, norm = self._numbers(slot)
            told = self._told[slot.value] = self._text(self._dtype(meta.dtype), list(meta.shape), numbers, digest, norm)
        self._lines.append(f'["{full}", {told}')
        self._files.written += 1
        if self._wish.npy and slot.kept:
            self._npy(full, slot)

    def _numbers(self, slot: Any) -> tuple[list[float], str, str]:
        wanted, stats = self._wish.categories, slot.stats
        digest, norm, found = "[]", "[]", [math.nan] * 3
        if "md5" in wanted and slot.value in self._digests:
            digest = f'"{self._digests[slot.value]}"'
        if stats is None:
            return found, digest, norm
        # statistics are of the finite elements; what a tensor that is not finite has for its largest is not
        if not stats.nan and slot.meta.dtype != "bool":
            high = math.inf if stats.inf else stats.max
            found = [
                high if "max" in wanted else math.nan,
                stats.min if "min" in wanted else math.nan,
                (high if stats.inf else stats.mean) if "avg" in wanted else math.nan,
            ]
        if "l2norm" in wanted:
            norm = _number(math.nan if stats.nan else math.inf if stats.inf else stats.l2)
        return found, digest, norm

    def _scalar(self, full: str, value: Any) -> None:
        numbers, digest, norm = [math.nan] * 3, "[]", "[]"
        if self._wish.numbers:
            numbers = [float(value)] * 3
            if "md5" in self._wish.categories:
                digest = f'"{hashlib.md5(str(value).encode(), usedforsecurity=False).hexdigest()}"'
            if "l2norm" in self._wish.categories:
                norm = _number(abs(float(value)))
        self._lines.append(f'["{full}", {self._text(str(type(value)), [], numbers, digest, norm)}')
        self._files.written += 1
        if self._wish.npy:
            np.save(self._files.data / f"{full}.npy", value)

    def _text(self, dtype: str, shape: list[int], numbers: list[float], digest: str, norm: str) -> str:
        """A line but for its name: calls that have one tensor say the same of it."""
        return f"1, [], {json.dumps(dtype)}, {shape}, [{', '.join(map(_number, numbers))}], {digest}, {norm}]\n"

    def _dtype(self, name: str) -> str:
        """A dtype as its own framework prints it."""
        shown = self._shown.get(name)
        if shown is None:
            if self._files.framework == "mindspore":
                special = {"bfloat16": "BFloat16", "uint": "UInt"}
                shown = special.get(name) or (f"UInt{name[4:]}" if name.startswith("uint") else name.capitalize())
            else:
                shown = f"{self._files.framework}.{name}"
            self._shown[name] = shown
        return shown

    def _npy(self, full: str, slot: Any) -> None:
        own, place = self._tensors / f"{slot.value:06d}.npy", self._files.data / f"{full}.npy"
        if slot.meta.dtype == "bfloat16" or slot.meta.dtype.startswith("float8"):
            bits = np.load(own, allow_pickle=False)
            import ml_dtypes

            np.save(place, bits.view(getattr(ml_dtypes, slot.meta.dtype)).astype(np.float32))
            return
        try:
            os.link(own, place)
        except FileExistsError:
            place.unlink()
            os.link(own, place)
        except OSError:  # a file system without links
            shutil.copyfile(own, place)

    def _write_lines(self) -> None:
        if self._lines:
            with self._files.info.open("a", encoding="utf-8") as out:
                out.writelines(self._lines)
            self._lines.clear()

    def _look_at_dropout(self, record: Any, name: str) -> None:
        """Dropout is off, and that is looked at: what went in must have come out."""
        given = next((s for s in record.inputs() if s.param is None), None)
        made = next(iter(record.outputs()), None)
        if given is None or made is None or given.value == made.value or given.stats is None or made.stats is None:
            return
        if given.stats.fingerprint != made.stats.fingerprint and given.meta.shape == made.meta.shape:
            self.dropping.append(name)


def _arguments(record: Any) -> list[tuple[Any, str, Any]]:
    """Tensors and plain numbers among the arguments: (place, name, what)."""
    found: list[tuple[Any, str, Any]] = []
    for slot in record.inputs():
        key = slot.name.split(".")[1] if "." in slot.name else "0"
        found.append((int(key) if key.isdigit() else 1 << 30, slot.name, slot))
    for key, value in record.args.items():
        if isinstance(value, (bool, int, float)):
            found.append((int(key) if key.isdigit() else 1 << 30, key, value))
    return found


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    return repr(float(value)) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def _is_frameworks(file: str) -> bool:
    return file.split("/", 1)[0] in _OWN or file.startswith("<")


def _frame(source: Any) -> str:
    code = ""
    for root in (os.getcwd(), *sys.path):
        path = os.path.join(root, source.file)
        if os.path.isfile(path):
            code = linecache.getline(path, source.line).strip()
            break
    return f"File {source.file}, line {source.line}, in {source.function}, \n {code}"


def scope_chooser(files: Files, scope: Scope, names: dict[int, str]) -> Any:
    """What a capture asks of every call: whether it is in the scope. Names are given in passing."""
    from .names import api_of

    known: dict[tuple[str, str, bool], str | None] = {}

    def choose(call_id: int, kind: Any, type: str, path: str, builtin: bool) -> bool:
        key = (kind, type, builtin)
        try:
            api = known[key]
        except KeyError:
            api = known[key] = api_of(str(kind), type, builtin)
        if api is None:
            # the whole network's own call, and a loss that a layer outside of it computes, are for the trace
            return path == "" if kind == "module" else scope.mode == "all"
        name = files.number(api)
        if name in scope:
            names[call_id] = name
            return True
        return False

    return choose
