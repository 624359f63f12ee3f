"""The weights half of the migrator: maps of names, conversion, and the comparison of checkpoints.

A map file is what TroubleShooter writes: a list of two objects, the names and the functions that change values. What
is known of the network besides, its layers and what each of their tensors is, goes along under a key of its own that
TroubleShooter never asks for. With it, weights are carried as `twinscope.copy_weights` carries them; a map without it,
written by TroubleShooter, is followed by its names.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pprint import pformat
from typing import Any, TypeAlias

import twinscope

from ..console import say
from .arrays import Array, Compared, compared, shown
from .problems import ArgumentError
from .tables import Table, boxed

Names: TypeAlias = dict[str, str]

#: Under this key the value map of a file holds what `twinscope.Weights.to_json` gives.
_DESCRIBED = "twinscope"

#: What TroubleShooter calls the function that gives a Conv1d's weight the axis it has in MindSpore.
_WIDEN = "troubleshooter.migrator.mapping_relation.weight_adapter.trans_conv1d_weight_value"
#: Its like for frameworks that it does not know.
_NARROW, _TURN = "twinscope.narrow_conv1d", "twinscope.transpose"

_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}

#: What frameworks call the tensors of their layers: by kind of layer, by neutral role.
_NAMES: dict[str, dict[str, Names]] = {
    "mindspore": {
        **dict.fromkeys(("batch_norm1d", "batch_norm2d", "layer_norm", "group_norm"), _NORM),
        **dict.fromkeys(("instance_norm1d", "instance_norm2d", "instance_norm3d"), _NORM),
        "batch_norm3d": {role: f"bn2d.{name}" for role, name in _NORM.items()},
        "embedding": {"weight": "embedding_table"},
        "prelu": {"weight": "w"},
    },
    "paddle": {
        **{f"batch_norm{n}d": {"running_mean": "_mean", "running_var": "_variance"} for n in (1, 2, 3)},
        **{f"instance_norm{n}d": {"weight": "scale"} for n in (1, 2, 3)},
        "prelu": {"weight": "_weight"},
    },
    "torch": {},
}
_WIDENED = ("conv1d", "conv_transpose1d")

#: A checkpoint's extension, as each framework has it first, and what the files of a network are called.
_EXTENSION = {"torch": ".pth", "paddle": ".pdparams", "mindspore": ".ckpt"}
_FRAMEWORK = {**{e: f for f, e in _EXTENSION.items()}, ".pt": "torch", ".bin": "torch"}


# -- making a map ------------------------------------------------------------------------------------------------------


def get_weight_map(
    pt_net: Any = None,
    weight_map_save_path: Any = None,
    weight_name_prefix: str | None = None,
    custom_name_func: Callable[[Names], Names] | None = None,
    print_map: bool = False,
    **kwargs: Any,
) -> tuple[Names, Names]:
    """The names that a network's weights have in MindSpore, and for which of them the values change too.

    ::

        names, values = ts.migrator.get_weight_map(torch_net, weight_map_save_path="net_map.json")

    `weight_name_prefix` goes before every name; `custom_name_func` takes the names and gives others; with
    `weight_map_save_path` both go into a file for `convert_weight`. The network may be of torch or paddle; the names of
    a MindSpore network are those that torch has for them.
    """
    net = kwargs.pop("pt_model", pt_net)
    _no_others("get_weight_map", kwargs)
    if custom_name_func is not None and not callable(custom_name_func):
        raise ArgumentError("custom_name_func cannot be called", hint="hand in a function from names to names")
    if weight_name_prefix is not None and not isinstance(weight_name_prefix, str):
        raise ArgumentError(f"weight_name_prefix={weight_name_prefix!r} is not a text", hint='write "network"')
    weights = twinscope.Weights.of(net)
    names, values = _translated(weights, _goal(weights.framework))
    if weight_name_prefix:
        names = {own: f"{weight_name_prefix}.{other}" for own, other in names.items()}
    if custom_name_func is not None:
        names = custom_name_func(names)
        if not isinstance(names, Mapping):
            raise ArgumentError(
                f"custom_name_func gave {type(names).__name__}", hint="it must return the names as a dict"
            )
    if print_map:
        say(pformat(dict(names)))
        say(pformat(values))
    if weight_map_save_path:
        described = {**values, _DESCRIBED: weights.to_json()}
        _write(Path(weight_map_save_path), json.dumps([dict(names), described]))
    return dict(names), values


def save_net_and_weight_params(net: Any, path: Any = None, weight_params_filename: str | None = None) -> None:
    """Write a network's weights, the map of their names and its architecture, for `convert_weight_and_load`.

    ::

        ts.migrator.save_net_and_weight_params(net, path="pt_net_info")

    Of a torch network: `torch_troubleshooter_create.pth`, `torch_net_map.json` and `torch_net_architecture.txt`; of a
    paddle or MindSpore one the same with its framework's name, .pdparams and .ckpt. `weight_params_filename` is another
    name for the first.
    """
    framework = twinscope.Weights.of(net).framework
    place = Path(os.getcwd() if path is None else path)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"path {place} cannot be made: {error.strerror}", hint="choose another place") from error
    file = place / (weight_params_filename or f"{framework}_troubleshooter_create{_EXTENSION[framework]}")
    twinscope.save_checkpoint(net, file, overwrite=True)
    get_weight_map(net, weight_map_save_path=place / f"{framework}_net_map.json")
    _write(place / f"{framework}_net_architecture.txt", f"{net}\n")


def _goal(framework: str) -> str:
    return "torch" if framework == "mindspore" else "mindspore"


def _translated(weights: twinscope.Weights, goal: str) -> tuple[Names, Names]:
    """Names, and functions of values, as `goal` has them."""
    names: Names = {}
    values: Names = {}
    for info in weights.modules:
        known = _NAMES[goal].get(info.kind or "", {})
        for param in info.params:
            own = info.param_path(param.name)
            name = known.get(param.role, param.role if info.builtin and info.kind else param.name)
            change = _change(info.kind, param.role, weights.framework, goal)
            for place in (info.path, *info.aliases):
                stored = weights.stored.get(own, own) if place == info.path else f"{place}.{param.name}"
                names[stored] = f"{place}.{name}" if place else name
                if change:
                    values[stored] = change
    return names, values


def _change(kind: str | None, role: str, framework: str, goal: str) -> str | None:
    if role != "weight" or framework == goal:
        return None
    if kind in _WIDENED and "mindspore" in (framework, goal):
        return _WIDEN if goal == "mindspore" else _NARROW
    return _TURN if kind == "linear" and "paddle" in (framework, goal) else None


# -- reading a map -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Map:
    """A map file: names, functions of values, and the description of the network where there is one."""

    where: str
    names: Names
    values: Names
    described: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Any, where: str) -> _Map:
        pair = given if isinstance(given, (list, tuple)) and len(given) == 2 else (None, None)
        names, values = pair[0], pair[1] if pair[1] is not None else {}
        if not isinstance(names, Mapping) or not isinstance(values, Mapping):
            raise ArgumentError(f"{where} is no map of weights", hint="it is written by ts.migrator.get_weight_map")
        values = dict(values)
        described = values.pop(_DESCRIBED, None)
        if not all(isinstance(text, str) for pairs in (names, values) for item in pairs.items() for text in item):
            raise ArgumentError(f"{where} holds something else than names", hint="write it again with get_weight_map")
        return cls(where, dict(names), values, described)

    @classmethod
    def read(cls, path: Any, what: str = "weight_map_path") -> _Map:
        place = _file(path, what)
        try:
            given = json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ArgumentError(f"{place} cannot be read as JSON: {error}", hint="write it again") from error
        return cls.of(given, str(place))

    def followed(self, shapes: Mapping[str, tuple[tuple[int, ...], str]], goal: str) -> twinscope.WeightMap:
        """The map for tensors of these shapes and dtypes, by its names alone, as the core has maps."""
        strange = [f"the map's {name} is not in the file" for name in self.names if name not in shapes]
        strange += [f"the file's {name} is not in the map" for name in shapes if name not in self.names]
        if strange:
            raise ArgumentError(
                f"{self.where} and the file of weights are not of one network:\n  " + "\n  ".join(strange),
                hint="write both again: ts.migrator.save_net_and_weight_params",
            )
        entries, candidate = [], []
        for own, (shape, dtype) in shapes.items():
            steps, made = _steps(self.values.get(own), shape, own)
            entries.append({"reference": [own], "candidate": [self.names[own]], "transform": steps})
            candidate.append({"path": self.names[own], "shape": list(made), "dtype": dtype})
        given = {
            "twinscope_map": 1,
            "frameworks": [(self.described or {}).get("framework", "torch"), goal],
            "models": ["the network", "the network"],
            "entries": entries,
            "reference": [{"path": n, "shape": list(s), "dtype": d} for n, (s, d) in shapes.items()],
            "candidate": candidate,
        }
        return twinscope.WeightMap.from_json(given, self.where)

    def towards(self, goal: str) -> _Map:
        """The same map for another framework than it was written for, where its names are as they were made."""
        if self.described is None:
            return self
        weights = twinscope.Weights.from_json(self.described, {}, self.where)
        usual = _translated(weights, _goal(weights.framework))
        if goal == _goal(weights.framework) or usual != (self.names, self.values):
            return self
        return _Map(self.where, *_translated(weights, goal), self.described)


def _steps(function: str | None, shape: tuple[int, ...], name: str) -> tuple[list[Any], tuple[int, ...]]:
    """A function of values as the core's transforms, in JSON, and the shape after it."""
    if function is None:
        return [], shape
    if function == _WIDEN and len(shape) == 3:
        return [{"step": "unsqueeze", "axis": 2}], (*shape[:2], 1, *shape[2:])
    if function == _NARROW and len(shape) == 4:
        return [{"step": "squeeze", "axis": 2}], (*shape[:2], *shape[3:])
    if function == _TURN and len(shape) == 2:
        return [{"step": "transpose", "first": 0, "second": 1}], shape[::-1]
    if function in (_WIDEN, _NARROW, _TURN):
        raise ArgumentError(f"{name}: {function} does not fit the shape {list(shape)}", hint="write the map again")
    raise ArgumentError(
        f"{name}: there is no function of values {function!r}",
        hint="nothing that a map names is imported; for layers of your own use twinscope.weight_rule",
    )


