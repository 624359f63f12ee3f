"""The neutral vocabulary of ops: one table from the names that frameworks have for an op to one of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

#: Canonical op: the other names it goes by, once package, underscores of operators and in-place marks are gone.
OPS: Mapping[str, frozenset[str]] = {
    name: frozenset(others.split())
    for name, others in {
        "add": "radd iadd add_n tensor_add bias_add accumulate_n",
        "sub": "subtract rsub isub",
        "mul": "multiply rmul imul scale",
        "div": "divide truediv rtruediv rdiv itruediv true_divide real_div idiv",
        "floor_divide": "floordiv rfloordiv floor_div",
        "remainder": "mod rmod fmod floor_mod",
        "pow": "rpow ipow power float_power square",
        "neg": "negative",
        "matmul": "bmm mm dot mv rmatmul imatmul mat_mul batch_mat_mul batch_matmul baddbmm",
        "linear": "dense addmm fully_connected",
        "einsum": "tensordot",
        "cat": "concat concatenate hstack",
        "reshape": "view flatten unflatten ravel squeeze unsqueeze expand_dims reshape_as view_as flat",
        "transpose": "permute swapaxes swapdims t T mT H movedim moveaxis adjoint numpy_t mt",
        "expand": "broadcast_to tile repeat expand_as broadcast_tensors repeat_interleave",
        "identity": "contiguous clone detach copy alias stop_gradient assign lift pos rearrange",
        "cast": "to type astype float half double bfloat16 int long bool type_as cpu cuda",
        "split": "chunk tensor_split unbind unstack split_with_sizes vsplit hsplit",
        "getitem": "slice strided_slice narrow select index tensor_getitem crop",
        "setitem": "index_put tensor_setitem",
        "gather": "index_select take take_along_axis take_along_dim gather_nd gather_d gather_elements",
        "scatter": "put_along_axis scatter_add scatter_nd tensor_scatter_update index_add",
        "masked_fill": "masked_fill_ masked_scatter",
        "where": "select_v2 cond_select",
        "clamp": "clip clip_by_value clamp_min clamp_max",
        "maximum": "fmax",
        "minimum": "fmin",
        "max": "amax reduce_max arg_max_with_value",
        "min": "amin reduce_min",
        "sum": "reduce_sum nansum",
        "mean": "reduce_mean nanmean",
        "prod": "reduce_prod",
        "var": "var_mean variance",
        "std": "std_mean",
        "norm": "vector_norm matrix_norm l2_norm lp_norm frobenius_norm",
        "normalize": "l2_normalize",
        "argmax": "arg_max",
        "argmin": "arg_min",
        "abs": "absolute",
        "eq": "equal",
        "ne": "not_equal",
        "gt": "greater greater_than",
        "ge": "greater_equal",
        "lt": "less less_than",
        "le": "less_equal",
        "and": "logical_and bitwise_and rand iand",
        "or": "logical_or bitwise_or ror ior",
        "xor": "logical_xor bitwise_xor rxor",
        "not": "logical_not bitwise_not invert",
        "silu": "swish",
        "sigmoid": "expit",
        "hardtanh": "hard_tanh",
        "hardswish": "hard_swish h_swish",
        "hardsigmoid": "hard_sigmoid h_sigmoid",
        "log_sigmoid": "logsigmoid",
        "leaky_relu": "leakyrelu",
        "dropout": "dropout1d dropout2d dropout3d alpha_dropout feature_dropout dropout_ext",
        "embedding": "embedding_lookup",
        "conv": "conv1d conv2d conv3d convolution",
        "conv_transpose": "conv_transpose1d conv_transpose2d conv_transpose3d conv1d_transpose conv2d_transpose "
        "conv3d_transpose",
        "max_pool": "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices",
        "avg_pool": "avg_pool1d avg_pool2d avg_pool3d",
        "adaptive_avg_pool": "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
        "adaptive_max_pool": "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
        "batch_norm": "batch_norm1d batch_norm2d batch_norm3d sync_batch_norm batchnorm",
        "instance_norm": "instance_norm1d instance_norm2d instance_norm3d",
        "layer_norm": "layernorm fused_layer_norm",
        "rms_norm": "rmsnorm fused_rms_norm",
        "interpolate": "upsample resize resize_bilinear resize_nearest_neighbor upsample_bilinear upsample_nearest",
        "attention": "scaled_dot_product_attention flash_attention flash_attention_score multi_head_attention_forward "
        "prompt_flash_attention multihead_attention",
        "pad": "constant_pad_nd zero_pad2d",
        "zeros": "zeros_like new_zeros",
        "ones": "ones_like new_ones",
        "full": "full_like new_full fill",
        "cross_entropy": "softmax_with_cross_entropy cross_entropy_loss softmax_cross_entropy_with_logits",
        "mse_loss": "square_error_cost",
        "bce_with_logits": "binary_cross_entropy_with_logits bce_with_logits_loss",
        "bce": "binary_cross_entropy bce_loss",
        "kl_div": "kl_div_loss kldiv_loss",
    }.items()
}
_CANONICAL = {other: name for name, others in OPS.items() for other in others}

#: Ops that may stand for one another where shapes and place agree: one is written for the other, well or wrongly.
FAMILIES: Mapping[str, str] = {
    name: family
    for family, names in {
        "layout": "reshape transpose identity cast expand dropout getitem",
        "recurrent": "lstm gru rnn",
        "contraction": "linear matmul einsum conv",
        "activation": "relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid tanh softplus softsign hardtanh "
        "hardswish hardsigmoid log_sigmoid prelu clamp maximum softmax log_softmax",
        "norm": "layer_norm rms_norm group_norm batch_norm instance_norm normalize local_response_norm",
        "pool": "max_pool avg_pool adaptive_avg_pool adaptive_max_pool mean max",
        "reduce": "var std norm sum mean",
        "scale": "mul div",
        "shift": "add sub",
        "gather": "gather embedding",
        "fill": "masked_fill where",
        "loss": "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss bce bce_with_logits kl_div",
    }.items()
    for name in names.split()
}
COMMUTATIVE = frozenset(["add", "mul", "maximum", "minimum", "eq", "ne", "and", "or", "xor"])


@lru_cache(maxsize=8192)
def canonical_op(name: str) -> str:
    """The neutral name of an op: the same for every framework that has it.

    >>> canonical_op("torch.Tensor.__radd__"), canonical_op("paddle.add"), canonical_op("mindspore.mint.add")
    ('add', 'add', 'add')
    >>> canonical_op("torch.nn.functional.linear"), canonical_op("mindspore.ops.dense"), canonical_op("torch.relu_")
    ('linear', 'linear', 'relu')
    """
    short = name.rsplit(".", 1)[-1]
    if short not in ("T", "H"):
        short = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", short).lower()
    short = short.strip("_") or short
    return _CANONICAL.get(short, short)


def op_of_kind(kind: str) -> str:
    """What a layer of this kind stands for where the other side calls a function.

    >>> op_of_kind("conv2d"), op_of_kind("batch_norm2d"), op_of_kind("cross_entropy_loss")
    ('conv', 'batch_norm', 'cross_entropy')
    """
    canonical = canonical_op(kind)
    return canonical_op(canonical.removesuffix("_loss")) if canonical.endswith("_loss") else canonical
