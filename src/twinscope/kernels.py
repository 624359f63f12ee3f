"""The optional C kernel beside this file, loaded if it was built. Its absence is no error: numpy does the same, slower.

Built by `hatch_build.py` when the package is installed from source with a C compiler at hand; nothing is ever compiled
at import or at run time. Set ``TWINSCOPE_NO_KERNELS=1`` before the import to do without.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

#: What `_kernels.c` must say of itself.
ABI: Final = 2
OFF: Final = "TWINSCOPE_NO_KERNELS"

#: Least, greatest, sum, sum of squares, sum of bit patterns. The last is a whole number.
Sums = list[float]
OnePass = Callable[[NDArray[Any]], Sums | None]

#: Sum of r, c, r*r, r*c, c*c, d = c - r, |d|, d*d; largest |d| and the place of the first one (-1 where nothing
#: differs); sum and largest of |d| / |r|, places left out of these (r is 0, c is not), places within the tolerances
#: (|d| <= atol + rtol * |r|, in float32), whether all bits are the same. Counts are whole numbers.
PairSums = list[float]
PAIR_SUMS: Final = 15
#: Address and kind (see `PAIR_KINDS`) of the reference, the same of the candidate, number of elements, atol, rtol.
PairPass = Callable[[int, int, int, int, int, float, float], PairSums | None]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The functions of one library.

    `stats` answers None for an array that is empty or of another dtype than float32 and bfloat16. Any strides,
    alignment and byte order will do. `pair` reads aligned, contiguous memory that the caller keeps alive, and answers
    None where float32 will not do for it: NaN, infinities, and squares that overflow or lose digits. Both let other
    threads run meanwhile.
    """

    stats: OnePass
    pair: PairPass


_SUFFIX: Final = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
# As in `_kernels.c`.
_KINDS: Final[dict[np.dtype[Any], int]] = {np.dtype("<f4"): 0, np.dtype(">f4"): 0, np.dtype(ml_dtypes.bfloat16): 1}
PAIR_KINDS: Final[dict[np.dtype[Any], int]] = {np.dtype(np.float32): 0, np.dtype(ml_dtypes.bfloat16): 1}


def load(folder: Path | None = None) -> Kernels | None:
    """The kernel's functions, or None where it was not built, does not load, or is not wanted.

    >>> import numpy as np
    >>> kernels = load()
    >>> kernels is None or kernels.stats(np.array([1, -3], np.float32))[:4] == [-3.0, 1.0, -2.0, 10.0]
    True
    """
    if os.environ.get(OFF, "0") not in ("", "0"):
        return None
    # A checkout shared between machines may hold one per platform; another's does not load.
    for path in sorted((folder or Path(__file__).parent).glob(f"_kernels*{_SUFFIX}")):
        try:
            return _open(path)
        except (OSError, AttributeError):  # not of this platform; no such function in it, or another ABI
            continue
    return None


def _open(path: Path) -> Kernels:
    library = ctypes.CDLL(str(path))
    if library.twinscope_abi() != ABI:
        raise OSError(f"{path.name} was built for another version")
    stats = library.twinscope_stats
    stats.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    stats.restype = ctypes.c_int
    pair = library.twinscope_pair
    address, kind = ctypes.c_void_p, ctypes.c_int
    pair.argtypes = (address, kind, address, kind, ctypes.c_ssize_t, ctypes.c_float, ctypes.c_float, address)
    pair.restype = ctypes.c_int
    # `array.ctypes.data` alone takes longer than all of this; the capsule holds pointer, shape and strides at once.
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    results = ctypes.c_double * 5
    kinds = _KINDS

    def one_pass(array: NDArray[Any]) -> Sums | None:
        kind = kinds.get(array.dtype)
        if kind is None:
            return None
        capsule = array.__array_struct__  # must outlive the call: it owns what the pointer points to
        out = results()
        return out[:] if stats(pointer_of(capsule, None), kind, out) else None

    pair_results = ctypes.c_double * PAIR_SUMS

    def pair_pass(
        reference: int, reference_kind: int, candidate: int, candidate_kind: int, count: int, atol: float, rtol: float
    ) -> PairSums | None:
        out = pair_results()
        done = pair(reference, reference_kind, candidate, candidate_kind, count, atol, rtol, out)
        return out[:] if done else None

    return Kernels(one_pass, pair_pass)
