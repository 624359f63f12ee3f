"""Carrying weights from the reference to the candidate."""

from .copy import CopyReport as CopyReport
from .copy import copy_weights as copy_weights
