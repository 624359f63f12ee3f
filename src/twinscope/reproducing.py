"""A finding as a folder that runs by itself: one call, both frameworks, the tensors, and what rho comes to.

    repro/
    ├── README.md        what it is, and how to run it
    ├── run.py           runs both scripts, each in its own process, and prints rho
    ├── reference.py     the call in the reference's framework
    ├── candidate.py     the same in the candidate's
    └── tensors/         what they are given, as .npy

Nothing of Twinscope's is needed there, and nothing of the user's: the call is written down as the functions of the
framework that it consists of, with the arguments that they had. A layer is told by the functions in it; MindSpore's,
whose primitives have their settings in themselves, by its constructor. What lies between calls is told the same way.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .adapters.base import Array
from .errors import ReproError
from .explain.neutral import neutral
from .explain.spelling import spelled
from .explain.table import Effect, flavour_of, settings_of
from .flow import Flow
from .judge import BUG_FROM, NOISE_BELOW, ROUNDOFF
from .metrics import arranged, arrangement
from .records import Kind, ModuleInfo, Phase, Record, Slot, Verdict
from .store import Trace

if TYPE_CHECKING:
    from .match import Matching, Pair
    from .result import Finding

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_FRAMEWORKS = ("torch", "paddle", "mindspore")
_PUBLIC = {"torch": "PyTorch", "paddle": "PaddlePaddle", "mindspore": "MindSpore"}
#: Most calls that one script may hold: more is a network, not a call.
_MOST_CALLS = 200
#: Most findings of one result that tensors are kept for.
_MOST_MATERIAL = 16
_SHOWN = frozenset({Verdict.BUG, Verdict.PRECISION, Verdict.UNDECIDED})
_RANDOM = re.compile(r"drop|rand|bernoulli|multinomial|normal_|uniform_|exponential_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Side:
    """One script's worth: lines of code, and the tensors that they begin with."""

    framework: str
    version: str
    where: str
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, Array]  # by the name of the variable
    inputs: tuple[str, ...]  # of those, what the call was given and is differentiated by


