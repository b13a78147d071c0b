"""`jobs catalogue`: what can be deployed and run."""

from dataclasses import asdict
from typing import Any

import typer

from jobs.commands.options import JsonOption, command
from jobs.errors import EXIT_OK
from jobs.output.console import print_document
from trainium_catalogue.instances import INSTANCE_TYPES, InstanceType
from trainium_catalogue.models import MODELS, PRETRAIN, Preset
from trainium_catalogue.releases import DEFAULT_RELEASE, NEURON_RELEASES, NeuronRelease
from trainium_catalogue.workloads import LAUNCH_PARAMETERS, WORKLOADS, Parameter


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


def document() -> dict[str, Any]:
    """Make the document of ``catalogue --json``."""
    return {
        "instance_types": [_instance_type(item) for item in INSTANCE_TYPES.values()],
        "neuron_releases": [_release(item) for item in NEURON_RELEASES.values()],
        "workloads": [
            {
                "name": item.name,
                "summary": item.summary,
                "hardware": item.hardware,
                "min_nodes": item.min_nodes,
                "max_nodes": item.max_nodes,
                "default_nodes": item.default_nodes,
                "is_array": item.is_array,
                "time_limit_hours": item.time_limit_hours,
                "parameters": [_parameter(parameter) for parameter in item.parameters],
            }
            for item in WORKLOADS.values()
        ],
        "launch_parameters": [_parameter(parameter) for parameter in LAUNCH_PARAMETERS],
        "models": [_model(item) for item in MODELS.values()],
    }


def _instance_type(item: InstanceType) -> dict[str, Any]:
    return {
        "name": item.name,
        "num_vcpus": item.num_vcpus,
        "memory_mib": item.memory_mib,
        "num_neuron_devices": item.num_neuron_devices,
        "num_neuron_cores": item.num_neuron_cores,
        "processes_per_node": item.processes_per_node,
        "hbm_gib_per_device": item.hbm_gib_per_device,
        "num_efa_interfaces": item.num_efa_interfaces,
        "network_gbps": item.network_gbps,
        "local_nvme_gb": item.local_nvme_gb,
        "usage_classes": sorted(item.usage_classes),
        "zone_ids": {region: list(ids) for region, ids in item.zone_ids.items()},
        "usd_per_hour_estimate": item.usd_per_hour_estimate,
    }


def _release(item: NeuronRelease) -> dict[str, Any]:
    return {
        "name": item.name,
        "default": item.name == DEFAULT_RELEASE,
        "pytorch": item.pytorch,
        "backend": item.backend,
        "families": sorted(item.families),
        "base_image": item.base_image,
        "why_no_image": item.why_no_image or None,
        "driver_min": item.driver_min,
        "driver_below": item.driver_below,
    }


def _model(item: Preset) -> dict[str, Any]:
    return {
        "name": item.name,
        "summary": item.summary,
        "workload": PRETRAIN,
        "shape": asdict(item.shape),
        "num_parameters": item.shape.num_parameters,
        "seq_len": item.seq_len,
        "tensor_parallel": item.tensor_parallel,
        "default_nodes": item.default_nodes,
    }


def _parameter(item: Parameter) -> dict[str, Any]:
    return {**asdict(item), "type": type(item.default).__name__}