# -- converting --------------------------------------------------------------------------------------------------------


def convert_weight(
    weight_map_path: Any = None, pt_file_path: Any = None, ms_file_save_path: Any = None, **kwargs: Any
) -> Table[Any]:
    """Convert a checkpoint by a map that `get_weight_map` wrote, and print what became of each weight.

    ::

        ts.migrator.convert_weight("net_map.json", "net.pth", "net.ckpt")

    What is written follows from the extension of `ms_file_save_path`. Further keywords: `weight_map`, what
    `get_weight_map` returned, in place of its file; `pt_param_dict`, weights by name, in place of theirs;
    `print_conv_info=False`, `print_save_path=False`.
    """
    given = kwargs.pop("weight_map", None)
    tensors = kwargs.pop("pt_param_dict", None)
    loud, named = kwargs.pop("print_conv_info", True), kwargs.pop("print_save_path", True)
    kwargs.pop("print_level", None)
    _no_others("convert_weight", kwargs)
    target = _target(ms_file_save_path, "ms_file_save_path")
    made = _Map.of(given, "weight_map") if given else _Map.read(weight_map_path)
    with _source(pt_file_path, tensors, made) as source:
        found = twinscope.read_checkpoint(source)
        goal = _FRAMEWORK.get(target.suffix, _goal((made.described or {}).get("framework", "torch")))
        shapes = {name: (tuple(array.shape), array.dtype.name) for name, array in found.items()}
        mapping = made.towards(goal).followed(_named(shapes, made), goal)
        report = twinscope.convert_checkpoint(source, target, mapping, reverse=False, overwrite=True)
    after = {h.path: h.shape for h in mapping.candidate}
    rows = []
    for entry in mapping:
        (own,), (other,) = entry.reference, entry.candidate
        rows.append((own, other, _status(own, other, bool(entry.transform)), _shape_of(mapping, own), after[other]))
    table = _conversion(rows, mapping.frameworks, loud)
    if named:
        say(f"The weights have been converted. The saved path is: {target}")
    return Table(str(table), report)