@dataclass(frozen=True, slots=True)
class Material:
    """All that the folder is made of."""

    sides: tuple[Side, Side]
    gradients: (
        tuple[tuple[Array | None, ...], tuple[Array | None, ...]] | None
    )  # of the outputs, for a backward finding
    recorded: tuple[tuple[Array, ...], tuple[Array, ...]]  # what the outputs were in the run
    paired: tuple[tuple[int, int], ...]  # inputs that correspond
    same_given: bool  # whether the candidate was given in the run what it is given here

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, folder: str | os.PathLike[str], title: str) -> Path:
        """Write the folder; it must not be there, or be empty."""
        place = Path(folder)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise ReproError(f"{place} is there already and is not empty", hint="name another folder")
        tensors = place / "tensors"
        try:
            tensors.mkdir(parents=True, exist_ok=True)
            for role, number in (("reference", 0), ("candidate", 1)):
                side = self.sides[number]
                for name, array in side.tensors.items():
                    _save(tensors / f"{role}.{name}.npy", array)
                known = self.recorded[number] if number == 0 or self.same_given else ()
                for i, array in enumerate(known):
                    _save(tensors / f"{role}.recorded.{i}.npy", array)
                for i, gradient in enumerate(self.gradients[number] if self.gradients else ()):
                    if gradient is not None:
                        _save(tensors / f"{role}.gradient.{i}.npy", gradient)
                (place / f"{role}.py").write_text(self._script(role, side), encoding="utf-8")
            said = " ".join(title.split())
            (place / "run.py").write_text(self._runner(said), encoding="utf-8")
            (place / "README.md").write_text(self._readme(title), encoding="utf-8")
        except OSError as error:
            raise ReproError(
                f"{place} cannot be written: {error.strerror or error}", hint="choose a place you can write to"
            ) from error
        return place

    def _script(self, role: str, side: Side) -> str:
        told = {
            "__ROLE__": role,
            "__TITLE__": _plain(f"The {role}'s side, in {_PUBLIC[side.framework]} {side.version}: {side.where}."),
            "__NAMES__": ", ".join(side.tensors),
            "__DTYPES__": repr({name: array.dtype.name for name, array in side.tensors.items()}),
            "__INPUTS__": repr(list(side.inputs)),
            "__BODY__": "\n".join(f"    {line}" for line in side.lines),
            "__OUTPUTS__": ", ".join(side.outputs),
            "__BACKWARD__": repr(self.gradients is not None),
        }
        text = (_TEMPLATES / f"{side.framework}_side.txt").read_text(encoding="utf-8")
        for mark, value in told.items():
            text = text.replace(mark, value)
        return text

    def _runner(self, title: str) -> str:
        text = (_TEMPLATES / "run.txt").read_text(encoding="utf-8")
        units = [max((ROUNDOFF.get(a.dtype.name, 0.0) for a in own), default=0.0) for own in self.recorded]
        told = {
            "__TITLE__": _plain(title),
            "__NOISE__": repr(NOISE_BELOW),
            "__BUG__": repr(BUG_FROM),
            "__UNIT__": repr(max(*units, 2.0**-53)),
            "__PAIRED__": repr(list(self.paired)),
            "__BACKWARD__": repr(self.gradients is not None),
        }
        for mark, value in told.items():
            text = text.replace(mark, value)
        return text

    def _readme(self, title: str) -> str:
        a, b = self.sides
        return (
            f"# {_plain(title.splitlines()[0])}\n\n"
            + "".join(f"{_plain(line.strip())}\n" for line in title.splitlines()[1:])
            + f"\nOne call, made alone on the same tensors in {_PUBLIC[a.framework]} {a.version} (`reference.py`) and "
            f"in {_PUBLIC[b.framework]} {b.version} (`candidate.py`).\n\n"
            "    python run.py\n\n"
            "runs both, each in a process of its own, and prints rho: the candidate's error against the reference in\n"
            f"float64, in units of the reference's own. Near 1 is noise, from {BUG_FROM:g} on it is another function.\n"
            "It exits with 0 when the two agree, 1 when they differ, 2 when one cannot be run. Where the frameworks\n"
            "do not share an environment:\n\n"
            "    python run.py --reference-python envs/a/bin/python --candidate-python envs/b/bin/python\n\n"
            "`tensors/` holds what the two are given, and what they returned in the run that was judged.\n"
            "Needed are numpy and the two frameworks, nothing else.\n"
        )


