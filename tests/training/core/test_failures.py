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
        OSError(errno.EIO, "disk"),
        dist.DistNetworkError("the client socket has timed out"),
        dist.DistStoreError("store"),
        EndpointConnectionError(endpoint_url="https://s3.us-west-2.amazonaws.com"),
        RuntimeError(
            "[/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:55695: "
            "Connection reset by peer"
        ),
        RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms"),
        RuntimeError("Failed to execute: NRT_EXEC_HW_ERR_COLLECTIVES (1200)"),
        RuntimeError("Execution error: An HBM encountered an unrepairable uncorrectable error"),
        RuntimeError("Stuck in collectives op (missing notification(s))"),
        RuntimeError("NRT EXECUTION FAILED: Operation timed out"),
        RuntimeError("Neuron core busy/locked by another model/process"),
        RuntimeError("Failed to execute the device barrier 1"),
        torch.AcceleratorError("Failed to copy data from Neuron device. Status: 1204", 1204),
        *(
            RuntimeError(f"NRT EXECUTION FAILED: NRT model execution failed, {text}")
            for text in (
                "Non-specific failure",
                "Execution input queue full",
                "NRT already closed",
                "NRT not initialized",
                "Accessed an empty Queue",
                "Collective operation pending",
                "Software notification queue overflow",
            )
        ),
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
        # nrt_status.h: 1201, 1205, 1202, 1203; 6, 101; 5; 1200, 1206; 1005, 9; 4; 11; 10; 2, 1002,
        # 1003, 1006.
        ("NRT_EXEC_HW_ERR_HBM_UE", "hardware"),
        ("NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE", "hardware"),
        ("NRT_EXEC_HW_ERR_NC_UE", "hardware"),
        ("NRT_EXEC_HW_ERR_DMA_ABORT", "hardware"),
        ("NRT_HW_ERROR", "device failure"),
        ("NRT_EXEC_UNIT_UNRECOVERABLE", "device failure"),
        ("NRT_TIMEOUT", "timeout"),
        ("NRT_EXEC_HW_ERR_COLLECTIVES", "victim of another node"),
        ("NRT_NETWORK_PROXY_FAILURE", "victim of another node"),
        ("NRT_EXEC_NC_BUSY", "device in use"),
        ("NRT_LOAD_NOT_ENOUGH_NC", "device in use"),
        ("NRT_RESOURCE", "device memory"),
        ("NRT_FAIL_HOST_MEM_ALLOC", "host memory"),
        ("NRT_UNSUPPORTED_NEFF_VERSION", "compiled by another version"),
        ("NRT_INVALID", "input"),
        ("NRT_EXEC_BAD_INPUT", "input"),
        ("NRT_EXEC_COMPLETED_WITH_NUM_ERR", "input"),
        ("NRT_EXEC_OOB", "input"),
    ],
)
def test_each_neuron_runtime_status_has_one_kind(status: str, kind: str) -> None:
    assert [fault.name for fault in NEURON_FAULTS if fault.is_in(f"failed: {status}.")] == [kind]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "hardware") for status in (1201, 1202, 1203, 1205)),
        *((status, "device failure") for status in (6, 101)),
        *((status, "victim of another node") for status in (1200, 1206)),
        (5, "timeout"),
        *((status, "device in use") for status in (9, 1005)),
        (4, "device memory"),
        (11, "host memory"),
        (10, "compiled by another version"),
        *((status, "input") for status in (2, 3, 1002, 1003, 1006)),
        # Others are retried, also those that nrt_status.h does not have yet.
        *((status, "") for status in (7, 13, 14, 15, 1004, 1100, 1204, 1207)),
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
    kinds = [kind] if kind else []
    if text == "Failed to execute the device barrier 2":
        kinds.insert(0, "process group")  # the first collective of a group that has no route

    assert [fault.name for fault in NEURON_FAULTS if fault.is_in(text)] == kinds
    final = ("device memory", "host memory", "compiled by another version", "input")
    assert classify(RuntimeError(text)) is (ExitCode.WORKLOAD if kind in final else ExitCode.HOST)


@pytest.mark.parametrize(("status", "kind"), [(1, "device in use"), (2, "process group")])
def test_a_group_explains_the_status_of_its_first_collective(status: int, kind: str) -> None:
    fault = find_neuron_fault(f"Failed to execute the device barrier {status}")

    assert fault is not None and fault.name == kind


@pytest.mark.parametrize(
    ("text", "unfit"),
    [
        ("Failed to execute: NRT_EXEC_HW_ERR_HBM_UE (1201)", True),
        (
            "NRT EXECUTION FAILED: NRT model execution failed, HBM repairable uncorrectable error",
            True,
        ),
        ("Failed to copy data from Neuron device. Status: 1202", True),
        (
            "(FATAL-RT-UNDEFINED-STATE) encountered uncorrectable memory error on Neuron Device 0",
            True,
        ),
        ("Failed to execute: NRT_EXEC_HW_ERR_COLLECTIVES (1200)", False),
        ("(FATAL-RT-UNDEFINED-STATE) execution timeout (30000 ms) on model a.neff", False),
        ("Failed to execute: NRT_EXEC_UNIT_UNRECOVERABLE (101)", False),
    ],
)
def test_a_hosts_hardware_is_blamed_only_for_hardware_errors(text: str, unfit: bool) -> None:
    assert shows_unfit_host(RuntimeError(text)) is unfit
    assert shows_unfit_host(caused(RuntimeError(text))) is unfit
    assert not shows_unfit_host(ValueError(text))
