"""assign_weight: the weights of the second model into the first, with the texts of the second generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import twinscope
from twinscope import InputPair, TwinscopeError, WeightMap
from twinscope.compat.console import say

from .layer_map import PREFIX, Paired, Resolved, special_init
from .logs import write_log
from .naming import described, framework_of, title
from .trees import full_path, titled, tree_of_modules

#: Longer trees go into a file.
LONGEST = 100

_NOTICE = """
NOTICE: layer/module will be marked with `(skip)` for:
    1. This layer/module is contained by layer_map.
    2. This layer/module has no parameter, so padiff think it is a wrap layer.

Hint:
    1. Check the definition order of params in layer/module is the same.
    2. Check the corresponding layer/module have the same style:
       param <=> param, buffer <=> buffer, embedding <=> embedding ...
       cases like param <=> buffer, param <=> embedding are not allowed,
       because padiff can not know how to init the parameters.
    3. If you can not change model codes, try to use a `LayerMap`
       which can solve almost any problem.
    0. Visit `https://github.com/PaddlePaddle/PaDiff` to find more infomation !!!
"""


def assign(layer: Any, module: Any, said: Resolved, inputs: InputPair | None = None) -> bool:
    """Copy the weights of `module` into `layer`; whether it worked. Says what happened, and why where it did not.

    With `inputs` the two models are run where names and shapes do not tell which layer is which. Without, layers that
    are alike are taken in the order of their definition, as the documents ask for it.
    """
    taken, failed = _run_special(said.pairs)
    if failed:
        say("Assign weight Failed !!!", PREFIX)
        return False
    hints = {**said.hints, **{p.second.path: p.first.path for p in said.pairs if not p.alike and p not in taken}}
    skip = said.skips(taken)
    try:
        try:
            twinscope.copy_weights(module, layer, mapping=hints, inputs=inputs, skip=skip)
        except TwinscopeError:
            found = twinscope.map_weights(module, layer, hints=hints, skip=skip)
            if inputs is not None or not _only_order_is_open(found):
                raise
            twinscope.copy_weights(module, layer, mapping=_in_order(found))
    except TwinscopeError as error:
        say("Assign weight Failed !!!\n", PREFIX)
        say(_why(layer, module, said, hints, skip, error))
        return False
    say("Assign weight success !!!", PREFIX)
    return True


def _run_special(pairs: Sequence[Paired]) -> tuple[list[Paired], bool]:
    """Have the user's functions carry what they were registered for: which pairs, and whether one of them raised."""
    taken: list[Paired] = []
    for pair in pairs:
        function = special_init(pair.layer, pair.module)
        if function is None:
            continue
        try:
            function(pair.layer, pair.module)
        except Exception as error:  # noqa: BLE001 - assign_weight never raises, whatever the user's function does
            names = [f"{framework_of(m)} `{type(m).__name__}`" for m in (pair.layer, pair.module)]
            say(f"Special init {names[0]} and {names[1]} failed.\n{type(error).__name__}:  {error}")
            return taken, True
        taken.append(pair)
    return taken, False


def _only_order_is_open(mapping: WeightMap) -> bool:
    """Whether all fits, and nothing but the order of definition says which of several equal layers is which."""
    needed = [h for h in (*mapping.unmatched_reference, *mapping.unmatched_candidate) if h.needed]
    return not needed and all(e.confidence > 0 for e in mapping.unsure)


def _in_order(mapping: WeightMap) -> WeightMap:
    return replace(mapping, entries=tuple(e if e.sure else replace(e, confidence=1.0) for e in mapping.entries))


# -- why not -----------------------------------------------------------------------------------------------------------


def _why(layer: Any, module: Any, said: Resolved, hints: Any, skip: Any, error: TwinscopeError) -> str:
    """The text under "Failed": the two parameters that do not fit, where they are in both models, and hints."""
    infos = [[info for info, _ in twinscope.modules_of(model)] for model in (layer, module)]
    here: tuple[str | None, str | None] = (None, None)
    parts = []
    try:
        mapping = twinscope.map_weights(module, layer, hints=hints, skip=skip)
    except TwinscopeError:  # the hints themselves are at fault, and the error says so
        mapping = None
    if mapping is not None:
        text, here = _misfit(layer, module, mapping, infos)
        parts += [text] if text else []
    parts.append(f"{type(error).__name__}:  {error.message}")
    parts.append("")
    return "\n".join([*parts, _trees((layer, module), infos, said, here), _NOTICE])


