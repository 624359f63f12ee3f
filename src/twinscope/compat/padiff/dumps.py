"""Dumps as the document of PaDiff 0.3 has them: a json with the tree and what is known of it, a npy for each tensor.

    report.json     what ran: a tree of calls, each with its tensors forward and backward
    params.json     what the model held: a tree of layers, each with its weights and gradients
    weights.json    the same with weights only
    grads.json      the same with gradients only
    tensors/ weights/ grads/    the npy files, by names relative to the json

Beside what the document names, each json has under "trace" and "record" what `twinscope.Trace.to_plain` says, so that a
dump can be read as a trace and compared as one. Files of an earlier dump are replaced; nothing else is ever touched.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from twinscope import Phase, Trace, TwinscopeError

from .problems import DumpError
from .stacks import stack_text

_MARK = "twinscope-padiff-dump"
_FILES = {"report": ("tensors",), "params": ("weights", "grads"), "weights": ("weights",), "grads": ("grads",)}
_AGAIN = "dump again with this version"
#: Dtypes that a npy file has no name for are kept as float32, which holds all of their values; the json has the dtype.
_PLAIN_KINDS = "biufc"


# -- writing ---------------------------------------------------------------------------------------------------------


class _Folder:
    """Where one dump goes: the json `name`.json and the npy files that it names."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        self.path = Path(path)
        self.name = name
        self._counts: dict[str, int] = {}
        self._files: dict[tuple[str, int], str] = {}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._remove_older()
        except OSError as error:
            raise _cannot(self.path, error) from error

    def _remove_older(self) -> None:
        """The files of the dump that lies here already, if it is one; anything else stays."""
        place = self.path / f"{self.name}.json"
        if not os.path.lexists(place):
            return
        older = _read_json(self.path, self.name, to_replace=True)
        for file in set(_named_files(older)):
            if re.fullmatch(r"(tensors|weights|grads)/(tensor|weights|grads)_\d+\.npy", file):
                (self.path / file).unlink(missing_ok=True)
        place.unlink()

    def save(self, folder: str, stem: str, value: int, array: Any) -> str:
        """The relative name of the file that holds this value, written when it is first asked for."""
        known = self._files.get((folder, value))
        if known is not None:
            return known
        plain = array if array.dtype.kind in _PLAIN_KINDS else array.astype(np.float32)
        try:
            (self.path / folder).mkdir(exist_ok=True)
            while True:
                number = self._counts.get(folder, 0)
                self._counts[folder] = number + 1
                name = f"{folder}/{stem}_{number}.npy"
                try:
                    with open(self.path / name, "xb") as file:  # a file that is there is somebody else's
                        np.save(file, plain, allow_pickle=False)
                    break
                except FileExistsError:
                    continue
        except OSError as error:
            raise _cannot(self.path, error) from error
        self._files[folder, value] = name
        return name

    def write(self, content: Mapping[str, Any]) -> None:
        head = {"format": _MARK, "version": 1, "file_path": f"{self.name}.json"}
        try:
            with open(self.path / f"{self.name}.json", "x", encoding="utf-8") as file:
                json.dump({**head, **content}, file, indent=1, allow_nan=False)
        except OSError as error:
            raise _cannot(self.path, error) from error


def _cannot(path: Path, error: OSError) -> DumpError:
    return DumpError(f"the dump cannot be written to {path}: {error.strerror}", hint="check the path and the disk")


def _named_files(content: Any) -> Iterator[str]:
    """Every npy file that a json names."""
    if isinstance(content, Mapping):
        for value in content.values():
            yield from _named_files(value)
    elif isinstance(content, list):
        for value in content:
            yield from _named_files(value)
    elif isinstance(content, str) and content.endswith(".npy"):
        yield content


