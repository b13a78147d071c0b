"""The workloads and their parameters.

Job definitions are created from this table, and the CLI and the launcher parse command lines
against it with the same parser (``parameters.command_line``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from trainium_catalogue import contract
from trainium_catalogue.models.presets import LLAMA_PRESETS, PRESETS, PRETRAIN, Preset, find_model
from trainium_catalogue.parameters.allreduce import ALL_REDUCE_PARAMETERS
from trainium_catalogue.parameters.data import (
    EXPORT_PARAMETERS,
    PREPARE_PARAMETERS,
    TOKENIZE_PARAMETERS,
)
from trainium_catalogue.parameters.parameter import LAUNCH_PARAMETERS, Parameter, Value
from trainium_catalogue.parameters.program import PROGRAM_PARAMETERS, WHEELS_PARAMETERS
from trainium_catalogue.parameters.training import (
    MNIST_PARAMETERS,
    pretrain_parameters,
    training_parameters,
)
from trainium_catalogue.parameters.verify import VERIFY_PARAMETERS
from trainium_catalogue.suggest import did_you_mean

__all__ = [
    "LAUNCH_PARAMETERS",
    "WORKLOADS",
    "Hardware",
    "Parameter",
    "Value",
    "Workload",
    "find_workload",
]


class Hardware(StrEnum):
    """The kind of machine that a workload runs on."""

    TRAINIUM = "trainium"
    """Nodes of the deployment's instance type, as one multi-node job."""
    CPU = "cpu"
    """CPU instances: one container, or an array of independent ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program that a job can run."""

    name: str
    summary: str
    hardware: Hardware = Hardware.TRAINIUM
    min_nodes: int = 1
    max_nodes: int | None = None
    """Maximum number of nodes; None: as many as the deployment allows."""
    default_nodes: int = 1
    is_array: bool = False
    """True if ``--nodes`` creates an array job whose children share the input (CPU only)."""
    time_limit_hours: float
    """Default for a submission; the deployment's ``job_time_limit_hours`` caps it."""
    parameters: tuple[Parameter, ...]
    preset: str | None = None
    """Model to pre-train, from ``models.PRESETS``; empty if ``--model`` selects it; None if the
    workload has none."""
    trains: bool = False
    """True if it writes checkpoints, metrics and a status under its run's name, and resumes."""
    dataset_kind: str = ""
    """``kind`` required in a dataset's manifest; a manifest without one describes packed tokens."""
    reads: tuple[str, ...] = ()
    """Bucket prefixes that its role may list and read; ``*`` stands for any run."""
    writes: tuple[str, ...] = ()
    """Prefixes that it may write and delete, in addition to results and metrics."""
    reads_data_uris: bool = False
    """True if it may read the deployment's ``data_uris``, which are outside its bucket."""
    writes_data_uris: bool = False
    hang_limit_s: float | None = None
    """Default of ``hang-limit-s``, if different."""

    @property
    def launch_parameters(self) -> tuple[Parameter, ...]:
        """The launcher's parameters, with this workload's defaults."""
        if self.hang_limit_s is None:
            return LAUNCH_PARAMETERS
        return tuple(
            replace(item, default=self.hang_limit_s) if item.name == "hang-limit-s" else item
            for item in LAUNCH_PARAMETERS
        )

    def of_model(self, values: Mapping[str, Value]) -> "Workload":
        """Return this workload with the defaults of the model in ``values``, if any."""
        name = str(values.get("model", ""))
        if self.name != PRETRAIN or not name:
            return self
        preset = find_model(name)
        return replace(
            self,
            default_nodes=preset.default_nodes,
            time_limit_hours=preset.time_limit_hours,
            parameters=pretrain_parameters(preset),
            preset=name,
        )

    @property
    def runs_program(self) -> bool:
        """True if its workers run a user's own program instead of this project's code."""
        return self.name == contract.PROGRAM


def _pretraining(preset: Preset) -> Workload:
    is_decoder = preset.name in LLAMA_PRESETS
    return Workload(
        name=preset.name,
        summary=preset.summary,
        default_nodes=preset.default_nodes,
        time_limit_hours=preset.time_limit_hours,
        parameters=training_parameters(preset),
        preset=preset.name,
        trains=True,
        dataset_kind="packed" if is_decoder else "bert",
        reads=(
            contract.DATASETS_PREFIX,
            # For --init-from.
            *((contract.MODELS_PREFIX, contract.EXPORT_PREFIX) if is_decoder else ()),
        ),
        writes=(contract.RUNS_PREFIX, contract.CACHE_PREFIX),
        reads_data_uris=True,
        writes_data_uris=True,  # for --checkpoint-uri
    )


