"""Aligning two models that share no process: each is built and run by an interpreter of its own.

    reference's process: build the model -> save its weights and the inputs -> run it under capture -> trace
    candidate's process: build the model -> take the weights             -> run it under capture -> trace
    this process:        compare the two traces

A side is a file and the name of a function in it: ``ref.py:build``. The function takes nothing and returns

* the model, or
* ``(model, loss)``, where `loss` is a function of the model's output (None: the mean of the outputs), or
* a dict with ``model`` and, as wanted, ``loss`` and ``inputs``.

The name may also be that of a model itself. Each process needs only numpy and scipy beside the framework of its side;
Twinscope is taken from where this process has it, so another interpreter need not have it installed.

Weights and inputs cross as traces (`twinscope.store`): any dtype, checksums, no pickle.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from . import errors, patterns
from .adapters._registry import adapter_for, package_of
from .adapters.base import Adapter, Array
from .capturing import Plan
from .comparing import compare
from .errors import OptionError, SideError, TwinscopeError, WeightError
from .records import OUTSIDE, Kind, Manifest, ModuleInfo, ParamInfo, Phase, Record, Slot, TensorMeta
from .result import Result
from .running import InputPair, Inputs, watch_once
from .store import Trace, TraceWriter
from .weights import Weights, copy_weights

_COMPARE = frozenset({"atol", "rtol", "mode", "mapping", "phases", "judge"})
_BUILT = ("model", "loss", "inputs")
_LOG_TAIL = 30  # lines of what a process printed that are shown when it dies


def align_isolated(
    reference: str,
    candidate: str,
    *,
    inputs: Any = None,
    reference_python: str | os.PathLike[str] | None = None,
    candidate_python: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    weights: bool = True,
    backward: bool = True,
    seed: int = 0,
    level: str = "op",
    keep: str | int = "tensors",
    progress: Callable[[int, int], None] | None = None,
    stage: Callable[[str], None] | None = None,
    **options: Any,
) -> Result:
    """`align` with each side in its own process, by its own interpreter: the same result, and no shared environment.

    ::

        result = align_isolated("ref.py:build", "cand.py:build", inputs="x.npz", candidate_python="envs/ms/bin/python")

    `reference` and `candidate` are ``FILE:NAME``; what NAME may be is told in this module's first lines. `inputs`:

    * None: what the reference's function returned under ``inputs``;
    * a path ending in ``.npz`` (``arr_0``... or ``0``... are positional, other names are keywords) or ``.npy``;
    * ``FILE:NAME``, a function or a value in a file, read by the reference's process;
    * or what `align` takes: arrays, a tuple, a dict, `Inputs`, `InputPair`.

    `out` keeps the two traces and what the processes printed; without it nothing is left behind. `stage` is told what
    is being done. The other options are those of `align`; losses come from the sides' functions.

    Raises `SideError` with the traceback when a side's own code fails.
    """
    if "loss" in options:
        raise OptionError("loss= cannot be handed to another process", hint="return (model, loss) from the function")
    comparing = {k: options.pop(k) for k in list(options) if k in _COMPARE}
    plan = {"level": str(level), "keep": keep, "backward": backward, **options}
    Plan.parse(**plan)
    sides = (
        _Side("reference", *_spec(reference, "reference", "build"), _python(reference_python, "reference_python")),
        _Side("candidate", *_spec(candidate, "candidate", "build"), _python(candidate_python, "candidate_python")),
    )
    say = stage or (lambda text: None)
    work = Path(tempfile.mkdtemp(prefix="twinscope-"))
    try:
        place = _place(out) if out is not None else work
        job: dict[str, Any] = {
            "plan": {k: _jsonable(v, k) for k, v in plan.items()},
            "seed": seed,
            "mapping": _jsonable(comparing.get("mapping"), "mapping"),
            "saved_inputs": str(work / "inputs"),
            "weights": str(work / "weights") if weights else None,
            "inputs": _given_inputs(inputs, work / "inputs"),
        }
        notes: list[str] = []
        for side in sides:
            say(f"running the {side.role}, {side.spec}")
            notes += side.run(job, place, work)
        say("comparing")
        traces = [Trace.open(place / side.role) for side in sides]
        result = compare(*traces, progress=progress, **comparing)
        return replace(result, notes=(*result.notes, *notes)) if notes else result
    finally:
        shutil.rmtree(work, ignore_errors=True)


# -- in the process that was asked -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Side:
    role: str
    file: Path
    name: str
    python: str

    @property
    def spec(self) -> str:
        return f"{self.file.name}:{self.name}"

    def run(self, job: Mapping[str, Any], place: Path, work: Path) -> list[str]:
        """Build and run this side in its process; what a person should know of it."""
        answer, order, log = work / f"{self.role}.answer", work / f"{self.role}.json", place / f"{self.role}.log"
        own = {"role": self.role, "file": str(self.file), "name": self.name, "trace": str(place / self.role)}
        order.write_text(json.dumps({**job, **own, "answer": str(answer)}), encoding="utf-8")
        command = [self.python, "-B", str(Path(__file__).resolve().with_name("_side.py")), str(order)]
        try:
            with open(log, "wb") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONFAULTHANDLER": "1"},
                )
                try:
                    code = process.wait()
                finally:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
        except OSError as error:
            raise OptionError(
                f"{self.role}_python={self.python!r} cannot be started: {error.strerror or error}",
                hint=f"name the Python interpreter that has the {self.role}'s framework",
            ) from error
        try:
            said = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise self._died(code, log) from None
        if "error" in said:
            raise self._raised(said["error"])
        return [str(note) for note in said["notes"]]

    def _raised(self, error: Mapping[str, Any]) -> TwinscopeError:
        kind = getattr(errors, str(error["kind"]), SideError)
        cls = kind if isinstance(kind, type) and issubclass(kind, TwinscopeError) else SideError
        found: TwinscopeError = cls(f"{self.role} {self.spec}: {error['message']}", hint=error["hint"])
        return found

    def _died(self, code: int, log: Path) -> SideError:
        how = f"exit status {code}"
        if code < 0:
            try:
                how = signal.Signals(-code).name
            except ValueError:
                how = f"signal {-code}"
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]
        text = "".join(f"\n  {line}" for line in tail)
        return SideError(
            f"{self.role} {self.spec}: its process died ({how}){text}",
            hint=f"does {self.python} have the framework, numpy and scipy? does the model run there by itself?",
        )


def _spec(text: str, option: str, default: str) -> tuple[Path, str]:
    """``FILE:NAME`` taken apart; NAME may be left out."""
    if not isinstance(text, (str, os.PathLike)):
        raise OptionError(
            f"{option}={type(text).__name__} is not a file and a name",
            hint=f'write "file.py:{default}"; models that live in this process are for twinscope.align',
        )
    whole = os.fspath(text)
    file, colon, name = whole.rpartition(":")
    if not colon or not name.isidentifier():
        file, name = whole, default
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise OptionError(f"{option}: there is no file {file}", hint=f"write FILE:NAME, such as model.py:{default}")
    return path, name


def _python(python: str | os.PathLike[str] | None, option: str) -> str:
    if python is None:
        return sys.executable
    found = shutil.which(os.path.expanduser(os.fspath(python)))
    if found is None:
        raise OptionError(
            f"{option}: {os.fspath(python)} is not a program that can be started",
            hint="name a Python interpreter: envs/mindspore/bin/python",
        )
    return found


def _place(out: str | os.PathLike[str]) -> Path:
    place = Path(out).absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"{out}: the directory cannot be made: {error.strerror or error}", hint="name one that can be written"
        ) from error
    return place


def _jsonable(value: Any, option: str) -> Any:
    if isinstance(value, (set, frozenset, tuple, list, range)):
        return [_jsonable(v, option) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v, option) for k, v in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise OptionError(
        f"{option} holds a {type(value).__name__}, which cannot be handed to another process",
        hint="use numbers, strings, lists and dicts",
    )


def _given_inputs(inputs: Any, place: Path) -> dict[str, str] | None:
    """Where the reference's process finds its inputs: saved at `place` already, or in a file of the user's."""
    if inputs is None:
        return None
    if isinstance(inputs, (str, os.PathLike)):
        text = os.fspath(inputs)
        if text.endswith((".npz", ".npy")):
            inputs = _from_numpy_file(Path(text))
        else:
            file, name = _spec(text, "inputs", "inputs")
            return {"file": str(file), "name": name}
    _save_inputs(inputs, None, place)
    return {}


def _from_numpy_file(path: Path) -> Inputs:
    hint = 'write it with np.savez("inputs.npz", x) or np.savez("inputs.npz", ids=ids, mask=mask)'
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return Inputs(found)
        with found:
            arrays = {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise OptionError(f"inputs: there is no file {path}", hint=hint) from None
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise OptionError(f"inputs: {path} cannot be read: {error}", hint=hint) from error
    positions = {name: name.removeprefix("arr_") for name in arrays}
    positional = sorted((n for n, p in positions.items() if p.isdecimal()), key=lambda n: int(positions[n]))
    return Inputs(*(arrays[n] for n in positional), **{n: a for n, a in arrays.items() if n not in positional})


# -- in a side's process ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Built:
    model: Any
    loss: Callable[[Any], Any] | None = None
    inputs: Any = None


def run_side(order: str) -> int:
    """What a side's process does: everything in the order file, then the answer file. The exit status."""
    with open(order, encoding="utf-8") as file:
        job = json.load(file)
    doing = ["loading the file"]
    try:
        answer: dict[str, Any] = {"notes": _side(job, doing)}
    except TwinscopeError as error:
        answer = {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything; the parent is told
        what = f"{type(error).__qualname__}: {error}".rstrip(": ")
        message = f"{doing[0]} raised {what}\n\n{_users_traceback(error)}"
        answer = {"error": {"kind": "SideError", "message": message.rstrip(), "hint": _advice(error)}}
    part = job["answer"] + ".part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(part, job["answer"])
    return 0


def _side(job: Mapping[str, Any], doing: list[str]) -> list[str]:
    is_reference = job["role"] == "reference"
    file = Path(job["file"])
    # as `python FILE` has it, and the working directory last, where `python -m` would have it first
    sys.path[:] = [str(file.parent), *sys.path, os.getcwd()]
    doing[0] = f"loading {file.name}"
    target = _attribute(_load(file), file, job["name"])
    doing[0] = f"calling {job['name']}()"
    built = _built(target, f"{file.name}:{job['name']}")
    adapter = adapter_for(built.model)
    notes = []
    saved = Path(job["saved_inputs"])
    if is_reference:
        if job["inputs"] is None or job["inputs"]:
            doing[0] = "making the inputs"
            _save_inputs(_make_inputs(job["inputs"], built, file), adapter, saved)
    elif built.inputs is not None:
        notes.append("the candidate's own inputs were not used: both sides got the reference's")
    inputs = _load_inputs(saved)
    if job["weights"] is not None:
        doing[0] = "copying the weights"
        if is_reference:
            _save_weights(built.model, adapter, Path(job["weights"]))
        else:
            notes += copy_weights(_saved_weights(Path(job["weights"])), built.model, mapping=job["mapping"]).notes
    doing[0] = "running the model"
    own = inputs.reference if is_reference else inputs.candidate
    watch_once(adapter, built.model, own, built.loss, Plan.parse(**job["plan"]), job["seed"], job["trace"])
    return notes


def _load(file: Path) -> ModuleType:
    """The user's file as a module, named after the file unless that name is taken."""
    name = file.stem if file.stem not in sys.modules and file.stem.isidentifier() else f"{file.stem}_"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise OptionError(f"{file.name} is not a Python file", hint="name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, file: Path, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        legal = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise OptionError(
            f"{file.name} has no {name}",
            hint=patterns.did_you_mean(name, legal) if legal else f"define a function {name}() that returns the model",
        ) from None


def _built(target: Any, spec: str) -> _Built:
    """What the user's function returned, checked; `target` may be the model itself."""
    hint = "return the model, (model, loss), or a dict with 'model' and, as wanted, 'loss' and 'inputs'"
    if package_of(target) is not None:
        return _Built(target)
    if not callable(target):
        raise OptionError(f"{spec} is a {type(target).__name__}, neither a function nor a model", hint=hint)
    found = target()
    if isinstance(found, Mapping):
        for key in found:
            if key not in _BUILT:
                raise OptionError(f"{spec} returned a dict with {key!r}", hint=patterns.did_you_mean(str(key), _BUILT))
        if "model" not in found:
            raise OptionError(f"{spec} returned a dict without 'model'", hint=hint)
        built = _Built(**found)
    elif isinstance(found, tuple):
        if len(found) != 2:
            raise OptionError(f"{spec} returned a tuple of {len(found)}", hint=hint)
        built = _Built(*found)
    elif found is None:
        raise OptionError(f"{spec} returned None", hint=hint)
    else:
        built = _Built(found)
    if built.loss is not None and not callable(built.loss):
        raise OptionError(f"{spec}: the loss is a {type(built.loss).__name__}, not a function", hint=hint)
    return built


def _make_inputs(where: Mapping[str, str] | None, built: _Built, file: Path) -> Any:
    if where is None:
        if built.inputs is None:
            raise OptionError(
                "there are no inputs",
                hint="give --inputs inputs.npz or --inputs FILE:NAME, or return a dict with 'inputs' from the function",
            )
        return built.inputs
    source = Path(where["file"])
    loaded = next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(source)), None)
    found = _attribute(loaded or _load(source), source, where["name"])
    return found() if callable(found) and not isinstance(found, (Inputs, InputPair)) else found