def check(folder: Path, *, shows: bool = False) -> str | None:
    """Run a folder; what it printed, None where a framework is not here.

    `ReproError` where it does not run, does not compute what the run did, or, with `shows`, shows no difference.
    """
    from importlib.util import find_spec

    scripts = [(folder / f"{role}.py").read_text(encoding="utf-8") for role in ("reference", "candidate")]
    wanted = {name for name in _FRAMEWORKS for text in scripts if f"\nimport {name}\n" in text}
    if any(find_spec(name) is None for name in wanted):
        return None
    done = subprocess.run(
        [sys.executable, str(folder / "run.py")],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode not in (0, 1):
        raise ReproError(
            f"{folder} does not run alone:\n{(done.stdout + done.stderr)[-1500:]}",
            hint="the folder is left as it is; it may need arguments that a trace does not hold",
        )
    if "not what the run" in done.stdout:
        raise ReproError(
            f"{folder} runs, but is not the call that was judged:\n{done.stdout}",
            hint="the call has settings that a trace does not hold; the folder is left as it is",
        )
    return done.stdout


def with_material(
    findings: Sequence[Finding], traces: tuple[Trace, Trace], matching: Matching, flows: tuple[Flow, Flow]
) -> list[Finding]:
    """Findings with what a repro of each is made of, or with why there is none."""
    made, found = 0, []
    for finding in findings:
        pair = finding.pair
        if pair is not None and finding.verdict in _SHOWN:
            slot = None
            if finding.alone is not None and finding.alone.between:
                slot = next((x for x in pair.pair.slots if x[0].name == finding.alone.tensor), None)
            why: Material | str
            try:
                if made >= _MOST_MATERIAL:
                    raise ReproError(f"tensors are kept for the first {_MOST_MATERIAL} findings; mend those first")
                why = material(pair.pair, finding.phase, traces, matching, slot, flows)
                made += 1
            except ReproError as error:
                why = error.message if error.hint is None else f"{error.message} ({error.hint})"
            finding = replace(finding, material=why)
        found.append(finding)
    return found


# -- from a pair of records --------------------------------------------------------------------------------------------


def material(
    pair: Pair,
    phase: Phase,
    traces: tuple[Trace, Trace],
    matching: Matching,
    slot: tuple[Slot, Slot] | None = None,
    flows: tuple[Flow, Flow] | None = None,
) -> Material:
    """What is needed to make the two calls of a pair again; `ReproError` where a trace does not hold it.

    `slot`: it is not the calls that are at fault, but what lies before them: this tensor, and how it was made.
    """
    a, b = pair.reference, pair.candidate
    if a.kind is Kind.STATE or b.kind is Kind.STATE:
        raise ReproError("it is about what a module holds; there is no call to make again", hint="see its numbers")
    flows = flows or (Flow.of(traces[0]), Flow.of(traces[1]))
    if phase is Phase.BACKWARD:
        a, b = (flow.forward.get(record.call_id, record) for flow, record in zip(flows, (a, b), strict=True))
    if slot is not None:
        return _between(slot, (a, b), traces, flows, matching)
    ways = [p for p in matching.pairs if p.reference.call_id == a.call_id and p.reference.phase is Phase.FORWARD]
    slots = ways[0].slots if ways else pair.slots
    outs = [(x, y) for x, y in slots if x.side == "out" and y.side == "out" and _is_float(x) and _is_float(y)]
    ins = [(x, y) for x, y in slots if x.side == "in" and y.side == "in" and not (x.param or y.param)]
    if not outs:
        raise ReproError("the two calls return no tensors that correspond", hint="see its message")
    theirs = {y.value: x for x, y in ins}
    sides = (
        _Writer(traces[0], flows[0], {s.value: s for s in a.inputs()}, a).side([x for x, _ in outs]),
        _Writer(traces[1], flows[1], {s.value: s for s in b.inputs()}, b).side([y for _, y in outs], theirs, traces[0]),
    )
    return _made(sides, outs, ins, traces, phase is Phase.BACKWARD)


def _between(
    slot: tuple[Slot, Slot],
    records: tuple[Record, Record],
    traces: tuple[Trace, Trace],
    flows: tuple[Flow, Flow],
    matching: Matching,
) -> Material:
    """How a tensor is made of what calls that correspond returned."""
    known: dict[int, Slot] = {}  # by the candidate's value, the reference's slot
    stops: tuple[dict[int, Slot], dict[int, Slot]] = ({}, {})
    for pair in matching.pairs:
        if pair.reference.phase is not Phase.FORWARD or pair.reference.kind is Kind.STATE:
            continue
        for x, y in pair.slots:
            outer = pair.reference.path == "" and x.side == "in"
            if x.side != y.side or not (x.side == "out" or outer) or x.param or y.param:
                continue
            if (x.value, y.value) != (slot[0].value, slot[1].value):
                known.setdefault(y.value, x)
                stops[0].setdefault(x.value, x)
                stops[1].setdefault(y.value, y)
    for own, target in zip(stops, slot, strict=True):
        own.pop(target.value, None)
    sides = (
        _Writer(traces[0], flows[0], stops[0], records[0]).side([slot[0]]),
        _Writer(traces[1], flows[1], stops[1], records[1]).side([slot[1]], known, traces[0]),
    )
    return _made(sides, [slot], [], traces, False)


def _made(
    sides: tuple[_Written, _Written],
    outs: Sequence[tuple[Slot, Slot]],
    ins: Sequence[tuple[Slot, Slot]],
    traces: tuple[Trace, Trace],
    backward: bool,
) -> Material:
    first, second = sides[0][0], sides[1][0]
    recorded = tuple(tuple(_tensor(trace, slots[number]) for slots in outs) for number, trace in enumerate(traces))
    gradients = None
    if backward:
        drawn, other = [], []
        for n, (own, theirs) in enumerate(zip(recorded[0], recorded[1], strict=True)):
            gradient = np.random.default_rng(n).standard_normal(own.shape).astype(own.dtype)
            lay = arrangement(theirs, own)
            drawn.append(gradient if lay is not None else None)
            other.append(None if lay is None else lay[0](gradient).astype(theirs.dtype))
        gradients = (tuple(drawn), tuple(other))
    paired = []
    for x, y in ins:
        names = sides[0][1].get(x.value), sides[1][1].get(y.value)
        if names[0] in first.inputs and names[1] in second.inputs:
            place = (first.inputs.index(names[0]), second.inputs.index(names[1]))
            if place not in paired:
                paired.append(place)
    if backward and not paired:
        raise ReproError("the two calls are given no tensors that correspond", hint="see its message")
    return Material((first, second), gradients, (recorded[0], recorded[1]), tuple(paired), sides[1][2])


def _is_float(slot: Slot) -> bool:
    return slot.meta.dtype in ROUNDOFF


def _tensor(trace: Trace, slot: Slot) -> Array:
    found = trace.tensor(slot)
    if found is None:
        raise ReproError(
            f"the {trace.manifest.framework} trace does not hold the values of {slot.name}",
            hint='capture with keep="tensors"',
        )
    return found


_Written = tuple[Side, dict[int, str], bool]


class _Writer:
    """Code for the calls that make some values of a trace."""

    def __init__(self, trace: Trace, flow: Flow, stops: Mapping[int, Slot], record: Record) -> None:
        self.trace, self.flow, self.stops, self.record = trace, flow, stops, record
        self.framework = trace.manifest.framework
        self.infos = {i.path: i for i in trace.manifest.modules}
        self.by_index = {r.call_id: r for r in trace.records if r.phase is Phase.FORWARD and r.kind is not Kind.STATE}
        self.names: dict[int, str] = {}  # by value
        self.tensors: dict[str, Array] = {}
        self.inputs: list[str] = []
        self.lines: list[str] = []
        self.same_given = True

    def side(
        self, outputs: Sequence[Slot], theirs: Mapping[int, Slot] | None = None, other: Trace | None = None
    ) -> _Written:
        """The script that makes these outputs. `theirs`: by input value, the slot of the `other` trace to take."""
        if self.framework not in _PUBLIC:
            raise ReproError(f"nobody here knows how to write {self.framework}", hint="report it with its trace")
        calls, begun = self._needed([s.value for s in outputs])
        for slot in begun:
            self._begin(slot, theirs or {}, other)
        for call in calls:
            self._write(call)
        for slot in outputs:
            if slot.value not in self.names:
                raise ReproError(f"nothing that was recorded makes {slot.name}", hint='capture with level="op"')
        side = Side(
            self.framework,
            self.trace.manifest.versions.get(self.framework, ""),
            self.record.where + (f", {self.record.source}" if self.record.source else ""),
            tuple(self.lines),
            tuple(self.names[s.value] for s in outputs),
            self.tensors,
            tuple(self.inputs),
        )
        return side, self.names, self.same_given

    def _needed(self, values: Sequence[int]) -> tuple[list[Record], list[Slot]]:
        """The calls to make, in order, and the tensors that they begin with."""
        waiting = list(values)
        seen = set(waiting)
        calls: dict[int, Record] = {}
        begun: dict[int, Slot] = {}
        while waiting:
            value = waiting.pop()
            maker = self._maker(value)
            if maker is None or maker.call_id in calls:
                continue
            calls[maker.call_id] = maker
            if len(calls) > _MOST_CALLS:
                raise ReproError(
                    f"more than {_MOST_CALLS} calls lie in {self.record.where}",
                    hint="judge a part of the network alone",
                )
            for slot in maker.inputs():
                if slot.value in self.stops or self._maker(slot.value) is None:
                    begun.setdefault(slot.value, self.stops.get(slot.value, slot))
                elif slot.value not in seen:
                    seen.add(slot.value)
                    waiting.append(slot.value)
        return sorted(calls.values(), key=lambda r: r.index), list(begun.values())

    def _maker(self, value: int) -> Record | None:
        """The call that makes a value: an op, or a layer of MindSpore's as a whole."""
        maker = self.flow.makers.get(value)
        if maker is None or self.framework != "mindspore":
            return maker
        around: Record | None = maker
        found = maker
        while around is not None:
            info = self.infos.get(around.path)
            inner = around.call_id != self.record.call_id or around.builtin
            if (
                around.kind is Kind.MODULE
                and around.builtin
                and inner
                and info is not None
                and settings_of(info.kind or "")
            ):
                found = around
            parent = self.flow.ancestors.get(around.call_id)
            around = None if parent is None else self.by_index.get(parent)
        return found

    # -- tensors -------------------------------------------------------------------------------------------------------

    def _begin(self, slot: Slot, theirs: Mapping[int, Slot], other: Trace | None) -> None:
        is_input = slot.value in self.stops and slot.param is None
        word = slot.param.rpartition(".")[2] if slot.param else slot.name.replace(".", "_") if is_input else "constant"
        name = self._fresh(re.sub(r"\W", "_", word))
        own = self.trace.tensor(slot)
        taken = theirs.get(slot.value)
        if taken is not None and other is not None:
            array = _tensor(other, taken)
            fitted = None if own is None else arranged(own, array)
            if own is None or fitted is None or not _agree(own, fitted[0]):
                self.same_given = False
            own = array if fitted is None else fitted[0].astype(own.dtype if own is not None else array.dtype)
        self.tensors[name] = _tensor(self.trace, slot) if own is None else own
        self.names[slot.value] = name
        if is_input and _is_float(slot):
            self.inputs.append(name)

    def _fresh(self, word: str) -> str:
        word = f"in_{word}" if not word[:1].isalpha() else word
        taken = {*self.names.values(), *self.tensors}
        return next(n for n in (word, *(f"{word}_{i}" for i in range(2, 10_000))) if n not in taken)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _write(self, call: Record) -> None:
        if _RANDOM.search(call.op) and call.op not in ("layer_norm", "normalize") and _draws(call):
            raise ReproError(f"{call.where} draws at random", hint="call eval() on both models, or set the rate to 0")
        said = self._layer(call) if call.kind is Kind.MODULE else self._op(call)
        comment = f"  # {call.source}" if call.source and not call.builtin else ""
        results = [s for s in call.outputs() if s.name.startswith("out")]
        if len(results) == 1 and results[0].name == "out":
            name = self._fresh("y")
            self.lines.append(f"{name} = {said}{_plain(comment)}")
            self.names[results[0].value] = name
            return
        whole = self._fresh("result")
        self.names[-1 - call.call_id] = whole
        self.lines.append(f"{whole} = {said}{_plain(comment)}")
        for slot in results:
            path = "".join(f"[{p}]" if p.isdecimal() else f".{p}" for p in slot.name.split(".")[1:])
            name = self._fresh("y")
            self.lines.append(f"{name} = {whole}{path}")
            self.names.setdefault(slot.value, name)

    def _op(self, call: Record) -> str:
        args = self._arguments(call)
        positional = [args[k] for k in sorted((k for k in args if k.isdecimal()), key=int)]
        if [int(k) for k in args if k.isdecimal()] and max(int(k) for k in args if k.isdecimal()) + 1 != len(
            positional
        ):
            raise ReproError(f"not all arguments of {call.where} were recorded", hint="the call cannot be written down")
        named = [f"{k}={v}" for k, v in args.items() if not k.isdecimal()]
        space, _, last = call.type.rpartition(".")
        if self.framework == "mindspore" and last[:1].isupper():
            raise ReproError(
                f"{call.type} has its settings in itself, which a trace does not hold",
                hint="MindSpore's primitives cannot be written down; its layers and functions can",
            )
        if space.endswith(".Tensor"):
            sign = _OPERATORS.get(last)
            if sign and len(positional) == 2 and not named:
                return f"{positional[0]} {sign} {positional[1]}"
            if last == "__getitem__" and len(positional) == 2:
                return f"{positional[0]}[{positional[1]}]"
            return f"{positional[0]}.{last}({', '.join([*positional[1:], *named])})"
        if self.framework == "paddle" and last in _LEFT_OUT:
            named = [n for n in named if n.partition("=")[0] not in _LEFT_OUT[last]]
        return f"{call.type}({', '.join([*positional, *named])})"

    def _arguments(self, call: Record) -> dict[str, str]:
        found = {str(k): self._literal(v, call) for k, v in call.args.items()}
        nested: dict[str, dict[str, str]] = {}
        for slot in call.inputs():
            key, _, rest = slot.name.removeprefix("in.").partition(".")
            if rest:
                nested.setdefault(key, {})[rest] = self.names[slot.value]
            else:
                found[key] = self.names[slot.value]
        for key, parts in nested.items():
            if key in found or sorted(parts) != sorted(map(str, range(len(parts)))):
                raise ReproError(
                    f"argument {key} of {call.where} holds tensors and other things", hint="it cannot be written down"
                )
            found[key] = f"[{', '.join(parts[str(i)] for i in range(len(parts)))}]"
        if call.op == "__getitem__" and "1" in found and found["1"].startswith("["):
            found["1"] = found["1"][1:-1] or "()"
        return found

    def _literal(self, value: Any, call: Record) -> str:
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self._literal(v, call) for v in value)}]"
        if not isinstance(value, str):
            return repr(value)
        if re.fullmatch(r"slice\((-?\d+|None), (-?\d+|None), (-?\d+|None)\)", value):
            return value
        if value in ("<ellipsis>", "Ellipsis"):
            return "..."
        if value in ("inf", "-inf", "nan"):
            return f"float({value!r})"
        dtype = value.removeprefix(f"{self.framework}.").lower()
        if dtype in ("float32", "float16", "bfloat16", "float64") and value != dtype:
            return "FLOAT" if dtype != "float64" else f"{self.framework}.float64"
        if re.fullmatch(rf"{self.framework}\.\w+", value):
            return value
        if value.startswith("<"):
            raise ReproError(
                f"an argument of {call.where} is a {value.strip('<>')}, which a trace does not hold",
                hint="the call cannot be written down",
            )
        return repr(value)

    def _layer(self, call: Record) -> str:
        info = self.infos[call.path]
        name = self._fresh(info.path.rpartition(".")[2] or "layer")
        self.names[-1_000_000 - call.call_id] = name
        self.lines.append(f"{name} = {constructed(info)}")
        for param in info.params:
            slot = next(
                (
                    s
                    for r in self.trace.records
                    if r.phase is Phase.WEIGHT and r.path == info.path
                    for s in r.slots
                    if s.name == param.name
                ),
                None,
            )
            if slot is None:
                raise ReproError(f"{info.param_path(param.name)} was not recorded", hint='capture with keep="tensors"')
            own = self._fresh(re.sub(r"\W", "_", param.name))
            self.tensors[own] = _tensor(self.trace, slot)
            self.lines.append(f"hold({name}.{param.name}, {own})")
        self.lines.append(f"{name}.set_train({call.training is True})")
        args = self._arguments(call)
        positional = [args[k] for k in sorted((k for k in args if k.isdecimal()), key=int)]
        return f"{name}({', '.join([*positional, *(f'{k}={v}' for k, v in args.items() if not k.isdecimal())])})"


