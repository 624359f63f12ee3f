"""Compiles the optional C kernel while a wheel is built or an editable install is made.

Without a compiler, or if it fails, the wheel is pure Python and says so in one line: an installation never fails
because of the kernel.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src", "twinscope", "_kernels.c")
# No -ffast-math: the kernel tells NaN and infinities apart. No contraction: every CPU gets the same sums.
FLAGS = ("-std=c99", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden")
SUFFIXES = {"darwin": ".dylib", "linux": ".so"}
TIMEOUT_S = 120


class KernelHook(BuildHookInterface[Any]):
    """For the targets `wheel` and, within it, `editable`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        try:
            library = compile_kernel(root)
        except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
            why = " ".join(str(error).split())
            self.app.display_warning(f"twinscope: built without the C kernel, numpy will do its work ({why})")
            return
        if version == "editable":
            return  # it lies beside the sources, which is where it is looked for
        build_data["force_include"][str(library)] = f"twinscope/{library.name}"
        build_data["pure_python"] = False
        # It does not link to Python, so that one wheel serves every version; an inferred tag would name this one's.
        build_data["tag"] = f"py3-none-{platform_tag()}"


def compile_kernel(root: Path) -> Path:
    """The library, built beside its source. Raises where that cannot be done, and leaves no older one behind then."""
    suffix = SUFFIXES.get(sys.platform)
    if suffix is None:
        raise RuntimeError(f"not built on {sys.platform}")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    target = root / SOURCE.with_name(f"_kernels.{platform}{suffix}")
    # Elsewhere first, then moved: a process may have the old one mapped, and another build may run beside this one.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".kernels") as folder:
        built = Path(folder, target.name)
        try:
            command = [*shlex.split(os.environ.get("CC") or "cc"), *FLAGS, "-o", str(built), str(root / SOURCE)]
            subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
        except (OSError, ValueError, subprocess.SubprocessError):
            target.unlink(missing_ok=True)
            raise
        built.replace(target)
    return target


def platform_tag() -> str:
    """The first platform that this interpreter takes wheels of, but no manylinux, which promises an old glibc."""
    from packaging.tags import sys_tags

    for tag in sys_tags():
        if not tag.platform.startswith(("manylinux", "musllinux")):
            return tag.platform
    raise RuntimeError("this interpreter takes wheels of no platform")
