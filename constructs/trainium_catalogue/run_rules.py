"""How a submission and what its run remembers become one set of parameters, on desk and node."""

from collections.abc import Mapping

from trainium_catalogue.parameters import Value
from trainium_catalogue.training_parameters import FIXED_IN_A_RUN, SINCE_THEN

# Where the checkpoints are belongs to a run as well: elsewhere it would begin again at step 0.
_FIXED = (*FIXED_IN_A_RUN, "batch-size", "checkpoint-uri")
_OF_ONE_SUBMISSION = frozenset({"steps-this-run", "compile-only"})
"""Parameters that the next submission does not inherit."""


def settle_values(
    *,
    run: str,
    workload: str,
    stored_workload: str,
    stored: Mapping[str, Value],
    values: Mapping[str, Value],
    given: Mapping[str, Value],
) -> dict[str, Value]:
    """What a submission to an existing run means: its own words, the run's memory, defaults.

    ``values`` are all parameters with defaults filled in, ``given`` those that the user named.
    ``ValueError`` where a parameter that makes the run what it is would change.
    """
    if stored_workload != workload:
        raise ValueError(
            f"run {run} is a run of {stored_workload}, not of {workload}; submit "
            f"{stored_workload}, or use another run name"
        )
    stored = {**SINCE_THEN, **stored}
    changed = [
        f"{name}={_typed(given[name])} (the run has {_typed(stored[name])})"
        for name in _FIXED
        if name in given and name in stored and given[name] != stored[name]
    ]
    if changed:
        raise ValueError(
            f"run {run} cannot continue with {', '.join(changed)}; leave that out, or use "
            "another run name"
        )
    remembered = {
        name: value
        for name, value in stored.items()
        if name in values and name not in _OF_ONE_SUBMISSION
    }
    return {**values, **remembered, **given}


def _typed(value: Value) -> str:
    """As it is written on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
