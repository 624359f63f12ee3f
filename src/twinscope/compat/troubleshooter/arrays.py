"""`compare_npy_dir` and its like: directories of saved arrays, compared pair by pair."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import twinscope

from ..console import say
from .problems import ArgumentError
from .tables import Table, boxed, csv_text, truncated

Array: TypeAlias = NDArray[Any]
#: A name on either side; None where the other has no partner.
NamePair: TypeAlias = tuple[str | None, str | None]

#: What the columns are called when nobody says otherwise.
FIELDS = (
    "orig array name",
    "target array name",
    "result of allclose",
    "ratio of allclose",
    "cosine similarity",
    "mean & max diffs",
)
_TITLE = "The list of comparison results"
_SHAPES = ("shape of orig", "shape of target")


@dataclass(frozen=True, slots=True)
class Compared:
    """Two arrays that should be equal: what a row of a table says, and all numbers behind it."""

    orig: str | None
    target: str | None
    orig_shape: tuple[int, ...] | None
    target_shape: tuple[int, ...] | None
    allclose: bool | str  # a text where there is no answer: other shapes
    ratio: float
    cosine: float
    mean_diff: float
    max_diff: float
    metrics: Any = None  # of `twinscope.compare_arrays`

    def __bool__(self) -> bool:
        return self.allclose is True

    def row(self, shapes: bool = False) -> list[Any]:
        """The cells of its row."""
        ratio = f"{truncated(self.ratio, 4):.2%}"
        diffs = f"{truncated(self.mean_diff, 5):.5f}, {truncated(self.max_diff, 5):.5f}"
        both = [self.orig_shape, self.target_shape] if shapes else []
        return [self.orig, self.target, *both, self.allclose, ratio, f"{truncated(self.cosine, 5):.5f}", diffs]


def compared(
    names: NamePair, orig: Array | None, target: Array | None, rtol: float, atol: float, equal_nan: bool
) -> Compared:
    """One row: |orig - target| <= atol + rtol * |target| everywhere, and the share of elements for which it holds."""
    shapes = (None if orig is None else orig.shape, None if target is None else target.shape)
    if orig is None or target is None:
        return Compared(*names, *shapes, False, 0.0, math.nan, math.nan, math.nan)
    if orig.shape != target.shape:
        return Compared(*names, *shapes, "Shape is inconsistent", 0.0, math.nan, math.nan, math.nan)
    if orig.dtype.kind in "biu" and target.dtype.kind in "biu" and max(orig.itemsize, target.itemsize) < 8:
        orig, target = orig.astype(np.float64), target.astype(np.float64)  # tolerances are for numbers of any kind
    metrics = twinscope.compare_arrays(target, orig, rtol=rtol, atol=atol, equal_nan=equal_nan)
    if not metrics.count:
        return Compared(*names, *shapes, True, 1.0, 1.0, 0.0, 0.0, metrics)
    finite = metrics.nonfinite_mismatch == 0
    numbers = (metrics.mean_abs, metrics.max_abs) if finite else (math.nan, math.nan)
    if finite and metrics.finite == 0:
        numbers = (0.0, 0.0)
    cosine = 1.0 if metrics.identical else metrics.cosine
    return Compared(*names, *shapes, metrics.within == 1.0, metrics.within, cosine, *numbers, metrics)


def shown(
    rows: Sequence[Compared],
    *,
    title: str | None = None,
    field_names: Sequence[str] | None = None,
    shapes: bool = False,
    output_file: str | os.PathLike[str] | None = None,
    print_level: int = 1,
) -> Table[tuple[Compared, ...]]:
    """Print the table of `rows`, write it as CSV where a file is named, and give it back.

    `print_level`: 0 prints nothing, 1 everything, 2 what is not allclose.
    """
    header = list(field_names or FIELDS)
    if shapes:
        header = [*header[:2], *_SHAPES, *header[2:]]
    cells = [r.row(shapes) for r in rows if print_level != 2 or not r]
    text = boxed(title or _TITLE, header, cells)
    if print_level and rows:
        say(text)
    if output_file:
        place = Path(output_file)
        try:
            place.write_text(csv_text(header, cells), encoding="utf-8")
        except OSError as error:
            raise ArgumentError(
                f"output_file {place} cannot be written: {error.strerror}",
                hint="name a file in a directory that exists",
            ) from error
    return Table(text, tuple(rows))


def compare_npy_dir(
    orig_dir: Any,
    target_dir: Any,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    equal_nan: bool = False,
    *,
    name_map_list: Sequence[NamePair] | None = None,
    compare_shape: bool = False,
    output_file: Any = None,
    num_processes: int | None = None,
    **kwargs: Any,
) -> Table[tuple[Compared, ...]]:
    """Compare the .npy files of two directories that have one name, or are paired by `name_map_list`.

    ::

        ts.migrator.compare_npy_dir("ms_out", "pt_out", name_map_list=[("0_out.npy", "3_out.npy")])

    Prints a table and gives it back; `output_file` gets it as CSV. A file without a partner is a row that says False.
    Further keywords: `title` and `field_names`, of the table.
    """
    legal = {"title", "field_names", "frame_names"}
    strange = sorted(set(kwargs) - legal)
    if strange:
        raise ArgumentError(
            f"compare_npy_dir() knows no {', '.join(map(repr, strange))}", hint=f"legal are {', '.join(sorted(legal))}"
        )
    orig, target = _directory(orig_dir, "orig_dir"), _directory(target_dir, "target_dir")
    if not isinstance(equal_nan, bool) or not isinstance(compare_shape, bool):
        raise ArgumentError("equal_nan and compare_shape are True or False", hint="leave them out for False")
    if num_processes is not None and (not isinstance(num_processes, int) or num_processes < 1):
        raise ArgumentError(
            f"num_processes={num_processes!r} is not a number of workers", hint="use 1 or more, or None"
        )
    names = get_name_map_list_by_name(orig, target) if name_map_list is None else list(name_map_list)
    say(f"The compare directory information:\n The orig dir: {orig_dir} \n The target dir: {target_dir}")

    def row(pair: NamePair) -> Compared:
        arrays = [_loaded(place, name) for place, name in zip((orig, target), pair, strict=True)]
        return compared((pair[0], pair[1]), arrays[0], arrays[1], rtol, atol, equal_nan)

    with ThreadPoolExecutor(num_processes or max(1, min(8, (os.cpu_count() or 2) - 1))) as pool:
        rows = list(pool.map(row, names))
    return shown(
        rows,
        title=kwargs.get("title"),
        field_names=kwargs.get("field_names"),
        shapes=compare_shape,
        output_file=output_file,
    )


def compare_grads_dir(
    orig_dir: Any,
    target_dir: Any,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    equal_nan: bool = False,
    compare_shape: bool = True,
    output_file: Any = None,
    num_processes: int | None = None,
) -> Table[tuple[Compared, ...]]:
    """Compare gradients saved one after the other: paired in order, by shape, so that one too many moves nothing else.

    ::

        ts.migrator.compare_grads_dir("ms_grads", "pt_grads")
    """
    names = get_name_map_list_by_shape_edit_distance(orig_dir, target_dir)
    return compare_npy_dir(
        orig_dir,
        target_dir,
        rtol,
        atol,
        equal_nan,
        name_map_list=names,
        compare_shape=compare_shape,
        output_file=output_file,
        num_processes=num_processes,
    )


def compare_list_dir(
    orig_dir: Any,
    target_dir: Any,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    equal_nan: bool = False,
    compare_shape: bool = False,
    output_file: Any = None,
    num_processes: int | None = None,
) -> Table[tuple[Compared, ...]]:
    """Compare lists of tensors that `ts.save` wrote: paired by the number at the end of the name.

    ::

        ts.migrator.compare_list_dir("ms_list", "pt_list")
    """
    names = get_name_map_list_by_number(orig_dir, target_dir, extract_end_number)
    return compare_npy_dir(
        orig_dir,
        target_dir,
        rtol,
        atol,
        equal_nan,
        name_map_list=names,
        compare_shape=compare_shape,
        output_file=output_file,
        num_processes=num_processes,
    )


def compare_dict_dir(
    orig_dir: Any,
    target_dir: Any,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    equal_nan: bool = False,
    compare_shape: bool = False,
    output_file: Any = None,
    num_processes: int | None = None,
) -> Table[tuple[Compared, ...]]:
    """Compare dicts of tensors that `ts.save` wrote: paired by name.

    ::

        ts.migrator.compare_dict_dir("ms_dict", "pt_dict")
    """
    return compare_npy_dir(
        orig_dir,
        target_dir,
        rtol,
        atol,
        equal_nan,
        name_map_list=get_name_map_list_by_name(orig_dir, target_dir),
        compare_shape=compare_shape,
        output_file=output_file,
        num_processes=num_processes,
    )


# -- pairs of names ----------------------------------------------------------------------------------------------------


def get_name_map_list_by_name(orig_dir: Any, target_dir: Any) -> list[NamePair]:
    """Files of one name, and each that has no partner.

    Where names do not agree but for the number that `ts.save` puts first, that number does not count.
    """
    left, right = _files(orig_dir, "orig_dir"), _files(target_dir, "target_dir")
    if not set(left) & set(right):
        plain = {_unnumbered(name): name for name in right}
        if len(plain) == len(right) and {_unnumbered(name) for name in left} & set(plain):
            found: list[NamePair] = [(name, plain.pop(_unnumbered(name), None)) for name in left]
            return _said([*found, *((None, name) for name in plain.values())])
    known = set(left)
    pairs: list[NamePair] = [(name, name if name in set(right) else None) for name in left]
    return _said([*pairs, *((None, name) for name in right if name not in known)])


def get_name_map_list_by_number(
    orig_dir: Any, target_dir: Any, sort_key: Callable[[str], Any] | None = None
) -> list[NamePair]:
    """Files in the order of their numbers, paired one by one."""
    key = sort_key or extract_front_end_number
    left = _files(orig_dir, "orig_dir", key)
    right = _files(target_dir, "target_dir", key)
    return _said(list(zip_longest(left, right, fillvalue=None)))


def get_name_map_list_by_shape_edit_distance(
    orig_dir: Any, target_dir: Any, *, del_cost: float = 1, ins_cost: float = 1, rep_cost: float = 5
) -> list[NamePair]:
    """Files in their order, paired so that shapes agree and as little as possible is left out.

    The costs are those of a file that is on one side only, and of a pair whose shapes differ.
    """
    places = (_directory(orig_dir, "orig_dir"), _directory(target_dir, "target_dir"))
    sides = [_files(place, name) for place, name in zip(places, ("orig_dir", "target_dir"), strict=True)]
    shapes = [[_shape(place / name) for name in names] for place, names in zip(places, sides, strict=True)]
    steps = edits(shapes[0], shapes[1], (del_cost, ins_cost, rep_cost))
    return _said([(None if i is None else sides[0][i], None if j is None else sides[1][j]) for i, j in steps])


def extract_end_number(name: str) -> Any:
    """The last number in a name, to sort by; names without one come last.

    >>> extract_end_number("3_out.12.npy")
    (0, 12)
    """
    numbers = [int(n) for n in re.findall(r"\d+", name)]
    return (0, numbers[-1]) if numbers else (1, 0)


def extract_front_end_number(name: str) -> Any:
    """The first and the last number in a name, to sort by; names without one come last.

    >>> extract_front_end_number("3_out.12.npy")
    (0, 3, 12)
    """
    numbers = [int(n) for n in re.findall(r"\d+", name)]
    return (0, numbers[0], numbers[-1]) if numbers else (1, 0, 0)


def edits(
    left: Sequence[Any], right: Sequence[Any], costs: tuple[float, float, float]
) -> list[tuple[int | None, int | None]]:
    """The cheapest way from one sequence to the other, as pairs of positions."""
    drop, add, other = costs
    best = np.zeros((len(left) + 1, len(right) + 1))
    best[:, 0] = drop * np.arange(len(left) + 1)
    best[0, :] = add * np.arange(len(right) + 1)
    for i, a in enumerate(left, 1):
        for j, b in enumerate(right, 1):
            through = best[i - 1, j - 1] + (0 if a == b else other)
            best[i, j] = min(through, best[i - 1, j] + drop, best[i, j - 1] + add)
    found: list[tuple[int | None, int | None]] = []
    i, j = len(left), len(right)
    while i or j:
        price = 0 if i and j and left[i - 1] == right[j - 1] else other
        if i and j and best[i, j] == best[i - 1, j - 1] + price:
            i, j = i - 1, j - 1
            found.append((i, j))
        elif i and best[i, j] == best[i - 1, j] + drop:
            i -= 1
            found.append((i, None))
        else:
            j -= 1
            found.append((None, j))
    return found[::-1]


def _said(pairs: list[NamePair]) -> list[NamePair]:
    if any(None in pair for pair in pairs):
        say("The files in the original directory and the target directory cannot be fully mapped.")
    return pairs


def _unnumbered(name: str) -> str:
    return re.sub(r"^\d+_", "", name)


def _directory(place: Any, what: str) -> Path:
    if place is None or not Path(place).is_dir():
        raise ArgumentError(f"{what}: {place} is not a directory", hint="name the directory with the .npy files")
    return Path(place)


def _files(place: Any, what: str, key: Callable[[str], Any] | None = None) -> list[str]:
    """The .npy files of a directory, in the order of their numbers, then of their names."""
    found = [p.name for p in _directory(place, what).iterdir() if p.suffix == ".npy"]
    if not found:
        raise ArgumentError(f"{what}: there is no .npy file in {place}", hint="check whether the directory is right")
    order = key or extract_front_end_number
    return sorted(found, key=lambda name: (order(name), name))


def _loaded(place: Path, name: str | None) -> Array | None:
    if name is None:
        return None
    file = place / (name if name.endswith(".npy") else f"{name}.npy")
    if not file.is_file():
        return None
    try:
        return np.asarray(np.load(file, allow_pickle=False, mmap_mode="r"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{file} cannot be read: {error}", hint="it must be a .npy file of numbers") from error


def _shape(file: Path) -> tuple[int, ...]:
    found = _loaded(file.parent, file.name)
    return () if found is None else found.shape


def cal_algorithm(
    orig_value: Any, target_value: Any, rtol: float, atol: float, equal_nan: bool
) -> tuple[bool | str, float, float, tuple[float, float]]:
    """Whether all is close, the share that is, the cosine, and (mean, largest) difference of two arrays."""
    arrays = [None if value is None else twinscope.as_array(value) for value in (orig_value, target_value)]
    found = compared((None, None), arrays[0], arrays[1], rtol, atol, equal_nan)
    return found.allclose, found.ratio, found.cosine, (found.mean_diff, found.max_diff)


def cal_cosine_sim(a: Any, b: Any) -> float:
    """The cosine of the angle between two arrays taken as vectors; 1 where both are zero."""
    first, second = np.ravel(twinscope.as_array(a)), np.ravel(twinscope.as_array(b))
    return 1.0 if not first.size else float(twinscope.compare_arrays(first, second).cosine)
