"""What is installed and whether it goes together: frameworks, versions, known clashes, third-party adapters.

Nothing is imported to find out; with `try_imports` each framework is imported in a process of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Framework: the names its distribution goes by, and the oldest version that is supported (see pyproject.toml).
FRAMEWORKS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "torch": (("torch",), "2.1"),
    "paddle": (("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu"), "3.0"),
    "mindspore": (("mindspore", "mindspore-gpu", "mindspore-ascend"), "2.5"),
}
NUMPY = ("1.24", "3")
PYTHON = ((3, 10), (3, 14))
_TRY = (
    "import sys, numpy\n"
    "from twinscope.adapters._registry import by_name\n"
    "adapter = by_name(sys.argv[1])\n"
    "assert adapter.to_numpy(adapter.from_numpy(numpy.ones(3, 'float32'))).sum() == 3\n"
)


@dataclass(frozen=True, slots=True)
class Package:
    """A framework, as it is or is not installed."""

    name: str
    version: str | None  # None: no metadata
    found: bool  # whether Python would find something to import
    works: bool | None = None  # None: not tried
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Plugin:
    """An adapter that somebody else's package registers."""

    name: str
    place: str
    provider: str
    found: bool
    works: bool | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found, before any judgement."""

    twinscope: str
    python: tuple[int, int, int]
    numpy: str | None
    scipy: str | None
    frameworks: tuple[Package, ...]
    plugins: tuple[Plugin, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to know; with `problem`, something that will not work until `fix` is done."""

    message: str
    fix: str
    problem: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Facts and what they mean. True when nothing is in the way."""

    facts: Facts
    advice: tuple[Advice, ...]

    def __bool__(self) -> bool:
        return not any(a.problem for a in self.advice)

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        facts = self.facts
        return {
            "ok": bool(self),
            "twinscope": facts.twinscope,
            "python": ".".join(map(str, facts.python)),
            "numpy": facts.numpy,
            "scipy": facts.scipy,
            "frameworks": {
                p.name: {"version": p.version, "installed": p.found, "works": p.works, "detail": p.detail}
                for p in facts.frameworks
            },
            "plugins": {
                p.name: {
                    "adapter": p.place,
                    "provider": p.provider,
                    "installed": p.found,
                    "works": p.works,
                    "detail": p.detail,
                }
                for p in facts.plugins
            },
            "problems": [{"message": a.message, "fix": a.fix} for a in self.advice if a.problem],
            "notes": [{"message": a.message, "fix": a.fix} for a in self.advice if not a.problem],
        }


def examine(*, try_imports: bool = False, timeout: float = 180.0) -> Diagnosis:
    """Look at this interpreter's environment; imports no framework here.

    ::

        diagnosis = examine()
        if not diagnosis:
            print(diagnosis.to_dict()["problems"])
    """
    facts = survey(try_imports=try_imports, timeout=timeout)
    return Diagnosis(facts, judge(facts))


def survey(*, try_imports: bool, timeout: float) -> Facts:
    """What is there."""
    from . import __version__

    frameworks = []
    for name, (distributions, _) in FRAMEWORKS.items():
        package = Package(name, _version(distributions), _importable(name))
        if try_imports and package.found:
            works, detail = _try(name, timeout)
            package = Package(name, package.version, True, works, detail)
        frameworks.append(package)
    plugins = []
    for point in _entry_points():
        provider = point.dist.name if point.dist is not None else "?"
        found = _importable(point.value.partition(":")[0].partition(".")[0])
        tried = _try(point.name, timeout) if try_imports and found else (None, "")
        plugins.append(Plugin(point.name, point.value, provider, found, *tried))
    return Facts(
        __version__,
        (sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        _version(("numpy",)),
        _version(("scipy",)),
        tuple(frameworks),
        tuple(plugins),
    )


def judge(facts: Facts) -> tuple[Advice, ...]:
    """What the facts mean; the problems first."""
    found = [*_judge_base(facts), *_judge_frameworks(facts), *_judge_plugins(facts)]
    return tuple(sorted(found, key=lambda a: not a.problem))


def _judge_base(facts: Facts) -> Iterable[Advice]:
    low, high = PYTHON
    if not low <= facts.python[:2] < high:
        version = ".".join(map(str, facts.python))
        supported = f"{low[0]}.{low[1]} to {high[0]}.{high[1] - 1}"
        yield Advice(f"Python {version} is not supported", f"use Python {supported}", True)
    if facts.numpy is None:
        yield Advice("numpy is not installed", "pip install numpy", True)
    elif not _parts(NUMPY[0]) <= _parts(facts.numpy) < _parts(NUMPY[1]):
        yield Advice(f"numpy {facts.numpy} is not supported", f"pip install 'numpy>={NUMPY[0]},<{NUMPY[1]}'", True)
    if facts.scipy is None:
        yield Advice("scipy is not installed; matching needs it", "pip install scipy", True)


def _judge_frameworks(facts: Facts) -> Iterable[Advice]:
    present = {p.name: p for p in facts.frameworks if p.found}
    if not present and not facts.plugins:
        yield Advice(
            "no framework is installed: traces can be compared and shown here, but no model can be captured",
            "pip install 'twinscope[torch]' (or paddle, mindspore)",
            False,
        )
    for package in facts.frameworks:
        distributions, oldest = FRAMEWORKS[package.name]
        if package.version is not None and not package.found:
            yield Advice(
                f"{package.name} {package.version} is listed as installed, but there is nothing to import",
                f"pip install --force-reinstall {distributions[0]}",
                True,
            )
        elif package.version is not None and _parts(package.version) < _parts(oldest):
            yield Advice(
                f"{package.name} {package.version} is older than {oldest}, the oldest that is supported",
                f"pip install -U '{distributions[0]}>={oldest}'",
                True,
            )
        if package.works is False:
            fix = f"pip install --force-reinstall {distributions[0]}"
            yield Advice(f"{package.name} cannot be used: {package.detail}", fix, True)
    if "mindspore" in present and facts.numpy is not None and _parts(facts.numpy) >= (2,):
        yield Advice(f"mindspore fails at its first op with numpy {facts.numpy}", "pip install 'numpy<2'", True)
    if {"paddle", "mindspore"} <= present.keys():
        yield Advice(
            "paddle and mindspore share a process only if mindspore is imported first",
            "import mindspore first, or run each side in its own process: twinscope align REF CAND",
            False,
        )


def _judge_plugins(facts: Facts) -> Iterable[Advice]:
    for plugin in facts.plugins:
        if not plugin.found:
            yield Advice(
                f"the adapter for {plugin.name} ({plugin.place}) cannot be found",
                f"pip install --force-reinstall {plugin.provider}",
                True,
            )
        elif plugin.works is False:
            yield Advice(
                f"the adapter for {plugin.name} fails: {plugin.detail}", f"ask who provides {plugin.provider}", True
            )


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    from .adapters._registry import ENTRY_POINTS

    return sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name)


def _version(distributions: Iterable[str]) -> str | None:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _importable(name: str) -> bool:
    """Whether there is a package of this name to import. A bare directory without code is not one."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _try(name: str, timeout: float) -> tuple[bool, str]:
    """Whether a framework can be imported and makes a tensor, in a process of its own; else what it said last."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _with_path(_TRY), name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"nothing happened for {timeout:.0f} seconds"
    if done.returncode == 0:
        return True, ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    # the hint that follows a message of Twinscope's is not the message
    said = [line for line in said if not line.startswith("Hint:")]
    return False, said[-1] if said else f"exit status {done.returncode}"


def _with_path(code: str) -> str:
    """So that the other process finds this Twinscope, wherever it was loaded from."""
    return f"import sys\nsys.path[:] = {[p for p in sys.path if p]!r}\n{code}"


def _parts(version: str) -> tuple[int, ...]:
    """The numbers at a version's front: (2, 13, 0) for 2.13.0+cpu, (2, 0) for 2.0rc1."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def installed() -> frozenset[str]:
    """The frameworks that Python would find here; none is imported."""
    return frozenset(name for name in FRAMEWORKS if _importable(name))
