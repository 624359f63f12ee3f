"""The import name of a documented system; see `twinscope.compat.ppautodiff`."""

from twinscope.compat.ppautodiff import autodiff as autodiff