def write_report(
    folder: str | os.PathLike[str],
    trace: Trace,
    head: Mapping[str, Any],
    route: Callable[[str], str],
    mapped: list[str],
    wanted: Callable[[Any], bool],
) -> None:
    """What ran, as ``report.json``: one tree for each call of the model, each call below the one that made it."""
    place = _Folder(folder, "report")
    plain = trace.to_plain()
    order = {m["path"]: i for i, m in enumerate(plain["manifest"]["modules"])}
    forward = [r for r in trace.records if r.phase is Phase.FORWARD and wanted(r)]
    backward: dict[int, list[Any]] = {}
    for record in trace.records:
        if record.phase is Phase.BACKWARD:
            backward.setdefault(record.call_id, []).append(record)
    raw = {record.index: found for record, found in zip(trace.records, plain["records"], strict=True)}

    def tensors(record: Any, side: str, nth: int = 0) -> list[dict[str, Any]]:
        found = []
        for slot, own in zip(record.slots, raw[record.index]["slots"], strict=True):
            if slot.side != side:
                continue
            array = trace.tensor(slot)
            file = None if array is None else place.save("tensors", "tensor", slot.value, array)
            entry = {"path": file, "shape": list(slot.meta.shape), "dtype": slot.meta.dtype, "place": slot.meta.device}
            slim = {k: v for k, v in own.items() if k in ("name", "value", "param")}
            found.append({**entry, **slim, "backward": nth} if record.phase is Phase.BACKWARD else {**entry, **slim})
        return found

    roots: list[dict[str, Any]] = []
    above: list[tuple[int, dict[str, Any]]] = []
    for record in sorted(forward, key=lambda r: r.call_id):
        back = backward.get(record.call_id, [])
        op = record.kind.value == "op"
        node = {
            "name": record.type if op else record.op,
            "route": "" if op else route(record.path),
            "type": "api" if op else "in map" if record.path in mapped else "net",
            "fwd_inputs": tensors(record, "in"),
            "fwd_outputs": tensors(record, "out"),
            "bwd_grads": [t for i, r in enumerate(back) for t in tensors(r, "in", i)],
            "bwd_outputs": [t for i, r in enumerate(back) for t in tensors(r, "out", i)],
            "metas": {
                "fwd_step": record.index,
                "bwd_step": back[0].index if back else None,
                "net_id": -1 if op else order.get(record.path, -1),
                "record": _without_slots(raw[record.index]),
                "backward": [_without_slots(raw[r.index]) for r in back],
            },
            "children": [],
            "stack": stack_text(record, ""),
        }
        # who was called later and was done earlier was called by it: calls in between may not be on record
        while above and above[-1][0] < record.index:
            above.pop()
        (above[-1][1]["children"] if above else roots).append(node)
        above.append((record.index, node))
    place.write({**head, "layer_map": _layer_map(trace, route, mapped), "tree": roots, "trace": plain["manifest"]})


def _without_slots(record: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k not in ("slots", "stack")}


def _layer_map(trace: Trace, route: Callable[[str], str], mapped: list[str]) -> dict[str, Any]:
    types = {m.path: m.type.rsplit(".", 1)[-1] for m in trace.manifest.modules}
    return {
        "route": [route(path) for path in mapped],
        "fullname": [f"{trace.manifest.framework}::{types[path]}" for path in mapped],
        "path": list(mapped),
    }


def write_params(
    folder: str | os.PathLike[str],
    name: str,
    held: Trace,
    head: Mapping[str, Any],
    route: Callable[[str], str],
    mapped: list[str],
    wanted: Callable[[str], bool],
    described: Callable[[str], str],
) -> None:
    """What the model holds, as ``params.json``, ``weights.json`` or ``grads.json``: a tree of its layers."""
    place = _Folder(folder, name)
    plain = held.to_plain()
    records = {(r.path, r.phase): (r, raw) for r, raw in zip(held.records, plain["records"], strict=True)}
    nodes: dict[str, dict[str, Any]] = {}
    for info in held.manifest.modules:
        node: dict[str, Any] = {
            "name": info.type.rsplit(".", 1)[-1],
            "route": route(info.path),
            "repr": described(info.path),
            "available": wanted(info.path),
            "weights": {},
            "grads": {},
            "buffers": {},
            "metas": {"path": info.path},
            "children": [],
        }
        if node["available"]:
            params = {p.name: p for p in info.params}
            if "weights" in _FILES[name] and (info.path, Phase.WEIGHT) in records:
                record, raw = records[info.path, Phase.WEIGHT]
                node["metas"]["weights"] = _slim(raw)
                for slot in record.slots:
                    kind = "buffers" if params[slot.name].buffer else "weights"
                    node[kind][slot.name] = place.save("weights", "weights", slot.value, held.tensor(slot))
            if "grads" in _FILES[name]:
                node["grads"] = {p.name: None for p in info.params if p.trainable and p.tied_to is None}
                if (info.path, Phase.GRADIENT) in records:
                    record, raw = records[info.path, Phase.GRADIENT]
                    node["metas"]["grads"] = _slim(raw)
                    for slot in record.slots:
                        node["grads"][slot.name] = place.save("grads", "grads", slot.value, held.tensor(slot))
        nodes[info.path] = node
        if info.path:
            up = info.path.rpartition(".")[0]
            while up not in nodes:  # what holds it is no module
                up = up.rpartition(".")[0]
            nodes[up]["children"].append(node)
    place.write({**head, "layer_map": _layer_map(held, route, mapped), "tree": nodes[""], "trace": plain["manifest"]})


def _slim(record: dict[str, Any]) -> dict[str, Any]:
    """Without what the json has elsewhere: statistics, and whether it was kept."""
    return {**record, "slots": [{k: v for k, v in s.items() if k not in ("stats", "kept")} for s in record["slots"]]}


