"""Dumps read again: those of `api_dump_start`, and those that TroubleShooter itself wrote."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import twinscope

from .problems import DumpError

Array = npt.NDArray[Any]

#: The frameworks, as files and as tables name them.
LABELS = {"mindspore": "mindspore", "torch": "pytorch", "paddle": "paddle"}
_NAME = re.compile(r"([A-Za-z]+_\w+_\d+)_(forward|backward)_(input|output)((?:\.\w+)*)")


@dataclass(frozen=True, slots=True)
class Item:
    """One tensor of a dump."""

    name: str  # NN_Conv2d_0_forward_input.0
    place: tuple[Any, ...]  # to sort by: (0,), or (1, 0) for input.1.0
    dtype: str
    shape: tuple[int, ...]
    numbers: tuple[float, float, float]  # max, min, mean
    norm: float


@dataclass(slots=True)
class Api:
    """One call of a dump."""

    name: str  # NN_Conv2d_0
    inputs: list[Item] = field(default_factory=list)
    outputs: list[Item] = field(default_factory=list)
    backward: list[Item] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """The calls of one step, in their order."""

    apis: tuple[Api, ...]


class Dump:
    """What lies in the folder of one rank."""

    def __init__(self, place: Path, framework: str) -> None:
        self.framework = framework
        self.label = LABELS[framework]
        self.place = place
        self._info = place / f"{framework}_api_dump_info.csv"
        self._data = place / f"{framework}_api_dump"
        self.strange: list[str] = []
        self.steps = _steps(self._read())

    @property
    def has_files(self) -> bool:
        return self._data.is_dir() and next(self._data.glob("*.npy"), None) is not None

    @property
    def traces(self) -> list[Path]:
        """The traces beside the documented files; TroubleShooter's own dumps have none."""
        return sorted((self.place / f"{self.framework}_api_dump_trace").glob("*/manifest.json"))

    def array(self, name: str) -> Array | None:
        """The tensor of a name; None where no file has it."""
        path = self._data / f"{name}.npy"
        if not path.is_file():
            return None
        try:
            found: Array = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DumpError(f"{path} cannot be read: {error}", hint="dump again") from error
        return found

    def _read(self) -> list[tuple[str, str, str, Item]]:
        found = []
        for number, line in enumerate(self._info.read_text(encoding="utf-8").splitlines(), 1):
            try:
                name, _, _, dtype, shape, numbers, _, norm = json.loads(line)
                item = Item(
                    str(name),
                    (),
                    str(dtype),
                    tuple(int(n) for n in shape),
                    (float(numbers[0]), float(numbers[1]), float(numbers[2])),
                    float(norm) if isinstance(norm, (int, float)) else math.nan,
                )
            except (ValueError, TypeError, IndexError) as error:
                raise DumpError(
                    f"{self._info}, line {number}: not a line of a dump: {error}",
                    hint="it has [name, step, [], dtype, shape, [max, min, mean], md5, l2norm]",
                ) from error
            if item.name.startswith("LAYER_"):
                continue  # marks between the calls, without a tensor of their own
            parts = _NAME.fullmatch(item.name)
            if parts is None:
                self.strange.append(item.name)
                continue
            place = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts[4].split(".") if p)
            found.append((parts[1], parts[2], parts[3], Item(item.name, place, *_rest(item))))
        return found

    def trace(self, step: Step, arrays: bool = False) -> twinscope.Trace:
        """The calls of a step as a trace, as far as the documented files tell of them."""
        values: dict[Any, int] = {}
        kept: dict[int, Array] = {}
        records: list[dict[str, Any]] = []

        def slot(kind: str, item: Item) -> dict[str, Any]:
            # a tensor that two calls have is told by its numbers
            same = (item.shape, item.numbers[:2], item.norm) if item.norm == item.norm else item.name
            value = values.setdefault(same, len(values))
            name = kind + "".join(f".{key[1] if not key[0] else key[2]}" for key in item.place)
            made: dict[str, Any] = {"name": name, "shape": list(item.shape), "dtype": _plain_dtype(item.dtype)}
            made["value"] = value
            high, low, mean = item.numbers
            if all(map(math.isfinite, (high, low, item.norm))):
                spread = 1.0 if high > low else 0.0
                told = mean if mean == mean else 0.0
                made["stats"] = [low, high, told, spread, item.norm, 0, 0, f"{value + 1:x}"]
            if arrays and value not in kept:
                found = self.array(item.name)
                if found is not None and found.shape == item.shape:
                    kept[value] = found
                    made["dtype"] = str(found.dtype)
                    made.pop("stats", None)
            return made

        for number, api in enumerate(step.apis, 1):
            prefix, _, rest = api.name.partition("_")
            op = rest.rpartition("_")[0]
            base = {"step": 0, "kind": "op", "path": "", "type": f"{self.framework}.{prefix}.{op}", "call_id": number}
            base |= {"parent_id": 0, "nth": int(rest.rpartition("_")[2])}
            slots = [slot("in", i) for i in api.inputs] + [slot("out", i) for i in api.outputs]
            records.append({"index": len(records), "phase": "forward", **base, "slots": slots})
            if arrays and api.backward:
                slots = [slot("out", i) for i in api.backward]
                records.append({"index": len(records), "phase": "backward", **base, "slots": slots})
        root = {"index": len(records), "step": 0, "kind": "module", "phase": "forward", "path": "", "type": "Net"}
        records.append({**root, "call_id": 0, "parent_id": None, "nth": 0, "slots": []})
        manifest: dict[str, Any] = {
            "framework": self.framework,
            "versions": {},
            "model": "Net",
            "modules": [],
            "plan": {},
        }
        manifest |= {"rank": 0, "world": 1, "schema": 1, "created": "", "error": None, "notes": []}
        return twinscope.Trace.from_plain({"manifest": manifest, "records": records}, kept)


def _rest(item: Item) -> tuple[Any, ...]:
    return item.dtype, item.shape, item.numbers, item.norm


def _plain_dtype(shown: str) -> str:
    return shown.rpartition(".")[2].lower() if "class" not in shown else "float64"


def _steps(items: Sequence[tuple[str, str, str, Item]]) -> tuple[Step, ...]:
    """A step ends where a forward call follows a backward pass."""
    steps: list[dict[str, Api]] = []
    backward = True
    by_name: dict[str, Api] = {}
    for name, phase, kind, item in items:
        if phase == "forward":
            if backward:
                steps.append({})
                backward = False
            api = steps[-1].get(name)
            if api is None:
                api = steps[-1][name] = by_name[name] = Api(name)
            (api.inputs if kind == "input" else api.outputs).append(item)
        else:
            backward = True
            known = by_name.get(name)
            if known is not None:
                known.backward.append(item)
    for step in steps:
        for api in step.values():
            for found in (api.inputs, api.outputs, api.backward):
                found.sort(key=lambda i: i.place)
    return tuple(Step(tuple(step.values())) for step in steps)


def open_dump(path: Any, side: str) -> dict[int, Dump]:
    """The dumps of a folder, by rank."""
    root = Path(path)
    found: dict[int, Dump] = {}
    for place in sorted(root.glob("rank*")) if root.is_dir() else ():
        number = place.name.removeprefix("rank")
        framework = next((f for f in LABELS if (place / f"{f}_api_dump_info.csv").is_file()), None)
        if number.isdigit() and framework is not None:
            found[int(number)] = Dump(place, framework)
    if not found:
        raise DumpError(
            f"{side} {root}: no dump lies there",
            hint="name the output_path of api_dump_init: it has rank0/torch_api_dump_info.csv, or the like",
        )
    return found
