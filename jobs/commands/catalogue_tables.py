"""The catalogue as tables for a terminal."""

from rich.console import Console
from rich.table import Table

from jobs.request import ESTIMATE_NOTE
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.releases import DEFAULT_RELEASE, NEURON_RELEASES
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS, Parameter


def print_tables() -> None:
    """Print instance types, releases and workloads."""
    console = Console()
    console.print(_instance_types())
    console.print(_offers())
    console.print(_releases())
    for table in _workloads():
        console.print(table)


def _instance_types() -> Table:
    table = _table(
        "Instance types",
        ["type"],
        ["vCPU", "GiB", "chips", "workers", "HBM GiB", "EFA", "Gbit/s", "$/h *"],
    )
    table.caption = f"workers: processes per node. * {ESTIMATE_NOTE}"
    for item in INSTANCE_TYPES.values():
        table.add_row(
            item.name,
            str(item.num_vcpus),
            str(item.memory_mib // 1024),
            str(item.num_neuron_devices),
            str(item.processes_per_node),
            str(item.num_neuron_devices * item.hbm_gib_per_device),
            str(item.num_efa_interfaces),
            f"{item.network_gbps:g}",
            f"{item.usd_per_hour_estimate:.2f}",
        )
    return table


def _offers() -> Table:
    table = _table("Where they are offered (availability zone ids)", ["type", "zones", "sold as"])
    for item in INSTANCE_TYPES.values():
        table.add_row(item.name, item.offers(), ", ".join(sorted(item.usage_classes)))
    return table


def _releases() -> Table:
    table = _table("Neuron releases", ["SDK", "PyTorch", "host driver", "families", "image"])
    notes = []
    for item in NEURON_RELEASES.values():
        table.add_row(
            f"{item.name} (default)" if item.name == DEFAULT_RELEASE else item.name,
            item.pytorch if item.backend is None else f"{item.pytorch}, {item.backend}",
            item.driver_range,
            " ".join(sorted(item.families)),
            "published" if item.base_image else "yours",
        )
        if not item.base_image:
            notes.append(f"{item.name}: {item.why_no_image}")
    table.caption = "\n".join(["yours: give trainium:base_image, for", *notes])
    return table


def _workloads() -> list[Table]:
    tables = []
    for item in WORKLOADS.values():
        table = _parameters(f"{item.name}: {item.summary}", item.parameters)
        table.caption = (
            f"{item.min_nodes} or more nodes, default {item.default_nodes}; default time limit "
            f"{item.time_limit_hours:g} h"
        )
        tables.append(table)
    return [*tables, _parameters("Parameters of every workload", LAUNCH_PARAMETERS)]


def _parameters(title: str, parameters: tuple[Parameter, ...]) -> Table:
    table = _table(title, ["--set", "default", "meaning"])
    for item in parameters:
        default = str(item.default).lower() if isinstance(item.default, bool) else item.default
        table.add_row(item.name, str(default), item.help)
    return table


def _table(title: str, text: list[str], numbers: list[str] | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for index, heading in enumerate(text):
        # Names stay whole: they are what one copies.
        table.add_column(heading, no_wrap=index == 0)
    for heading in numbers or []:
        table.add_column(heading, justify="right")
    return table
