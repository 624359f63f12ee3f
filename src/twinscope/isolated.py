"""Aligning two models that share no process: each is built and run by an interpreter of its own.

    reference's process: build the model -> save its weights and the inputs -> run it under capture -> trace
    candidate's process: build the model -> take the weights             -> run it under capture -> trace
    this process:        compare the two traces

A side is a file and the name of a function in it: ``ref.py:build``; `twinscope.building` says what it returns. Without
a loss the mean of the outputs is taken. Each process needs only numpy and scipy beside the framework of its side;
Twinscope is taken from where this process has it, so another interpreter need not have it installed.

Weights and inputs cross as traces (`twinscope.store`): any dtype, checksums, no pickle.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import errors
from .adapters._registry import adapter_for
from .adapters.base import Adapter, Array
from .building import Built, advice, attribute, built_by, from_numpy_file, inputs_in, load, spec_of, users_traceback
from .capturing import Plan
from .comparing import Comparison, comparison_of
from .confirming import WideRun, confirmed, run_in_float64, wants_confirmation
from .errors import OptionError, SideError, TwinscopeError
from .explain.linting import LintReport, LintSide, lint
from .graft import Grafts, grafts_from_json, grafts_to_json
from .hints import Hints, as_pairs
from .judge import RoundoffJudge
from .offline import judged_alone, modules_of, recorded_weights, take_weights
from .records import OUTSIDE, Kind, Manifest, Phase, Record, Slot, Source, TensorMeta
from .result import Result
from .running import InputPair, Inputs, watch_once
from .store import Trace, TraceWriter
from .weights import WeightMap

_COMPARE = frozenset({"atol", "rtol", "mode", "phases", "judge"})
_TOLERANCE = ("atol", "rtol", "mode", "judge")
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
    mapping: Any = None,
    skip: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    seed: int = 0,
    level: str = "op",
    keep: str | int = "tensors",
    confirm: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    stage: Callable[[str], None] | None = None,
    **options: Any,
) -> Result:
    """`align` with each side in its own process, by its own interpreter: the same result, and no shared environment.

    ::

        result = align_isolated("ref.py:build", "cand.py:build", inputs="x.npz", candidate_python="envs/ms/bin/python")

    `reference` and `candidate` are ``FILE:NAME``; what NAME may be is told in `twinscope.building`. `inputs`:

    * None: what the reference's function returned under ``inputs``;
    * a path ending in ``.npz`` (``arr_0``... or ``0``... are positional, other names are keywords) or ``.npy``;
    * ``FILE:NAME``, a function or a value in a file, read by the reference's process;
    * or what `align` takes: arrays, a tuple, a dict, `Inputs`, `InputPair`.

    `mapping` and `skip` are as in `align`. The two models never meet: where names and shapes do not decide which
    weights belong together, the candidate is run against the recorded run of the reference. What that leaves open is an
    error; make the map with `map_weights` where both frameworks are, and hand in the file it was saved to.

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
        _Side("reference", *spec_of(reference, "reference", "build"), _python(reference_python, "reference_python")),
        _Side("candidate", *spec_of(candidate, "candidate", "build"), _python(candidate_python, "candidate_python")),
    )
    say = stage or (lambda text: None)
    work = Path(tempfile.mkdtemp(prefix="twinscope-"))
    try:
        place = _place(out) if out is not None else work
        grafts = str(work / "grafts.json")
        job: dict[str, Any] = {
            "plan": {k: _jsonable(v, k) for k, v in plan.items()},
            "seed": seed,
            "mapping": _given_map(mapping, work / "map.json"),
            "skip": _jsonable(skip, "skip"),
            "saved_inputs": str(work / "inputs"),
            "weights": str(work / "weights") if weights else None,
            "recorded": str(place / "reference"),
            "inputs": _given_inputs(inputs, work / "inputs"),
            "grafts": None if any(comparing.get(k) is not None for k in _TOLERANCE) else grafts,
        }
        notes: list[str] = []
        for side in sides:
            say(f"running the {side.role}, {side.spec}")
            notes += map(str, side.run(job, place, work)["notes"])
        say("comparing")
        traces = [Trace.open(place / side.role) for side in sides]
        comparison, found = _told(traces, mapping, Path(grafts), progress, comparing)
        result = comparison.result(found)
        if confirm or (confirm is None and wants_confirmation(result, found)):
            runs = []
            for side in sides:
                say(f"running the {side.role} in float64")
                order = {**job, "only": "confirm", "wide": str(work / f"{side.role}-float64")}
                said = side.run(order, place, work)
                wide = None if said["wide"] is None else Trace.open(said["wide"])
                runs.append(WideRun(wide, said["why"], said["backward"]))
            result = confirmed(comparison, result, found, (runs[0], runs[1]), modules_of(mapping, traces))
        return replace(result, notes=(*result.notes, *notes)) if notes else result
    finally:
        shutil.rmtree(work, ignore_errors=True)


