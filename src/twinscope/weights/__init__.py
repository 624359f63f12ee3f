"""Carrying weights from the reference to the candidate."""

from .copy import CopyReport as CopyReport
from .copy import copy_weights as copy_weights
from .layout import from_neutral as from_neutral
from .layout import to_neutral as to_neutral
