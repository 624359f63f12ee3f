"""The import name of a documented system; see `twinscope.compat.troubleshooter`.

import troubleshooter as ts
"""

from . import migrator as migrator