_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "matmul": "@", "div": "/", "truediv": "/", "pow": "**"}
#: Arguments that Paddle's layers hand to the private function behind the public one.
_LEFT_OUT = {f"conv{n}d": frozenset({"padding_algorithm", "channel_dim", "op_type", "use_cudnn"}) for n in (1, 2, 3)}


def _agree(a: Array, b: Array) -> bool:
    """Whether two tensors are so near that a call makes about the same of both."""
    if a.dtype.name not in ROUNDOFF:
        return np.array_equal(a, b)
    wide = a.astype(np.float64), b.astype(np.float64)
    off = np.sqrt(np.mean(np.square(np.nan_to_num(wide[0] - wide[1])))) if a.size else 0.0
    scale = np.sqrt(np.mean(np.square(np.nan_to_num(wide[0])))) if a.size else 0.0
    return bool(off <= 16 * ROUNDOFF[a.dtype.name] * scale)


def _draws(call: Record) -> bool:
    """Whether a call that may draw did: a dropout that is not in force hands on what it got."""
    if not re.search("drop", call.op, re.IGNORECASE):
        return True
    p = next((v for k, v in call.args.items() if k in ("p", "1", "drop_prob")), 0.5)
    return call.training is True and p != 0


def _plain(text: str) -> str:
    """Text out of a trace as it may stand in a program's comments and strings."""
    return "".join(c if c.isprintable() else " " for c in text).replace("\\", "/").replace('"', "'")


