"""The mapper against twins: the same networks under other names, in another order, in another tree, fused, split.

A map is right when the outputs agree after the copy of weights of which no two are alike, and when it pairs what is
known to belong together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import InputPair, Inputs, WeightMap, copy_weights, map_weights, weight_rule
from twinscope.adapters._registry import by_name
from twinscope.errors import MatchError, OptionError, TwinscopeError, WeightError
from twinscope.running import as_arguments
from twinscope.weights.transforms import Split
from zoo import NAMES, normal, zoo
from zoo.forms import FORMS, IMAGE, SEQUENCE, WORDS, forms
from zoo.twins import TWISTS, Twist, make_twin, tensors

pytestmark = pytest.mark.filterwarnings("ignore")

RUNNING = [n for n in NAMES if n not in ("raises", "no_parameters")]


# -- running and comparing -------------------------------------------------------------------------------------------


def fill(framework: str, model: Any, seed: int) -> None:
    """Numbers of which no two are alike, in all that is trained and in running statistics; from a seed the same."""
    adapter, noise = by_name(framework), np.random.default_rng(seed)
    for info, module in adapter.modules(model):
        state = adapter.state(module)
        for p in info.params:
            if p.tied_to is not None or "float" not in p.meta.dtype or not (p.trainable or "running" in p.role):
                continue
            if p.role == "running_var":
                values = noise.uniform(0.5, 1.5, p.meta.shape)
            else:
                values = 0.4 * noise.standard_normal(p.meta.shape) + (p.role == "weight" and len(p.meta.shape) == 1)
            adapter.assign(state[p.name], np.asarray(values).astype(adapter.to_numpy(state[p.name]).dtype))


def outputs(framework: str, model: Any, inputs: Any) -> list[Any]:
    adapter = by_name(framework)
    args, kwargs = as_arguments(adapter, inputs)
    with adapter.evaluating(model):
        made = model(*args, **kwargs)
    return [np.array(adapter.to_numpy(t)).astype(np.float64) for _, t in adapter.leaves(made)]


def distance(pair: Sequence[str], models: Sequence[Any], inputs: Sequence[Any]) -> float:
    first, second = (outputs(*given) for given in zip(pair, models, inputs, strict=True))
    assert len(first) == len(second)
    found = [0.0]
    for x, y in zip(first, second, strict=True):
        y = y.reshape(x.shape)
        assert np.array_equal(np.isfinite(x), np.isfinite(y)) or not np.isfinite(y).all()
        kept = np.isfinite(x) & np.isfinite(y)
        found.append(1.0 if not kept.any() else float(np.abs(x - y)[kept].max() / max(np.abs(x[kept]).max(), 1e-9)))
    return max(found)


def contents(framework: str, model: Any) -> dict[str, Any]:
    adapter = by_name(framework)
    return {path: np.array(adapter.to_numpy(t)) for path, t in tensors(framework, model).items()}


def equal(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return list(before) == list(after) and all(x.tobytes() == after[path].tobytes() for path, x in before.items())


def spare(pair: tuple[str, str], more: bool) -> None:
    """Skip what shows nothing that is mindspore's own: its runs take ten times as long as the others'."""
    if more and "mindspore" in pair:
        pytest.skip("the same is tried with the other frameworks, which are faster")


# -- twins of the zoo ------------------------------------------------------------------------------------------------


def twins(pair: tuple[str, str], name: str, twist: Twist) -> tuple[Any, Any, Inputs, dict[str, Any], dict[str, Any]]:
    """The reference, a twin of the candidate, inputs, and for each side what its paths are known as."""
    for seed, framework in enumerate(pair):
        by_name(framework).seed(seed)
    first, second = (zoo(framework)[name] for framework in pair)
    reference, candidate = first.build(), second.build()
    ours = make_twin(pair[0], reference, Twist())
    theirs = make_twin(pair[1], candidate, twist)
    return reference, candidate, Inputs(*first.args(), **first.kwargs()), ours, theirs


def wrong_pairs(mapping: WeightMap, ours: dict[str, Any], theirs: dict[str, Any], sure: bool = False) -> list[str]:
    """Entries that pair what is not known to belong together; those that are sure, or all."""
    roles: list[dict[str, set[str]]] = []
    for side in (ours, theirs):
        found: dict[str, set[str]] = {}
        for module, role in side.values():
            found.setdefault(module, set()).add(role)
        roles.append(found)
    wrong = []
    for e in mapping:
        if sure and not e.sure:
            continue
        modules = [{side[p][0] for p in paths} for side, paths in ((ours, e.reference), (theirs, e.candidate))]
        good = modules[0] == modules[1]
        if good and len(e.reference) == len(e.candidate) == 1:
            a, b = ours[e.reference[0]], theirs[e.candidate[0]]
            good = a[1] == b[1] or roles[0][a[0]] != roles[1][b[0]]
        if not good:
            wrong.append(f"{e.reference} -> {e.candidate} ({e.why}; {e.proof}; {e.confidence})")
    return wrong


def assert_carried(
    pair: tuple[str, str], models: Sequence[Any], mapping: WeightMap, inputs: Sequence[Any], noise: float = 1e-4
) -> None:
    """Filled anew, the two differ before the copy by this map and agree after it."""
    for seed, (framework, model) in enumerate(zip(pair, models, strict=True)):
        fill(framework, model, seed)
    assert distance(pair, models, inputs) > 1e-2
    copy_weights(*models, mapping=mapping)
    assert distance(pair, models, inputs) < noise, str(mapping)


@pytest.mark.parametrize("kind", TWISTS)
@pytest.mark.parametrize("name", RUNNING)
def test_a_twin_is_found_by_running(pair: tuple[str, str], name: str, kind: str) -> None:
    spare(pair, kind in ("renamed", "reordered"))
    reference, candidate, inputs, ours, theirs = twins(pair, name, TWISTS[kind])
    before = [contents(f, m) for f, m in zip(pair, (reference, candidate), strict=True)]
    mapping = map_weights(reference, candidate, inputs)
    assert all(equal(b, contents(f, m)) for b, f, m in zip(before, pair, (reference, candidate), strict=True))
    assert mapping.complete, str(mapping)
    assert not wrong_pairs(mapping, ours, theirs), str(mapping)
    assert_carried(pair, (reference, candidate), mapping, (inputs, inputs), 0.03 if name == "bfloat16" else 1e-4)


@pytest.mark.parametrize("seed", range(1, 3))
@pytest.mark.parametrize("name", ["mlp", "conv_bn", "transformer_block", "lstm", "recompute"])
def test_the_draw_does_not_change_the_map(pair: tuple[str, str], name: str, seed: int) -> None:
    spare(pair, seed > 1)
    reference, candidate, inputs, ours, theirs = twins(pair, name, replace(TWISTS["all"], seed=seed))
    mapping = map_weights(reference, candidate, inputs)
    assert mapping.complete, str(mapping)
    assert not wrong_pairs(mapping, ours, theirs), str(mapping)


@pytest.mark.parametrize("name", RUNNING)
def test_names_that_lie_do_not_win_over_running(pair: tuple[str, str], name: str) -> None:
    reference, candidate, inputs, ours, theirs = twins(pair, name, Twist(misnamed=True))
    mapping = map_weights(reference, candidate, inputs)
    assert mapping.complete, str(mapping)
    assert not wrong_pairs(mapping, ours, theirs), str(mapping)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", TWISTS)
@pytest.mark.parametrize("name", [n for n in NAMES if n != "no_parameters"])
def test_without_running_nothing_wrong_is_called_sure(pair: tuple[str, str], name: str, kind: str, seed: int) -> None:
    spare(pair, seed > 0 or kind in ("renamed", "renested"))
    reference, candidate, inputs, ours, theirs = twins(pair, name, replace(TWISTS[kind], seed=seed))
    mapping = map_weights(reference, candidate)
    assert not wrong_pairs(mapping, ours, theirs, sure=True), str(mapping)
    if kind == "reordered":
        assert mapping.complete, str(mapping)  # names are all that it needs
    if mapping.complete:
        if name != "raises":
            assert_carried(
                pair, (reference, candidate), mapping, (inputs, inputs), 0.03 if name == "bfloat16" else 1e-4
            )
        return
    assert all(e.options or e.why for e in mapping.unsure)
    before = contents(pair[1], candidate)
    with pytest.raises(WeightError, match="nothing was changed") as caught:
        copy_weights(reference, candidate)
    for e in mapping.unsure:  # every problem at once
        assert all(path in str(caught.value) for path in (*e.reference, *e.candidate))
    assert equal(before, contents(pair[1], candidate))


# -- other forms of the same -----------------------------------------------------------------------------------------


def build(framework: str, name: str, seed: int = 0) -> Any:
    np.random.seed(seed)
    by_name(framework).seed(seed)
    return forms(framework)[name]()


def both(pair: tuple[str, str], names: tuple[str, str]) -> tuple[Any, Any]:
    return build(pair[0], names[0]), build(pair[1], names[1], seed=1)


@pytest.mark.parametrize("way", [1, -1], ids=["there", "back"])
@pytest.mark.parametrize("names", FORMS, ids="-".join)
def test_another_form_is_found_by_running(pair: tuple[str, str], names: tuple[str, str], way: int) -> None:
    spare(pair, way == -1)
    if way == -1 and names[0] == names[1]:
        pytest.skip("the same both ways")
    given = FORMS[names][::way]
    models = both(pair, names[::way])
    before = [contents(f, m) for f, m in zip(pair, models, strict=True)]
    mapping = map_weights(*models, InputPair(*given))
    assert all(equal(b, contents(f, m)) for b, f, m in zip(before, pair, models, strict=True))
    assert mapping.complete, str(mapping)
    assert_carried(pair, models, mapping, given)
    back = mapping.inverted()  # a map works in both directions
    fill(pair[0], models[0], 7)
    copy_weights(*models[::-1], mapping=back)
    assert distance(pair, models, given) < 1e-4


@pytest.mark.parametrize("names", FORMS, ids="-".join)
def test_a_twin_of_another_form(pair: tuple[str, str], names: tuple[str, str]) -> None:
    """Everything at once: packed or split, and no name, order or place in the tree to go by."""
    spare(pair, names not in (("apart", "packed"), ("stem", "stem_flat"), ("vit", "vit_other")))
    models = both(pair, names)
    make_twin(pair[1], models[1], replace(TWISTS["all"], seed=5))
    mapping = map_weights(*models, InputPair(*FORMS[names]))
    if "bare" in names[1] and not mapping.complete:
        return  # bare matrices without names are called by nobody: which is which may be left open, but not wrong
    assert mapping.complete, str(mapping)
    assert_carried(pair, models, mapping, FORMS[names])


#: Of one name, kind and shape on both sides: only running tells that the two are not used alike.
HIDDEN = [
    ("packed", "packed_by_head"),
    ("packed", "packed_kqv"),
    ("square", "square_transposed"),
    ("two_squares", "two_squares_transposed"),
]


@pytest.mark.parametrize("names", [names for names in FORMS if names not in HIDDEN], ids="-".join)
def test_another_form_is_not_mapped_wrongly_without_running(pair: tuple[str, str], names: tuple[str, str]) -> None:
    """Either right, or said not to be sure."""
    models = both(pair, names)
    mapping = map_weights(*models)
    if mapping.complete:
        assert_carried(pair, models, mapping, FORMS[names])
        return
    before = contents(pair[1], models[1])
    with pytest.raises(WeightError, match="nothing was changed"):
        copy_weights(*models)
    assert equal(before, contents(pair[1], models[1]))


# -- what is not the same --------------------------------------------------------------------------------------------


def refused(pair: tuple[str, str], models: Sequence[Any], **options: Any) -> str:
    """What copying says when it refuses; the candidate is as it was, to the bit."""
    before = contents(pair[1], models[1])
    with pytest.raises(WeightError, match="nothing was changed") as caught:
        copy_weights(*models, **options)
    assert equal(before, contents(pair[1], models[1]))
    return str(caught.value)


@pytest.mark.parametrize("run", [False, True])
@pytest.mark.parametrize("names", [("mlp_4", "mlp"), ("mlp", "mlp_4")], ids="-".join)
def test_a_layer_that_is_missing_is_named(pair: tuple[str, str], names: tuple[str, str], run: bool) -> None:
    models = both(pair, names)
    text = refused(pair, models, inputs=SEQUENCE if run else None)
    for word in ("between.weight", "between.bias", "[12, 12]", "[12]", "has no"):
        assert word in text
    assert len([line for line in text.splitlines() if line.startswith("  ")]) == 2
    report = copy_weights(*models, strict=False)
    assert not report and len(report.left) == 2 and all("between" in line for line in report.left)
    ours, theirs = contents(pair[0], models[0]), contents(pair[1], models[1])
    for path in ("first.bias", "third.bias", "second.bias"):
        assert np.array_equal(ours[path], theirs[path])


def test_every_misfit_is_listed_at_once(pair: tuple[str, str]) -> None:
    """Nothing of an attention fits a perceptron: each side's own are named, with shapes."""
    models = both(pair, ("packed", "mlp"))
    text = refused(pair, models)
    assert all(f"{layer}.{what}" in text for layer in ("first", "second", "third") for what in ("weight", "bias"))
    assert all(f"{layer}.{what}" in text for layer in ("qkv", "out") for what in ("weight", "bias"))


