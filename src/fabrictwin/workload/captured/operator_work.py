"""PyTorch operators as work: products by their shapes, attention, everything else by the bytes that it moves.

Views and other bookkeeping launch no kernel and are no work.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fabrictwin.workload.captured.captured_job import Work

Shape = Sequence[int]
# what changes a tensor's description and none of its elements
NO_KERNEL = frozenset(
    {
        "view",
        "t",
        "transpose",
        "permute",
        "as_strided",
        "detach",
        "detach_",
        "expand",
        "slice",
        "select",
        "empty",
        "empty_like",
        "empty_strided",
        "reshape",
        "unsqueeze",
        "squeeze",
        "alias",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "narrow",
        "unflatten",
        "flatten",
        "_unsafe_view",
        "resize_",
        "_reshape_alias",
        "new_empty",
        "new_empty_strided",
        "set_",
        "numel",
        "size",
        "stride",
        "is_pinned",
        "result_type",
        "lift_fresh",
        "view_as",
        "movedim",
        "contiguous",
        "requires_grad_",
        "lift",
        "_to_copy_meta",
        "sym_size",
        "sym_numel",
        "sym_stride",
        "item",
        "_local_scalar_dense",
        "new_zeros_meta",
        "swapaxes",
        "unfold",
        "real",
        "diagonal",
    }
)
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul"})
_ATTENTION = ("attention", "flash_attn", "sdpa")


def plain_operator(name: str) -> str:
    """`mm` of `aten::mm.default`."""
    return name.rpartition("::")[2].partition(".")[0]


def work_of(
    name: str, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str, moved_bytes: int
) -> Work | None:
    """The work of an operator on tensors of these shapes, None where it has none."""
    operator = plain_operator(name)
    if operator in NO_KERNEL:
        return None
    backward = "backward" in operator
    large = [shape for shape in inputs if len(shape) >= 2]
    if operator in _PRODUCTS and len(large) >= 2:
        return _product(large[-2:], dtype, moved_bytes)
    if any(word in operator for word in _ATTENTION):
        heads = [shape for shape in inputs if len(shape) == 4]
        if len(heads) >= 3:
            query, key, value = heads[1:4] if backward and len(heads) > 3 else heads[:3]
            batch, count, sequence, width = query
            if min(batch, count, sequence, width, value[-1]) > 0 and key[-1] == width:
                return Work(None, (batch, count, width + value[-1], sequence), backward, moved_bytes, dtype)
    if operator.startswith(("convolution", "cudnn_convolution", "conv")):
        found = _convolution(inputs, outputs, backward, dtype, moved_bytes)
        if found is not None:
            return found
    return Work(moved_bytes=moved_bytes, dtype=dtype) if moved_bytes else None


def _product(shapes: Sequence[Shape], dtype: str, moved_bytes: int) -> Work | None:
    a, b = shapes
    m, n, k = a[-2], b[-1], a[-1]
    batch = max(prod(a[:-2]), prod(b[:-2]))
    if len(b) == 2:
        # a batch of rows by one matrix is one product
        m, batch = m * prod(a[:-2]), 1
    if min(m, n, k, batch) < 1 or b[-2] != k:
        return Work(moved_bytes=moved_bytes, dtype=dtype) if moved_bytes else None
    return Work((m, n, k, batch), None, False, moved_bytes, dtype)


def _convolution(
    inputs: Sequence[Shape], outputs: Sequence[Shape], backward: bool, dtype: str, moved_bytes: int
) -> Work | None:
    """Return a convolution as the product that it is: pixels × channels out × (channels in × window)."""
    found = [shape for shape in inputs if len(shape) >= 3]
    if backward and len(found) >= 3:
        image, weight = found[0], found[2]  # the gradient, and the weight
    elif len(found) >= 2 and outputs and len(outputs[0]) >= 3:
        image, weight = outputs[0], found[1]
    else:
        return None
    pixels, out, window = image[0] * prod(image[2:]), weight[0], prod(weight[1:])
    if min(pixels, out, window) < 1:
        return None
    return Work((pixels, out, window, 2 if backward else 1), None, False, moved_bytes, dtype)