def convert_weight_and_load(weight_map_path: Any, pt_file_path: Any, net: Any) -> Table[Any]:
    """Give `net` the weights of a checkpoint, by a map that was written beside it.

    ::

        ts.migrator.convert_weight_and_load("info/torch_net_map.json", "info/torch_troubleshooter_create.pth", net)

    All of them or, when one does not fit, none, and the error lists every problem. What became of each is printed; the
    table that is returned has the `twinscope.CopyReport` as `result`.
    """
    made = _Map.read(weight_map_path)
    file = _file(pt_file_path, "pt_file_path")
    tensors = twinscope.read_checkpoint(file)
    own = twinscope.Weights.of(net)
    hints = None
    if made.described is None:
        source = _anonymous(made, tensors)
        hints = {name: other for name, other in made.names.items() if other in _paths(own)}
    else:
        source = twinscope.Weights.from_json(made.described, _unprefixed(tensors, made), made.where)
        hints = _changed_names(made, source, own) or None
    report = twinscope.copy_weights(source, net, mapping=hints)
    held = {h.path: h for h in report.mapping.reference}
    after = {h.path: h for h in report.mapping.candidate}
    rows = [
        (
            " + ".join(e.reference) or None,
            " + ".join(e.candidate) or None,
            _status(" + ".join(e.reference), " + ".join(e.candidate), bool(e.transform)),
            _joined(tuple(held[p].shape) for p in e.reference),
            _joined(tuple(after[p].shape) for p in e.candidate),
        )
        for e in report.copied
    ]
    return Table(str(_conversion(rows, report.mapping.frameworks, True)), report)


