"""Rules of the user's own for pairs of classes that nobody else can know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import patterns
from ..errors import OptionError, WeightError
from ..records import ModuleInfo, ParamInfo
from .layers import Layer
from .model import neutral_chain
from .transforms import Chain, Each, Transform, inverted, simplified
from .weightmap import Entry


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """How the weights of one class become those of another. Made by `weight_rule`; call `forget` to take it back."""

    reference: str
    candidate: str
    function: Callable[[Layer, Layer], Iterable[Any]]

    def forget(self) -> None:
        """Take the rule back."""
        _RULES.remove(self)

    def entries(
        self,
        framework: tuple[str, str],
        sides: tuple[ModuleInfo, ModuleInfo],
        params: Sequence[Mapping[str, ParamInfo]],
    ) -> list[Entry]:
        """What the rule says of two modules; `params` are theirs, by full path."""
        layers = tuple(
            Layer(name, info, {_within(info, path): p for path, p in held.items()})
            for name, info, held in zip(framework, sides, params, strict=True)
        )
        found = []
        for given in self.function(layers[0], layers[1]):
            sources, targets, steps = self._read(given)
            for layer, names in zip(layers, (sources, targets), strict=True):
                for name in names:
                    if name not in layer.params:
                        raise WeightError(
                            f"the rule for {self.reference} and {self.candidate} names {name!r}, which "
                            f"{layer.info.path or 'the model'} ({layer.info.type}) has not",
                            hint=patterns.did_you_mean(name, layer.params),
                        )
            opening, closing = (
                _side_by_side([neutral_chain(layer.params[n]) for n in names])
                for layer, names in zip(layers, (sources, targets), strict=True)
            )
            paths = tuple(
                tuple(layer.params[n].tied_to or info.param_path(n) for n in names)
                for layer, info, names in zip(layers, sides, (sources, targets), strict=True)
            )
            chain = simplified((*opening, *steps, *inverted(closing)))
            found.append(Entry(paths[0], paths[1], chain, "rule of yours", 1.0))
        return found

    def _read(self, given: Any) -> tuple[tuple[str, ...], tuple[str, ...], Chain]:
        try:
            sources, targets, *rest = given
            steps = rest[0] if rest else ()
        except (TypeError, ValueError):
            sources, targets, steps, rest = None, None, None, [1, 2]
        names = [(s,) if isinstance(s, str) else s for s in (sources, targets)]
        steps = (steps,) if isinstance(steps, Transform) else steps
        if (
            len(rest) > 1
            or not all(isinstance(n, (tuple, list)) and all(isinstance(x, str) for x in n) for n in names)
            or not isinstance(steps, (tuple, list))
            or not all(isinstance(s, Transform) for s in steps)
        ):
            raise OptionError(
                f"the rule for {self.reference} and {self.candidate} gave {given!r}",
                hint='give names of each and transforms: "qkv", ("q", "k"), Split((8, 8))',
            )
        return tuple(names[0] or ()), tuple(names[1] or ()), tuple(steps)


_RULES: list[Rule] = []


def weight_rule(reference: str | type, candidate: str | type) -> Callable[[Callable[..., Iterable[Any]]], Rule]:
    """Say how the weights of one class become those of another, for all maps made from now on.

    The classes are given themselves, or by name (short or qualified, patterns allowed). The function gets two layers
    (`params`, `shape(name)`, `attributes`; inner parameters by dotted name) and gives triples: names of the reference,
    names of the candidate, transforms in the neutral layout, where a Linear's weight is [out, in] in every framework.
    The rule serves in both directions. What it does not mention is mapped as ever.

    ::

        @twinscope.weight_rule("PackedAttention", "SplitAttention")
        def packed(reference, candidate):
            size = candidate.shape("q.weight")[0]
            yield "qkv.weight", ("q.weight", "k.weight", "v.weight"), Split((size, size, size))
    """

    names = _name(reference), _name(candidate)

    def decorate(function: Callable[..., Iterable[Any]]) -> Rule:
        if not callable(function):
            raise OptionError(f"weight_rule was given {function!r}", hint="decorate a function of two layers")
        rule = Rule(*names, function)
        _RULES.append(rule)
        return rule

    return decorate


def rule_for(first: ModuleInfo, second: ModuleInfo) -> tuple[Rule, bool] | None:
    """The rule for two modules, the latest first, and whether it was given the other way round."""
    for rule in reversed(_RULES):
        if patterns.matches_name(rule.reference, first.type) and patterns.matches_name(rule.candidate, second.type):
            return rule, False
        if patterns.matches_name(rule.reference, second.type) and patterns.matches_name(rule.candidate, first.type):
            return rule, True
    return None


def _name(given: str | type) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, type):
        return f"{given.__module__}.{given.__qualname__}"
    raise OptionError(f"weight_rule was given {given!r}", hint="give a class, or its name")


def _within(info: ModuleInfo, path: str) -> str:
    return path.removeprefix(f"{info.path}.") if info.path else path


def _side_by_side(chains: Sequence[Chain]) -> Chain:
    ones = (1,) * len(chains)
    return (Each(tuple(chains), ones, ones),) if chains else ()