def test_two_of_one_shape_that_are_swapped_are_seen(pair: tuple[str, str]) -> None:
    models = both(pair, ("towers", "towers_reordered"))
    for seed, (framework, model) in enumerate(zip(pair, models, strict=True)):
        fill(framework, model, seed)
    copy_weights(*models, mapping={"left": "right", "right": "left"})
    assert distance(pair, models, (SEQUENCE, SEQUENCE)) > 1e-2
    copy_weights(*models, mapping={"left": "left", "right": "right"})
    assert distance(pair, models, (SEQUENCE, SEQUENCE)) < 1e-4


def test_what_is_used_otherwise_is_said(pair: tuple[str, str]) -> None:
    """Patches flattened in another order: layers of one name and shape, and no order of weights that anybody knows."""
    models = both(pair, ("patches_flat", "patches_flat_channels_last"))
    mapping = map_weights(*models, IMAGE)
    assert not any(e.proof for e in mapping)
    assert any("differ" in note for note in mapping.notes)
    assert not map_weights(*both(pair, ("patches_flat", "patches_flat")), IMAGE).notes


def test_a_map_of_other_models_is_refused(pair: tuple[str, str]) -> None:
    mapping = map_weights(*both(pair, ("mlp", "mlp")))
    text = refused(pair, both(pair, ("mlp", "apart")), mapping=mapping)
    assert "first.weight" in text and "q.weight" in text


