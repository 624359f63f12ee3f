"""PaDiff, both generations: the calls of its documents on Twinscope's public names."""
