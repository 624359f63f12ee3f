"""Which frameworks a run of pytest may use: paddle before mindspore does not load, so not all tests fit one process.

``--frameworks torch,paddle`` (in import order) selects the tests that these are enough for; `tests/run.py` goes over
all that there are. Tests in tests/unit need none.
"""

from __future__ import annotations

import importlib
import itertools
import re
import warnings
import zlib
from collections import Counter
from pathlib import Path

import pytest

KNOWN = ("torch", "paddle", "mindspore")
#: A test function with more cases than this in one run goes over a grid: networks by twists by pairs.
GRID = 16


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--frameworks", default="", help="comma-separated, in the order in which to import them")
    parser.addoption("--share", type=int, default=1, help="of each grid of cases, run one in so many")


def chosen(config: pytest.Config) -> list[str]:
    names = [n for n in config.getoption("--frameworks").split(",") if n]
    for name in names:
        if name not in KNOWN:
            raise pytest.UsageError(f"--frameworks: {name!r} is not one of {', '.join(KNOWN)}")
    return names


def pytest_configure(config: pytest.Config) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in chosen(config):
            importlib.import_module(name)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files whose frameworks were not chosen must not even be imported."""
    named = re.fullmatch(r"test_(torch|paddle|mindspore)_.*\.py", collection_path.name)
    if named and named.group(1) not in chosen(config):
        return True
    if collection_path.name in ("contract", "pair", "compat") and not chosen(config):
        return True
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`framework` runs over the chosen frameworks, `pair` over all ordered pairs of them (of one: with itself)."""
    names = chosen(metafunc.config)
    if "framework" in metafunc.fixturenames:
        metafunc.parametrize("framework", names)
    if "pair" in metafunc.fixturenames:
        pairs = list(itertools.permutations(names, 2)) if len(names) > 1 else [(n, n) for n in names]
        metafunc.parametrize("pair", pairs, ids=lambda p: "-".join(p))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin out grids where asked to. Which cases stay follows from their names, so it is the same in every run."""
    share = config.getoption("--share")
    if share <= 1 or not chosen(config):
        return
    size = Counter(item.nodeid.partition("[")[0] for item in items)
    stays = [
        item
        for item in items
        if size[item.nodeid.partition("[")[0]] <= GRID or zlib.crc32(item.nodeid.encode()) % share == 0
    ]
    kept = {id(item) for item in stays}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = stays
