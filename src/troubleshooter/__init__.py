"""The import name of a documented system; see `twinscope.compat.troubleshooter`.

import troubleshooter as ts
"""

from twinscope.compat.troubleshooter.api_dump import fix_random as fix_random
from twinscope.compat.troubleshooter.saving import save as save
from twinscope.compat.troubleshooter.saving import save_grad as save_grad

from . import migrator as migrator