def test_what_is_tied_on_one_side_only(pair: tuple[str, str]) -> None:
    """From one tensor to two it goes; from two to one only where they are equal."""
    models = both(pair, ("tied", "untied"))
    mapping = map_weights(*models, WORDS)
    assert mapping.complete, str(mapping)
    assert_carried(pair, models, mapping, (WORDS, WORDS))
    back = both(pair, ("untied", "tied"))
    before = contents(pair[1], back[1])
    with pytest.raises(WeightError):
        copy_weights(*back, inputs=WORDS)
    assert equal(before, contents(pair[1], back[1]))


@pytest.mark.parametrize("names", [("norm", "norm_plain"), ("norm_plain", "norm")], ids="-".join)
def test_a_norm_with_weights_on_one_side(pair: tuple[str, str], names: tuple[str, str]) -> None:
    if "mindspore" in pair:
        pytest.skip("mindspore cannot run InstanceNorm on a CPU")
    models = both(pair, names)
    mapping = map_weights(*models, IMAGE)
    assert mapping.complete, str(mapping)
    copy_weights(*models, mapping=mapping)
    assert distance(pair, models, (IMAGE, IMAGE)) < 1e-4
    if names[0] == "norm":  # once it changes something, it cannot be left out
        fill(pair[0], models[0], 3)
        assert "norm" in refused(pair, models, mapping=mapping)


