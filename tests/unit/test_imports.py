"""What is imported when: proved in a fresh interpreter, and read off the source."""

from __future__ import annotations

import ast
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import twinscope
from unit.result_factory import write_trace

SOURCE = Path(twinscope.__file__).parent
FRAMEWORKS = ("torch", "paddle", "mindspore", "jax", "tensorflow", "keras")
HEAVY = ("scipy", "rich", "typer", "ml_dtypes", "numpy")


def loaded(code: str, *arguments: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after running `code`."""
    report = "\nimport sys; print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code + report, *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("LOADED"))
    return set(line.split()[1:])


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    return [str(write_trace(tmp_path / name, framework=name)) for name in ("torch", "paddle")]


def test_importing_twinscope_imports_next_to_nothing() -> None:
    found = loaded("import twinscope")
    assert "twinscope" in found
    assert not found & {*FRAMEWORKS, *HEAVY}


def test_the_check_itself_can_fail() -> None:
    assert "scipy" in loaded("import twinscope, scipy")


def test_every_public_name_comes_without_a_framework() -> None:
    found = loaded("import twinscope\nfor name in twinscope.__all__: getattr(twinscope, name)")
    assert "numpy" in found and not found & set(FRAMEWORKS)


def test_comparing_two_stored_traces_imports_no_framework(traces: list[str]) -> None:
    code = "import sys, twinscope\nr = twinscope.compare(*sys.argv[1:3])\nassert r, str(r)\nstr(r), r.to_dict()"
    assert not loaded(code, *traces) & set(FRAMEWORKS)


@pytest.mark.parametrize("command", ["compare", "show", "doctor"])
def test_the_command_line_imports_no_framework(traces: list[str], command: str) -> None:
    arguments = {"compare": traces, "show": traces[:1], "doctor": []}[command]
    code = (
        "import sys\nsys.argv[0] = 'twinscope'\nfrom twinscope.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert end.code in (0, None, 1), end.code"
    )
    found = loaded(code, command, *arguments)
    assert "twinscope" in found and not found & set(FRAMEWORKS)


def imported(tree: ast.AST) -> set[str]:
    """Top-level packages that a file imports, at any level of nesting."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__"):
                found.add(str(node.args[0].value).partition(".")[0])
    return found


def test_frameworks_are_imported_by_their_adapters_only() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 20
    allowed = {file: {name} for name in FRAMEWORKS for file in (SOURCE / "adapters").rglob(f"{name}.py")}
    allowed[SOURCE / "demo.py"] = set(FRAMEWORKS)
    for file in files:
        extra = imported(ast.parse(file.read_text())) & set(FRAMEWORKS)
        assert extra <= allowed.get(file, set()), f"{file.name} imports {extra}"
    assert imported(ast.parse((SOURCE / "adapters" / "torch.py").read_text())) >= {"torch"}


def test_the_reader_of_imports_reads_all_of_them() -> None:
    code = "def f():\n    import torch.nn\n    from paddle import nn\n    importlib.import_module('mindspore.ops')"
    assert imported(ast.parse(code)) == {"torch", "paddle", "mindspore"}
    assert imported(ast.parse("from . import torch\nfrom .torch import x")) == set()


def test_no_public_name_is_a_module() -> None:
    """Importing the module would put it in the name's place."""
    modules = {m.name for m in pkgutil.iter_modules([str(SOURCE)])}
    assert "store" in modules
    assert not modules & set(twinscope.__all__)


def test_print_is_for_the_command_line() -> None:
    """And for the one place where the documented systems, which print, do so."""
    for file in SOURCE.rglob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "exit")
        ]
        assert not calls or file.name in ("cli.py", "console.py"), file.name


def test_no_pickle_anywhere() -> None:
    """But in the one function that is for those who ask for it by name: allow_pickle=True, for a .pdparams."""
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        if file.name == "paddle_pickle.py":
            tree.body = [node for node in tree.body if getattr(node, "name", "") != "read_with_pickle"]
        assert not imported(tree) & {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
