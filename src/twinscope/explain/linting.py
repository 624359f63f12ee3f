"""`lint`: what two models were told differently, layer by layer. Nothing is run."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..adapters._registry import adapter_for
from ..adapters.base import Array
from ..errors import OptionError
from ..hints import Hints
from ..records import ModuleInfo, ParamInfo, Source
from ..store import Trace
from ..weights.mapper import Draft, draft
from ..weights.model import Weights
from ..weights.weightmap import Entry
from .neutral import SAME, difference, is_default, neutral
from .partners import CONTAINERS, SURE, Partners, partners
from .sources import Sources
from .spelling import advised, default_written, layer_name, shown, spelled
from .table import AS_KERNEL, MINDSPORE, PADDLE, TORCH, Effect, Setting, family, flavour_of, role, settings_of

_EFFECTS = {
    Effect.FORWARD: "changes the forward pass",
    Effect.TRAINING: "changes training only",
    Effect.BACKWARD: "changes gradients only",
    Effect.COSMETIC: "changes nothing once weights are copied",
}
_ORDER = tuple(Effect)
_SIDES = ("reference", "candidate")


@dataclass(frozen=True, slots=True)
class Told:
    """What one side's layer was told."""

    path: str
    layer: str  # its class as the user writes it: "mindspore.nn.LayerNorm"
    value: Any  # in neutral form; None where it is not known
    spelling: str  # in the framework's own words: "epsilon=1e-07"
    default: str | None = None  # the default in the same words; None where there is none or none is known
    is_default: bool | None = None  # whether the layer was left at it; None where that is not known
    source: Source | None = None  # the user's line that makes the layer


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One attribute in which two matched layers differ."""

    kind: str  # of the layer: "layer_norm"
    attribute: str  # in neutral form: "eps"; "kind" where the layers are not of one kind
    reference: Told
    candidate: Told
    effect: Effect
    message: str
    hint: str = ""
    #: Why the difference may be none: the pair is doubtful, or it depends on the input. Empty: it is certain.
    doubt: str = ""

    @property
    def suspected(self) -> bool:
        """Whether the difference is only suspected."""
        return bool(self.doubt)

    def __str__(self) -> str:
        return "\n".join(_lines(self, 1))

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        sides = {
            name: {
                "path": told.path,
                "layer": told.layer,
                "value": list(told.value) if isinstance(told.value, tuple) else told.value,
                "spelling": told.spelling,
                "default": told.default,
                "is_default": told.is_default,
                "source": None if told.source is None else str(told.source),
            }
            for name, told in (("reference", self.reference), ("candidate", self.candidate))
        }
        more = {"message": self.message, "hint": self.hint, "doubt": self.doubt}
        return {"kind": self.kind, "attribute": self.attribute, "effect": str(self.effect), **sides, **more}


@dataclass(frozen=True, slots=True)
class LintReport:
    """What `lint` found. True when, and only when, nothing differs.

    Iterating goes over the findings, the certain ones first and among them those that change most. Printed, what is
    found alike in many places is said once.
    """

    findings: tuple[LintFinding, ...]
    frameworks: tuple[str, str]
    models: tuple[str, str]
    compared: int  # pairs of layers
    unpaired: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # layers with settings that found no partner, by path
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.findings

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[LintFinding]:
        return iter(self.findings)

    def at(self, path: str) -> tuple[LintFinding, ...]:
        """The findings of one layer, by its path on either side."""
        return tuple(f for f in self.findings if path in (f.reference.path, f.candidate.path))

    def groups(self) -> list[list[LintFinding]]:
        """Findings that say the same, together: a setting of every block is one."""
        groups: dict[Hashable, list[LintFinding]] = defaultdict(list)
        for f in self.findings:
            groups[(f.kind, f.attribute, f.reference.spelling, f.candidate.spelling, f.doubt)].append(f)
        return list(groups.values())

    def told_of(self, group: Sequence[LintFinding]) -> list[str]:
        """One of `groups` as lines of text: what, where on either side, and what to write."""
        return _lines(group[0], len(group), [f.candidate.path for f in group[1:]])

    def __str__(self) -> str:
        from ..report.linted import render_lint

        return render_lint(self)

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "frameworks": list(self.frameworks),
            "models": list(self.models),
            "compared": self.compared,
            "findings": [f.to_dict() for f in self.findings],
            "unpaired": {side: list(paths) for side, paths in zip(_SIDES, self.unpaired, strict=True)},
            "notes": list(self.notes),
        }


def lint(
    reference: Any,
    candidate: Any,
    *,
    hints: Any = None,
    skip: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
) -> LintReport:
    """What two models were told differently: attributes and defaults of matched layers. Takes seconds, runs nothing.

    Layers are matched as in `map_weights` without inputs; those without weights by name and place within the modules
    that hold the same weights. Conventions are translated first, so that BatchNorm's momentum=0.1 in torch and 0.9 in
    paddle agree, and what changes nothing is not told: count_include_pad where there is no padding. What depends on
    the input, or on a pair of layers that may not be one, is marked as suspected.

    ::

        report = twinscope.lint(torch_model, mindspore_model)
        print(report)
        assert report, "attributes differ"

    Either side may be a trace instead of a model. `hints` and `skip` are those of `map_weights`.
    """
    return _Linter(LintSide.of(reference), LintSide.of(candidate), Hints.parse(hints, skip)).report()


@dataclass(frozen=True, slots=True)
class LintSide:
    """What `lint` knows of one model; it is plain but for the weights, and so can come from another process."""

    weights: Weights
    line: Callable[[str], Source | None] = lambda path: None
    training: bool | None = None

    @property
    def framework(self) -> str:
        return self.weights.framework

    @classmethod
    def of(cls, given: Any) -> LintSide:
        """A model, a trace or where one lies, or what is known already."""
        if isinstance(given, LintSide):
            return given
        if isinstance(given, (str, os.PathLike)):
            given = Trace.open(given)
        if isinstance(given, Trace):
            manifest = given.manifest
            return cls(Weights(manifest.framework, manifest.model, manifest.modules, _no_numbers))
        if isinstance(given, Weights):
            return cls(given)
        adapter = adapter_for(given)
        training = getattr(given, "training", None)
        sources = Sources(adapter.modules(given))
        return cls(Weights.of(given), sources.line, training if isinstance(training, bool) else None)


def _no_numbers(info: ModuleInfo, param: ParamInfo) -> Array:
    raise OptionError(f"{info.param_path(param.name)} has no values here", hint="hand in the model itself")


class _Linter:
    def __init__(self, a: LintSide, b: LintSide, hints: Hints) -> None:
        self.sides = (a, b)
        self.hints = hints
        self.known: tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]] = ({}, {})

    def report(self) -> LintReport:
        made = draft(self.sides[0].weights, self.sides[1].weights, self.hints)
        pairs = [p for p in partners(made, self._signature) if not self._skipped(p)]
        findings = [f for pair in pairs for f in self._compared(pair)]
        findings += self._frozen(made, findings)
        order = {m.path: n for n, m in enumerate(self.sides[0].weights.modules)}
        findings.sort(key=lambda f: (f.suspected, _ORDER.index(f.effect), order.get(f.reference.path, 0)))
        return LintReport(
            tuple(findings),
            (self.sides[0].framework, self.sides[1].framework),
            (self.sides[0].weights.model, self.sides[1].weights.model),
            len(pairs),
            (self._alone(0, {p.a.path for p in pairs}), self._alone(1, {p.b.path for p in pairs})),
            self._notes(pairs),
        )

    def _alone(self, side: int, paired: set[str]) -> tuple[str, ...]:
        """Layers that could have been compared and have no partner, but for what is inside a framework's own layer."""
        modules = self.sides[side].weights.modules
        closed = [m.path for m in modules if m.builtin and m.kind not in (None, *CONTAINERS)]
        inside = {m.path for m in modules for c in closed if m.path != c and m.path.startswith(f"{c}." if c else "")}
        return tuple(
            m.path
            for m in modules
            if m.kind is not None and settings_of(m.kind) and m.path not in paired and m.path not in inside
        )

    def _skipped(self, pair: Partners) -> bool:
        return any(
            self.hints.skips(side, name)
            for side, info in ((0, pair.a), (1, pair.b))
            for name in (info.path, info.param_path("weight"))
        )

    def _settings(self, side: int, info: ModuleInfo) -> dict[str, Any]:
        known = self.known[side]
        if info.path not in known:
            known[info.path] = neutral(self.sides[side].framework, info)
        return known[info.path]

    def _signature(self, side: int, info: ModuleInfo) -> Hashable:
        return info.kind, repr(self._settings(side, info))

    # -- a pair ----------------------------------------------------------------------------------------------------

    def _compared(self, pair: Partners) -> Iterator[LintFinding]:
        if family(pair.a.kind or "") != family(pair.b.kind or ""):
            yield from self._kinds(pair)
            return
        a, b = self._settings(0, pair.a), self._settings(1, pair.b)
        for setting in settings_of(pair.a.kind or ""):
            found = difference(setting, a, b)
            if found is None or _follows(setting, pair, a, b):
                continue
            told = (self._told(0, pair.a, setting), self._told(1, pair.b, setting))
            doubt = "; ".join(text for text in (pair.doubt, found.reservation) if text)
            yield LintFinding(
                pair.a.kind or "",
                setting.name,
                *told,
                self._effect(setting),
                _message(setting, *told),
                self._hint(pair, setting),
                doubt,
            )

    def _hint(self, pair: Partners, setting: Setting) -> str:
        """What to write in the candidate, and what is known of the setting in these frameworks."""
        framework = self.sides[1].framework
        flavour, kind = flavour_of(framework, pair.b), pair.b.kind or ""
        value, settings = self._settings(0, pair.a)[setting.name], self._settings(1, pair.b)
        parts = []
        text = advised(flavour, kind, setting, value, settings)
        if text:
            parts.append(f"in the candidate write {text}")
        named = {name for name in (TORCH, PADDLE, MINDSPORE) if name in setting.hint.lower()}
        if setting.hint and (not named or named & {side.framework for side in self.sides}):
            parts.append(setting.hint)
        return "; ".join(parts)

    def _effect(self, setting: Setting) -> Effect:
        if setting.name == "padding_idx" and PADDLE in (self.sides[0].framework, self.sides[1].framework):
            return Effect.FORWARD
        return setting.effect

    def _kinds(self, pair: Partners) -> Iterator[LintFinding]:
        """Two layers of other kinds: a mistake where each could stand for the other, else another way to write it."""
        kinds = (pair.a.kind or "", pair.b.kind or "")
        norms = all("norm" in kind for kind in kinds)
        if role(kinds[0]) != role(kinds[1]) and not norms:
            return
        told = []
        for side, info in ((0, pair.a), (1, pair.b)):
            name = self._name(side, info)
            told.append(Told(info.path, name, info.kind, name, source=self._line(side, info.path)))
        effect = Effect.TRAINING if role(kinds[0]) == "dropout" else Effect.FORWARD
        doubt = pair.doubt or ("norms of other kinds may be the same for some shapes" if norms else "")
        yield LintFinding(
            kinds[0],
            "kind",
            told[0],
            told[1],
            effect,
            f"{told[0].layer} / {told[1].layer}: two kinds of layer",
            "",
            doubt,
        )

    def _told(self, side: int, info: ModuleInfo, setting: Setting) -> Told:
        framework = self.sides[side].framework
        flavour = flavour_of(framework, info)
        settings = self._settings(side, info)
        kind = info.kind or ""
        known = info.builtin  # a class of the user's own may have defaults of its own
        ignored = settings[setting.name] is None and info.attributes.get(setting.name) is not None
        return Told(
            info.path,
            self._name(side, info),
            settings[setting.name],
            spelled(flavour, kind, setting, settings, info),
            default_written(flavour, kind, setting, settings) if known else None,
            is_default(setting, flavour, settings) and not ignored if known else None,
            self._line(side, info.path),
        )

    def _line(self, side: int, path: str) -> Source | None:
        return self.sides[side].line(path)

    # -- weights ---------------------------------------------------------------------------------------------------

    def _frozen(self, made: Draft, findings: Sequence[LintFinding]) -> Iterator[LintFinding]:
        """Layers whose weights are trained on one side only."""
        places = [{path: (info, p) for path, info, p in s.weights.places()} for s in self.sides]
        told_already = {f.reference.path for f in findings if f.attribute in ("affine", "elementwise_affine")}
        groups: dict[Hashable, list[tuple[Entry, list[tuple[ModuleInfo, ParamInfo]]]]] = defaultdict(list)
        for entry in made.entries():
            if not entry.reference or not entry.candidate:
                continue
            held = [[places[s][n] for n in names] for s, names in ((0, entry.reference), (1, entry.candidate))]
            flags = [{p.trainable for _, p in side} for side in held]
            if flags[0] == flags[1] or any(len(f) > 1 for f in flags) or any(p.buffer for s in held for _, p in s):
                continue
            first = [side[0] for side in held]
            if first[0][0].path not in told_already:
                groups[(first[0][0].path, first[1][0].path, first[0][1].trainable)].append((entry, first))
        for group in groups.values():
            told = []
            for side in (0, 1):
                info, param = group[0][1][side]
                names = ", ".join(held[side][1].name for _, held in group)
                spelling = f"{names} {'trained' if param.trainable else 'frozen'}"
                told.append(
                    Told(
                        info.path, self._name(side, info), param.trainable, spelling, source=self._line(side, info.path)
                    )
                )
            unsure = next((e for e, _ in group if e.confidence < SURE), None)
            yield LintFinding(
                group[0][1][0][0].kind or "",
                "trainable",
                told[0],
                told[1],
                Effect.BACKWARD,
                f"{', '.join(held[0][1].name for _, held in group)}: trained on one side only",
                doubt="" if unsure is None else f"their weights are paired by {unsure.why}",
            )

    def _name(self, side: int, info: ModuleInfo) -> str:
        framework = self.sides[side].framework
        return layer_name(framework, flavour_of(framework, info), info)

    def _notes(self, pairs: Sequence[Partners]) -> tuple[str, ...]:
        modes = [s.training for s in self.sides]
        modal = any("batch_norm" in (p.a.kind or "") or role(p.a.kind or "") == "dropout" for p in pairs)
        if None in modes or modes[0] == modes[1] or not modal:
            return ()
        words = [
            f"the {name} is in {'training' if on else 'evaluation'} mode"
            for name, on in zip(_SIDES, modes, strict=True)
        ]
        return (f"{words[0]}, {words[1]}: BatchNorm and Dropout do not do the same",)


