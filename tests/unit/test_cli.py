"""The command line: exit codes, what it prints, what it never prints."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import twinscope
from twinscope.cli import app, main
from twinscope.report.mapping import render_map
from twinscope.weights.transforms import Transpose
from twinscope.weights.weightmap import Entry, Held, WeightMap
from unit.result_factory import write_trace

SRC = Path(twinscope.__file__).parents[1]
COMMANDS = ("compare", "show", "doctor", "align", "demo", "map", "convert")


def run(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(SRC), "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **environment}
    code = "import sys; from twinscope.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=env, check=False, timeout=120)


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A reference, a faithful port, and a port with a bug in its relu."""
    return (
        write_trace(tmp_path / "ref"),
        write_trace(tmp_path / "good", framework="paddle"),
        write_trace(tmp_path / "bad", framework="paddle", factor=1.01),
    )


# -- exit codes, in real processes -----------------------------------------------------------------------------------


def test_same_is_0(traces: tuple[Path, Path, Path]) -> None:
    done = run("compare", traces[0], traces[1])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("SAME: ")


def test_different_is_1(traces: tuple[Path, Path, Path]) -> None:
    done = run("compare", traces[0], traces[2])
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("DIFFERENT: ")
    assert "(root) · relu  net.py:12" in done.stdout


def test_undecided_is_2_and_says_why(tmp_path: Path, traces: tuple[Path, Path, Path]) -> None:
    half = write_trace(tmp_path / "half", framework="paddle", backward=False)
    done = run("compare", traces[0], half)
    assert done.returncode == 2
    assert done.stdout.startswith("UNDECIDED: ")
    assert "undecided: step 0: nothing of phase backward could be compared" in done.stderr


def test_no_such_trace_is_2(tmp_path: Path, traces: tuple[Path, Path, Path]) -> None:
    done = run("compare", traces[0], tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ") and "there is no such directory" in lines[0]
    assert lines[1].startswith("Hint: a trace is a directory")
    assert "Traceback" not in done.stderr
    assert "Traceback" in run("compare", traces[0], tmp_path / "nowhere", "--debug").stderr


def test_a_damaged_trace_is_2(traces: tuple[Path, Path, Path]) -> None:
    (traces[1] / "manifest.json").write_text("{", encoding="utf-8")
    done = run("compare", traces[0], traces[1])
    assert done.returncode == 2
    assert "manifest.json is damaged" in done.stderr


def test_a_fault_of_our_own_is_2_and_not_1(traces: tuple[Path, Path, Path]) -> None:
    code = (
        "import sys, twinscope.comparing as c\n"
        "def broken(*a, **k): raise RuntimeError('oh')\n"
        "c.compare = broken\n"
        "from twinscope.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "compare", str(traces[0]), str(traces[1])]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(SRC)}, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: RuntimeError: oh\nHint: this is a fault of twinscope")


@pytest.mark.parametrize(
    "args", [(), ("compare",), ("compare", "a"), ("nothing",), ("compare", "a", "b", "--atoll", "1")]
)
def test_misuse_is_2(args: tuple[str, ...]) -> None:
    assert run(*args).returncode == 2


def test_help_and_version_are_0_and_load_no_framework() -> None:
    assert run("--version").stdout == f"twinscope {twinscope.__version__}\n"
    code = (
        "import sys; from twinscope.cli import main; main(['--help']);"
        "sys.exit(str({'numpy', 'scipy', 'torch', 'paddle', 'mindspore'} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env, timeout=60
    )
    assert done.stderr.strip() == "set()"
    assert all(command in done.stdout for command in COMMANDS)


def test_head_does_not_upset_it(traces: tuple[Path, Path, Path]) -> None:
    code = "import sys; from twinscope.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "show", str(traces[0])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), said) == (0, b"")


def test_no_colour_in_pipes_and_ascii_on_dumb_terminals(traces: tuple[Path, Path, Path]) -> None:
    done = run("compare", traces[0], traces[2], TERM="dumb")
    assert done.stdout.isascii()
    assert "\x1b" not in run("compare", traces[0], traces[2], TERM="xterm-256color").stdout


def test_ascii_where_the_encoding_has_no_more(traces: tuple[Path, Path, Path]) -> None:
    done = run("compare", traces[0], traces[2], PYTHONIOENCODING="ascii", TERM="xterm")
    assert done.returncode == 1
    assert done.stdout.isascii() and "(root) : relu" in done.stdout


# -- texts -----------------------------------------------------------------------------------------------------------


def invoke(*args: object) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "100"})
    return found.exit_code, found.stdout, found.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    code, out, _ = invoke(command, "--help")
    assert code == 0
    assert f"Example:  twinscope {command}" in out


