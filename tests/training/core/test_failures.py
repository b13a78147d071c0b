"""Errors of the workload are told from those of host and network."""

from __future__ import annotations

import errno

import pytest
import torch.distributed as dist
from botocore.exceptions import ClientError, EndpointConnectionError

from training.core.failures import classify, describe
from trainium_catalogue.exit_codes import ExitCode


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
def test_what_would_fail_again_is_not_retried(error: BaseException) -> None:
    assert classify(error) is ExitCode.WORKLOAD


def test_causes_that_go_in_a_circle_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first

    assert classify(first) is ExitCode.WORKLOAD


def test_a_description_is_one_short_line() -> None:
    text = describe(ValueError("a\nb" + "c" * 1000))

    assert text.startswith("ValueError: a bc") and len(text) < 330
    assert describe(AssertionError()) == "AssertionError"