def _conversion(rows: Sequence[Sequence[Any]], frameworks: tuple[str, str], loud: bool) -> str:
    header = [*_both("Parameter name of {}", frameworks), "Conversion status"]
    header += _both("Parameter shape of {}", frameworks)
    text = boxed("The list of conversion result", header, rows)
    if loud:
        say(text)
    return text


def _both(text: str, frameworks: tuple[str, str]) -> list[str]:
    return [text.format("MindSpore" if name == "mindspore" else name) for name in frameworks]


def _status(own: str, other: str, changed: bool) -> str:
    """What happened to a weight, in TroubleShooter's words."""
    said = []
    if own != other:
        (before, _, first), (after, _, second) = own.rpartition("."), other.rpartition(".")
        said.append(f"{first}->{second}" if before == after and first != second else "Name converted")
    if changed:
        said.append("Value converted")
    return "; ".join(said) or "Consistent"


def _paths(weights: twinscope.Weights) -> set[str]:
    return {path for path, _, _ in weights.places()}


def _changed_names(made: _Map, source: twinscope.Weights, own: twinscope.Weights) -> Names:
    """Where the map says otherwise than the layers' own names: what its author wants."""
    usual, _ = _translated(source, _goal(source.framework))
    places = _paths(own)
    names = {h.stored or h.path: h.path for h in source.held()}
    wanted = {n: o for n, o in made.names.items() if n in names and usual.get(n) != o}
    needed = {h.stored or h.path for h in source.held() if h.needed}
    lost = [f"{name} -> {other}" for name, other in wanted.items() if other not in places and name in needed]
    if lost:
        raise ArgumentError(
            "the network has no such weights as the map names:\n  " + "\n  ".join(lost),
            hint="check weight_name_prefix and custom_name_func of get_weight_map",
        )
    return {names[name]: other for name, other in wanted.items() if other in places}


def _unprefixed(tensors: Mapping[str, Array], made: _Map) -> Mapping[str, Array]:
    names = _named(dict.fromkeys(tensors), made)
    return (
        tensors if set(names) == set(tensors) else _Renamed(tensors, len(next(iter(tensors))) - len(next(iter(names))))
    )


class _Renamed(Mapping[str, "Array"]):
    """Tensors whose names all begin with something that the map does not know."""

    def __init__(self, tensors: Mapping[str, Array], extra: int) -> None:
        self._tensors = tensors
        self._names = {name[extra:]: name for name in tensors}

    def __getitem__(self, name: str) -> Array:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _named(shapes: Mapping[str, Any], made: _Map) -> dict[str, Any]:
    """By the map's names: what wraps a network for several devices puts one before all of them."""
    for prefix in ("module.", "_orig_mod."):
        if shapes and all(n.startswith(prefix) for n in shapes) and not all(n.startswith(prefix) for n in made.names):
            return {name[len(prefix) :]: value for name, value in shapes.items()}
    return dict(shapes)