def _follows(setting: Setting, pair: Partners, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether a difference only follows from that in another setting: the kernel's size, the dilation."""
    if setting.name == "stride" and AS_KERNEL in setting.defaults.values():
        return all(s["stride"] == s.get("kernel_size") for s in (a, b))
    if setting.name == "scale_factor":
        return (a.get("size") is None) != (b.get("size") is None)
    return setting.name == "padding" and all(
        str(info.attributes.get("padding")).lower() == SAME for info in (pair.a, pair.b)
    )


def _message(setting: Setting, a: Told, b: Told) -> str:
    text = f"{setting.name} {shown(a.value)} / {shown(b.value)}"
    left = [name for name, told in zip(_SIDES, (a, b), strict=True) if told.is_default]
    if len(left) == 2:
        return f"{text}: both are the defaults"
    return f"{text}: the {left[0]}'s is the default" if left else text


def _lines(f: LintFinding, count: int, more: Sequence[str] = ()) -> list[str]:
    """A finding as text; `count` places where it is the same."""
    a, b = f.reference, f.candidate
    place = a.path or "(root)" if a.path == b.path else f"{a.path or '(root)'} | {b.path or '(root)'}"
    mark = "? " if f.suspected else ""
    lines = [f"{mark}{place} ({f.kind}): {f.message}" + (f"  x{count}" if count > 1 else "")]
    for name, told in (("reference", a), ("candidate", b)):
        if f.attribute == "kind":
            said = told.layer
        elif told.is_default is True and not told.spelling.startswith("always"):
            said = f"{told.layer}: {told.spelling}, its default"
        elif told.default is not None and told.default != told.spelling:
            said = f"{told.layer}: {told.spelling} (default {told.default})"
        else:
            said = f"{told.layer}: {told.spelling}"
        lines.append(f"    {name}  {said}" + (f"  {told.source}" if told.source else ""))
    lines.append(f"    {_EFFECTS[f.effect]}" + (f"; suspected: {f.doubt}" if f.doubt else ""))
    if f.hint:
        lines.append(f"    hint: {f.hint}")
    if more:
        lines.append(f"    also {', '.join(more[:6])}" + (f" and {len(more) - 6} more" if len(more) > 6 else ""))
    return lines
