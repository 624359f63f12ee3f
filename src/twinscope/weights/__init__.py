"""Carrying weights from the reference to the candidate: find the map, prove it, copy, convert checkpoint files."""

from . import transforms as transforms
from .copy import CopyReport as CopyReport
from .copy import copy_weights as copy_weights
from .layout import from_neutral as from_neutral
from .layout import to_neutral as to_neutral
from .mapping import map_weights as map_weights
from .model import Weights as Weights
from .rules import weight_rule as weight_rule
from .transforms import register_transform as register_transform
from .weightmap import Entry as Entry
from .weightmap import WeightMap as WeightMap