def test_a_frozen_reference_is_carried_and_said(pair: tuple[str, str]) -> None:
    models = both(pair, ("frozen", "mlp"))
    report = copy_weights(*models)
    assert distance(pair, models, (SEQUENCE, SEQUENCE)) < 1e-4
    assert sum("trainable on one side only" in note for note in report.notes) == 6
    assert not any("trainable" in note for note in copy_weights(*both(pair, ("frozen", "frozen"))).notes)


def test_models_without_parameters(pair: tuple[str, str]) -> None:
    models = tuple(zoo(framework)["no_parameters"].build() for framework in pair)
    for inputs in (None, normal(3, 6)):
        mapping = map_weights(*models, inputs)
        assert mapping.complete and len(mapping) == 0
    assert copy_weights(*models)


# -- hints -----------------------------------------------------------------------------------------------------------


def pairs_of(mapping: WeightMap) -> dict[tuple[str, ...], tuple[str, ...]]:
    return {e.reference: e.candidate for e in mapping}


def test_a_hint_of_modules_decides(pair: tuple[str, str]) -> None:
    models = both(pair, ("alike", "alike_renamed"))
    assert not map_weights(*models).complete
    order = {"one": "z", "two": "y", "three": "x", "four": "w"}
    mapping = map_weights(*models, hints=order)
    assert mapping.complete, str(mapping)
    assert all(order[e.reference[0].split(".")[0]] == e.candidate[0].split(".")[0] for e in mapping)
    assert all(e.why == "hint" and e.confidence == 1.0 for e in mapping)
    # a hint wins over what running would say
    mapping = map_weights(*models, SEQUENCE, hints=order)
    assert all(order[e.reference[0].split(".")[0]] == e.candidate[0].split(".")[0] for e in mapping)


