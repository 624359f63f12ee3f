"""The doctor: what it makes of the facts, and that it imports nothing to get them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from twinscope.doctor import FRAMEWORKS, NUMPY, PYTHON, Diagnosis, Facts, Package, Plugin, _parts, examine, judge

ROOT = Path(__file__).parents[2]
GOOD = Facts(
    "0.1.0",
    (3, 11, 7),
    "1.26.4",
    "1.11.0",
    (
        Package("torch", "2.13.0+cpu", True),
        Package("paddle", "3.3.1", True),
        Package("mindspore", None, False),
    ),
)


def with_framework(facts: Facts, package: Package) -> Facts:
    return replace(facts, frameworks=tuple(package if p.name == package.name else p for p in facts.frameworks))


def problems(facts: Facts) -> list[str]:
    return [a.message for a in judge(facts) if a.problem]


def test_good_environment() -> None:
    assert judge(GOOD) == ()
    assert Diagnosis(GOOD, ())


@pytest.mark.parametrize(
    ("facts", "message", "fix"),
    [
        (replace(GOOD, python=(3, 9, 18)), "Python 3.9.18 is not supported", "use Python 3.10 to 3.13"),
        (replace(GOOD, python=(3, 14, 0)), "Python 3.14.0 is not supported", "use Python 3.10 to 3.13"),
        (replace(GOOD, numpy=None), "numpy is not installed", "pip install numpy"),
        (replace(GOOD, numpy="1.23.5"), "numpy 1.23.5 is not supported", "pip install 'numpy>=1.24,<3'"),
        (replace(GOOD, numpy="3.0.0"), "numpy 3.0.0 is not supported", "pip install 'numpy>=1.24,<3'"),
        (replace(GOOD, scipy=None), "scipy is not installed; matching needs it", "pip install scipy"),
        (
            with_framework(GOOD, Package("torch", "1.13.1", True)),
            "torch 1.13.1 is older than 2.1, the oldest that is supported",
            "pip install -U 'torch>=2.1'",
        ),
        (
            with_framework(GOOD, Package("paddle", "3.3.1", False)),
            "paddle 3.3.1 is listed as installed, but there is nothing to import",
            "pip install --force-reinstall paddlepaddle",
        ),
        (
            with_framework(replace(GOOD, numpy="2.1.0"), Package("mindspore", "2.10.0", True)),
            "mindspore fails at its first op with numpy 2.1.0",
            "pip install 'numpy<2'",
        ),
        (
            with_framework(GOOD, Package("torch", "2.3.0", True, False, "ImportError: libtorch.so")),
            "torch cannot be used: ImportError: libtorch.so",
            "pip install --force-reinstall torch",
        ),
        (
            replace(GOOD, plugins=(Plugin("jaxy", "jaxy.adapter:A", "jaxy-twin", False),)),
            "the adapter for jaxy (jaxy.adapter:A) cannot be found",
            "pip install --force-reinstall jaxy-twin",
        ),
    ],
)
def test_problems(facts: Facts, message: str, fix: str) -> None:
    found = [(a.message, a.fix) for a in judge(facts) if a.problem]
    assert found == [(message, fix)]
    assert not Diagnosis(facts, judge(facts))


def test_what_is_no_problem() -> None:
    assert problems(replace(GOOD, numpy="2.1.0")) == []  # torch and paddle are fine with it
    both = with_framework(GOOD, Package("mindspore", "2.10.0", True))
    assert problems(both) == []
    assert [a.message for a in judge(both)] == [
        "paddle and mindspore share a process only if mindspore is imported first"
    ]
    alone = with_framework(with_framework(GOOD, Package("paddle", None, False)), Package("mindspore", "2.10.0", True))
    assert judge(alone) == ()
    nothing = replace(GOOD, frameworks=tuple(Package(n, None, False) for n in FRAMEWORKS))
    assert problems(nothing) == [] and "no framework is installed" in judge(nothing)[0].message


@pytest.mark.parametrize(
    ("version", "parts"), [("2.13.0+cpu", (2, 13, 0)), ("2.0rc1", (2, 0)), ("3", (3,)), ("weird", ())]
)
def test_versions(version: str, parts: tuple[int, ...]) -> None:
    assert _parts(version) == parts


def test_limits_are_those_of_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, (distributions, oldest) in FRAMEWORKS.items():
        assert re.search(rf'^{name} = \["{distributions[0]}>={oldest}"', text, re.MULTILINE), name
    assert f'"numpy>={NUMPY[0]},<{NUMPY[1]}"' in text
    low, high = PYTHON
    assert f'requires-python = ">={low[0]}.{low[1]},<{high[0]}.{high[1]}"' in text


def test_json_round_trip() -> None:
    diagnosis = examine()
    assert json.loads(json.dumps(diagnosis.to_dict()))["ok"] is bool(diagnosis)


def run(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    places = [*map(str, path), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in places if p), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False, timeout=120
    )


DOCTOR = "import sys; from twinscope.cli import main; code = main(['doctor', *sys.argv[1:]]);"


def test_nothing_is_imported() -> None:
    done = run(
        f"{DOCTOR} loaded = set(sys.modules) & {{'torch', 'paddle', 'mindspore'}}; sys.exit(f'{{code}} {{loaded}}')"
    )
    assert done.stderr.strip() == "0 set()"
    assert "twinscope" in done.stdout


def test_metadata_of_a_clash_is_read(tmp_path: Path) -> None:
    for name, version in (("numpy", "2.1.0"), ("mindspore", "2.10.0")):
        place = tmp_path / f"{name}-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (tmp_path / "mindspore.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    done = run(f"{DOCTOR} sys.exit(code)", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "mindspore fails at its first op with numpy 2.1.0" in done.stdout
    assert "fix: pip install 'numpy<2'" in done.stdout


def test_third_party_adapters_are_listed(tmp_path: Path) -> None:
    place = tmp_path / "gone_adapter-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: gone-adapter\nVersion: 1.0\n", encoding="utf-8")
    (place / "entry_points.txt").write_text("[twinscope.adapters]\nframework = there.no:Adapter\n", encoding="utf-8")
    done = run(f"{DOCTOR} sys.exit(code)", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "the adapter for framework (there.no:Adapter) cannot be found" in done.stdout
    (tmp_path / "there.py").write_text("", encoding="utf-8")
    done = run(f"{DOCTOR} sys.exit(code)", tmp_path)
    assert done.returncode == 0
    assert "there.no:Adapter, from gone-adapter" in done.stdout


def test_an_adapter_that_fails_is_tried_in_its_own_process(tmp_path: Path) -> None:
    place = tmp_path / "bad_adapter-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-adapter\nVersion: 1.0\n", encoding="utf-8")
    (place / "entry_points.txt").write_text("[twinscope.adapters]\nbad = badmod:Adapter\n", encoding="utf-8")
    (tmp_path / "badmod.py").write_text("import os\nos.abort()\n", encoding="utf-8")
    code = (
        "import twinscope.doctor as d; d.FRAMEWORKS = {}; f = d.examine(try_imports=True);"
        "print(f.to_dict()['plugins']['bad']['works'], bool(f))"
    )
    assert run(code, tmp_path).stdout.split() == ["False", "False"]
