"""Keep the memory of large tensors: on CPUs half of a step is the kernel clearing pages."""

from __future__ import annotations

import ctypes

# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have glibc use freed memory again instead of returning it; whether it does.

    Blocks above 32 MiB, such as logits, are otherwise mapped anew, and cleared, in every step
    (mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _NEVER))
