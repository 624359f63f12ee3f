"""The import name of a documented system; see `twinscope.compat`."""