def test_a_hint_of_patterns(pair: tuple[str, str]) -> None:
    models = both(pair, ("scaled", "scaled_renamed"))
    mapping = map_weights(*models, hints={"blocks.{i}": "stages.{i}", "blocks.{i}.gamma": "stages.{i}.layer_scale"})
    assert mapping.complete, str(mapping)
    assert_carried(pair, models, mapping, (SEQUENCE, SEQUENCE))
    assert pairs_of(mapping)[("blocks.2.gamma",)] == ("stages.2.layer_scale",)


def test_a_hint_of_parameters_that_are_joined(pair: tuple[str, str]) -> None:
    models = both(pair, ("packed_kqv", "apart"))
    hints = {"qkv.weight": "k.weight + q.weight + v.weight", "qkv.bias": "k.bias + q.bias + v.bias"}
    mapping = map_weights(*models, hints=hints)
    assert mapping.complete, str(mapping)
    assert_carried(pair, models, mapping, (SEQUENCE, SEQUENCE))
    back = map_weights(*both(pair, ("apart", "packed_kqv")), hints={b: a for a, b in hints.items()})
    assert back.complete, str(back)
    wrong = map_weights(*models, hints={a: "q.{w} + k.{w} + v.{w}".replace("{w}", a[4:]) for a in hints})
    for seed, (framework, model) in enumerate(zip(pair, models, strict=True)):
        fill(framework, model, seed)
    copy_weights(*models, mapping=wrong)
    assert distance(pair, models, (SEQUENCE, SEQUENCE)) > 1e-2


def test_joined_parameters_with_placeholders(pair: tuple[str, str]) -> None:
    models = both(pair, ("blocks_packed", "blocks_apart"))
    hints = {
        f"blocks.{{i}}.attn.qkv.{w}": " + ".join(f"blocks.{{i}}.attn.{p}.{w}" for p in "qkv")
        for w in ("weight", "bias")
    }
    mapping = map_weights(*models, hints=hints)
    assert mapping.complete, str(mapping)
    assert_carried(pair, models, mapping, (SEQUENCE, SEQUENCE))


