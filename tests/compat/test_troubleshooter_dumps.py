"""TroubleShooter's dumps: its document's scripts, its options, its own files, and what it gets wrong."""

from __future__ import annotations

import csv
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import troubleshooter as ts
import twinscope
from compat.troubleshooter_nets import build
from twinscope.adapters._registry import by_name
from twinscope.compat.troubleshooter import api_dump, dumps
from twinscope.compat.troubleshooter.problems import ArgumentError, DumpError

pytestmark = pytest.mark.filterwarnings("ignore")

TESTS = Path(__file__).parent.parent
SCRIPTS = TESTS.parent / "examples" / "documented"
ORIGINAL = TESTS / "data" / "troubleshooter"
LABEL = {"torch": "pytorch", "paddle": "paddle", "mindspore": "mindspore"}

MAPPING = """\
The APIs mapping results of the two frameworks

| ORIGIN NET (mindspore) |  TARGET NET (pytorch) |
|------------------------|-----------------------|
|      NN_Conv2d_0       |      NN_Conv2d_0      |
|   Functional_clip_0    |      Torch_clip_0     |
|    NN_BatchNorm2d_0    |    NN_BatchNorm2d_0   |
|       NN_ReLU_0        |       NN_ReLU_0       |
|    Tensor_reshape_0    |    Tensor_reshape_0   |
|       NN_Dense_0       |      NN_Linear_0      |
|       NN_ReLU_1        |       NN_ReLU_1       |
"""
#: The header of the document's second table, and the first cells of its rows.
FORWARD = (
    "|         ORIGIN NET (mindspore)        |         TARGET NET (pytorch)         |  shape of orig  "
    "| shape of target "
    "| result of allclose | ratio of allclose | cosine similarity | mean & max diffs |"
)
#: Without the bars and spaces: names and shapes of its rows.
ROWS = """\
NN_Conv2d_0_forward_input.0.npy ; NN_Conv2d_0_forward_input.0.npy ; (1, 3, 90, 300) ; (1, 3, 90, 300)
NN_Conv2d_0_forward_output.npy ; NN_Conv2d_0_forward_output.npy ; (1, 5, 30, 100) ; (1, 5, 30, 100)
Functional_clip_0_forward_input.0.npy ; Torch_clip_0_forward_input.0.npy ; (1, 5, 30, 100) ; (1, 5, 30, 100)
Functional_clip_0_forward_output.npy ; Torch_clip_0_forward_output.npy ; (1, 5, 30, 100) ; (1, 5, 30, 100)
NN_BatchNorm2d_0_forward_input.0.npy ; NN_BatchNorm2d_0_forward_input.0.npy ; (1, 5, 30, 100) ; (1, 5, 30, 100)
NN_BatchNorm2d_0_forward_output.npy ; NN_BatchNorm2d_0_forward_output.npy ; (1, 5, 30, 100) ; (1, 5, 30, 100)
NN_ReLU_0_forward_input.0.npy ; NN_ReLU_0_forward_input.0.npy ; (1, 5, 30, 100) ; (1, 5, 30, 100)
NN_ReLU_0_forward_output.npy ; NN_ReLU_0_forward_output.npy ; (1, 5, 30, 100) ; (1, 5, 30, 100)
Tensor_reshape_0_forward_input.0.npy ; Tensor_reshape_0_forward_input.0.npy ; (1, 5, 30, 100) ; (1, 5, 30, 100)
Tensor_reshape_0_forward_output.npy ; Tensor_reshape_0_forward_output.npy ; (1, 15000) ; (1, 15000)
NN_Dense_0_forward_input.0.npy ; NN_Linear_0_forward_input.0.npy ; (1, 15000) ; (1, 15000)
NN_Dense_0_forward_output.npy ; NN_Linear_0_forward_output.npy ; (1, 10) ; (1, 10)
NN_ReLU_1_forward_input.0.npy ; NN_ReLU_1_forward_input.0.npy ; (1, 10) ; (1, 10)
NN_ReLU_1_forward_output.npy ; NN_ReLU_1_forward_output.npy ; (1, 10) ; (1, 10)
"""
BACKWARD = [
    *("NN_ReLU_1", "NN_Dense_0", "Tensor_reshape_0", "NN_ReLU_0", "NN_BatchNorm2d_0", "Functional_clip_0"),
    "NN_Conv2d_0",
]
HEADER = [
    *("ORIGIN NET (mindspore)", "TARGET NET (pytorch)", "shape of orig", "shape of target", "result of allclose"),
    *("ratio of allclose", "cosine similarity", "mean & max diffs"),
]


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    yield
    api_dump._SESSION.end()