def _anonymous(made: _Map, tensors: Mapping[str, Array]) -> twinscope.Weights:
    """Weights of which no more than their names is known, in the shape that the map's functions give them."""
    arrays: dict[str, Array] = {}
    for name, array in _unprefixed(tensors, made).items():
        _, shape = _steps(made.values.get(name), tuple(array.shape), name)
        arrays[name] = array.reshape(shape)
    params = [
        {
            "name": name,
            "shape": list(array.shape),
            "dtype": array.dtype.name,
            "device": "cpu",
            "role": name,
            "trainable": name.rpartition(".")[2] not in ("running_mean", "running_var", "num_batches_tracked"),
            "buffer": name.endswith("num_batches_tracked"),
            "tied_to": None,
            "axes": None,
        }
        for name, array in arrays.items()
    ]
    module: dict[str, Any] = {
        "path": "",
        "type": "",
        "kind": None,
        "builtin": False,
        "params": params,
        "aliases": [],
        "attributes": {},
    }
    given = {"framework": "torch", "model": "the network", "modules": [module]}
    return twinscope.Weights.from_json(given, arrays, made.where)


# -- comparing ---------------------------------------------------------------------------------------------------------


def compare_ms_ckpt(orig_file_path: Any = None, target_file_path: Any = None, **kwargs: Any) -> Table[Any]:
    """Compare two checkpoints of one framework name by name: their shapes, then their values.

    ::

        ts.migrator.compare_ms_ckpt("a.ckpt", "b.ckpt", rtol=1e-5, atol=1e-5)

    Any checkpoint is read. Keywords: `rtol`, `atol` (1e-4), `equal_nan`, `compare_value=False`, `print_level` (0
    nothing, 1 all, 2 what differs), `weight_map_path` or `weight_map` to name the originals as torch does,
    `orig_ckpt_dict`, `target_ckpt_dict` in place of the files, `title`, `shape_field_names`, `value_field_names`.
    """
    names = _map_of(kwargs)
    options = _Comparing.of("compare_ms_ckpt", kwargs)
    before = _tensors(orig_file_path, options.orig, "orig_file_path")
    after = _tensors(target_file_path, options.target, "target_file_path")
    back = {} if names is None else {other: own for own, other in names.names.items()}
    return _side_by_side(before, after, lambda name: back.get(name, name), options)


def compare_pth_and_ckpt(weight_map_path: Any, pt_file_path: Any, ms_file_path: Any, **kwargs: Any) -> Table[Any]:
    """Compare a checkpoint of torch with its conversion: shapes and values of every weight, by a map.

    ::

        ts.migrator.compare_pth_and_ckpt("net_map.json", "net.pth", "net.ckpt")

    Keywords: `rtol`, `atol` (1e-4), `equal_nan`, `compare_value=False`, `print_level`, `print_conv_info=True`.
    """
    loud = kwargs.pop("print_conv_info", False)
    made = _Map.read(weight_map_path)
    source, other = _file(pt_file_path, "pt_file_path"), _file(ms_file_path, "ms_file_path")
    both = ((made.described or {}).get("framework", "torch"), _FRAMEWORK.get(other.suffix, "mindspore"))
    names, shapes = _both("Parameter name of {}", both), _both("Parameter shape of {}", both)
    kwargs.setdefault("shape_field_names", [*names, "Whether shape are equal", *shapes])
    kwargs.setdefault("value_field_names", [*names, *_VALUE_FIELDS[2:]])
    options = _Comparing.of("compare_pth_and_ckpt", kwargs)
    with tempfile.TemporaryDirectory(prefix="compare_pth_and_ckpt") as place:
        goal = Path(place) / f"converted{other.suffix if other.suffix in _FRAMEWORK else '.ckpt'}"
        convert_weight(weight_map_path, source, goal, print_conv_info=loud, print_save_path=False)
        before, after = twinscope.read_checkpoint(goal), twinscope.read_checkpoint(other)
        back = {name: own for own, name in made.towards(_FRAMEWORK[goal.suffix]).names.items()}
        return _side_by_side(before, after, lambda name: back.get(name, name), options)


