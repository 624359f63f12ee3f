"""Checkpoint files from one framework to the other, tensor by tensor, without either framework."""

from __future__ import annotations

import difflib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..adapters.base import Array
from ..errors import WeightError
from ..judge import ROUNDOFF
from .files import format_for, read_file, usual_rank, usual_state
from .files.base import (
    Contents,
    FileFormat,
    Pieces,
    Spec,
    StateDict,
    StoredTensor,
    appearing,
    blocks,
    kind_of,
    raw,
    same_elements,
)
from .transforms import dtype_of
from .weightmap import Entry, Held, WeightMap

_PREFIXES_TRIED = 5
_SHOWN = 12  # of names in a note


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What was written, and what a person should know of it."""

    source: str
    target: str
    direction: str  # "reference to candidate", "candidate to reference" or "as it is"
    written: tuple[str, ...]
    notes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # what `strict=False` left out, and why

    def __len__(self) -> int:
        return len(self.written)

    def __bool__(self) -> bool:
        return not self.left

    def __str__(self) -> str:
        first = f"{self.source} -> {self.target}: {len(self.written)} names written ({self.direction})"
        return "\n".join([first, *(f"left out: {problem}" for problem in self.left), *self.notes])


def convert_checkpoint(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    mapping: WeightMap | str | os.PathLike[str] | None,
    *,
    reverse: bool | None = None,
    strict: bool = True,
    allow_pickle: bool = False,
    overwrite: bool = False,
) -> ConvertReport:
    """Write the weights of one checkpoint file as one of the twin model. It appears whole, or not at all.

    ::

        mapping = twinscope.map_weights(torch_model, paddle_model, inputs)
        report = twinscope.convert_checkpoint("model.pth", "model.pdparams", mapping)
        report = twinscope.convert_checkpoint("model.pdparams", "back.pth", mapping)       # the other way round

    `target` says by its extension what is written: .pth, .pt, .bin (torch), .pdparams (paddle), .ckpt (mindspore) or
    .safetensors. What `source` is, is told from its contents; a `model.safetensors.index.json` is read with all the
    files it names. `mapping` may be a path to a saved map; in which direction it is used follows from the names in the
    file, unless `reverse` says so. Without a mapping (None) the same tensors are put into the other kind of file, names
    and layouts as they are, which suits two models of one framework or a program that expects them so.

    Nothing in the source is ever run, and no framework is imported; with `allow_pickle` a .pdparams is given to
    Python's pickle, which runs what the file says. Tensors go through one at a time.

    Raises `WeightError` listing everything that is missing, unexpected, unsure, or of another shape or kind; with
    `strict=False` what fits is written, and `left` in the report has the rest. A tensor gets the dtype that the map
    says its model has.
    """
    start, goal = Path(source), Path(target)
    form = format_for(goal)
    if isinstance(mapping, (str, os.PathLike)):
        mapping = WeightMap.load(mapping)
    if not overwrite and os.path.lexists(goal):
        raise WeightError(f"{goal} is there already", hint="pass overwrite=True, or choose another name")
    contents = read_file(start, allow_pickle=allow_pickle)
    plan = _as_it_is(contents, form) if mapping is None else _mapped(contents, form, mapping, reverse)
    if plan.problems and strict:
        raise _refused(plan, start, goal)
    jobs, problems = plan.jobs, list(plan.problems)
    while True:  # twice at most: what fails is known after the first time
        run = _Run()
        with appearing(goal, overwrite=overwrite) as part:
            form.write(part.file, [spec for job in jobs for spec in job.specs], run.tensors(jobs), plan.framework)
            if len(run.failed) == len(jobs) or (run.failed and strict):
                raise _refused(replace(plan, problems=(*problems, *run.failed.values())), start, goal)
            part.wanted = not run.failed
        if not run.failed:
            break
        problems += run.failed.values()
        jobs = [job for number, job in enumerate(jobs) if number not in run.failed]
    written = tuple(name for job in jobs for spec in job.specs for name in spec.names)
    return ConvertReport(
        str(start), str(goal), plan.direction, written, (*plan.notes, *run.notes), tuple(dict.fromkeys(problems))
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """What one entry of the map writes."""

    specs: tuple[Spec, ...]
    arrays: Iterable[tuple[Spec, Array]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything that is known before a tensor is read."""

    direction: str
    framework: str | None
    jobs: list[_Job]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Run:
    """One pass over the tensors, and what it showed."""

    notes: list[str] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    def tensors(self, jobs: Sequence[_Job]) -> Iterator[tuple[Spec, Pieces]]:
        """Each tensor with its bytes, one after the other. What fails is written down, not raised."""
        for number, job in enumerate(jobs):
            try:
                for spec, array in job.arrays:
                    pieces = self._pieces(number, spec, array)
                    del array  # or it would still be there while the next one is made
                    yield spec, pieces
                    del pieces
            except WeightError as error:
                self.failed[number] = error.message

    def _pieces(self, number: int, spec: Spec, array: Array) -> Iterator[Array]:
        """The bytes of a tensor in its new dtype. NaN, and numbers that do not survive it, are noticed on the way."""
        name = spec.names[0]
        have = str(array.dtype.name)
        narrowed = _narrowed(have, spec.dtype)
        nan = overflow = changed = False
        wanted = dtype_of(spec.dtype)
        for block in blocks(array):
            with np.errstate(all="ignore"):
                made = np.asarray(block, dtype=wanted) if have != spec.dtype else block
                if kind_of(have) in ("float", "complex"):
                    nan = nan or bool(np.isnan(made).any())
                    overflow = overflow or (narrowed and bool(np.isinf(made).any()) and not np.isinf(block).any())
                elif have != spec.dtype and not changed:
                    changed = not np.array_equal(made.astype(block.dtype), block)
            yield raw(made, spec.dtype)
        if narrowed:
            self.notes.append(f"{name}: {have} narrowed to {spec.dtype}" + (", some to infinity" if overflow else ""))
        if nan:
            self.notes.append(f"{name} holds NaN")
        if changed:
            self.failed[number] = f"{name}: {have} does not fit {spec.dtype}, some values are too large"


