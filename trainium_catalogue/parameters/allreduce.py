"""The parameters of the all-reduce workload, and checks of their combinations."""

from collections.abc import Mapping

from trainium_catalogue.parameters.parameter import Parameter, Value

ALL_REDUCE_PARAMETERS = (
    Parameter(
        name="min-bytes",
        default=1024,
        minimum=4,
        help="smallest payload of the sweep, in bytes per rank",
    ),
    Parameter(
        name="max-bytes",
        default=1024**3,
        minimum=4,
        help="largest payload of the sweep, in bytes per rank",
    ),
    Parameter(
        name="size-factor",
        default=4,
        minimum=2,
        help="ratio of each payload of the sweep to the previous one",
    ),
    Parameter(
        name="warmup-iterations",
        default=5,
        minimum=0,
        help="warm-up iterations per size",
    ),
    Parameter(
        name="iterations",
        default=20,
        minimum=1,
        help="maximum number of timed iterations per size",
    ),
    Parameter(
        name="seconds-per-size",
        default=20.0,
        minimum=0.01,
        help="time budget per size, in seconds; it can reduce the number of iterations",
    ),
    Parameter(
        name="total-seconds",
        default=1200.0,
        minimum=1,
        help="time budget of the whole sweep, in seconds; sizes that do not fit are skipped",
    ),
    Parameter(
        name="require-bar",
        default=False,
        help="fail if bus bandwidth is below the published figure, if there is one",
    ),
    Parameter(
        name="inject-error-rank",
        default=-1,
        minimum=-1,
        help="fault injection: raise an error on this rank (-1: none)",
    ),
)

BYTES_PER_ELEMENT = 4
"""Size of fp32 and int32."""


def check_sweep(values: Mapping[str, Value], num_ranks: int) -> None:
    """Check parameters against each other; ``ValueError`` names the value and the remedy."""
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
            f"max-bytes={max_bytes} is below min-bytes={min_bytes}; raise one or lower the other"
        )
    if faulty_rank >= num_ranks:
        raise ValueError(
            f"inject-error-rank={faulty_rank}: there is no such rank; the job has ranks 0 to "
            f"{num_ranks - 1}"
        )
