"""Workload errors are distinguished from host and network errors."""

from __future__ import annotations

import errno

import pytest
import torch
import torch.distributed as dist
from botocore.exceptions import ClientError, EndpointConnectionError

from training.core.failures import classify, describe, shows_unfit_host
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.neuron_faults import NEURON_FAULTS, find_neuron_fault


def caused(cause: BaseException) -> BaseException:
    error = RuntimeError("could not save")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("peer"),
        TimeoutError(),
        OSError(errno.EHOSTUNREACH, "no route"),
        dist.DistNetworkError("the client socket has timed out"),
        EndpointConnectionError(endpoint_url="https://s3.us-west-2.amazonaws.com"),
        RuntimeError(
            "[/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:55695: "
            "Connection reset by peer"
        ),
        RuntimeError("Failed to execute: NRT_EXEC_HW_ERR_COLLECTIVES (1200)"),
        RuntimeError("Execution error: An HBM encountered an unrepairable uncorrectable error"),
        RuntimeError("Stuck in collectives op (missing notification(s))"),
        RuntimeError("Neuron core busy/locked by another model/process"),
        torch.AcceleratorError("Failed to copy data from Neuron device. Status: 1204", 1204),
        RuntimeError("NRT EXECUTION FAILED: NRT model execution failed, Non-specific failure"),
        RuntimeError("Async execution error: seq_id=7, Operation timed out"),
        RuntimeError("(FATAL-RT-UNDEFINED-STATE) execution timeout (30000 ms) on model a.neff"),
        RuntimeError(
            "NRT Execution error occurred on Neuron for operation=aten::mm\nerror message="
            '"NRT EXECUTION FAILED: Async execution error: seq_id=12345678, Hardware failure"'
        ),
        RuntimeError(
            "CPU fallback disabled because TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS=1. "
            "Operation mm failed to execute on Neuron. Details: mm: Execution completed with errors"
        ),
        RuntimeError(
            "Compilation error occurred on Neuron for operation=aten::mm\nerror message="
            '"COMPILATION FAILED: Failed to read compiled NEFF file"'
        ),
        caused(BrokenPipeError()),
    ],
    ids=repr,
)
def test_host_and_network_trouble_is_retried(error: BaseException) -> None:
    assert classify(error) is ExitCode.HOST


@pytest.mark.parametrize(
    "error",
    [
        ValueError("connection reset by peer"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("NRT_RESOURCE (4): out of device memory"),
        RuntimeError("Neuron OOM: requested_size=1073741824"),
        RuntimeError("Failed to download the model. Status: 404"),
        RuntimeError("the download ended: Operation timed out"),
        RuntimeError("Compilation error occurred on Neuron for operation=aten::mm; NCC_IXTP002"),
        RuntimeError("CPU fallback disabled because ...=1. Operation mm failed to execute"),
        dist.DistBackendError("ENC:enc_init_comm failed: no_hier no_mesh"),
        FileNotFoundError("tokenizer.json"),
        OSError(errno.ENOSPC, "no space left"),
        ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject"),
        KeyboardInterrupt(),
        SystemExit(3),
        MemoryError(),
    ],
    ids=repr,
)
def test_permanent_errors_are_not_retried(error: BaseException) -> None:
    assert classify(error) is ExitCode.WORKLOAD


def test_cyclic_exception_causes_terminate() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first

    assert classify(first) is ExitCode.WORKLOAD


def test_a_description_is_one_short_line() -> None:
    text = describe(ValueError("a\nb" + "c" * 1000))

    assert text.startswith("ValueError: a bc") and len(text) < 330
    assert describe(AssertionError()) == "AssertionError"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (1201, "hardware"),
        (101, "device failure"),
        (1206, "victim of another node"),
        (5, "timeout"),
        (9, "device in use"),
        (4, "device memory"),
        (11, "host memory"),
        (10, "compiled by another version"),
        (1003, "input"),
        # Others are retried, also those that nrt_status.h does not have yet.
        (1204, ""),
        (1207, ""),
    ],
)
@pytest.mark.parametrize(
    "message",
    [
        # NeuronBarrier.cpp, CopyUtils.cpp, NeuronBindings.cpp and ErrorHandler.cpp of TorchNeuron's
        # public copy.
        "Failed to execute the device barrier {}",
        "Failed to copy data from Neuron device. Status: {}",
        "Failed to initialize Neuron Runtime: status code {}",
        "NRT EXECUTION FAILED: NRT model execution failed, Unknown status (status: {})",
    ],
)
def test_a_status_that_torchneuron_gives_as_a_number_has_the_same_kind(
    message: str, status: int, kind: str
) -> None:
    text = message.format(status)

    assert [fault.name for fault in NEURON_FAULTS if fault.is_in(text)] == ([kind] if kind else [])
    final = ("device memory", "host memory", "compiled by another version", "input")
    assert classify(RuntimeError(text)) is (ExitCode.WORKLOAD if kind in final else ExitCode.HOST)


def test_a_group_without_a_route_explains_the_status_of_its_first_collective() -> None:
    fault = find_neuron_fault("Failed to execute the device barrier 2")

    assert fault is not None and fault.name == "process group"


@pytest.mark.parametrize(
    ("text", "unfit"),
    [
        (
            "NRT EXECUTION FAILED: NRT model execution failed, HBM repairable uncorrectable error",
            True,
        ),
        ("Failed to execute: NRT_EXEC_HW_ERR_COLLECTIVES (1200)", False),
        ("(FATAL-RT-UNDEFINED-STATE) execution timeout (30000 ms) on model a.neff", False),
    ],
)
def test_a_hosts_hardware_is_blamed_only_for_hardware_errors(text: str, unfit: bool) -> None:
    assert shows_unfit_host(RuntimeError(text)) is unfit
    assert shows_unfit_host(caused(RuntimeError(text))) is unfit
    assert not shows_unfit_host(ValueError(text))