_WORKLOADS = (
    Workload(
        name="all-reduce",
        summary="correctness, latency and bandwidth of all-reduce over all nodes",
        default_nodes=2,
        time_limit_hours=1.0,
        parameters=ALL_REDUCE_PARAMETERS,
    ),
    *(_pretraining(preset) for preset in PRESETS.values()),
    replace(
        _pretraining(PRESETS["llama2-7b"]),
        name=PRETRAIN,
        summary="pre-train a decoder-only model: Llama 3.1 or 3.2, or Qwen3 (see --model)",
        default_nodes=1,
        parameters=pretrain_parameters(None),
        preset="",
    ),
    Workload(
        name="mnist",
        summary="train and test the small network of AWS's sample on handwritten digits",
        time_limit_hours=1.0,
        parameters=MNIST_PARAMETERS,
        trains=True,
        dataset_kind="images",
        reads=(contract.DATASETS_PREFIX,),
        writes=(contract.RUNS_PREFIX, contract.CACHE_PREFIX),
    ),
    Workload(
        name="verify",
        summary="check gradients, losses and resume on this device and release; run the probes",
        max_nodes=4,
        time_limit_hours=2.0,
        writes=(contract.RUNS_PREFIX, contract.CACHE_PREFIX),
        parameters=VERIFY_PARAMETERS,
    ),
    Workload(
        name=contract.PROGRAM,
        summary="your own program: `submit ./train.py`, or any that torchrun can start",
        time_limit_hours=24.0,
        hang_limit_s=1800.0,
        parameters=PROGRAM_PARAMETERS,
        reads=(
            contract.run_prefix("*", "code"),
            contract.run_key("*", contract.RUN_PROGRAM),
            # Read first, and replaced only if unchanged since.
            contract.run_key("*", contract.RUN_STATUS),
            contract.WHEELS_PREFIX,
            *contract.INPUT_PREFIXES,
        ),
        # Third-party code is untrusted: its role must not reach the checkpoints of other
        # workloads, or the code of other jobs.
        writes=(contract.run_prefix("*", "snapshots"),),
        reads_data_uris=True,
    ),
    Workload(
        name="prepare",
        summary="download a known corpus or dataset, verify it, and store it in the bucket",
        hardware=Hardware.CPU,
        writes=(contract.CORPORA_PREFIX, contract.DATASETS_PREFIX),
        time_limit_hours=8.0,
        parameters=PREPARE_PARAMETERS,
    ),
    Workload(
        name="tokenize",
        summary="convert text, JSONL or Parquet into packed token shards",
        hardware=Hardware.CPU,
        is_array=True,
        reads=(contract.CORPORA_PREFIX, contract.TOKENIZERS_PREFIX),
        writes=(contract.DATASETS_PREFIX,),
        reads_data_uris=True,
        time_limit_hours=12.0,
        parameters=TOKENIZE_PARAMETERS,
    ),
    Workload(
        name=contract.WHEELS,
        summary="collect the wheels of a program's requirements; submitted automatically",
        hardware=Hardware.CPU,
        reads=(
            contract.run_prefix("*", "code"),
            contract.run_key("*", contract.RUN_PROGRAM),
        ),
        writes=(contract.WHEELS_PREFIX,),
        time_limit_hours=1.0,
        parameters=WHEELS_PARAMETERS,
    ),
    Workload(
        name="export",
        summary="export a run's newest checkpoint in Hugging Face format",
        hardware=Hardware.CPU,
        reads=(
            contract.RUNS_PREFIX,
            contract.DATASETS_PREFIX,
            contract.TOKENIZERS_PREFIX,
            contract.MODELS_PREFIX,
        ),
        writes=(contract.EXPORT_PREFIX,),
        reads_data_uris=True,
        time_limit_hours=4.0,
        parameters=EXPORT_PARAMETERS,
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType({w.name: w for w in _WORKLOADS})
"""Every workload, by name."""


def find_workload(name: str) -> Workload:
    """Look up a workload; ``ValueError`` names the nearest known one."""
    try:
        return WORKLOADS[name]
    except KeyError:
        raise ValueError(f"unknown workload {name!r}; {did_you_mean(name, WORKLOADS)}") from None