def test_files_are_written(tmp_path: Path, traces: tuple[Path, Path, Path]) -> None:
    code, _, _ = invoke("compare", traces[0], traces[2], "--json", tmp_path / "r.json", "--csv", tmp_path / "r.csv")
    assert code == 1
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["verdict"] == "DIFFERENT"
    with open(tmp_path / "r.csv", encoding="utf-8", newline="") as file:
        assert any(row["verdict"] == "BUG" for row in csv.DictReader(file))


def test_unwritable_files_are_said_before_the_work(tmp_path: Path) -> None:
    code, out, err = invoke("compare", "nowhere", "nowhere", "--json", tmp_path / "no" / "r.json")
    assert (code, out) == (2, "")
    assert "there is no directory" in err and "nowhere:" not in err


def test_quiet_is_the_verdict_and_the_place(traces: tuple[Path, Path, Path]) -> None:
    code, out, _ = invoke("compare", traces[0], traces[2], "--quiet")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["DIFFERENT:", "BUG"]
    assert invoke("compare", traces[0], traces[1], "-q")[1].splitlines()[0].startswith("SAME: ")


def test_tolerances(traces: tuple[Path, Path, Path]) -> None:
    assert invoke("compare", traces[0], traces[2], "--rtol", "0.1")[0] == 0
    assert invoke("compare", traces[0], traces[2], "--rtol", "0.001")[0] == 1
    code, _, err = invoke("compare", traces[0], traces[2], "--mode", "lax")
    assert code == 2
    assert "mode='lax' is not known" in err and "Hint: use one of 'strict', 'mean'" in err


def test_phases(traces: tuple[Path, Path, Path]) -> None:
    assert invoke("compare", traces[0], traces[2], "--phase", "weight")[0] == 0
    code, _, err = invoke("compare", traces[0], traces[2], "--phase", "forwards")
    assert code == 2 and "phases='forwards' is not known" in err


def test_maps(tmp_path: Path, traces: tuple[Path, Path, Path]) -> None:
    assert invoke("compare", traces[0], traces[1], "--map", "fc=fc")[0] == 0
    (tmp_path / "map.json").write_text('{"fc": "fc"}', encoding="utf-8")
    assert invoke("compare", traces[0], traces[1], "--map", tmp_path / "map.json")[0] == 0
    code, _, err = invoke("compare", traces[0], traces[1], "--map", "fc=nothere")
    assert code == 2 and "nothere" in err
    (tmp_path / "map.json").write_text("[1]", encoding="utf-8")
    code, _, err = invoke("compare", traces[0], traces[1], "--map", tmp_path / "map.json")
    assert code == 2 and "does not hold pairs of paths" in err
    code, _, err = invoke("compare", traces[0], traces[1], "--map", "nofile.json")
    assert code == 2 and "write --map REF=CAND" in err


def test_show(traces: tuple[Path, Path, Path]) -> None:
    code, out, _ = invoke("show", traces[0], "--ops", "--slots", "--unfold")
    assert code == 0
    for said in ("fc  Linear", "relu()", "linear()", "4x5 float32", "net.py:12", "kept", "in.0"):
        assert said in out
    assert "relu()" not in invoke("show", traces[0])[1]
    assert invoke("show", traces[0], "--step", "3")[0] == 2


def test_main_returns_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main(["show", "nowhere"]) == 2
    assert "there is no such directory" in capsys.readouterr().err


def test_align_needs_files(tmp_path: Path) -> None:
    code, _, err = invoke("align", tmp_path / "a.py:build", tmp_path / "b.py:build")
    assert code == 2
    assert "reference: there is no file" in err and "Hint: write FILE:NAME" in err