#: What a layer of MindSpore must be told, by kind: arguments, and the neutral names that they are known under.
_SIZES: tuple[tuple[str, dict[str, str]], ...] = (
    ("linear", {"in_channels": "in_features", "out_channels": "out_features"}),
    ("conv", {"in_channels": "in_channels", "out_channels": "out_channels", "kernel_size": "kernel_size"}),
    ("batch_norm", {"num_features": "num_features"}),
    ("instance_norm", {"num_features": "num_features"}),
    ("group_norm", {"num_groups": "num_groups", "num_channels": "num_channels"}),
    ("layer_norm", {"normalized_shape": "normalized_shape"}),
    ("embedding", {"vocab_size": "num_embeddings", "embedding_size": "embedding_dim"}),
    ("lstm", {"input_size": "input_size", "hidden_size": "hidden_size"}),
    ("gru", {"input_size": "input_size", "hidden_size": "hidden_size"}),
    ("rnn", {"input_size": "input_size", "hidden_size": "hidden_size"}),
)


def constructed(info: ModuleInfo) -> str:
    """A layer of MindSpore's as its user makes it: ``mindspore.nn.LayerNorm(normalized_shape=[4], epsilon=1e-07)``."""
    kind, told = info.kind or "", dict(info.attributes)
    found: dict[str, str] = {}
    for start, names in _SIZES:
        if kind.startswith(start):
            found |= {own: repr(told[name]) for own, name in names.items() if told.get(name) is not None}
            break
    settings = neutral("mindspore", info)
    flavour = flavour_of("mindspore", info)
    for setting in settings_of(kind):
        if setting.name not in settings or setting.effect is Effect.COSMETIC or setting.is_fixed(flavour):
            continue
        found |= {k: v for k, v in _keywords(spelled(flavour, kind, setting, settings, info)) if k not in found}
    for own, value in found.items():
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ReproError(
                f"{info.path}: {own}={value} is no plain value", hint="the layer cannot be written down"
            ) from None
    space = "mindspore.mint.nn" if ".mint." in info.type else "mindspore.nn"
    own_name = info.type.rpartition(".")[2]
    return f"{space}.{own_name}({', '.join(f'{k}={v}' for k, v in found.items())})"


def _keywords(text: str) -> Iterator[tuple[str, str]]:
    """The keywords in "pad_mode='pad', padding=1"; none where it is no code."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError:
        return
    assert isinstance(call, ast.Call)
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, ast.unparse(keyword.value)


def _save(file: Path, array: Array) -> None:
    """As .npy, which knows no bfloat16: there the values are written as float32, and the script says what they were."""
    plain = array.dtype.kind in "biufc"
    np.save(file, array if plain else array.astype(np.float32), allow_pickle=False)
