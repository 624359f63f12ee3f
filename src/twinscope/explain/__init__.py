"""Why two networks differ: what their layers were told."""

from .linting import LintFinding as LintFinding
from .linting import LintReport as LintReport
from .linting import Told as Told
from .linting import lint as lint
from .table import Effect as Effect