def lint_isolated(
    reference: str,
    candidate: str,
    *,
    reference_python: str | os.PathLike[str] | None = None,
    candidate_python: str | os.PathLike[str] | None = None,
    hints: Any = None,
    skip: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    stage: Callable[[str], None] | None = None,
) -> LintReport:
    """`lint` with each side built in its own process, by its own interpreter. Nothing is run.

    ::

        report = lint_isolated("ref.py:build", "cand.py:build", candidate_python="envs/ms/bin/python")
    """
    sides = (
        _Side("reference", *spec_of(reference, "reference", "build"), _python(reference_python, "reference_python")),
        _Side("candidate", *spec_of(candidate, "candidate", "build"), _python(candidate_python, "candidate_python")),
    )
    said = Hints.parse(hints, skip)  # a misspelt one fails before anything is started
    say = stage or (lambda text: None)
    work = Path(tempfile.mkdtemp(prefix="twinscope-"))
    try:
        found = []
        for side in sides:
            say(f"building the {side.role}, {side.spec}")
            answer = side.run({"only": "lint"}, work, work)
            lines = {path: Source(*line) for path, line in answer["lines"].items()}
            trace = Trace.open(work / side.role)
            found.append(replace(LintSide.of(trace), line=lines.get, training=answer["training"]))
        return lint(*found, hints=said)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _told(
    traces: Sequence[Trace],
    mapping: Any,
    grafts: Path,
    progress: Callable[[int, int], None] | None,
    options: Mapping[str, Any],
) -> tuple[Comparison, Grafts | None]:
    """Two traces compared, and what the candidate's process found out about its calls alone."""
    modules = modules_of(mapping, traces)
    comparison = comparison_of(traces[0], traces[1], mapping=modules, progress=progress, **options)
    if not grafts.is_file() or not isinstance(comparison.judge, RoundoffJudge):
        return comparison, None
    read = json.loads(grafts.read_text(encoding="utf-8"))
    return comparison, grafts_from_json(read, (traces[0], traces[1]), comparison.matching)


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

    def run(self, job: Mapping[str, Any], place: Path, work: Path) -> Mapping[str, Any]:
        """Build and run this side in its process; what it answers, with ``notes`` that a person should know."""
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
            said: Mapping[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise self._died(code, log) from None
        if "error" in said:
            raise self._raised(said["error"])
        return said

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


def _given_map(mapping: Any, place: Path) -> Any:
    """What the candidate's process is told of the weights: where a map or hints lie, or the hints themselves."""
    if isinstance(mapping, WeightMap):
        mapping.save(place)
        return str(place)
    if isinstance(mapping, (str, os.PathLike)):
        return os.path.abspath(mapping)
    return _jsonable(as_pairs(mapping, "mapping"), "mapping")


def _given_inputs(inputs: Any, place: Path) -> dict[str, str] | None:
    """Where the reference's process finds its inputs: saved at `place` already, or in a file of the user's."""
    if inputs is None:
        return None
    if isinstance(inputs, (str, os.PathLike)):
        text = os.fspath(inputs)
        if text.endswith((".npz", ".npy")):
            inputs = from_numpy_file(Path(text))
        else:
            file, name = spec_of(text, "inputs", "inputs")
            return {"file": str(file), "name": name}
    _save_inputs(inputs, None, place)
    return {}


# -- in a side's process ---------------------------------------------------------------------------------------------


def run_side(order: str) -> int:
    """What a side's process does: everything in the order file, then the answer file. The exit status."""
    with open(order, encoding="utf-8") as file:
        job = json.load(file)
    doing = ["loading the file"]
    try:
        answer: dict[str, Any] = _side(job, doing)
    except TwinscopeError as error:
        answer = {"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything; the parent is told
        what = f"{type(error).__qualname__}: {error}".rstrip(": ")
        message = f"{doing[0]} raised {what}\n\n{users_traceback(error)}"
        answer = {"error": {"kind": "SideError", "message": message.rstrip(), "hint": advice(error)}}
    part = job["answer"] + ".part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(part, job["answer"])
    return 0


def _side(job: Mapping[str, Any], doing: list[str]) -> dict[str, Any]:
    is_reference = job["role"] == "reference"
    file = Path(job["file"])
    # as `python FILE` has it, and the working directory last, where `python -m` would have it first
    sys.path[:] = [str(file.parent), *sys.path, os.getcwd()]
    doing[0] = f"loading {file.name}"
    target = attribute(load(file), file, job["name"])
    doing[0] = f"calling {job['name']}()"
    built = built_by(target, f"{file.name}:{job['name']}")
    adapter = adapter_for(built.model)
    if job.get("only") == "lint":
        doing[0] = "looking at its layers"
        return _looked_at(built.model, adapter, Path(job["trace"]))
    notes = []
    saved = Path(job["saved_inputs"])
    again = job.get("only") == "confirm"  # then weights and inputs have crossed
    if is_reference and not again:
        if job["inputs"] is None or job["inputs"]:
            doing[0] = "making the inputs"
            _save_inputs(_make_inputs(job["inputs"], built), adapter, saved)
    elif built.inputs is not None:
        notes.append("the candidate's own inputs were not used: both sides got the reference's")
    inputs = _load_inputs(saved)
    if job["weights"] is not None:
        doing[0] = "copying the weights"
        if is_reference and again:
            pass
        elif is_reference:
            _save_weights(built.model, adapter, Path(job["weights"]))
        else:
            saved_weights, recorded = recorded_weights(Trace.open(job["weights"])), Trace.open(job["recorded"])
            said = (job["mapping"], job["skip"], job["seed"])
            notes += take_weights(saved_weights, recorded, built.model, inputs.candidate, *said)[0]
    doing[0] = "running the model"
    own = inputs.reference if is_reference else inputs.candidate
    if again:
        doing[0] = "running the model in float64"
        plan, seed = job["plan"], job["seed"]
        backward = plan.get("backward", True)
        wide = run_in_float64(adapter, built.model, own, built.loss, backward=backward, seed=seed, path=job["wide"])
        place = None if wide.trace is None else str(wide.trace.path)
        return {"notes": [], "why": wide.why, "backward": wide.backward, "wide": place}
    watch_once(adapter, built.model, own, built.loss, Plan.parse(**job["plan"]), job["seed"], job["trace"])
    if not is_reference and job["grafts"] is not None:
        doing[0] = "judging its calls alone"
        _judge_alone(job, built.model, inputs)
    return {"notes": notes}


def _looked_at(model: Any, adapter: Adapter, place: Path) -> dict[str, Any]:
    """What `lint` needs of a model: its modules as a trace without records, and where they are made."""
    side = LintSide.of(model)
    with TraceWriter(place, Manifest(adapter.name, {}, side.weights.model, side.weights.modules, {})):
        pass
    lines = {m.path: line for m in side.weights.modules if (line := side.line(m.path)) is not None}
    return {
        "notes": [],
        "lines": {path: [line.file, line.line, line.function] for path, line in lines.items()},
        "training": side.training,
    }


def _judge_alone(job: Mapping[str, Any], model: Any, inputs: InputPair) -> None:
    """The candidate's calls on the tensors of the reference's trace; what they came to is written for whoever asked."""
    traces = (Trace.open(job["recorded"]), Trace.open(job["trace"]))
    backward = job["plan"].get("backward", True)
    _, found = judged_alone(traces, model, inputs, job["mapping"], backward=backward, seed=job["seed"])
    Path(job["grafts"]).write_text(json.dumps(grafts_to_json(found)), encoding="utf-8")


def _make_inputs(where: Mapping[str, str] | None, built: Built) -> Any:
    if where is not None:
        return inputs_in(Path(where["file"]), where["name"])
    if built.inputs is None:
        raise OptionError(
            "there are no inputs",
            hint="give --inputs inputs.npz or --inputs FILE:NAME, or return a dict with 'inputs' from the function",
        )
    return built.inputs


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
