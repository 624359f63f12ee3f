"""One trace, prepared for matching: its modules, its calls as a tree, and what can be known of them alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..records import Kind, Manifest, ModuleInfo, Phase, Record, Slot
from .evidence import layout_free
from .opnames import COMMUTATIVE, FAMILIES, canonical_op, op_of_kind

_CONTAINERS = frozenset(["sequential", "module_list", "module_dict"])


class TraceLike(Protocol):
    """What is matched: `twinscope.store.Trace`, or anything that has these two."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def records(self) -> Sequence[Record]: ...


@dataclass(slots=True, eq=False)
class Module:
    info: ModuleInfo
    index: int
    parent: Module | None = None
    children: list[Module] = field(default_factory=list)
    kind: str | None = None  # canonical
    shapes: tuple[tuple[int, ...], ...] = ()  # of parameters, layout-free and sorted
    unit: bool = False  # does something itself: has a kind that is no container, or parameters
    calls: list[Call] = field(default_factory=list)
    order: tuple[int, int] = (0, 0)
    depth: int = 0
    flow: Hashable = None  # what is made of its output
    weights: tuple[int, ...] = ()  # fingerprints
    zone: int = -1  # number of the hint that it falls under
    output: Slot | None = None
    inputs: tuple[tuple[int, ...], ...] = ()
    source: int | None = None  # the value of its first input

    @property
    def path(self) -> str:
        return self.info.path

    def up(self) -> Iterator[Module]:
        """Everything that encloses it, nearest first."""
        at = self.parent
        while at is not None:
            yield at
            at = at.parent


@dataclass(slots=True, eq=False)
class Call:
    record: Record  # the forward one; the backward one where no forward was recorded
    module: Module | None = None  # of a module call
    parent: Call | None = None
    children: list[Call] = field(default_factory=list)
    name: str = ""  # canonical op, or what op the module stands for
    family: str | None = None
    output: Slot | None = None
    shape: tuple[int, ...] = ()
    origin: frozenset[int] = frozenset()  # numbers of the nearest paired calls upstream
    product: Call | None = None  # what this call adds a bias to
    backward: list[Record] = field(default_factory=list)