def script(text: str, place: Path) -> str:
    (place / "script.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def document(number: str, place: Path, *swaps: tuple[str, str]) -> str:
    [path] = SCRIPTS.glob(f"troubleshooter_api_compare_{number}_*.py")
    text = path.read_text(encoding="utf-8")
    for old, new in swaps:
        assert old in text
        text = text.replace(old, new)
    return script(text, place)


def rows_of(path: Path) -> list[list[str]]:
    assert path.read_bytes().endswith(b"\n\n"), "as the original ends its files"
    return [row for row in csv.reader(path.read_text(encoding="utf-8").splitlines()) if row]


def test_the_documents_scripts(pair: tuple[str, str], tmp_path: Path) -> None:
    """Both scripts, each in its own process, and the comparison: in success and with a bug planted."""
    if pair != ("torch", "mindspore"):
        pytest.skip("the document has torch and MindSpore")
    document("1", tmp_path)
    document("2", tmp_path)
    place = tmp_path / "torch_dump" / "rank0"
    names = {p.name for p in (place / "torch_api_dump").iterdir()}
    assert {"NN_Conv2d_0_forward_input.0.npy", "NN_Conv2d_0_forward_output.npy"} < names
    assert "NN_Conv2d_0_backward_input.npy" in names and len(names) == 21
    assert json.loads((place / "torch_api_dump_stack.json").read_text())["torch.nn.Conv2d(0) forward"][0].startswith(
        "File script.py, line "
    )
    said = document("3", tmp_path)
    assert MAPPING in said and FORWARD in said
    widths = [len(part) for part in FORWARD.split("|")[1:-1]]
    begin = said.index(FORWARD)
    shown = said[begin : said.index("The backward")].splitlines()
    assert shown[1] == "|" + "|".join("-" * w for w in widths) + "|"
    for line, row in zip(shown[2:16], ROWS.splitlines(), strict=True):
        cells = line.split("|")[1:-1]
        assert [len(c) for c in cells] == widths
        for cell in cells:  # centred: the odd space stands where the original has it
            left, right = len(cell) - len(cell.lstrip()), len(cell) - len(cell.rstrip())
            assert left - right == (0 if (left + right) % 2 == 0 else 1 if len(cell.strip()) % 2 == 0 else -1)
        assert [c.strip() for c in cells[:6]] == [*row.split(" ; "), "True", "100.00%"]
    assert not shown[16]
    first = said.index("The backward comparison results")
    order = re.findall(r"^\|\s+(\w+)_backward_input.npy", said[first:], re.MULTILINE)
    assert order == BACKWARD
    found = rows_of(tmp_path / "compare_result" / "ts_api_forward_compare.csv")
    assert found[0] == HEADER and len(found) == 15 and {r[4] for r in found[1:]} == {"True"}
    assert rows_of(tmp_path / "compare_result" / "ts_api_mapping.csv")[6] == ["NN_Dense_0", "NN_Linear_0"]
    assert [r[0] for r in rows_of(tmp_path / "compare_result" / "ts_api_backward_compare.csv")[1:]] == [
        f"{name}_backward_input.npy" for name in BACKWARD
    ]
    document("2", tmp_path, ("ms.Tensor(0.5, ms.float32)", "ms.Tensor(0.45, ms.float32)"))
    said = document("3", tmp_path)
    assert MAPPING in said
    found = rows_of(tmp_path / "compare_result" / "ts_api_forward_compare.csv")
    wrong = [r[0] for r in found[1:] if r[4] != "True"]
    assert wrong[0] == "Functional_clip_0_forward_output.npy", "and nothing before it"
    answer = script(
        "import troubleshooter as ts\n"
        "answer = ts.migrator.api_dump_compare('ms_dump', 'torch_dump')\n"
        "print(answer, answer.result.first_divergence)\n",
        tmp_path,
    )
    last = answer.splitlines()[-1]
    assert last.startswith("False BUG forward"), last


def test_signatures() -> None:
    shown = {f.__name__: str(inspect.signature(f)) for f in (ts.fix_random, ts.migrator.api_dump_init)}
    assert shown["fix_random"].startswith("(seed: 'int' = 16)")
    parameters = inspect.signature(ts.migrator.api_dump_start).parameters
    assert {n: p.default for n, p in parameters.items()} == {
        "mode": "all",
        "scope": None,
        "dump_type": "all",
        "filter_data": True,
        "filter_stack": True,
        "overflow_check": False,
        "statistic_category": ["max", "min", "l2norm"],
    }
    parameters = inspect.signature(ts.migrator.api_dump_compare).parameters
    assert list(parameters) == [
        *("origin_path", "target_path", "output_path", "rtol", "atol", "equal_nan", "ignore_unmatched"),
    ]
    with pytest.raises(TypeError, match="unexpected keyword"):
        ts.migrator.api_dump_init(None, retain_backwards=True)


def dump(
    framework: str, place: Path, *, bug: bool = False, half: bool = False, backward: bool = True, **kw: Any
) -> Any:
    net, step = build(framework, bug=bug, half=half)
    by_name(framework).seed(1)
    ts.migrator.api_dump_init(net, output_path=place, retain_backward=backward)
    ts.migrator.api_dump_start(**kw)
    try:
        step()
    finally:
        ts.migrator.api_dump_stop()
    return net


def names_of(place: Path, framework: str) -> list[str]:
    path = place / "rank0" / f"{framework}_api_dump_info.csv"
    return [json.loads(line)[0] for line in path.read_text().splitlines()]


def test_every_pair_of_frameworks_is_compared(pair: tuple[str, str], tmp_path: Path) -> None:
    """Dropout is active in neither, whatever the seeds are; one factor of 1.01 is found where it is."""
    for n, framework in enumerate(pair):
        dump(framework, tmp_path / str(n))
    answer = ts.migrator.api_dump_compare(tmp_path / "0", tmp_path / "1", tmp_path / "out", ignore_unmatched=True)
    assert answer == True and answer.result  # noqa: E712 - what the documents print
    rows = rows_of(tmp_path / "out" / "ts_api_mapping.csv")
    assert rows[0] == [f"ORIGIN NET ({LABEL[pair[0]]})", f"TARGET NET ({LABEL[pair[1]]})"]
    assert sum(bool(a and b) for a, b in rows[1:]) >= 8
    dump(pair[1], tmp_path / "1", bug=True)
    answer = ts.migrator.api_dump_compare(tmp_path / "0", tmp_path / "1", tmp_path / "out", ignore_unmatched=True)
    assert answer == False and not answer.result  # noqa: E712
    found = rows_of(tmp_path / "out" / "ts_api_forward_compare.csv")
    wrong = [r[1] for r in found[1:] if r[4] != "True"]
    assert re.match(r"Tensor_(__)?r?mul(__)?_0_forward_output", wrong[0]), wrong


def test_what_the_original_loses_is_there(framework: str, tmp_path: Path) -> None:
    net = dump(framework, tmp_path / "d")
    names = names_of(tmp_path / "d", framework)
    assert any(n.startswith(("Torch_relu_0", "Functional_relu_0")) for n in names), "imported by name"
    assert any(re.match(r"\w+_(clamp|clip)_0_forward_input\.(input|x)", n) for n in names), "keyword arguments"
    place = tmp_path / "d" / "rank0" / f"{framework}_api_dump"
    if framework != "mindspore":
        before, after = (np.load(place / f"Tensor_add__0_{n}.npy") for n in ("forward_input.0", "forward_output"))
        np.testing.assert_allclose(before + 1, after, rtol=1e-6)
    given = next(n for n in names if n.startswith("NN_Dropout_0_forward_input"))
    assert np.array_equal(np.load(place / f"{given}.npy"), np.load(place / "NN_Dropout_0_forward_output.npy"))
    assert np.load(place / "NN_Dropout_0_forward_output.npy").all()
    trace = twinscope.Trace.open(tmp_path / "d" / "rank0" / f"{framework}_api_dump_trace" / "000")
    trace.verify()
    losses = [r for r in trace if "mse" in r.type.lower() and r.phase == "forward"]
    assert losses[-1].outputs()[0].meta.shape == () and losses[-1].outputs()[0].kept, "a scalar loss"
    assert {s.name for r in trace if r.phase == "gradient" for s in r.slots} == {"weight"}
    assert any(s.name == "in.0" for r in trace if r.phase == "backward" for s in r.slots), "gradients of inputs"
    assert net is not None


def test_nothing_is_left_on_the_network(framework: str, tmp_path: Path) -> None:
    net, step = build(framework)
    adapter = by_name(framework)

    def look() -> Any:
        return [{k: len(v) if isinstance(v, dict) else 0 for k, v in vars(m).items()} for m in adapter.parts(net)]

    before = look()
    ts.migrator.api_dump_init(net, output_path=tmp_path / "d")
    ts.migrator.api_dump_start()
    step()
    ts.migrator.api_dump_stop()
    assert look() == before
    step()
    values = [float(np.asarray(adapter.to_numpy(step()))) for _ in range(4)]
    assert len(set(values)) > 1, "dropout is back"
    ts.migrator.api_dump_start()
    with pytest.raises(Exception):  # noqa: B017 - each framework has its own
        net(None)
    assert look() == before, "the network raised"
    assert len({float(np.asarray(adapter.to_numpy(step()))) for _ in range(4)}) > 1
    ts.migrator.api_dump_stop()


def test_modes_and_scopes(framework: str, tmp_path: Path) -> None:
    def calls(**kw: Any) -> list[str]:
        dump(framework, tmp_path / "d", **kw)
        return list(
            dict.fromkeys(re.sub(r"_(forward|backward)_.*", "", n) for n in names_of(tmp_path / "d", framework))
        )

    every = calls()
    layer = "NN_Dense" if framework == "mindspore" else "NN_Linear"
    assert every[0] == f"{layer}_0" and every[-2] == f"{layer}_1" and "mse" in every[-1]
    assert calls(mode="list", scope=[f"{layer}_1"]) == [f"{layer}_1"]
    assert calls(mode="range", scope=["NN_Dropout_0", every[3]]) == every[1:4]
    assert calls(mode="api_list", scope=["relu", "dropout"]) == [n for n in every if re.search("relu|ropout", n)]
    for wrong, text in (
        ({"mode": "some"}, "use one of 'all', 'list', 'range', 'api_list'"),
        ({"mode": "list"}, "is not a list of names"),
        ({"mode": "list", "scope": ["Conv2d"]}, "is not of the form Type_Name_Number"),
        ({"mode": "list", "scope": ["Layer_Conv2d_0"]}, "the type is one of NN, Functional"),
        ({"mode": "range", "scope": [f"{layer}_0"]}, "the first and the last name"),
        ({"scope": [f"{layer}_0"]}, "says nothing in mode 'all'"),
        ({"mode": "list", "scope": [f"{layer}_7"]}, f"calls that ran: {layer}_"),
        ({"dump_type": "npz"}, "use one of 'all', 'statistics', 'stack', 'npy'"),
        ({"filter_data": 1}, "neither True nor False"),
        ({"statistic_category": ["median"]}, "use a list of 'max', 'min', 'avg', 'l2norm', 'md5'"),
    ):
        with pytest.raises(ArgumentError, match=re.escape(text)):
            dump(framework, tmp_path / "d", **wrong)


def test_what_is_kept(framework: str, tmp_path: Path) -> None:
    place = tmp_path / "d" / "rank0"
    info = place / f"{framework}_api_dump_info.csv"

    def lines(**kw: Any) -> dict[str, list[Any]]:
        dump(framework, tmp_path / "d", **kw)
        return {line[0]: line for line in map(json.loads, info.read_text().splitlines())}

    first = "NN_Dropout_0_forward_output"
    found = lines(dump_type="statistics", statistic_category=["max", "min", "avg", "l2norm", "md5"])
    assert not list((place / f"{framework}_api_dump").iterdir())
    _, _, _, _, shape, (high, low, mean), md5, norm = found[first]
    found = lines()
    array = np.load(place / f"{framework}_api_dump" / f"{first}.npy")
    assert shape == list(array.shape) and len(md5) == 32
    np.testing.assert_allclose([high, low, mean], [array.max(), array.min(), array.mean()], rtol=1e-5)
    np.testing.assert_allclose(norm, np.linalg.norm(array), rtol=1e-6)
    assert found[first][5][2] != found[first][5][2] and found[first][6] == [], "no mean and no md5 unasked"
    assert len(list((place / f"{framework}_api_dump").iterdir())) == len(found)
    found = lines(dump_type="npy")
    assert found[first][7] == [] and (place / f"{framework}_api_dump" / f"{first}.npy").is_file()
    lines(dump_type="stack", filter_stack=False)
    stacks = json.loads((place / f"{framework}_api_dump_stack.json").read_text())
    assert any(framework in line.split(", line")[0] for line in next(iter(stacks.values())))
    found = lines(filter_data=False, backward=False)
    assert any(line[3] == "<class 'float'>" and line[4] == [] for line in found.values())
    assert not any("_backward_" in name for name in found)
    assert lines(overflow_check=True, dump_type="statistics") == {}, "nothing overflows"


def test_bfloat16(framework: str, tmp_path: Path) -> None:
    if framework != "torch":
        pytest.skip("its CPU has no bfloat16 kernels for this network")
    dump(framework, tmp_path / "d", half=True)
    name = "NN_Linear_0_forward_output"
    array = np.load(tmp_path / "d" / "rank0" / f"{framework}_api_dump" / f"{name}.npy")
    assert array.dtype == np.float32 and np.isfinite(array).all()
    line = next(
        json.loads(text)
        for text in (tmp_path / "d" / "rank0" / f"{framework}_api_dump_info.csv").read_text().splitlines()
        if name in text
    )
    assert line[3] == f"{framework}.bfloat16"
    np.testing.assert_allclose(line[5][0], array.max(), rtol=1e-6)


def test_ranks_and_stretches(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv({"torch": "RANK", "mindspore": "RANK_ID", "paddle": "PADDLE_TRAINER_ID"}[framework], "3")
    net, step = build(framework)
    ts.migrator.api_dump_init(net, output_path=tmp_path / "d", retain_backward=True)
    for _ in range(2):
        ts.migrator.api_dump_start(dump_type="statistics")
        step()
        ts.migrator.api_dump_stop()
    [found] = dumps.open_dump(tmp_path / "d", "origin_path").values()
    assert found.place.name == "rank3" and len(found.steps) == 2 and len(found.traces) == 2
    assert found.steps[1].apis[0].name.endswith("_2"), "numbers go on"
    answer = ts.migrator.api_dump_compare(tmp_path / "d", tmp_path / "d", tmp_path / "out")
    assert answer and (tmp_path / "out" / "ts_api_forward_compare_1.csv").is_file()
    rows = rows_of(tmp_path / "out" / "ts_api_forward_compare.csv")
    assert rows[0][-1] == "max, min, mean diffs" and rows[1][-1] == "0.00000, 0.00000, nan"
    (tmp_path / "d" / "rank3" / f"{framework}_api_dump" / "mine.txt").write_text("kept")
    dump(framework, tmp_path / "d")
    assert (tmp_path / "d" / "rank3" / f"{framework}_api_dump" / "mine.txt").read_text() == "kept"
    assert len(dumps.open_dump(tmp_path / "d", "origin_path")[3].traces) == 1, "what an earlier dump wrote is gone"


def test_graph_mode_is_refused(framework: str, tmp_path: Path) -> None:
    if framework != "mindspore":
        pytest.skip("MindSpore's")
    import mindspore as ms

    net, _ = build(framework)
    ts.migrator.api_dump_init(net, output_path=tmp_path / "d")
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(twinscope.TwinscopeError, match="graph mode"):
            ts.migrator.api_dump_start()
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_dumps_that_troubleshooter_wrote_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ts.migrator.api_dump_compare(ORIGINAL / "ms_dump", ORIGINAL / "torch_dump", tmp_path / "out")
    said = capsys.readouterr().out
    assert answer and answer.result.verdict is not twinscope.Overall.DIFFERENT
    assert MAPPING in said and "NN_Dense_0_backward_input.npy" in said and "LAYER" not in said
    shutil.copytree(ORIGINAL / "ms_dump", tmp_path / "ms")
    bad = tmp_path / "ms" / "rank0" / "mindspore_api_dump" / "NN_BatchNorm2d_0_forward_output.npy"
    array = np.load(bad)
    np.save(bad, array * 1.01)
    answer = ts.migrator.api_dump_compare(tmp_path / "ms", ORIGINAL / "torch_dump", tmp_path / "out")
    assert not answer
    rows = rows_of(tmp_path / "out" / "ts_api_forward_compare.csv")
    assert [r[0] for r in rows[1:] if r[4] != "True"] == ["NN_BatchNorm2d_0_forward_output.npy"]
    assert ts.migrator.api_dump_compare(tmp_path / "ms", ORIGINAL / "torch_dump", rtol=0.1, atol=0.1)


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="no dump lies there"):
        ts.migrator.api_dump_compare(tmp_path, ORIGINAL / "torch_dump")
    with pytest.raises(ArgumentError, match="rtol=-1 is not a tolerance"):
        ts.migrator.api_dump_compare(ORIGINAL / "ms_dump", ORIGINAL / "torch_dump", rtol=-1)
    with pytest.raises(ArgumentError, match="ignore_unmatched='yes' is neither"):
        ts.migrator.api_dump_compare(ORIGINAL / "ms_dump", ORIGINAL / "torch_dump", ignore_unmatched="yes")  # type: ignore[arg-type]
    shutil.copytree(ORIGINAL / "ms_dump", tmp_path / "ms")
    path = tmp_path / "ms" / "rank0" / "mindspore_api_dump_info.csv"
    path.write_text(path.read_text() + '["NN_X_0_forward_output", 1]\n')
    with pytest.raises(DumpError, match="line 22: not a line of a dump"):
        ts.migrator.api_dump_compare(tmp_path / "ms", ORIGINAL / "torch_dump")


def test_before_its_time(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_dump, "_SESSION", api_dump._Session())
    for call in (ts.migrator.api_dump_start, ts.migrator.api_dump_stop):
        with pytest.raises(DumpError, match=r"before api_dump_init\(\)"):
            call()
    with pytest.raises(twinscope.TwinscopeError):
        ts.migrator.api_dump_init("no network", output_path=tmp_path)


def test_fix_random(framework: str) -> None:
    adapter = by_name(framework)
    found = []
    for _ in range(2):
        ts.fix_random()
        found.append((adapter.random_state(), np.random.rand()))
    assert found[0] == found[1]
    ts.fix_random(17)
    assert np.random.rand() != found[0][1]
    with pytest.raises(ArgumentError, match="seed='x'"):
        ts.fix_random("x")  # type: ignore[arg-type]
