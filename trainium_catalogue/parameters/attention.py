"""The choice of a decoder's attention implementation with NeuronX Distributed."""

from collections.abc import Mapping
from enum import StrEnum

from trainium_catalogue.models.presets import ModelShape
from trainium_catalogue.parameters.parameter import Value

_TILE = 2048
"""Tokens that the kernel processes at a time (NxD's kernels/flash_attn.py, nki_flash_attn_func)."""
_HEAD = 128
"""Maximum elements per head: a core's number of partitions (NKI, flash_fwd)."""
_CORES = 2
"""Maximum physical cores per logical core. The kernel divides a rank's heads over them: it runs for
``lnc * (heads // lnc)`` heads, and its backward pass requires all heads (NxD's
kernels/flash_attn.py; NKI, flash_attn_bwd)."""


class Attention(StrEnum):
    """Values of the parameter ``attention``."""

    AUTO = "auto"
    FLASH = "flash"
    """Neuron's kernel, which does not store scores."""
    EAGER = "eager"
    """Matrix products and a softmax in fp32."""


def obstacle_to_flash(
    shape: ModelShape, *, seq_len: int, document_masks: bool, degree: int
) -> str | None:
    """Return why the kernel cannot compute a model's attention; None if it can."""
    if document_masks:
        return "document-masks=true, and the kernel supports only the causal mask"
    if seq_len % _TILE:
        return (
            f"seq-len={seq_len} is not a multiple of the {_TILE:,} tokens that the kernel requires"
        )
    if shape.head_size > _HEAD:
        return f"the head size of {shape.head_size} exceeds the kernel's maximum of {_HEAD}"
    # The same on every instance type, so that graphs do not depend on its cores. A degree that
    # does not divide the heads is refused elsewhere.
    heads, remainder = divmod(shape.num_attention_heads, degree)
    if heads % _CORES and not remainder:
        return (
            f"a rank has {heads} of {shape.num_attention_heads} heads, which the kernel cannot "
            "split evenly between the two physical cores of a logical NeuronCore (trn2)"
        )
    return None


def uses_flash(values: Mapping[str, Value], shape: ModelShape) -> tuple[bool, str | None]:
    """Return the choice and any obstacle; ``ValueError`` if the requested one is impossible."""
    requested = Attention(str(values["attention"]))
    obstacle = obstacle_to_flash(
        shape,
        seq_len=int(values["seq-len"]),
        document_masks=bool(values["document-masks"]),
        degree=int(values["tensor-parallel"]),
    )
    if requested is Attention.FLASH and obstacle is not None:
        raise ValueError(f"attention=flash is not possible: {obstacle}; set attention=auto")
    return requested is not Attention.EAGER and obstacle is None, obstacle