def _misfit(
    layer: Any, module: Any, mapping: WeightMap, infos: Sequence[Sequence[Any]]
) -> tuple[str, tuple[str | None, str | None]]:
    """What has no partner on either side, the two that were most likely meant for each other first."""
    mine = [h for h in mapping.unmatched_candidate if h.needed]
    theirs = [h for h in mapping.unmatched_reference if h.needed]
    bad = next((e for e in mapping.unsure if e.confidence == 0 and e.candidate and e.reference), None)
    if bad is not None:
        mine = [h for h in mapping.candidate if h.path == bad.candidate[0]]
        theirs = [h for h in mapping.reference if h.path == bad.reference[0]]
    if not mine and not theirs:
        return "", (None, None)
    first = mine[0] if mine else None
    second = next((h for h in theirs if first is not None and h.path == first.path), theirs[0] if theirs else None)
    lines = ["Error occured between:"]
    here: list[str | None] = []
    shapes: list[list[int]] = []
    for model, held, own in ((layer, first, infos[0]), (module, second, infos[1])):
        if held is None:
            here.append(None)
            continue
        path, _, name = held.path.rpartition(".")
        here.append(path)
        lines.append(f"    {framework_of(model)}: `{described(model, path)}`")
        lines.append(f"            `{full_path(type(model).__name__, held.path)}`")
        param = next(p for i in own if i.path == path for p in i.params if p.name == name)
        shapes.append(list(param.neutral_shape()))
    lines.append("")
    if first is not None and second is not None:
        names = [h.path.rpartition(".")[2] for h in (first, second)]
        if shapes[0] != shapes[1]:
            given = _as_the_first_has_it(first, shapes[1], infos[0])
            lines.append(
                f"Shape of {framework_of(layer)} param `{names[0]}` and {framework_of(module)} param `{names[1]}` is "
                f"not the same. {list(first.shape)} vs {given}\n"
            )
        else:
            lines.append(
                f"{framework_of(layer)} param `{names[0]}` and {framework_of(module)} param `{names[1]}` "
                "have no counterpart.\n"
            )
    else:
        alone = first or second
        assert alone is not None
        whose = framework_of(module if first is None else layer)
        lines.append(f"{whose} param `{alone.path}` {list(alone.shape)} has no counterpart in the other model.\n")
    return "\n".join(lines), (here[0], here[1])


def _as_the_first_has_it(held: Any, neutral: list[int], infos: Sequence[Any]) -> list[int]:
    """A shape in the layout in which the first model keeps this parameter."""
    path, _, name = held.path.rpartition(".")
    param = next(p for i in infos if i.path == path for p in i.params if p.name == name)
    if param.axes is None or len(param.axes) != len(neutral):
        return neutral
    found = list(neutral)
    for at, axis in enumerate(param.axes):
        found[axis] = neutral[at]
    return found


def _trees(
    models: Sequence[Any], infos: Sequence[Sequence[Any]], said: Resolved, here: tuple[str | None, str | None]
) -> str:
    drawn = []
    for side in (1, 0):
        model, own = models[side], infos[side]
        place = here[side]
        tree = tree_of_modules(own, type(model).__name__, () if place is None else {place}, said.skipped(side, own))
        drawn.append((f"{framework_of(model)}_weight_check.log", titled(f"{title(model)} Model", tree)))
    if sum(len(text.splitlines()) for _, text in drawn) <= LONGEST:
        return "\n".join(text for _, text in drawn)
    paths = [write_log(name, text) for name, text in drawn]
    return (
        f"Model Struct saved to `{paths[0]}` and `{paths[1]}`.\n"
        "Please view the reports and checkout the layers which is marked with `<---  *** HERE ***` !"
    )