# -- reading ---------------------------------------------------------------------------------------------------------


class Dump:
    """One json that was read: as a trace, with its layer map and its head."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        self.path = Path(path)
        self.content = _read_json(self.path, name)
        self._arrays: dict[int, Any] = {}
        try:
            self.layer_map = [str(p) for p in self.content["layer_map"]["path"]]
            self.model_name = str(self.content["model_name"])
            records = self._calls() if name == "report" else self._held(_FILES[name])
            records.sort(key=lambda r: int(r["index"]))
            self.trace = Trace.from_plain({"manifest": self.content["trace"], "records": records}, self._arrays)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, TwinscopeError):
                raise
            raise DumpError(f"{self.path / name}.json is damaged: {error!r}", hint=_AGAIN) from error

    def _calls(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        waiting = list(reversed(self.content["tree"]))
        while waiting:
            node = waiting.pop()
            metas = node["metas"]
            forward = [*node["fwd_inputs"], *node["fwd_outputs"]]
            records.append({**metas["record"], "slots": [self._slot(t) for t in forward]})
            back = [*node["bwd_grads"], *node["bwd_outputs"]]
            for i, record in enumerate(metas["backward"]):
                records.append({**record, "slots": [self._slot(t) for t in back if t["backward"] == i]})
            waiting += reversed(node["children"])
        return records

    def _slot(self, tensor: Mapping[str, Any]) -> dict[str, Any]:
        value = tensor["value"]
        if tensor["path"] is not None and value not in self._arrays:
            self._arrays[value] = self._load(tensor["path"], tensor["dtype"])
        found = {"name": tensor["name"], "shape": tensor["shape"], "dtype": tensor["dtype"], "value": value}
        found["device"] = tensor["place"]
        if tensor.get("param") is not None:
            found["param"] = tensor["param"]
        return found

    def _held(self, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        waiting = [self.content["tree"]]
        while waiting:
            node = waiting.pop()
            for kind in kinds:
                record = node["metas"].get(kind)
                if record is None:
                    continue
                files = {**node["buffers"], **node["weights"]} if kind == "weights" else node["grads"]
                for slot in record["slots"]:
                    self._arrays[slot["value"]] = self._load(files[slot["name"]], slot["dtype"])
                records.append(record)
            waiting += reversed(node["children"])
        return records

    def without_gradient(self) -> set[tuple[str, str]]:
        """Trainable parameters, by path of the layer and name, that had no gradient."""
        found = set()
        waiting = [self.content["tree"]]
        while waiting:
            node = waiting.pop()
            found |= {(node["metas"]["path"], name) for name, file in node["grads"].items() if file is None}
            waiting += node["children"]
        return found

    def _load(self, name: Any, dtype: str) -> Any:
        if not isinstance(name, str) or os.path.isabs(name) or ".." in Path(name).parts:
            raise DumpError(f"{self.path} names the file {name!r}, which does not lie in the dump", hint=_AGAIN)
        place = self.path / name
        if not place.resolve().is_relative_to(self.path.resolve()):
            raise DumpError(f"{place} leads out of the dump", hint=_AGAIN)
        try:
            array = np.load(place, allow_pickle=False)
        except FileNotFoundError:
            raise DumpError(f"{place} is not there", hint="copy the whole folder, the npy files included") from None
        except (OSError, ValueError, EOFError) as error:
            raise DumpError(f"{place} cannot be read: {error}", hint="copy the dump again") from error
        if not isinstance(array, np.ndarray):
            raise DumpError(f"{place} is no npy file", hint="copy the dump again")
        return array if array.dtype.name == dtype else array.astype(_dtype(dtype))


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        try:
            return np.dtype(getattr(ml_dtypes, name))
        except (AttributeError, TypeError):
            raise DumpError(f"the dtype {name!r} is not known", hint=_AGAIN) from None


def _read_json(path: Path, name: str, to_replace: bool = False) -> dict[str, Any]:
    place = path / f"{name}.json"
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DumpError(
            f"{path} has no {name}.json", hint=f"hand in the folder that dump_{name} wrote to, or one above it"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        content = error
    ours = isinstance(content, dict) and content.get("format") == _MARK
    if to_replace and not ours:
        raise DumpError(f"{place} is in the way and is no dump", hint="move it away, or dump to another folder")
    if not isinstance(content, dict):
        raise DumpError(f"{place} cannot be read: {content}", hint=_AGAIN)
    if not ours:
        raise DumpError(f"{place} was not written by this version of padiff", hint=_AGAIN)
    if content.get("version") != 1:
        raise DumpError(f"{place} was written by a newer version of padiff", hint="pip install -U twinscope")
    return content