# -- weights ---------------------------------------------------------------------------------------------------------


def weight_map(confidence: float = 0.99) -> WeightMap:
    return WeightMap(
        ("torch", "paddle"),
        ("Net", "Twin"),
        (Held("fc.weight", (2, 3), "float32"), Held("aux", (2,), "float32"), Held("n", (), "int64", needed=False)),
        (Held("out.weight", (3, 2), "float32"),),
        (Entry(("fc.weight",), ("out.weight",), (Transpose(),), "the only two", confidence, options=("other",)),),
        skipped_reference=("aux",),
        notes=("a note",),
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint, and the map that it is converted by."""
    weight_map().save(tmp_path / "map.json")
    save_file(
        {"fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "aux": np.ones(2, np.float32)},
        tmp_path / "a.safetensors",
    )
    return tmp_path / "a.safetensors", tmp_path / "map.json"


def test_convert(tmp_path: Path, checkpoint: tuple[Path, Path]) -> None:
    source, mapping = checkpoint
    target = tmp_path / "b.safetensors"
    done = run("convert", source, target, "--map", mapping)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{source} -> {target}: 1 names written (reference to candidate)\n")
    assert load_file(target)["out.weight"].tolist() == [[0, 3], [1, 4], [2, 5]]
    code, _, err = invoke("convert", source, target, "--map", mapping)
    assert code == 2 and "b.safetensors is there already" in err
    assert invoke("convert", source, target, "--map", mapping, "--overwrite")[0] == 0
    assert invoke("convert", target, tmp_path / "c.safetensors", "--map", mapping)[0] == 0  # the names tell
    assert np.array_equal(load_file(tmp_path / "c.safetensors")["fc.weight"], load_file(source)["fc.weight"])
    code, _, err = invoke("convert", target, tmp_path / "d.safetensors", "--map", mapping, "--forward")
    assert code == 2 and "has none of the names of that side of the map" in err
    assert not (tmp_path / "d.safetensors").exists()


def test_what_a_conversion_leaves_out_is_1(tmp_path: Path, checkpoint: tuple[Path, Path]) -> None:
    arrays = {**load_file(checkpoint[0]), "extra": np.ones(2, np.float32)}
    save_file(arrays, checkpoint[0])
    target = tmp_path / "b.safetensors"
    code, out, err = invoke("convert", checkpoint[0], target, "--map", checkpoint[1])
    assert (code, out) == (2, "") and "extra [2] is in the file and not in the torch model" in err
    assert not target.exists()
    code, out, _ = invoke("convert", checkpoint[0], target, "--map", checkpoint[1], "--no-strict")
    assert code == 1 and "left out: extra [2] is in the file" in out
    assert list(load_file(target)) == ["out.weight"]


def test_a_conversion_without_a_map_must_be_asked_for(tmp_path: Path, checkpoint: tuple[Path, Path]) -> None:
    target = tmp_path / "b.pdparams"
    code, _, err = invoke("convert", checkpoint[0], target)
    assert code == 2 and "a conversion needs --map FILE" in err and not target.exists()
    code, _, err = invoke("convert", checkpoint[0], target, "--map", checkpoint[1], "--as-is")
    assert code == 2 and "exclude each other" in err and not target.exists()
    code, out, _ = invoke("convert", checkpoint[0], target, "--as-is")
    assert code == 0 and "2 names written (as it is)" in out


def test_wrong_files_of_a_conversion_are_2(tmp_path: Path, checkpoint: tuple[Path, Path]) -> None:
    source, mapping = checkpoint
    for args, said in (
        ((source, "b.onnx", "--map", mapping), "no checkpoint format has the extension '.onnx'"),
        ((source, tmp_path / "b.pth", "--map", tmp_path / "none.json"), "none.json cannot be read"),
        ((source, tmp_path / "b.pth", "--map", source), "is not JSON"),
        ((tmp_path / "none.pth", tmp_path / "b.pth", "--map", mapping), "none.pth"),
        ((mapping, tmp_path / "b.pth", "--map", mapping), "map.json"),
    ):
        code, out, err = invoke("convert", *args)
        assert (code, out) == (2, "") and said in err and "fault of twinscope" not in err


def test_a_pickle_is_run_only_when_it_is_asked_for(tmp_path: Path, checkpoint: tuple[Path, Path]) -> None:
    evil = b"\x80\x02cbuiltins\nsorted\nq\x00]q\x01\x85q\x02Rq\x03."
    (tmp_path / "a.pdparams").write_bytes(evil)
    code, _, err = invoke("convert", tmp_path / "a.pdparams", tmp_path / "b.pth", "--as-is")
    assert code == 2 and "builtins.sorted" in err
    code, _, err = invoke("convert", tmp_path / "a.pdparams", tmp_path / "b.pth", "--as-is", "--allow-pickle")
    assert code == 2 and "builtins.sorted" not in err  # it ran, and made nothing of use


def test_map_needs_files_that_are_there(tmp_path: Path) -> None:
    code, out, err = invoke("map", tmp_path / "a.py:build", tmp_path / "b.py:build")
    assert (code, out) == (2, "") and "reference: there is no file" in err
    (tmp_path / "a.py").write_text("model = 3\nbuild = lambda: 3\n", encoding="utf-8")
    code, _, err = invoke("map", tmp_path / "a.py:model", tmp_path / "a.py:model")
    assert code == 2 and "a.py:model is a int, neither a function nor a model" in err
    code, _, err = invoke("map", tmp_path / "a.py", tmp_path / "a.py")
    assert code == 2 and "int is not a model of a known framework" in err
    both = (tmp_path / "a.py", tmp_path / "a.py")
    code, _, err = invoke("map", *both, "--inputs", tmp_path / "x.npz")
    assert code == 2 and "inputs: there is no file" in err
    code, _, err = invoke("map", *both, "-o", tmp_path / "no" / "map.json")
    assert code == 2 and "there is no directory" in err
    code, _, err = invoke("map", *both, "--hints", tmp_path / "hints.json")
    assert code == 2 and "hints.json' cannot be read" in err
    (tmp_path / "hints.json").write_text('{"map": {}, "skp": []}', encoding="utf-8")
    code, _, err = invoke("map", *both, "--hints", tmp_path / "hints.json")
    assert code == 2 and "has 'skp'" in err


def test_a_saved_map_stands_alone_and_is_for_align(
    tmp_path: Path, traces: tuple[Path, Path, Path], checkpoint: tuple[Path, Path]
) -> None:
    models = (tmp_path / "a.py", tmp_path / "b.py")
    for more in (("--map", "fc=fc"), ("--hints", "fc=fc"), ("--skip", "fc.**")):
        code, _, err = invoke("align", *models, "--map", checkpoint[1], *more)
        assert code == 2 and "is a whole map of the weights" in err
    code, _, err = invoke("align", *models, "--map", checkpoint[1])
    assert code == 2 and "reference: there is no file" in err
    code, _, err = invoke("compare", traces[0], traces[1], "--map", checkpoint[1])
    assert code == 2 and "is a map of weights, which is of no use here" in err


def test_a_map_as_text() -> None:
    said = render_map(weight_map(), width=120, unicode=False)
    assert said.splitlines() == [
        "COMPLETE: 1 entries, 0 proven by running",
        "",
        "  reference  torch, Net",
        "  candidate  paddle, Twin",
        "",
        "What becomes of what",
        "  reference  candidate   transform  why           sure",
        "  fc.weight  out.weight  transpose  the only two  0.99",
        "",
        "Without a partner",
        "  reference  n [] int64 (parameter, not needed)",
        "",
        "Skipped",
        "  reference  aux",
        "",
        "Notes",
        "  - a note",
    ]
    unsure = render_map(weight_map(0.5), width=40, unicode=False)
    assert unsure.startswith("INCOMPLETE: 1 entries")
    assert "Not sure\n  - fc.weight -> out.weight (the only\n    two); it could also be other" in unsure
    assert "  fc.weight -> out.weight\n      transpose; the only two; 0.50" in unsure
    assert max(map(len, unsure.splitlines())) <= 40
    assert render_map(weight_map(), brief=True) == "COMPLETE: 1 entries, 0 proven by running"
    assert "\x1b" not in render_map(weight_map(), unicode=False) and "\x1b" in render_map(weight_map(), color=True)