class Side:
    """A trace with what matching asks of it."""

    def __init__(self, trace: TraceLike) -> None:
        self.modules: list[Module] = []
        self.by_path: dict[str, Module] = {}
        self.calls: dict[int, Call] = {}
        self.top: dict[int, list[Call]] = defaultdict(list)  # by step
        self.states: list[Record] = []
        self.losses: list[Record] = []
        self.steps = sorted({r.step for r in trace.records})
        self.records = trace.records
        self.users: dict[int, list[tuple[int, Call]]] = {}  # by value: (its place among the inputs, who uses it)
        self._read_modules(trace)
        self._read_records(trace.records)
        self._describe()

    def _read_modules(self, trace: TraceLike) -> None:
        known = {path for m in trace.manifest.modules for path in (m.path, *m.aliases)}
        infos = list(trace.manifest.modules)
        for r in trace.records:  # a trace made by other means may not list its modules
            if r.kind is not Kind.OP and r.phase is not Phase.LOSS and r.path not in known:
                known.add(r.path)
                infos.append(ModuleInfo(r.path, r.type, None, r.builtin))
        for index, info in enumerate(infos):
            module = Module(info, index)
            module.kind = op_of_kind(info.kind) if info.kind and info.kind not in _CONTAINERS else None
            module.shapes = tuple(sorted(layout_free(p.meta.shape) for p in info.params if not p.buffer))
            module.unit = bool(module.shapes) or module.kind is not None
            self.modules.append(module)
            for path in (info.path, *info.aliases):
                self.by_path.setdefault(path, module)
        for module in self.modules:
            path = module.path
            while path:
                path = path.rpartition(".")[0]
                parent = self.by_path.get(path)
                if parent is not None and parent is not module:
                    module.parent = parent
                    parent.children.append(module)
                    break

    def _read_records(self, records: Sequence[Record]) -> None:
        backward: dict[int, list[Record]] = defaultdict(list)
        for r in records:
            if r.phase is Phase.LOSS:
                self.losses.append(r)
            elif r.kind is Kind.STATE:
                self.states.append(r)
            elif r.phase is Phase.BACKWARD:
                backward[r.call_id].append(r)
            else:
                self.calls[r.call_id] = Call(r)
        for call_id, found in backward.items():
            call = self.calls.get(call_id)
            if call is None:
                self.calls[call_id] = Call(found[0], backward=found)
            else:
                call.backward = found
        self.calls = dict(sorted(self.calls.items()))  # in the order in which they began
        for call in self.calls.values():
            r = call.record
            outputs = r.outputs()
            call.output = outputs[0] if outputs else None
            call.shape = layout_free(outputs[0].meta.shape) if outputs else ()
            if r.kind is Kind.MODULE:
                call.module = self.by_path[r.path]
                call.module.calls.append(call)
                call.name = call.module.kind or "module"
            else:
                call.name = canonical_op(r.type)
            call.family = FAMILIES.get(call.name)
            call.parent = self.calls.get(r.parent_id) if r.parent_id is not None else None
            (self.top[r.step] if call.parent is None else call.parent.children).append(call)

    def _describe(self) -> None:
        for r in self.states:
            module = self.by_path[r.path]
            if r.phase is Phase.WEIGHT and not module.weights:
                buffers = {p.name for p in module.info.params if p.buffer}
                module.weights = tuple(
                    sorted(
                        s.stats.fingerprint
                        for s in r.slots
                        if s.stats is not None and s.stats.std != 0.0 and s.name not in buffers
                    )
                )
        self._biases()
        depths = self._depths()
        self.users = self._users()
        last = 0
        for module in self.modules:
            called = next((m.calls[0] for m in (module, *module.up()) if m.calls), None)
            last = called.record.call_id if called is not None else last
            module.order = (last, module.index)
            if module.calls:
                call = module.calls[0]
                inputs = call.record.inputs()
                module.depth = depths.get(call.record.call_id, 0)
                module.output = call.output
                module.inputs = tuple(sorted(layout_free(s.meta.shape) for s in inputs))
                module.source = inputs[0].value if inputs else None
                module.flow = self._fate(call)

    def _biases(self) -> None:
        """A product and the addition of its bias are together what others do in one op: the addition stands for it."""
        makers: dict[int, Call] = {}
        vectors: set[int] = set()  # parameters of one axis, and what casts make of them
        for call in self.calls.values():
            r = call.record
            if r.kind is not Kind.OP:
                continue
            inputs = r.inputs()
            vectors.update(s.value for s in inputs if s.param and len(layout_free(s.meta.shape)) <= 1)
            if call.family == "layout" and inputs and inputs[0].value in vectors:
                vectors.update(s.value for s in r.outputs())
            elif call.name == "add" and any(s.value in vectors for s in inputs):
                product = makers.get(next((s.value for s in inputs if s.value not in vectors), -1))
                if (
                    product is not None
                    and product.name in ("linear", "matmul", "conv")
                    and len(product.record.inputs()) < 3
                ):
                    call.name, call.family = "conv" if product.name == "conv" else "linear", "contraction"
                    call.product = product
                    product.name, product.family = f"{product.name} without bias", None
            through = makers.get(inputs[0].value) if call.family == "layout" and inputs else call
            for s in r.outputs():
                makers[s.value] = through or call

    def _depths(self) -> dict[int, int]:
        """How many units lie upstream of each unit's call. It does not depend on the order of parallel calls.

        A value that nobody is known to have made is taken to depend on everything before it, since without op records
        what happens between modules is not seen.
        """
        known = {s.value: 0 for r in self.states for s in r.slots}
        depths: dict[int, int] = {}
        front = step = 0
        for call in sorted(self.calls.values(), key=lambda c: c.record.index):
            r = call.record
            if r.step != step:
                front, step = 0, r.step
            deep = 0
            for s in r.inputs():
                deep = max(deep, known.setdefault(s.value, front))
            unit = call.module is not None and call.module.unit
            if unit:
                depths[r.call_id] = deep
                deep += 1
            taken = {s.value for s in r.inputs()} if unit else known  # what a unit returns is its own, not its parts'
            for s in r.outputs():
                if s.value not in taken:
                    known[s.value] = deep
            front = max(front, deep)
        return depths

    def _users(self) -> dict[int, list[tuple[int, Call]]]:
        users: dict[int, list[tuple[int, Call]]] = defaultdict(list)
        for call in self.calls.values():
            if call.record.kind is Kind.OP or (call.module is not None and call.module.unit):
                for position, s in enumerate(call.record.inputs()):
                    users[s.value].append((position, call))
        return users

    def _fate(self, call: Call) -> Hashable:
        """The first two things made of a call's output, with its place among their inputs: tells q, k and v apart."""
        fate: list[Hashable] = []
        output = call.output
        for _ in range(12):
            if output is None or len(fate) == 2:
                break
            found = self.users.get(output.value)
            if not found:
                break
            position, user = found[0]
            if user.family != "layout" and user.name != "split":
                fate.append((user.name, 0 if user.name in COMMUTATIVE else position))
            output = user.output
        return tuple(fate) or None
