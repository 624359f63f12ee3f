"""The offline checks of PaDiff 0.3: two dumps held against each other, every step and every rank of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twinscope import Result, compare

from ..answer import Answer
from ..console import say
from .dumps import Dump
from .failing import LOG, say_failed, wrongly_mapped
from .problems import ArgumentError, DumpError, number, one_of, only_known

COMPARE_MODES = ("mean", "strict")
_DEFAULTS = {"atol": 1e-4, "rtol": 1e-7, "compare_mode": "mean"}
_PARTS = ("step", "rank")


class CheckAnswer(Answer[Result]):
    """The answer of a check, with `results` by the tolerance: one for each folder, by its name below the given path.

    `result` is that of the first folder that does not agree, or else of the last one, without any tolerance.
    """

    def __init__(self, results: Mapping[str, Result], passed: bool) -> None:
        self.results = dict(results)
        bad = [r for r in self.results.values() if not r]
        super().__init__(passed, lambda: (bad[0] if bad else list(self.results.values())[-1]).judged())


def check_report(
    report_path_0: str | os.PathLike[str], report_path_1: str | os.PathLike[str], cfg: Mapping[str, Any] | None = None
) -> Answer[Result]:
    """Whether two reports tell of the same run, forward and backward, within the tolerance of `cfg`.

    The paths are the folders that ``report.json`` lies in, or folders with ``step_N`` or ``rank_N`` in them, of which
    every one is compared. `cfg` has "atol" (1e-4), "rtol" (1e-7) and "compare_mode" ("mean": the mean of the error is
    held against the tolerance; "strict": that of each element).

    ::

        check_report("dumps/torch", "dumps/paddle", cfg={"atol": 1e-5, "compare_mode": "strict"})
    """
    return _check("report", ("report",), report_path_0, report_path_1, cfg)


def check_params(
    report_path_0: str | os.PathLike[str], report_path_1: str | os.PathLike[str], cfg: Mapping[str, Any] | None = None
) -> Answer[Result]:
    """Whether weights and gradients of two ``params.json`` agree; otherwise as `check_report`."""
    return _check("params", ("weight", "gradient"), report_path_0, report_path_1, cfg)


def check_weights(
    report_path_0: str | os.PathLike[str], report_path_1: str | os.PathLike[str], cfg: Mapping[str, Any] | None = None
) -> Answer[Result]:
    """Whether the weights of two ``weights.json`` agree; otherwise as `check_report`."""
    return _check("weights", ("weight",), report_path_0, report_path_1, cfg)


def check_grads(
    report_path_0: str | os.PathLike[str], report_path_1: str | os.PathLike[str], cfg: Mapping[str, Any] | None = None
) -> Answer[Result]:
    """Whether the gradients of two ``grads.json`` agree; otherwise as `check_report`."""
    return _check("grads", ("gradient",), report_path_0, report_path_1, cfg)


def tolerance_of(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """What `compare` is told, from the options as PaDiff names them."""
    return {
        "atol": number(cfg["atol"], "atol"),
        "rtol": number(cfg["rtol"], "rtol"),
        "mode": one_of(cfg["compare_mode"], COMPARE_MODES, "compare_mode"),
    }


def _check(
    name: str,
    phases: Sequence[str],
    path_0: str | os.PathLike[str],
    path_1: str | os.PathLike[str],
    cfg: Mapping[str, Any] | None,
) -> Answer[Result]:
    if cfg is not None and not isinstance(cfg, Mapping):
        raise ArgumentError(f"cfg={cfg!r} is not a dict", hint='write cfg={"atol": 1e-4}')
    only_known(cfg or {}, _DEFAULTS, "cfg")
    settings = {**_DEFAULTS, **(cfg or {})}
    tolerance = tolerance_of(settings)
    say(f"check cfg {settings}", LOG)
    results: dict[str, Result] = {}
    passed = True
    for place, first, second in _both(Path(path_0), Path(path_1), name):
        say(f"Checking {name} in {first} and {second}", LOG)
        pair = (Dump(first, name), Dump(second, name))
        mapped = _layer_map(pair)
        result = compare(pair[0].trace, pair[1].trace, mapping=mapped, **tolerance)
        results[place] = result
        lost = _lost_gradients(pair, result) if "gradient" in phases else []
        if result and not lost and not wrongly_mapped(result, mapped):
            say(f"{name} compared.", LOG)
            continue
        passed = False
        if not result:
            say_failed(result, (pair[0].model_name, pair[1].model_name), tolerance)
        for line in lost:
            say(line, LOG)
    say("SUCCESS !!!" if passed else "FAILED !!!", LOG)
    return CheckAnswer(results, passed)


def _layer_map(dumps: tuple[Dump, Dump]) -> dict[str, str]:
    """Which layers correspond: the first of one model's layer map to the first of the other's, and so on."""
    first, second = (d.layer_map for d in dumps)
    if len(first) != len(second):
        raise ArgumentError(
            f"the layer maps have {len(first)} and {len(second)} layers",
            hint="call set_layer_map on both models with as many layers, in the order in which they correspond",
        )
    return dict(zip(first, second, strict=True))


def _lost_gradients(dumps: tuple[Dump, Dump], result: Result) -> list[str]:
    """Parameters that have a gradient on one side only."""
    without = tuple(d.without_gradient() for d in dumps)
    found = []
    for pair in result.matching.modules:
        for own, other, _ in pair.params:
            lost = ((pair.reference, own) in without[0], (pair.candidate, other) in without[1])
            if lost[0] != lost[1]:
                whose = "base_model" if lost[0] else "raw_model"
                place = f"{pair.reference}.{own} / {pair.candidate}.{other}"
                found.append(f"Found grad in {whose} is `None`, when another is not: {place}")
    return found


# -- folders ---------------------------------------------------------------------------------------------------------


def _both(first: Path, second: Path, name: str) -> list[tuple[str, Path, Path]]:
    """The folders of two dumps that belong together; one that only one of them has is an error."""
    found = (_folders(first, name), _folders(second, name))
    for own, other, root in ((found[0], found[1], second), (found[1], found[0], first)):
        missing = [place for place in own if place not in other]
        if missing:
            raise DumpError(
                f"{root} has no {name}.json for {missing[0] or 'the folder itself'}, which the other dump has",
                hint="dump the same steps and ranks on both sides",
            )
    return [(place, folder, found[1][place]) for place, folder in found[0].items()]


def _folders(root: Path, name: str) -> dict[str, Path]:
    """Every folder with this json, by what it is called below `root`: itself, its steps, its ranks, in their order."""
    if not root.is_dir():
        raise DumpError(f"{root} is no folder", hint=f"hand in the folder that dump_{name} wrote to")
    if (root / f"{name}.json").is_file():
        return {"": root}
    found: dict[str, Path] = {}
    for part in _PARTS:
        below = _numbered(root, part)
        for folder in below:
            try:
                inner = _folders(folder, name)
            except DumpError:
                continue
            found.update({f"{folder.name}/{place}".rstrip("/"): path for place, path in inner.items()})
    if not found:
        raise DumpError(
            f"{root} has no {name}.json, nor a step or rank with one",
            hint=f"hand in the folder that dump_{name} wrote to, or one above it",
        )
    return found


def _numbered(root: Path, part: str) -> list[Path]:
    number_of: Callable[[Path], int] = lambda p: int(p.name.rpartition("_")[2])  # noqa: E731
    return sorted(
        (p for p in root.iterdir() if re.fullmatch(rf"{part}_\d+", p.name) and p.is_dir()),
        key=number_of,
    )
