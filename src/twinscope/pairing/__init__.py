"""How `twinscope.match` pairs two traces: evidence, each side prepared, modules, then calls, then their tensors."""