def _narrowed(have: str, wanted: str) -> bool:
    if kind_of(have) == "float":
        return ROUNDOFF.get(wanted, 0.0) > ROUNDOFF.get(have, 0.0)
    return dtype_of(wanted).itemsize < dtype_of(have).itemsize


def _refused(plan: _Plan, source: Path, target: Path) -> WeightError:
    lines = "\n  ".join(plan.problems) or "no tensor of it has a place in the target"
    return WeightError(
        f"{source} was not converted ({plan.direction}), {target} was not written:\n  {lines}",
        hint="strict=False converts what fits and reports the rest; reverse= forces the direction",
    )


# -- without a map -----------------------------------------------------------------------------------------------------


def _as_it_is(contents: Contents, form: FileFormat) -> _Plan:
    state = usual_state(contents)
    problems, jobs = [], []
    for name, tensor in state.tensors.items():
        spec = Spec((name,), tensor.shape, tensor.dtype)
        reason = _cannot_hold(form, spec)
        if reason:
            problems.append(reason)
        else:
            jobs.append(_Job((spec,), _Single(spec, tensor)))
    notes = ["names and layouts are as they were: no mapping was given", *_beside(contents, state)]
    return _Plan("as it is", form.framework or contents.framework, jobs, tuple(problems), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Single:
    """One tensor, read when the writer comes to it."""

    spec: Spec
    tensor: StoredTensor

    def __iter__(self) -> Iterator[tuple[Spec, Array]]:
        yield self.spec, self.tensor.read()


def _cannot_hold(form: FileFormat, spec: Spec) -> str | None:
    if spec.dtype not in form.dtypes:
        return f"{spec.names[0]}: a {form.name} file cannot hold {spec.dtype}"
    reason = form.cannot_hold(spec)
    return f"{spec.names[0]}: {reason}" if reason else None


def _beside(contents: Contents, state: StateDict) -> list[str]:
    notes = []
    if state.where:
        notes.append(f"the weights were taken from {state.where!r} of the file")
    others = [f"the state dict {other.where!r}" for other in contents.states if other is not state and other.where]
    rest = [*others, *state.left_out, *(left for s in contents.states if s is not state for left in s.left_out)]
    rest += contents.left_out
    if rest:
        shown = ", ".join(rest[:_SHOWN]) + (f" and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else "")
        notes.append(f"left out, no weights: {shown}")
    return notes


# -- with a map --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Names:
    """A state dict of the file read with the names of one side of the map."""

    state: StateDict
    reverse: bool
    stripped: str  # what every name in the file begins with, and the map's do not
    added: str  # the reverse
    found: Mapping[str, tuple[str, ...]]  # path in the map: names in the file
    needed: int  # how many parameters the file should have
    shapes: int  # how many of those found have the shape the map says

    @property
    def score(self) -> tuple[float, int]:
        return (len(self.found) / self.needed if self.needed else 0.0, self.shapes)


def _mapped(contents: Contents, form: FileFormat, mapping: WeightMap, reverse: bool | None) -> _Plan:
    names = _best_names(contents, form, mapping, reverse)
    if names.reverse:
        mapping = mapping.inverted()
    direction = "candidate to reference" if names.reverse else "reference to candidate"
    framework = mapping.frameworks[1]
    if form.framework not in (None, framework):
        raise WeightError(
            f"the names in {contents.path} are those of the map's {mapping.frameworks[0]} model, which it leads to "
            f"{framework}; {form.extensions[0]} is a file of {form.framework}",
            hint="choose another extension, or another map; reverse= forces the direction",
        )
    nearest = _Nearest()
    problems: list[str] = []
    notes = _beside(contents, names.state)
    if names.stripped:
        notes.append(f"the names in the file begin with {names.stripped!r}, which was taken off")
    if names.added:
        notes.append(f"the names in the map begin with {names.added!r}, which those in the file do not")
    sources = {h.path: h for h in mapping.reference}
    targets = {h.path: h for h in mapping.candidate}
    order = {h.path: i for i, h in enumerate(mapping.candidate)}
    once = framework == "mindspore"
    reader = _Reader(names, sources)
    jobs: list[tuple[int, _Job]] = []
    filled: set[str] = set()
    for entry in mapping.entries:
        wrong = _unfit(entry, sources, targets, names, mapping, nearest)
        if wrong is None:  # its source is absent, and nobody needs it
            notes.append(f"{' + '.join(entry.reference)} is not in the file, and not needed")
            filled.update(entry.candidate)
            continue
        filled.update(entry.candidate)
        wanted = [targets[path] for path in entry.candidate if path in targets]
        specs = tuple(Spec(_written_names(h, once), h.shape, h.dtype) for h in wanted)
        wrong += [reason for spec in specs if (reason := _cannot_hold(form, spec))]
        if wrong:
            problems += wrong
            continue
        alone = replace(mapping, reference=(), candidate=tuple(wanted), entries=(entry,))
        job = _Job(specs, _Carried(alone, reader, dict(zip(entry.candidate, specs, strict=True))))
        jobs.append((min((order[path] for path in entry.candidate), default=len(order)), job))
    problems += [
        f"{h} of the {framework} model has no source in the map"
        for h in mapping.unmatched_candidate
        if h.needed and h.path not in filled
    ]
    problems += [
        f"{h} is in the file and has no place in the {framework} model, the map says"
        for h in mapping.unmatched_reference
        if h.needed and h.path in names.found
    ]
    problems += _unexpected(contents, names, mapping, notes, nearest)
    in_order = [job for _, job in sorted(jobs, key=lambda pair: pair[0])]
    return _Plan(direction, framework, in_order, tuple(problems), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads a parameter of the map from the file."""

    names: _Names
    sources: Mapping[str, Held]

    def __call__(self, path: str) -> Array:
        tensors = [self.names.state.tensors[name] for name in self.names.found[path]]
        array = tensors[0].read()
        for name, other in zip(self.names.found[path][1:], tensors[1:], strict=True):
            if (other.place is None or other.place != tensors[0].place) and not same_elements(array, other.read()):
                raise WeightError(
                    f"{self.names.found[path][0]} and {name} are one tensor in the model and differ in the file",
                    hint="the model was saved after they were untied",
                )
        return array.reshape(self.sources[path].shape) if array.size == 1 else array


@dataclass(frozen=True, slots=True)
class _Carried:
    """What one entry makes of the file's tensors, made when the writer comes to it."""

    mapping: WeightMap  # with this entry alone
    reader: _Reader
    specs: Mapping[str, Spec]

    def __iter__(self) -> Iterator[tuple[Spec, Array]]:
        for _, path, array in self.mapping.arrays(self.reader):
            yield self.specs[path], array


def _written_names(held: Held, once: bool) -> tuple[str, ...]:
    first = held.stored or held.path
    return (first,) if once else (first, *(name for name in held.names if name != first))


def _names_of(held: Held) -> tuple[str, ...]:
    """Every name under which a file may have it, the likeliest first."""
    return tuple(dict.fromkeys([held.stored or held.path, held.path, *held.names]))


def _best_names(contents: Contents, form: FileFormat, mapping: WeightMap, reverse: bool | None) -> _Names:
    """The state dict, the side of the map and the prefix that fit each other best."""
    if not contents.states:
        raise WeightError(f"{contents.path} holds no tensors", hint="save the state dict: model.state_dict()")
    found: list[tuple[tuple[float, int, int, int], _Names]] = []
    for turned in (False, True) if reverse is None else (reverse,):
        held = mapping.candidate if turned else mapping.reference
        frameworks = mapping.frameworks[::-1] if turned else mapping.frameworks
        # of two sides with the same names, the one whose framework wrote the file, and the other one reads
        likely = int(contents.framework == frameworks[0]) + int(form.framework in (None, frameworks[1]))
        for state in contents.states:
            names = _with_prefix(state, held, turned)
            ratio, shapes = names.score
            found.append(((round(ratio, 6), likely, shapes, -usual_rank(state.where)), names))
    best = max(found, key=lambda pair: pair[0])[1]
    if best.found:
        return best
    near = []
    nearest = _Nearest()
    state = max(contents.states, key=lambda s: len(s.tensors))
    for turned in (False, True) if reverse is None else (reverse,):
        whose = "candidate" if turned else "reference"
        for h in (mapping.candidate if turned else mapping.reference)[:_SHOWN]:
            near.append(f"the {whose}'s {h} is not in it{nearest(_names_of(h)[0], state.tensors)}")
    raise WeightError(
        f"{contents.path} has none of the names of {'either side' if reverse is None else 'that side'} of the map:\n  "
        + "\n  ".join(near),
        hint="the map was made for other models, or the weights lie deeper in the file than is looked",
    )


def _with_prefix(state: StateDict, held: Sequence[Held], reverse: bool) -> _Names:
    plain = _look_up(state, held, reverse, "", "")
    if len(plain.found) == plain.needed:
        return plain
    stripped: Counter[str] = Counter()
    added: Counter[str] = Counter()
    by_tail: dict[str, list[str]] = {}
    for name in state.tensors:
        by_tail.setdefault(name.rsplit(".", 1)[-1], []).append(name)
    for h in held[:: max(1, len(held) // 20)]:
        for wanted in _names_of(h):
            for name in by_tail.get(wanted.rsplit(".", 1)[-1], [])[:1000]:
                if name.endswith("." + wanted):
                    stripped[name[: -len(wanted)]] += 1
                elif wanted.endswith("." + name):
                    added[wanted[: -len(name)]] += 1
    tried = [plain]
    tried += [_look_up(state, held, reverse, prefix, "") for prefix, _ in stripped.most_common(_PREFIXES_TRIED)]
    tried += [_look_up(state, held, reverse, "", prefix) for prefix, _ in added.most_common(_PREFIXES_TRIED)]
    return max(tried, key=lambda names: names.score)


def _look_up(state: StateDict, held: Sequence[Held], reverse: bool, stripped: str, added: str) -> _Names:
    found: dict[str, tuple[str, ...]] = {}
    shapes = needed = 0
    for h in held:
        there: list[str] = []
        for name in _names_of(h):
            inside = stripped + (name[len(added) :] if name.startswith(added) else "\0")
            if inside in state.tensors:
                there.append(inside)
        needed += h.needed or bool(there)
        if there:
            found[h.path] = tuple(there)
            shapes += state.tensors[there[0]].shape == h.shape
    return _Names(state, reverse, stripped, added, found, needed, shapes)


def _unfit(
    entry: Entry,
    sources: Mapping[str, Held],
    targets: Mapping[str, Held],
    names: _Names,
    mapping: WeightMap,
    nearest: _Nearest,
) -> list[str] | None:
    """What is wrong with an entry before anything is read; None when it is absent and that is no loss."""
    unknown = [p for p in entry.reference if p not in sources] + [p for p in entry.candidate if p not in targets]
    if unknown:
        return [f"the map has an entry for {path}, and does not list it" for path in unknown]
    wanted = [targets[path] for path in entry.candidate]
    missing = [sources[path] for path in entry.reference if path not in names.found]
    if missing and not any(h.needed for h in (*missing, *wanted)):
        return None
    wrong = []
    for h in missing:
        name = _names_of(h)[0]
        needs = f"; {' + '.join(map(str, wanted))} needs it" if wanted else ""
        wrong.append(f"{name} {list(h.shape)} is not in the file{nearest(name, names.state.tensors)}{needs}")
    if not entry.sure:
        arrow = f"{' + '.join(entry.reference) or '(nothing)'} -> {' + '.join(entry.candidate) or '(nothing)'}"
        others = f"; it could also be {', '.join(entry.options[:5])}" if entry.options else ""
        wrong.append(f"the map is not sure of {arrow} ({entry.why}){others}")
    for path in entry.reference:
        if path not in names.found:
            continue
        h, name = sources[path], names.found[path][0]
        tensor = names.state.tensors[name]
        if tensor.shape != h.shape and not (math.prod(tensor.shape) == math.prod(h.shape) == 1):
            wrong.append(f"{name} is {list(tensor.shape)} in the file and {list(h.shape)} in the {_model(mapping)}")
        if kind_of(tensor.dtype) != kind_of(h.dtype):
            wrong.append(f"{name} is {tensor.dtype} in the file and {h.dtype} in the {_model(mapping)}")
    return wrong


def _model(mapping: WeightMap) -> str:
    return f"{mapping.frameworks[0]} model"


def _unexpected(
    contents: Contents, names: _Names, mapping: WeightMap, notes: list[str], nearest: _Nearest
) -> list[str]:
    """Tensors of the file that the model does not have. An optimizer's, in mindspore's files, are only said."""
    known = {name for found in names.found.values() for name in found}
    wanted = [_names_of(h)[0] for h in mapping.reference]
    problems, optimizer = [], []
    for name, tensor in names.state.tensors.items():
        if name in known:
            continue
        tail = name.split(".", 1)[-1]
        scalar = math.prod(tensor.shape) == 1 and "." not in name
        if contents.framework == "mindspore" and (tail in known or scalar):
            optimizer.append(name)
            continue
        near = nearest(name, wanted)
        problems.append(f"{name} {list(tensor.shape)} is in the file and not in the {_model(mapping)}{near}")
    if optimizer:
        shown = ", ".join(optimizer[:_SHOWN]) + (", ..." if len(optimizer) > _SHOWN else "")
        notes.append(f"left out, an optimizer's or a counter: {shown}")
    return problems


@dataclass(slots=True)
class _Nearest:
    """Names like another, for the first few that are asked for: looking takes long among thousands."""

    left: int = 12

    def __call__(self, name: str, others: Iterable[str]) -> str:
        self.left -= 1
        near = difflib.get_close_matches(name, list(others), n=2, cutoff=0.6) if self.left >= 0 else []
        return f" (nearest: {', '.join(near)})" if near else ""
