"""The script that a side's interpreter is started with: it loads this very Twinscope, whatever that one has installed.

It is a file of the package, not a string of code, so that its frames are known not to be the user's.
"""

import importlib.util
import os
import sys


def main() -> int:
    """Load the package from this file's directory and run the order that the first argument names."""
    if sys.version_info < (3, 10):  # noqa: UP036 - whoever runs this may have any interpreter
        sys.exit("twinscope needs Python 3.10 or later, this is " + sys.version)
    place = os.path.dirname(os.path.abspath(__file__))
    # Python put the script's directory first, where records.py and others would hide modules of the user's
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != place]
    file = os.path.join(place, "__init__.py")
    spec = importlib.util.spec_from_file_location("twinscope", file, submodule_search_locations=[place])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["twinscope"] = module
    spec.loader.exec_module(module)
    from twinscope.isolated import run_side

    return run_side(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
