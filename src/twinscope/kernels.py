"""The optional C kernel beside this file, loaded if it was built. Its absence is no error: numpy does the same, slower.

Built by `hatch_build.py` when the package is installed from source with a C compiler at hand; nothing is ever compiled
at import or at run time. Set ``TWINSCOPE_NO_KERNELS=1`` before the import to do without.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

#: What `_kernels.c` must say of itself.
ABI: Final = 1
OFF: Final = "TWINSCOPE_NO_KERNELS"

#: Least, greatest, sum, sum of squares, sum of bit patterns. The last is a whole number.
Sums = list[float]
OnePass = Callable[[NDArray[Any]], Sums | None]

_SUFFIX: Final = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
# As in `_kernels.c`.
_KINDS: Final[dict[np.dtype[Any], int]] = {np.dtype("<f4"): 0, np.dtype(">f4"): 0, np.dtype(ml_dtypes.bfloat16): 1}


def load(folder: Path | None = None) -> OnePass | None:
    """The kernel as a function of an array, or None where it was not built, does not load, or is not wanted.

    The function answers None for an array that is empty or of another dtype than float32 and bfloat16. Any strides,
    alignment and byte order will do. It lets other threads run meanwhile.

    >>> import numpy as np
    >>> one_pass = load()
    >>> one_pass is None or one_pass(np.array([1, -3], np.float32))[:4] == [-3.0, 1.0, -2.0, 10.0]
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


def _open(path: Path) -> OnePass:
    library = ctypes.CDLL(str(path))
    if library.twinscope_abi() != ABI:
        raise OSError(f"{path.name} was built for another version")
    stats = library.twinscope_stats
    stats.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    stats.restype = ctypes.c_int
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

    return one_pass