@dataclass(frozen=True, slots=True)
class _Comparing:
    """The keywords that both comparisons take."""

    rtol: float
    atol: float
    equal_nan: bool
    values: bool
    level: int
    title: str | None
    shape_fields: Sequence[str] | None
    value_fields: Sequence[str] | None
    orig: Mapping[str, Any] | None
    target: Mapping[str, Any] | None

    @classmethod
    def of(cls, function: str, given: dict[str, Any]) -> _Comparing:
        found = cls(
            given.pop("rtol", 1e-4),
            given.pop("atol", 1e-4),
            given.pop("equal_nan", False),
            given.pop("compare_value", True),
            given.pop("print_level", 1),
            given.pop("title", "The list of comparison results for values"),
            given.pop("shape_field_names", None),
            given.pop("value_field_names", None),
            given.pop("orig_ckpt_dict", None),
            given.pop("target_ckpt_dict", None),
        )
        _no_others(function, given)
        if found.level not in (0, 1, 2) or not isinstance(found.values, bool):
            raise ArgumentError(
                f"print_level={found.level!r}, compare_value={found.values!r}",
                hint="print_level is 0, 1 or 2, compare_value True or False",
            )
        return found


_SHAPE_FIELDS = (
    "Parameter name of original ckpt",
    "Parameter name of target ckpt",
    "Whether shape are equal",
    "Parameter shape of original ckpt",
    "Parameter shape of target ckpt",
)
_VALUE_FIELDS = (
    "Parameter name of original ckpt",
    "Parameter name of target ckpt",
    "result of allclose",
    "ratio of allclose",
    "cosine similarity",
    "mean & max diffs",
)


def _side_by_side(
    before: Mapping[str, Any], after: Mapping[str, Any], shown_as: Callable[[str], str], options: _Comparing
) -> Table[tuple[Compared, ...]]:
    shapes: list[tuple[Any, ...]] = []
    rows: list[Compared] = []
    for name in before:
        own = twinscope.as_array(before[name])
        if name not in after:
            shapes.append((shown_as(name), None, None, own.shape, None))
            continue
        other = twinscope.as_array(after[name])
        shapes.append((shown_as(name), name, own.shape == other.shape, own.shape, other.shape))
        if options.values:
            rows.append(compared((shown_as(name), name), own, other, options.rtol, options.atol, options.equal_nan))
    for name in after:
        if name not in before:
            shapes.append((None, name, None, None, twinscope.as_array(after[name]).shape))
    listed = [row for row in shapes if options.level != 2 or row[2] is not True]
    text = boxed("The list of comparison results for shapes", options.shape_fields or _SHAPE_FIELDS, listed)
    if options.level:
        say(text)
    values = shown(
        rows, title=options.title, field_names=options.value_fields or _VALUE_FIELDS, print_level=options.level
    )
    return Table(f"{text}\n{values}", tuple(rows))


# -- arguments ---------------------------------------------------------------------------------------------------------


def _no_others(function: str, left: Mapping[str, Any]) -> None:
    if left:
        raise ArgumentError(
            f"{function}() knows no {', '.join(map(repr, sorted(left)))}", hint="see its documentation for the keywords"
        )


def _file(path: Any, what: str) -> Path:
    if path is None or not Path(path).is_file():
        raise ArgumentError(f"{what}: there is no file {path}", hint="check the path")
    return Path(path)


def _target(path: Any, what: str) -> Path:
    if path is None or not Path(path).parent.is_dir():
        raise ArgumentError(f"{what}: {path} lies in no directory", hint="make the directory first")
    return Path(path)


def _write(place: Path, text: str) -> None:
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{place} cannot be written: {error.strerror}", hint="choose another place") from error


def _map_of(kwargs: dict[str, Any]) -> _Map | None:
    given, path = kwargs.pop("weight_map", None), kwargs.pop("weight_map_path", None)
    if given:
        return _Map.of(given, "weight_map")
    return None if path is None else _Map.read(path)


def _tensors(path: Any, given: Mapping[str, Any] | None, what: str) -> Mapping[str, Any]:
    return given if path is None and given is not None else twinscope.read_checkpoint(_file(path, what))


@contextmanager
def _source(path: Any, tensors: Mapping[str, Any] | None, made: _Map) -> Iterator[Path]:
    """The file of weights, or one for those in memory."""
    if tensors is None:
        yield _file(path, "pt_file_path")
        return
    with tempfile.TemporaryDirectory(prefix="convert_weight") as place:
        file = Path(place) / "given.safetensors"
        twinscope.save_checkpoint({name: twinscope.as_array(value) for name, value in tensors.items()}, file)
        yield file


def _shape_of(mapping: twinscope.WeightMap, path: str) -> tuple[int, ...]:
    return next(h.shape for h in mapping.reference if h.path == path)


def _joined(shapes: Iterator[tuple[int, ...]]) -> str | None:
    return " + ".join(str(shape) for shape in shapes) or None
