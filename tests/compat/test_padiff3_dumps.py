"""PaDiff 0.3, one model at a time: proxies, their reports, lists and dumps, and the offline checks of two dumps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinscope
from compat.padiff3_nets import X, array, gradients_of, net, shift, tensor, trainable, update
from padiff import (
    auto_diff,
    check_grads,
    check_params,
    check_report,
    check_weights,
    create_model,
    get_dump_root_path,
    set_dump_root_path,
)
from twinscope import TwinscopeError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def dump_root(tmp_path: Path) -> Any:
    before = get_dump_root_path()
    set_dump_root_path(tmp_path / "root")
    yield tmp_path / "root"
    set_dump_root_path(before)


def twins(pair: tuple[str, str], **options: Any) -> tuple[Any, Any]:
    """Two models of the same weights."""
    models = net(pair[0]), net(pair[1], **options)
    twinscope.copy_weights(*models)
    return models


def step(framework: str, proxy: Any, x: Any = X) -> dict[str, Any]:
    given: dict[str, Any] = proxy.backward(proxy(tensor(framework, x)).mean())
    return given


def train(pair: tuple[str, str], models: tuple[Any, Any], folder: Path, steps: int, spoil: int = -1) -> None:
    """The loop of the document, on both sides; before the step `spoil` the second model's bias is changed."""
    for side, framework, model in zip("ab", pair, models, strict=True):
        proxy = create_model(model, side)
        for i in range(steps):
            if side == "b" and i == spoil:
                shift(framework, model, "block.second.bias", 0.01)
            given = step(framework, proxy)
            place = folder / side / f"step_{i}"
            proxy.dump_report(place)
            proxy.dump_params(place)
            proxy.dump_grads(place)
            update(framework, proxy, given)
            proxy.dump_weights(place)
            proxy.clear_report()


CHECKS = (check_report, check_params, check_grads, check_weights)


def test_a_good_port_passes_every_check_over_all_steps(pair: tuple[str, str], tmp_path: Path) -> None:
    train(pair, twins(pair), tmp_path, 3)
    for check in CHECKS:
        answer = check(tmp_path / "a", tmp_path / "b", cfg={"compare_mode": "strict"})
        assert answer == True  # noqa: E712 - as scripts write it
        assert list(answer.results) == ["step_0", "step_1", "step_2"]
        assert answer.result


