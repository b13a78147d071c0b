"""The workloads, and the parameters that a user may set on each.

The job definitions are made from this table, the helper checks ``--set`` against it and the
launcher parses its command line with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trainium_catalogue.suggest import did_you_mean

Value = int | float | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One command-line flag of a workload; its type is the type of its default."""

    name: str
    """Kebab-case, without the leading dashes, with its unit."""
    default: Value
    help: str
    minimum: float | None = None

    def parse(self, text: str) -> Value:
        """Read ``text`` as this parameter's type; ``ValueError`` says what would be right."""
        value = self._convert(text)
        if self.minimum is not None and isinstance(value, int | float) and value < self.minimum:
            raise ValueError(f"{self.name}={text} is too small; the least is {self.minimum:g}")
        return value

    def _convert(self, text: str) -> Value:
        if isinstance(self.default, bool):
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            raise ValueError(f"{self.name}={text} is not a boolean; write true or false")
        kind = type(self.default)
        try:
            value = kind(text)
        except ValueError:
            noun = {int: "a whole number", float: "a number"}[kind]
            raise ValueError(
                f"{self.name}={text} is not {noun}; the default is {self.default}"
            ) from None
        if isinstance(value, float) and value - value != 0:
            raise ValueError(f"{self.name}={text} is not finite; the default is {self.default}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something a job can run."""

    name: str
    summary: str
    min_nodes: int
    default_nodes: int
    time_limit_hours: float
    """Default of a submission; the deployment's ``job_time_limit_hours`` caps it."""
    parameters: tuple[Parameter, ...]


LAUNCH_PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        name="peer-timeout-s",
        default=30.0,
        minimum=1,
        help="seconds of silence after which a peer counts as lost",
    ),
    Parameter(
        name="hang-limit-s",
        default=600.0,
        minimum=1,
        help="seconds without progress of any worker after which the node counts as hung",
    ),
    Parameter(
        name="join-timeout-s",
        default=1800.0,
        minimum=1,
        help="seconds that nodes wait for each other at the start; children may start late",
    ),
    Parameter(
        name="stop-grace-s",
        default=90.0,
        minimum=0,
        help="seconds that workers have to end after SIGTERM",
    ),
)
"""Parameters that the launcher understands for every workload."""

_WORKLOADS = (
    Workload(
        name="all-reduce",
        summary="correctness, latency and bandwidth of all-reduce over all nodes",
        min_nodes=1,
        default_nodes=2,
        time_limit_hours=1.0,
        parameters=(
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
                help="ratio between one payload of the sweep and the next",
            ),
            Parameter(
                name="warmup-iterations",
                default=5,
                minimum=0,
                help="iterations of each size before timing starts",
            ),
            Parameter(
                name="iterations",
                default=20,
                minimum=1,
                help="timed iterations of each size, at most",
            ),
            Parameter(
                name="seconds-per-size",
                default=20.0,
                minimum=0.01,
                help="time budget of each size; fewer iterations are made when it runs out",
            ),
            Parameter(
                name="total-seconds",
                default=1200.0,
                minimum=1,
                help="time budget of the whole sweep; sizes that do not fit are left out",
            ),
            Parameter(
                name="require-bar",
                default=False,
                help="fail when bus bandwidth is below the published figure, where there is one",
            ),
            Parameter(
                name="inject-error-rank",
                default=-1,
                minimum=-1,
                help="drill: raise an error on this rank, to see how the job ends (-1: none)",
            ),
        ),
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType({w.name: w for w in _WORKLOADS})
"""Every workload, by name."""


def find_workload(name: str) -> Workload:
    """Look a workload up; ``ValueError`` names the nearest known one."""
    try:
        return WORKLOADS[name]
    except KeyError:
        raise ValueError(f"unknown workload {name!r}; {did_you_mean(name, WORKLOADS)}") from None


def parse_parameters(
    assignments: Iterable[tuple[str, str]], parameters: Iterable[Parameter]
) -> dict[str, Value]:
    """Read ``(name, text)`` pairs against ``parameters``.

    Returns only what was assigned. ``ValueError`` names the parameter, the value and the remedy.
    """
    known = {parameter.name: parameter for parameter in parameters}
    values: dict[str, Value] = {}
    for name, text in assignments:
        if name not in known:
            raise ValueError(f"unknown parameter {name!r}; {did_you_mean(name, known)}")
        values[name] = known[name].parse(text)
    return values
