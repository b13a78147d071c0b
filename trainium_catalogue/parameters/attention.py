"""Which implementation of attention NeuronX Distributed computes a Llama with."""

from collections.abc import Mapping
from enum import StrEnum

from trainium_catalogue.models.presets import ModelShape
from trainium_catalogue.parameters.parameter import Value

_TILE = 2048
"""Tokens that the kernel takes at a time (NxD's kernels/flash_attn.py, nki_flash_attn_func)."""
_HEAD = 128
"""Elements of the largest head that it takes: a core has so many partitions (NKI, flash_fwd)."""
_CORES = 2
"""Physical cores of a logical one, at most, over which it divides a rank's heads: it is run for
``lnc * (heads // lnc)`` of them, and its backward pass refuses to be run for fewer than there are
(NxD's kernels/flash_attn.py; NKI, flash_attn_bwd)."""


class Attention(StrEnum):
    """Values of the parameter ``attention``."""

    AUTO = "auto"
    FLASH = "flash"
    """Neuron's kernel, which keeps no scores."""
    EAGER = "eager"
    """Matrix products and a softmax in fp32."""


def obstacle_to_flash(
    shape: ModelShape, *, seq_len: int, document_masks: bool, degree: int
) -> str | None:
    """Say why the kernel cannot compute a model's attention; None if it can."""
    if document_masks:
        return "document-masks=true, and the kernel takes no mask but that of what comes later"
    if seq_len % _TILE:
        return f"seq-len={seq_len} is no multiple of the {_TILE} tokens that the kernel takes"
    if shape.head_size > _HEAD:
        return f"heads of {shape.head_size} are larger than the {_HEAD} that the kernel takes"
    # Whatever the type of instance, as its cores decide nothing else about the graphs. A degree
    # that does not divide the heads is refused elsewhere.
    heads, rest = divmod(shape.num_attention_heads, degree)
    if heads % _CORES and not rest:
        return (
            f"a rank has {heads} of {shape.num_attention_heads} heads, and the kernel halves them "
            "over the two cores of a logical one (trn2)"
        )
    return None


def uses_flash(values: Mapping[str, Value], shape: ModelShape) -> tuple[bool, str | None]:
    """Choose, and say what the obstacle was; ``ValueError`` if what is asked for cannot be."""
    wanted = Attention(str(values["attention"]))
    obstacle = obstacle_to_flash(
        shape,
        seq_len=int(values["seq-len"]),
        document_masks=bool(values["document-masks"]),
        degree=int(values["tensor-parallel"]),
    )
    if wanted is Attention.FLASH and obstacle is not None:
        raise ValueError(f"attention=flash cannot be: {obstacle}; set attention=auto")
    return wanted is not Attention.EAGER and obstacle is None, obstacle
