"""The import name of a documented system; see `twinscope.compat.troubleshooter`."""

from __future__ import annotations

from twinscope.compat.troubleshooter.api_compare import api_dump_compare as api_dump_compare
from twinscope.compat.troubleshooter.api_dump import api_dump_init as api_dump_init
from twinscope.compat.troubleshooter.api_dump import api_dump_start as api_dump_start
from twinscope.compat.troubleshooter.api_dump import api_dump_stop as api_dump_stop
from twinscope.compat.troubleshooter.arrays import cal_algorithm as cal_algorithm
from twinscope.compat.troubleshooter.arrays import cal_cosine_sim as cal_cosine_sim
from twinscope.compat.troubleshooter.arrays import compare_dict_dir as compare_dict_dir
from twinscope.compat.troubleshooter.arrays import compare_grads_dir as compare_grads_dir
from twinscope.compat.troubleshooter.arrays import compare_list_dir as compare_list_dir
from twinscope.compat.troubleshooter.arrays import compare_npy_dir as compare_npy_dir
from twinscope.compat.troubleshooter.arrays import get_name_map_list_by_name as get_name_map_list_by_name
from twinscope.compat.troubleshooter.arrays import get_name_map_list_by_number as get_name_map_list_by_number
from twinscope.compat.troubleshooter.arrays import (
    get_name_map_list_by_shape_edit_distance as get_name_map_list_by_shape_edit_distance,
)
from twinscope.compat.troubleshooter.finder import NetDifferenceFinder as NetDifferenceFinder
from twinscope.compat.troubleshooter.saving import save as save
from twinscope.compat.troubleshooter.saving import save_grad as save_grad
from twinscope.compat.troubleshooter.weights import compare_ms_ckpt as compare_ms_ckpt
from twinscope.compat.troubleshooter.weights import compare_pth_and_ckpt as compare_pth_and_ckpt
from twinscope.compat.troubleshooter.weights import convert_weight as convert_weight
from twinscope.compat.troubleshooter.weights import convert_weight_and_load as convert_weight_and_load
from twinscope.compat.troubleshooter.weights import get_weight_map as get_weight_map
from twinscope.compat.troubleshooter.weights import save_net_and_weight_params as save_net_and_weight_params