def test_what_is_skipped_is_left_alone(pair: tuple[str, str]) -> None:
    models = both(pair, ("mlp_4", "mlp"))
    before = contents(pair[1], models[1])
    report = copy_weights(*models, skip=["between", "third.**"])
    after = contents(pair[1], models[1])
    assert report and len(report) == 4
    for path, array in before.items():
        assert np.array_equal(array, after[path]) == path.startswith("third"), path
    report = copy_weights(*models, skip={"reference": ["between.*"]})
    assert report and len(report) == 6
    refused(pair, models, skip={"candidate": ["between.*"]})


def test_a_file_of_hints(pair: tuple[str, str], tmp_path: Path) -> None:
    models = both(pair, ("alike", "alike_renamed"))
    order = {"one": "z", "two": "y", "three": "x"}
    place = tmp_path / "hints.json"
    place.write_text(json.dumps({"map": order, "skip": {"reference": ["four"], "candidate": ["w"]}}), encoding="utf-8")
    mapping = map_weights(*models, hints=place)
    assert mapping.complete and len(mapping) == 6, str(mapping)
    assert len(copy_weights(*models, mapping=place)) == 6
    saved = tmp_path / "map.json"
    mapping.save(saved)
    assert pairs_of(WeightMap.load(saved)) == pairs_of(mapping)
    assert len(copy_weights(*models, mapping=saved)) == 6


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        ({"frist": "first"}, ("frist", "first")),
        ({"first": "frist"}, ("frist", "first")),
        ({"first.wieght": "first.weight"}, ("first.wieght",)),
        ({"first.weight": "first.weight + nothing.weight"}, ("nothing.weight",)),
        ({"first": "second", "second": "second"}, ("second",)),
        ({"first.weight": "third.weight"}, ("first.weight", "third.weight", "8", "12", "3")),
        ({"fir*": "{a}"}, ("a",)),
        ("missing.json", ("missing.json",)),
        (3, ("3",)),
    ],
)
def test_a_wrong_hint_says_what_is_wrong(pair: tuple[str, str], hints: Any, words: Sequence[str]) -> None:
    with pytest.raises(TwinscopeError) as caught:
        map_weights(*both(pair, ("mlp", "mlp")), hints=hints)
    assert isinstance(caught.value, (MatchError, OptionError, WeightError))
    assert all(word in str(caught.value) for word in words), str(caught.value)


# -- rules -----------------------------------------------------------------------------------------------------------


def test_a_rule_serves_in_both_directions(pair: tuple[str, str]) -> None:
    """A packing that nobody could guess without running: the key first."""

    @weight_rule("Packed", "Apart")
    def keys_first(packed: Any, apart: Any) -> Any:
        size = apart.shape("q.weight")[0]
        for what in ("weight", "bias"):
            yield f"qkv.{what}", (f"k.{what}", f"q.{what}", f"v.{what}"), Split((size, size, size))

    try:
        for names in (("packed_kqv", "apart"), ("apart", "packed_kqv")):
            models = both(pair, names)
            mapping = map_weights(*models)
            assert mapping.complete, str(mapping)
            assert sum(e.why == "rule of yours" for e in mapping) == 2
            assert_carried(pair, models, mapping, (SEQUENCE, SEQUENCE))
            running = map_weights(*models, SEQUENCE)
            assert pairs_of(running) == pairs_of(mapping)
    finally:
        keys_first.forget()
    assert not any(e.why == "rule of yours" for e in map_weights(*both(pair, ("packed_kqv", "apart"))))


def test_a_wrong_rule_says_what_is_wrong(pair: tuple[str, str]) -> None:
    @weight_rule("Packed", "Apart")
    def misspelt(packed: Any, apart: Any) -> Any:
        yield "qvk.weight", ("k.weight", "q.weight", "v.weight"), Split((8, 8, 8))

    try:
        with pytest.raises(WeightError, match=r"qvk.weight"):
            map_weights(*both(pair, ("packed", "apart")))
    finally:
        misspelt.forget()
