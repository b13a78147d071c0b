"""The catalogue as tables for a terminal."""

from rich.table import Table

from jobs.job import ESTIMATE_NOTE
from jobs.output.terminal import Terminal
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.models.presets import MODELS, PRETRAIN
from trainium_catalogue.releases import DEFAULT_RELEASE, NEURON_RELEASES
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS, Hardware, Parameter, Workload


def print_tables() -> None:
    """Print instance types, releases, workloads and models."""
    console = Terminal()
    console.print(_instance_types())
    console.print(_offers())
    console.print(_releases())
    for table in _workloads():
        console.print(table)
    console.print(_models())


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
    table = _table(
        "Availability zones (zone IDs) that offer each type", ["type", "zones", "purchase options"]
    )
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
            "published" if item.base_image else "built" if item.packages else "your own",
        )
        if not item.has_image:
            notes.append(f"{item.name}: {item.why_no_image}")
    table.caption = "\n".join(["your own: no image is known; set trainium:base_image", *notes])
    return table


def _workloads() -> list[Table]:
    tables = []
    for item in WORKLOADS.values():
        table = parameters_table(f"{item.name}: {item.summary}", item.parameters)
        table.caption = f"{_nodes(item)}; default time limit {item.time_limit_hours:g} h"
        tables.append(table)
    launch = parameters_table("Parameters of every workload", LAUNCH_PARAMETERS)
    launch.caption = "\n".join(
        f"default of --hang-limit-s for {item.name}: {item.hang_limit_s:g}"
        for item in WORKLOADS.values()
        if item.hang_limit_s is not None
    )
    return [*tables, launch]


def _models() -> Table:
    table = _table(
        f"Models for {PRETRAIN} (--model)",
        ["model", "description"],
        ["parameters", "sequence", "tensor parallel", "nodes"],
    )
    for preset in MODELS.values():
        table.add_row(
            preset.name,
            preset.summary,
            f"{preset.shape.num_parameters:,}",
            str(preset.seq_len),
            str(preset.tensor_parallel),
            str(preset.default_nodes),
        )
    return table


def _nodes(item: Workload) -> str:
    if item.hardware is Hardware.CPU:
        return (
            f"{'one or more' if item.is_array else 'one'} CPU "
            f"instance{'s' if item.is_array else ''}"
        )
    if item.max_nodes is not None:
        return f"{item.min_nodes} to {item.max_nodes} nodes, default {item.default_nodes}"
    return f"{item.min_nodes} or more nodes, default {item.default_nodes}"


def parameters_table(title: str, parameters: tuple[Parameter, ...]) -> Table:
    """Build a table of parameters, spelled as options of `submit`."""
    table = _table(title, ["parameter", "default", "meaning"])
    for item in parameters:
        table.add_row(f"--{item.name}", item.shown_default, item.help)
    return table


def _table(title: str, text: list[str], numbers: list[str] | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for index, heading in enumerate(text):
        # Names are not wrapped, so that they can be copied.
        table.add_column(heading, no_wrap=index == 0)
    for heading in numbers or []:
        table.add_column(heading, justify="right")
    return table