def test_a_wrong_third_step_is_found(pair: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    train(pair, twins(pair), tmp_path, 3, spoil=2)
    for check in CHECKS:
        answer = check(tmp_path / "a", tmp_path / "b")
        wanted = {"step_0": True, "step_1": True, "step_2": False}
        assert not answer and {k: bool(v) for k, v in answer.results.items()} == wanted
        assert not answer.result
    found = check_report(tmp_path / "a", tmp_path / "b").result.first_divergence
    assert found is not None and found.reference is not None and found.reference.startswith("block.second")
    printed = capsys.readouterr().out
    assert "[AutoDiff] FAILED !!!" in printed and "<---  *** HERE ***" in printed
    assert "Route: a.block.second" in printed and "Diff found in Forward Stage" in printed


def test_a_report_grows_until_it_is_cleared(pair: tuple[str, str], tmp_path: Path) -> None:
    models = twins(pair)
    for spoiled in (False, True):
        for side, framework, model in zip("ab", pair, models, strict=True):
            proxy = create_model(model, side)
            for i in range(3):
                x = X + 1 if spoiled and side == "b" and i == 2 else X
                step(framework, proxy, x)
            proxy.dump_report(tmp_path / side)
            tree = json.loads((tmp_path / side / "report.json").read_text())["tree"]
            assert [node["name"] for node in tree] == ["Net"] * 3
            proxy.clear_report()
            step(framework, proxy)
            proxy.dump_report(tmp_path / f"{side}_cleared")
            assert len(json.loads((tmp_path / f"{side}_cleared" / "report.json").read_text())["tree"]) == 1
        answer = check_report(tmp_path / "a", tmp_path / "b")
        assert bool(answer) is not spoiled
        if spoiled:
            assert answer.result.first_divergence.step == 2


# -- what a dump is --------------------------------------------------------------------------------------------------


def nodes(tree: Any) -> list[dict[str, Any]]:
    found = []
    for node in tree if isinstance(tree, list) else [tree]:
        found += [node, *nodes(node["children"])]
    return found


def report(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return content


def routes(folder: Path) -> list[str]:
    return [n["route"] for n in nodes(report(folder)["tree"]) if n["type"] != "api"]


def test_a_report_has_the_documented_form(framework: str, tmp_path: Path) -> None:
    proxy = create_model(net(framework), name="Simple")
    output = proxy(tensor(framework, X))
    proxy.backward(output.mean())
    proxy.dump_report(tmp_path)
    content = report(tmp_path)
    assert content["model_name"] == "Simple" and content["framework"] == framework
    assert content["file_path"] == "report.json"
    assert content["layer_map"]["route"] == [] and content["layer_map"]["fullname"] == []
    assert routes(tmp_path) == ["Simple", "Simple.block", "Simple.block.first", "Simple.block.second", "Simple.head"]
    root = content["tree"][0]
    assert {"name", "route", "type", "fwd_outputs", "bwd_grads", "metas", "children", "stack"} <= root.keys()
    assert {"fwd_step", "bwd_step", "net_id"} <= root["metas"].keys()
    assert {"path", "shape", "dtype", "place"} <= root["fwd_outputs"][0].keys()
    saved = np.load(tmp_path / root["fwd_outputs"][0]["path"])
    assert np.array_equal(saved, array(framework, output))
    head = next(n for n in nodes(content["tree"]) if n["route"] == "Simple.head")
    assert head["type"] == "net" and len(head["bwd_grads"]) == 1 and head["children"] == []
    assert np.load(tmp_path / head["bwd_grads"][0]["path"]).shape == X.shape
    assert [n["type"] for n in nodes(content["tree"])].count("api") >= 2  # relu, add, times
    assert os.path.basename(__file__) in root["stack"]


def test_params_have_the_documented_form(framework: str, tmp_path: Path) -> None:
    proxy = create_model(net(framework), name="Simple")
    given = step(framework, proxy)
    gradients = gradients_of(framework, proxy, given)
    proxy.dump_params(tmp_path)
    proxy.dump_weights(tmp_path / "w")
    proxy.dump_grads(tmp_path / "g")
    tree = json.loads((tmp_path / "params.json").read_text())["tree"]
    head = next(n for n in nodes(tree) if n["route"] == "Simple.head")
    assert head["available"] is True and head["repr"].split("(")[0] == head["name"]
    assert set(head["weights"]) == {"weight", "bias"} == set(head["grads"])
    weight = trainable(framework, proxy.model)["head.weight"]
    assert np.array_equal(np.load(tmp_path / head["weights"]["weight"]), array(framework, weight))
    assert np.array_equal(np.load(tmp_path / head["grads"]["weight"]), gradients["head.weight"])
    only = [
        nodes(json.loads(p.read_text())["tree"])[-1] for p in (tmp_path / "w/weights.json", tmp_path / "g/grads.json")
    ]
    assert only[0]["weights"] and not only[0]["grads"] and only[1]["grads"] and not only[1]["weights"]


def test_a_dump_has_relative_names_only_and_can_be_moved(pair: tuple[str, str], tmp_path: Path) -> None:
    train(pair, twins(pair), tmp_path / "here", 1)
    for text in (p.read_text() for p in (tmp_path / "here").rglob("*.json")):
        assert str(tmp_path) not in text and '"/' not in text
    (tmp_path / "here").rename(tmp_path / "there")
    assert check_report(tmp_path / "there/a", tmp_path / "there/b")
    (tmp_path / "there/a/step_0/tensors/tensor_0.npy").unlink()
    with pytest.raises(TwinscopeError, match=r"tensor_0\.npy is not there"):
        check_report(tmp_path / "there/a", tmp_path / "there/b")


def test_what_lies_in_the_npy_files_is_what_is_compared(pair: tuple[str, str], tmp_path: Path) -> None:
    train(pair, twins(pair), tmp_path, 1)
    out = report(tmp_path / "b/step_0")["tree"][0]["fwd_outputs"][0]["path"]
    place = tmp_path / "b/step_0" / out
    np.save(place, np.load(place) + np.float32(0.5))
    assert not check_report(tmp_path / "a", tmp_path / "b")
    assert check_params(tmp_path / "a", tmp_path / "b")


def test_a_hostile_dump_reaches_nothing_outside(framework: str, tmp_path: Path) -> None:
    proxy = create_model(net(framework), "a")
    step(framework, proxy)
    proxy.dump_report(tmp_path / "a")
    place = tmp_path / "a/report.json"
    good = place.read_text()
    for name in ("../secret.npy", str(tmp_path / "secret.npy")):
        np.save(tmp_path / "secret.npy", X)
        place.write_text(good.replace("tensors/tensor_0.npy", name))
        with pytest.raises(TwinscopeError, match="does not lie in the dump"):
            check_report(tmp_path / "a", tmp_path / "a")
    place.write_text(good)
    os.symlink(tmp_path / "secret.npy", tmp_path / "a/tensors/link.npy")
    place.write_text(good.replace("tensors/tensor_0.npy", "tensors/link.npy"))
    with pytest.raises(TwinscopeError, match="leads out of the dump"):
        check_report(tmp_path / "a", tmp_path / "a")
    for broken in (good[:-50], good.replace('"value": 0', '"value": "x"'), '{"format": "other"}'):
        place.write_text(broken)
        with pytest.raises(TwinscopeError, match=r"Hint: dump again|Hint: docs"):
            check_report(tmp_path / "a", tmp_path / "a")


def test_nothing_of_the_users_is_deleted(framework: str, tmp_path: Path) -> None:
    mine = [tmp_path / "d" / name for name in ("notes.txt", "tensors/tensor_0.npy", "tensors/more/x.npy", "weights/w")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    proxy = create_model(net(framework), "a")
    for _ in range(2):
        step(framework, proxy)
        proxy.dump_report(tmp_path / "d")
        proxy.dump_params(tmp_path / "d")
        proxy.clear_report()
    assert [p.read_text() for p in mine] == ["mine"] * 4
    named = {t["path"] for n in nodes(report(tmp_path / "d")["tree"]) for t in n["fwd_outputs"]}
    assert "tensors/tensor_0.npy" not in named
    files = {p.name for p in (tmp_path / "d/tensors").glob("*.npy")} - {"tensor_0.npy"}
    entries = [t["path"] for n in nodes(report(tmp_path / "d")["tree"]) for k in n for t in _tensors(n, k)]
    assert files == {os.path.basename(e) for e in entries if e}  # and nothing is left of the first dump
    (tmp_path / "d/report.json").write_text("mine")
    with pytest.raises(TwinscopeError, match="is in the way and is no dump"):
        proxy.dump_report(tmp_path / "d")
    assert (tmp_path / "d/report.json").read_text() == "mine"


def _tensors(node: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node[key] if key.startswith(("fwd_", "bwd_")) else []
    return found


# -- try_dump and places ---------------------------------------------------------------------------------------------


def test_try_dump_dumps_every_so_many_calls(framework: str, dump_root: Path) -> None:
    proxy = create_model(net(framework), "Simple")
    for _ in range(7):
        step(framework, proxy)
        proxy.try_dump(per_step=3)
    found = sorted(p.relative_to(dump_root).as_posix() for p in dump_root.rglob("*.json"))
    wanted = [f"Simple/step_{i}/rank_0/{name}.json" for i in (2, 5) for name in ("params", "report")]
    assert found == wanted
    assert len(report(dump_root / "Simple/step_2/rank_0")["tree"]) == 1  # cleared by the calls in between
    for bad in (0, 1.5, True):
        with pytest.raises(TwinscopeError, match="per_step="):
            proxy.try_dump(per_step=bad)


def test_try_dump_takes_a_folder(framework: str, tmp_path: Path, dump_root: Path) -> None:
    proxy = create_model(net(framework))
    for _ in range(2):
        step(framework, proxy)
        proxy.try_dump(2, tmp_path / "mine")
    assert sorted(p.name for p in (tmp_path / "mine").glob("*.json")) == ["params.json", "report.json"]
    assert not dump_root.exists()


def test_all_steps_and_all_ranks_are_checked(pair: tuple[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    for spoiled in (None, ("1", 2), ("0", 1)):
        set_dump_root_path(tmp_path / str(spoiled))
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            models = twins(pair)
            for side, framework, model in zip("ab", pair, models, strict=True):
                proxy = create_model(model, side)
                for i in range(3):
                    step(framework, proxy, X + 1 if side == "b" and spoiled == (rank, i) else X)
                    proxy.try_dump()
        root = Path(get_dump_root_path())
        answer = check_report(root / "a", root / "b")
        assert len(answer.results) == 6 and bool(answer) is (spoiled is None)
        bad = [place for place, result in answer.results.items() if not result]
        assert bad == ([] if spoiled is None else [f"step_{spoiled[1]}/rank_{spoiled[0]}"])
    (tmp_path / "None/b/step_1/rank_1/report.json").unlink()
    with pytest.raises(TwinscopeError, match=r"has no report.json for step_1/rank_1, which the other dump has"):
        check_report(tmp_path / "None/a", tmp_path / "None/b")


def test_the_order_of_steps_is_that_of_numbers(framework: str, tmp_path: Path) -> None:
    proxy = create_model(net(framework), "a")
    step(framework, proxy)
    for i in (10, 9, 2):
        proxy.dump_report(tmp_path / f"step_{i}")
    assert list(check_report(tmp_path, tmp_path).results) == ["step_2", "step_9", "step_10"]
    with pytest.raises(TwinscopeError, match=r"has no params\.json, nor a step"):
        check_params(tmp_path, tmp_path)
    with pytest.raises(TwinscopeError, match="is no folder"):
        check_params(tmp_path / "nowhere", tmp_path)


# -- tolerance -------------------------------------------------------------------------------------------------------


def test_cfg(framework: str, tmp_path: Path) -> None:
    for side in "ab":
        proxy = create_model(net(framework), side)
        proxy(tensor(framework, X))
        proxy.dump_report(tmp_path / side)
    place = tmp_path / "b" / report(tmp_path / "b")["tree"][0]["fwd_outputs"][0]["path"]
    good = np.load(place)
    spoiled = good.copy()
    spoiled[0, 0] += 1e-3  # of 20 elements: the mean error is 5e-5
    np.save(place, spoiled)
    assert check_report(tmp_path / "a", tmp_path / "b")
    assert not check_report(tmp_path / "a", tmp_path / "b", cfg={"compare_mode": "strict"})
    assert not check_report(tmp_path / "a", tmp_path / "b", cfg={"atol": 1e-5})
    assert check_report(tmp_path / "a", tmp_path / "b", cfg={"atol": 2e-3, "compare_mode": "strict"})
    assert check_report(tmp_path / "a", tmp_path / "b"), "the cfg of the calls before is forgotten"
    np.save(place, good[::-1])  # the same mean, every row in another's place
    assert not check_report(tmp_path / "a", tmp_path / "b")
    for cfg, text in (
        ({"atoll": 1}, "cfg has no 'atoll'\nHint: it has 'atol', 'rtol', 'compare_mode'"),
        ({"compare_mode": "median"}, "compare_mode='median' is not known\nHint: use one of 'mean', 'strict'"),
        ({"atol": "1"}, "atol='1' is not a number"),
        (3, "cfg=3 is not a dict"),
    ):
        with pytest.raises(TwinscopeError) as caught:
            check_report(tmp_path / "a", tmp_path / "b", cfg=cfg)  # type: ignore[arg-type]
        assert text in str(caught.value)


def test_a_gradient_on_one_side_only_is_a_difference(pair: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    train(pair, twins(pair), tmp_path, 1)
    assert check_grads(tmp_path / "a", tmp_path / "b")
    place = tmp_path / "b/step_0/grads.json"
    content = json.loads(place.read_text())
    head = next(n for n in nodes(content["tree"]) if n["route"] == "b.head")
    head["grads"]["bias"] = None
    head["metas"]["grads"]["slots"] = [s for s in head["metas"]["grads"]["slots"] if s["name"] != "bias"]
    place.write_text(json.dumps(content))
    assert not check_grads(tmp_path / "a", tmp_path / "b")
    assert "Found grad in raw_model is `None`, when another is not: head.bias" in capsys.readouterr().out


def test_nothing_compared_is_no_pass(framework: str, tmp_path: Path) -> None:
    proxy = create_model(net(framework), "a")
    proxy.dump_grads(tmp_path)
    with pytest.raises(TwinscopeError, match="nothing to compare"):
        check_grads(tmp_path, tmp_path)


# -- lists -----------------------------------------------------------------------------------------------------------

ALL = {"", "block", "block.first", "block.second", "head"}


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("self", {"", "block.first", "block.second", "head"}),
        ("sublayers", {"", "block", "head"}),
        ("all", {"", "head"}),
    ],
)
def test_black_lists(framework: str, tmp_path: Path, mode: str, left: set[str]) -> None:
    model = net(framework)
    proxy = create_model(model, "m")
    proxy.update_black_list([model.block], mode)
    assert _seen(framework, proxy, tmp_path) == left
    plain = create_model(model, "m")
    assert _seen(framework, plain, tmp_path / "plain") == ALL


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("self", {"", "block"}),
        ("sublayers", {"", "block.first", "block.second"}),
        ("all", {"", "block", "block.first", "block.second"}),
    ],
)
def test_white_lists_beat_black_ones(framework: str, tmp_path: Path, mode: str, left: set[str]) -> None:
    model = net(framework)
    proxy = create_model(model, "m")
    proxy.update_black_list([model.block, model.head], "all")
    proxy.update_white_list(model.block, mode)
    assert _seen(framework, proxy, tmp_path) == left


def _seen(framework: str, proxy: Any, folder: Path) -> set[str]:
    """The layers in the report; those that parameters were dumped of are the same, but for the root of a white list."""
    step(framework, proxy)
    proxy.dump_report(folder)
    proxy.dump_params(folder)
    found = {route.partition(".")[2] for route in routes(folder)}
    held = [n for n in nodes(json.loads((folder / "params.json").read_text())["tree"]) if n["available"]]
    assert {n["metas"]["path"] for n in held} | {""} == found
    for n in held:
        assert n["weights"] or n["metas"]["path"] in ("", "block")
    return found


def test_lists_by_class(framework: str, tmp_path: Path) -> None:
    model = net(framework)
    proxy = create_model(model, "m")
    proxy.update_black_list_with_class(type(model.head))
    assert _seen(framework, proxy, tmp_path / "black") == {"", "block"}
    proxy = create_model(model, "m")
    proxy.update_white_list_with_class(type(model.block))
    assert _seen(framework, proxy, tmp_path / "white") == {"", "block"}
    with pytest.raises(TwinscopeError, match="the model has no dict"):
        proxy.update_black_list_with_class(dict)


def test_layers_are_those_of_the_model_or_an_error(framework: str) -> None:
    model, stranger = net(framework), net(framework)
    proxy = create_model(model, "m")
    for given in (stranger.head, [model.head, stranger.head], create_model(stranger.head), "head", 3):
        with pytest.raises(TwinscopeError, match="is not a part of this model"):
            proxy.update_black_list(given, "all")
    with pytest.raises(TwinscopeError, match="no layer was given"):
        proxy.update_black_list([], "all")
    with pytest.raises(TwinscopeError, match="mode='everything' is not known\nHint: use one of 'self'"):
        proxy.update_black_list(model.head, "everything")
    proxy.update_black_list(create_model(model.head), "self")  # a proxy of a part is that part
    proxy.update_black_list([proxy.model.block.first], "self")
    proxy(tensor(framework, X))
    with pytest.raises(TwinscopeError, match="the report has calls already"):
        proxy.update_black_list(model.block, "all")


def test_what_is_on_the_black_list_does_not_count(pair: tuple[str, str], tmp_path: Path) -> None:
    for listed in (False, True):
        models = twins(pair)
        shift(pair[1], models[1], "block.first.bias", 0.01)
        shift(pair[1], models[1], "block.second.bias", -0.01)
        for side, model in zip("ab", models, strict=True):
            proxy = create_model(model, side)
            if listed:
                proxy.update_black_list(model.block, "all")
            proxy.dump_weights(tmp_path / side)
        assert bool(check_weights(tmp_path / "a", tmp_path / "b")) is listed


# -- layer map -------------------------------------------------------------------------------------------------------


def two(framework: str, swapped: bool) -> Any:
    """Two equal layers side by side; swapped they are called, and so on record, the other way round."""
    from zoo.kits import kit

    k = kit(framework)

    class Two(k.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            if swapped:
                self.b, self.a = k.linear(8, 8), k.linear(8, 8)
            else:
                self.one, self.two = k.linear(8, 8), k.linear(8, 8)

        def forward(self, x: Any) -> Any:
            if swapped:
                right = self.b(x)
                return k.tanh(self.a(x)) - right
            return k.tanh(self.one(x)) - self.two(x)

    return Two()


def test_the_layer_map_says_what_belongs_together(pair: tuple[str, str], tmp_path: Path) -> None:
    models = two(pair[0], False), two(pair[1], True)
    twinscope.copy_weights(*models, mapping={"one": "a", "two": "b"})
    for right in (True, False):
        proxies = create_model(models[0], "a"), create_model(models[1], "b")
        proxies[0].set_layer_map([models[0].one, models[0].two])
        proxies[1].set_layer_map([models[1].a, models[1].b][:: 1 if right else -1])
        for side, framework, proxy in zip("ab", pair, proxies, strict=True):
            step(framework, proxy)
            proxy.dump_report(tmp_path / side)
            proxy.dump_weights(tmp_path / side)
        assert report(tmp_path / "a")["layer_map"]["route"] == ["a.one", "a.two"]
        assert [n["type"] for n in nodes(report(tmp_path / "b")["tree"])].count("in map") == 2
        assert bool(check_report(tmp_path / "a", tmp_path / "b")) is right
        assert bool(check_weights(tmp_path / "a", tmp_path / "b")) is right
        for proxy in proxies:
            proxy.clear_report()
        given = {"x": tensor(pair[0], X)}, {"x": tensor(pair[1], X)}
        assert bool(auto_diff(*proxies, given, atol=1e-4, auto_init=False)) is right
    proxies[1].clear_report()
    proxies[1].set_layer_map([models[1].a])
    proxies[1](tensor(pair[1], X))
    proxies[1].dump_report(tmp_path / "b")
    with pytest.raises(TwinscopeError, match="the layer maps have 2 and 1 layers"):
        check_report(tmp_path / "a", tmp_path / "b")
    with pytest.raises(TwinscopeError, match="is in the layer map twice"):
        create_model(models[0]).set_layer_map([models[0].one, models[0].one])


# -- proxies ---------------------------------------------------------------------------------------------------------


def test_a_proxy_is_in_the_models_place(framework: str) -> None:
    model = net(framework)
    plain = array(framework, model(tensor(framework, X)))
    proxy = create_model(model, "m")
    assert array(framework, proxy(tensor(framework, X))).tobytes() == plain.tobytes()
    assert proxy.model is model and create_model(proxy) is proxy
    assert proxy.fullname == f"{framework}::Net" and proxy.framework == framework
    assert create_model(net(framework)).name == "Net"
    with pytest.raises(TwinscopeError, match="int is not a model of a known framework"):
        create_model(3)
    for name in ("", "a/b", "..", 3):
        with pytest.raises(TwinscopeError, match="cannot be the name of a folder"):
            create_model(model, name)  # type: ignore[arg-type]


def test_what_raises_leaves_nothing_behind(framework: str, tmp_path: Path) -> None:
    model = net(framework, raises=True)
    proxy = create_model(model, "m")
    before = _hooks(model)
    with pytest.raises(KeyError, match="on purpose"):
        proxy(tensor(framework, X))
    assert _hooks(model) == before
    proxy.dump_report(tmp_path)
    assert "m.block" in routes(tmp_path)
    proxy.clear_report()
    good = create_model(net(framework), "g")
    step(framework, good)
    assert gradients_of(framework, good, good._watched.gradients)


def _hooks(model: Any) -> int:
    return sum(
        len(v)
        for _, module in twinscope.modules_of(model)
        for k, v in vars(module).items()
        if "hook" in k and hasattr(v, "__len__")
    )


def test_apis_are_left_out_where_the_environment_says_so(framework: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PADIFF_API_CHECK", "OFF")
    proxy = create_model(net(framework), "m")
    step(framework, proxy)
    proxy.dump_report(tmp_path)
    assert {n["type"] for n in nodes(report(tmp_path)["tree"])} == {"net"}
