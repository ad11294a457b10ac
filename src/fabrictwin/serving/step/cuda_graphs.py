"""Sizes of batches for which vLLM captures CUDA graphs (`vllm/config/vllm.py`)."""

from __future__ import annotations

LARGEST = 512
LARGEST_BLACKWELL = 1024
BLACKWELL = (100, 103)


def capture_sizes(
    max_num_seqs: int, max_num_batched_tokens: int, *, capability: int, release: str, most: int | None = None
) -> tuple[int, ...]:
    """Return the sizes: 1, 2, 4, by 8 to 248, by 16 to the largest that is asked for, else to the release's or
    twice the sequences.
    """
    if most is None:
        largest = LARGEST_BLACKWELL if capability in BLACKWELL and release == "0.33" else LARGEST
        most = min(max_num_seqs * 2, largest)
    last = min(most, max_num_batched_tokens)
    return tuple(size for size in (1, 2, 4, *range(8, 256, 8), *range(256, last + 1, 16)) if size <= last)


def padded_to(sizes: tuple[int, ...], last: int) -> list[int]:
    """Return what 0 to `last` tokens are padded to: the next captured size, or nothing beyond the largest."""
    padded = list(range(last + 1))
    for low, high in zip((0, *sizes), sizes, strict=False):
        for tokens in range(low + 1, min(high, last) + 1):
            padded[tokens] = min(high, last)
    return padded
