"""Workload errors are distinguished from host and network errors."""

from __future__ import annotations

import errno

import pytest
import torch
import torch.distributed as dist
from botocore.exceptions import ClientError, EndpointConnectionError

from training.core.failures import classify, describe
from trainium_catalogue.exit_codes import ExitCode
from trainium_catalogue.neuron_faults import NEURON_FAULTS


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
        RuntimeError("nrt_init failed: NRT_TIMEOUT"),
        RuntimeError("Execution error: An HBM encountered an unrepairable uncorrectable error"),
        RuntimeError("Stuck in collectives op (missing notification(s))"),
        RuntimeError("NRT EXECUTION FAILED: Operation timed out"),
        RuntimeError("Neuron core busy/locked by another model/process"),
        RuntimeError("Failed to execute the device barrier 1"),
        torch.AcceleratorError("Failed to copy data from Neuron device. Status: 1204", 1204),
        RuntimeError("Failed to copy data from Neuron device. Status: 1004"),
        RuntimeError("NRT EXECUTION FAILED: NRT model execution failed, Non-specific failure"),
        RuntimeError("Async execution error: seq_id=7, Execution completed with errors"),
        RuntimeError(
            "NRT Execution error occurred on Neuron for operation=aten::mm\nerror message="
            '"NRT EXECUTION FAILED: Async execution error: seq_id=12345678, Hardware failure"'
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
        RuntimeError("nrt_load: NRT_UNSUPPORTED_NEFF_VERSION"),
        RuntimeError("Neuron OOM: requested_size=1073741824"),
        RuntimeError("Failed to execute the device barrier 2"),
        RuntimeError("Failed to download the model. Status: 404"),
        RuntimeError("Compilation error occurred on Neuron for operation=aten::mm; NCC_IXTP002"),
        dist.DistBackendError("ENC:enc_init_comm failed: no_hier no_mesh"),
        FileNotFoundError("tokenizer.json"),
        OSError(errno.ENOSPC, "no space left"),
        ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject"),
        AssertionError(),
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
        # nrt_status.h: 1201, 1202, 1203; 1200, 1206; 1005; 4, 11; 2, 1002, 1003, 1006.
        ("NRT_EXEC_HW_ERR_HBM_UE", "hardware"),
        ("NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE", "hardware"),
        ("NRT_EXEC_HW_ERR_NC_UE", "hardware"),
        ("NRT_EXEC_HW_ERR_DMA_ABORT", "hardware"),
        ("NRT_EXEC_HW_ERR_COLLECTIVES", "victim of another node"),
        ("NRT_NETWORK_PROXY_FAILURE", "victim of another node"),
        ("NRT_EXEC_NC_BUSY", "device in use"),
        ("NRT_RESOURCE", "memory"),
        ("NRT_FAIL_HOST_MEM_ALLOC", "memory"),
        ("NRT_INVALID", "program"),
        ("NRT_EXEC_BAD_INPUT", "program"),
        ("NRT_EXEC_COMPLETED_WITH_NUM_ERR", "program"),
        ("NRT_EXEC_OOB", "program"),
    ],
)
def test_each_neuron_runtime_status_has_one_kind(status: str, kind: str) -> None:
    assert [fault.name for fault in NEURON_FAULTS if fault.is_in(f"failed: {status}.")] == [kind]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, "hardware") for status in (6, 101, 1201, 1202, 1203, 1205)),
        *((status, "victim of another node") for status in (5, 1200, 1206)),
        (1005, "device in use"),
        *((status, "memory") for status in (4, 11)),
        *((status, "program") for status in (2, 3, 10, 1002, 1003, 1006)),
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

    assert [fault.name for fault in NEURON_FAULTS if fault.is_in(text)] == [kind]
    retried = kind in ("hardware", "victim of another node", "device in use")
    assert classify(RuntimeError(text)) is (ExitCode.HOST if retried else ExitCode.WORKLOAD)
