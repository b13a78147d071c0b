"""`jobs catalogue`: everything that can be deployed and run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import typer

from jobs.commands.options import JsonOption, command
from jobs.errors import EXIT_OK
from jobs.output.console import print_document
from trainium_catalogue.documents import Natural, Positive, picked
from trainium_catalogue.instances import INSTANCE_TYPES
from trainium_catalogue.models.presets import MODELS, PRETRAIN
from trainium_catalogue.models.shapes import ModelShape
from trainium_catalogue.releases import DEFAULT_RELEASE, NEURON_RELEASES
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS, Hardware, Parameter


@command
def catalogue(context: typer.Context, as_json: JsonOption = False) -> int:
    """Show instance types, Neuron releases, models, and workloads with their parameters.

    Needs no AWS account.
    """
    if as_json:
        print_document(document())
    else:
        from jobs.output.catalogue import print_tables

        print_tables()
    return EXIT_OK


@dataclass(frozen=True, kw_only=True)
class InstanceItem:
    """An instance type."""

    name: str
    num_vcpus: Natural
    memory_mib: Natural
    num_neuron_devices: Natural
    num_neuron_cores: Natural
    processes_per_node: Natural
    hbm_gib_per_device: Natural
    num_efa_interfaces: Natural
    network_gbps: float
    local_nvme_gb: Natural
    usage_classes: tuple[str, ...]
    zone_ids: dict[str, tuple[str, ...]]
    """Availability Zone IDs by region."""
    usd_per_hour_estimate: float
    """List price, for reference only."""


@dataclass(frozen=True, kw_only=True)
class ReleaseItem:
    """A Neuron release."""

    name: str
    default: bool
    pytorch: str
    backend: str | None
    families: tuple[str, ...]
    base_image: str | None
    why_no_image: str | None
    driver_min: str
    driver_below: str | None


@dataclass(frozen=True, kw_only=True)
class ParameterItem(Parameter):
    """A parameter of a workload."""

    type: Literal["int", "float", "str", "bool"]


@dataclass(frozen=True, kw_only=True)
class WorkloadItem:
    """A workload with its parameters."""

    name: str
    summary: str
    hardware: Hardware
    """cpu: a data or export job on ordinary instances."""
    min_nodes: Positive
    max_nodes: int | None
    """Null: as many as the deployment has."""
    default_nodes: Positive
    is_array: bool
    """True if ``--nodes`` makes it an array job."""
    time_limit_hours: float
    parameters: tuple[ParameterItem, ...]


@dataclass(frozen=True, kw_only=True)
class ModelItem:
    """A model that its workload accepts as --model."""

    name: str
    summary: str
    workload: str
    shape: ModelShape
    num_parameters: Natural
    seq_len: Positive
    tensor_parallel: Positive
    default_nodes: Positive


@dataclass(frozen=True, kw_only=True)
class CatalogueDocument:
    """Instance types, Neuron releases, workloads and models."""

    instance_types: tuple[InstanceItem, ...]
    neuron_releases: tuple[ReleaseItem, ...]
    workloads: tuple[WorkloadItem, ...]
    launch_parameters: tuple[ParameterItem, ...]
    """Parameters of every workload."""
    models: tuple[ModelItem, ...]


def document() -> CatalogueDocument:
    """Build the document of ``catalogue --json``."""
    return CatalogueDocument(
        instance_types=tuple(
            picked(
                InstanceItem,
                item,
                usage_classes=tuple(sorted(item.usage_classes)),
                zone_ids=dict(item.zone_ids),
            )
            for item in INSTANCE_TYPES.values()
        ),
        neuron_releases=tuple(
            picked(
                ReleaseItem,
                item,
                default=item.name == DEFAULT_RELEASE,
                families=tuple(sorted(item.families)),
                why_no_image=item.why_no_image or None,
            )
            for item in NEURON_RELEASES.values()
        ),
        workloads=tuple(
            picked(WorkloadItem, item, parameters=_parameters(item.parameters))
            for item in WORKLOADS.values()
        ),
        launch_parameters=_parameters(LAUNCH_PARAMETERS),
        models=tuple(
            picked(ModelItem, item, workload=PRETRAIN, num_parameters=item.shape.num_parameters)
            for item in MODELS.values()
        ),
    )


def _parameters(items: Iterable[Parameter]) -> tuple[ParameterItem, ...]:
    return tuple(picked(ParameterItem, item, type=type(item.default).__name__) for item in items)