def _users_traceback(error: BaseException) -> str:
    """The traceback without Twinscope's frames and those that load the file."""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    shown = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = shown
    while link is not None:
        link.stack = traceback.StackSummary.from_list(
            [f for f in link.stack if not f.filename.startswith((package, "<frozen importlib"))]
        )
        link = link.__cause__ or link.__context__
    return "".join(shown.format())


def _advice(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{sys.executable} has no {error.name}; name another interpreter, or install it there"
    return "this is an error in the code of that side, or in how it is called; the traceback says where"


# -- what crosses ----------------------------------------------------------------------------------------------------


def _save_weights(model: Any, adapter: Adapter, place: Path) -> None:
    """A model's parameters and buffers as a trace: one state record a module."""
    found = adapter.modules(model)
    manifest = Manifest(adapter.name, {}, type(model).__qualname__, tuple(info for info, _ in found), {})
    with TraceWriter(place, manifest) as writer:
        value = 0
        for index, (info, module) in enumerate(found):
            held = adapter.state(module)
            slots = []
            for param in info.params:
                if param.name not in held:
                    continue
                writer.tensor(value, adapter.to_numpy(held[param.name]))
                slots.append(Slot(param.name, param.meta, value, kept=True))
                value += 1
            slots_of = tuple(slots)
            writer.record(Record(index, 0, Kind.STATE, Phase.WEIGHT, info.path, info.type, -1, None, 0, slots_of))


def _saved_weights(place: Path) -> Weights:
    trace = Trace.open(place)
    slots = {(r.path, s.name): s for r in trace.records for s in r.slots}

    def array(info: ModuleInfo, param: ParamInfo) -> Array:
        slot = slots.get((info.path, param.name))
        values = trace.tensor(slot) if slot is not None else None
        if values is None:
            raise WeightError(f"{info.param_path(param.name)} was not saved", hint="save the weights again")
        return values

    return Weights(trace.manifest.framework, trace.manifest.model, trace.manifest.modules, array)


def _save_inputs(inputs: Any, adapter: Adapter | None, place: Path) -> None:
    """Inputs as a trace: the arrays in the slots of one record, what they were nested in among its arguments."""
    pair = inputs if isinstance(inputs, InputPair) else None
    arrays: list[Array] = []
    sides = {
        "reference": _encode(pair.reference if pair else inputs, adapter, arrays),
        "candidate": _encode(pair.candidate, adapter, arrays) if pair else None,
    }
    with TraceWriter(place, Manifest("numpy", {}, "inputs", (), {})) as writer:
        slots = []
        for i, array in enumerate(arrays):
            writer.tensor(i, array)
            slots.append(Slot(f"in.{i}", TensorMeta(tuple(array.shape), array.dtype.name), i, kept=True))
        writer.record(
            Record(0, 0, Kind.OP, Phase.FORWARD, OUTSIDE, "inputs", 0, None, 0, slots=tuple(slots), args=sides)
        )


def _load_inputs(place: Path) -> InputPair:
    trace = Trace.open(place)
    record = trace.records[0]
    arrays = [np.array(trace.tensor(slot)) for slot in record.slots]
    reference, candidate = record.args["reference"], record.args["candidate"]
    first = _decode(reference, arrays)
    return InputPair(first, _decode(candidate, arrays) if candidate is not None else first)


def _encode(value: Any, adapter: Adapter | None, arrays: list[Array]) -> dict[str, Any]:
    if isinstance(value, (np.ndarray, np.generic)):
        arrays.append(np.asarray(value))
    elif adapter is not None and adapter.is_tensor(value):
        arrays.append(np.array(adapter.to_numpy(value)))
    elif value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    elif isinstance(value, (tuple, list)):
        return {type(value).__name__ if type(value) is list else "tuple": [_encode(v, adapter, arrays) for v in value]}
    elif isinstance(value, Mapping):
        return {"dict": [[_encode(k, None, arrays), _encode(v, adapter, arrays)] for k, v in value.items()]}
    elif isinstance(value, Inputs):
        return {"inputs": [_encode(value.args, adapter, arrays), _encode(value.kwargs, adapter, arrays)]}
    else:
        raise OptionError(
            f"the inputs hold a {type(value).__name__}, which cannot be handed to another process",
            hint="use numpy arrays, numbers and strings, in tuples, lists and dicts",
        )
    return {"array": len(arrays) - 1}


def _decode(coded: Mapping[str, Any], arrays: Sequence[Array]) -> Any:
    ((kind, value),) = coded.items()
    if kind == "array":
        return arrays[value]
    if kind == "value":
        return value
    if kind == "dict":
        return {_decode(k, arrays): _decode(v, arrays) for k, v in value}
    parts = [_decode(v, arrays) for v in value]
    if kind == "inputs":
        return Inputs(*parts[0], **parts[1])
    return tuple(parts) if kind == "tuple" else parts
