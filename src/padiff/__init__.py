"""The import name of PaDiff, both generations; see `twinscope.compat.padiff`."""

from twinscope.compat.padiff import LayerMap as LayerMap
from twinscope.compat.padiff import add_special_init as add_special_init
from twinscope.compat.padiff import assign_weight as assign_weight
from twinscope.compat.padiff import auto_diff as auto_diff
from twinscope.compat.padiff import check_dataloader as check_dataloader
from twinscope.compat.padiff import check_grads as check_grads
from twinscope.compat.padiff import check_params as check_params
from twinscope.compat.padiff import check_report as check_report
from twinscope.compat.padiff import check_weights as check_weights
from twinscope.compat.padiff import create_model as create_model
from twinscope.compat.padiff import get_dump_root_path as get_dump_root_path
from twinscope.compat.padiff import set_dump_root_path as set_dump_root_path
