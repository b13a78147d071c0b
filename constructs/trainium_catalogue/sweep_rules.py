"""What the parameters of the all-reduce workload must agree on; for desk and node."""

from collections.abc import Mapping

from trainium_catalogue.parameters import Value

BYTES_PER_ELEMENT = 4
"""fp32 and int32."""


def check_sweep(values: Mapping[str, Value], num_ranks: int) -> None:
    """Check parameters against each other; ``ValueError`` names value and remedy."""
    min_bytes, max_bytes = int(values["min-bytes"]), int(values["max-bytes"])
    faulty_rank = int(values["inject-error-rank"])
    if min_bytes % BYTES_PER_ELEMENT:
        nearest = max(BYTES_PER_ELEMENT, round(min_bytes / BYTES_PER_ELEMENT) * BYTES_PER_ELEMENT)
        raise ValueError(
            f"min-bytes={min_bytes} is not a multiple of {BYTES_PER_ELEMENT}, the size of an "
            f"element; the nearest is {nearest}"
        )
    if max_bytes < min_bytes:
        raise ValueError(
            f"max-bytes={max_bytes} is below min-bytes={min_bytes}; "
            "raise the one or lower the other"
        )
    if faulty_rank >= num_ranks:
        raise ValueError(
            f"inject-error-rank={faulty_rank} does not exist; "
            f"the job has ranks 0 to {num_ranks - 1}"
        )
