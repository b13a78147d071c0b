"""Failures of the Neuron runtime and compiler, recognized by exception text, and their retries.

Status names and meanings are from AWS's ``nrt_status.h`` (Neuron documentation,
neuron-runtime/api/nrt_status), remedies from neuron-runtime/nrt-troubleshoot. torch_xla prints the
names; TorchNeuron prints sentences instead (``ErrorHandler.cpp`` in the public copy of its source
from April 2026, github.com/parmoham-aws/test-repo-parmoham, commit 98154b8), or numbers where it
calls the runtime directly (``CopyUtils.cpp``, ``NeuronBarrier.cpp`` and others).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronFault:
    """One kind of failure."""

    name: str
    pattern: str
    """Regular expression for its messages."""
    meaning: str
    retry: bool
    """True if another attempt may succeed, on the same or different hosts."""
    action: str
    """Action of the launcher and the user."""
    unfit_host: bool = False
    """True if the host is broken, and replaced as after a failed preflight."""

    def is_in(self, text: str) -> bool:
        """Return whether the text of an exception matches this kind."""
        return re.search(self.pattern, text, re.IGNORECASE) is not None


def _status_pattern(*statuses: int) -> str:
    """Return a pattern for TorchNeuron's messages that give one of these statuses as a number."""
    return _numbered("|".join(map(str, statuses)))


def _numbered(status: str) -> str:
    return (
        r"(Failed to [\w ]{1,80}(\. Status:|: status code|device barrier)"
        rf"|Unknown status \(status:) ({status})\b"
    )


_COMPILER_LOST = (
    "Failed to read compiled NEFF file|Fork failed|Failed to create (HLO|temporary) file"
    "|acquire lock after"
)
"""TorchNeuron's messages for a compiler that was killed or could not start."""

NEURON_FAULTS = (
    NeuronFault(
        name="hardware",
        pattern=r"NRT_EXEC_HW_ERR_(REPAIRABLE_)?HBM_UE|NRT_EXEC_HW_ERR_NC_UE"
        r"|NRT_EXEC_HW_ERR_DMA_ABORT"
        r"|HBM (encountered an un)?repairable uncorrectable error|encountered a parity error"
        r"|DMA engine encountered an unrecoverable error|encountered uncorrectable memory error"
        r"|DMA (TX|RX) engine \d+ is in an abort state"
        rf"|{_status_pattern(1201, 1202, 1203, 1205)}",
        meaning="the device reported an error in its memory, a core or a DMA engine",
        retry=True,
        action="another attempt, before which the host is replaced, unless all hosts of the job "
        "report such an error (AWS: terminate the instance, or reboot it for a repairable HBM "
        "error)",
        unfit_host=True,
    ),
    NeuronFault(
        name="device failure",
        pattern=r"NRT_EXEC_UNIT_UNRECOVERABLE|NRT_HW_ERROR|error message=.{0,200}Hardware failure"
        rf"|{_status_pattern(6, 101)}",
        meaning="the device or one of its execution units failed, because of its hardware or of "
        "the program",
        retry=True,
        action="another attempt; replace the node if the error recurs there only",
    ),
    NeuronFault(
        name="victim of another node",
        pattern=r"NRT_EXEC_HW_ERR_COLLECTIVES|NRT_NETWORK_PROXY_FAILURE"
        r"|missing collectives status|Stuck in collectives op|EFA network proxy failure"
        rf"|Watchdog caught collective operation timeout|{_status_pattern(1200, 1206)}",
        meaning="a collective failed because another rank did not respond",
        retry=True,
        action="another attempt; the cause is in the log of the rank that failed first",
    ),
    NeuronFault(
        name="timeout",
        pattern=r"\bNRT_TIMEOUT\b|(execution|inference) timeout \(\d+ ms\)"
        r"|(NRT EXECUTION FAILED|Async execution error).{0,200}Operation timed out"
        rf"|{_status_pattern(5)}",
        meaning="an operation did not end in time: its device hangs, or another rank did not "
        "respond",
        retry=True,
        action="another attempt; if only one rank reports it, replace its node if the error recurs "
        "there, otherwise the cause is in the log of the rank that failed first",
    ),
    NeuronFault(
        name="device in use",
        pattern=r"NRT_EXEC_NC_BUSY|NRT_LOAD_NOT_ENOUGH_NC|Core\(s\) not available"
        r"|Not enough NCs for loading NEFF"
        r"|core busy/locked by another|cores busy \(ret=-16\)"
        rf"|Failed to execute the device barrier 1\b|{_status_pattern(9, 1005)}",
        meaning="a process that exited recently still holds the cores",
        retry=True,
        action="another attempt, in a new container",
    ),
    NeuronFault(
        name="device memory",
        pattern=r"\bNRT_RESOURCE\b|Neuron OOM: requested_size=|dmem_alloc_internal"
        rf"|Failed to allocate (aligned|resource)|{_status_pattern(4)}",
        meaning="the device has too little memory for the program",
        retry=False,
        action="a smaller micro-batch, recomputation, or a larger degree of parallelism",
    ),
    NeuronFault(
        name="host memory",
        pattern=rf"NRT_FAIL_HOST_MEM_ALLOC|Failed to allocate host memory|{_status_pattern(11)}",
        meaning="the host has too little memory for the program",
        retry=False,
        action="fewer processes or workers of data loaders, or a larger degree of parallelism",
    ),
    NeuronFault(
        name="compiled by another version",
        pattern=rf"NRT_UNSUPPORTED_NEFF_VERSION|Unsupported NEFF version|{_status_pattern(10)}",
        meaning="the runtime does not support the version of a compiled graph",
        retry=False,
        action="compile with the release of the image, without graphs of another one",
    ),
    NeuronFault(
        name="compiler",
        pattern=r"\bNCC_[A-Z]+\d+|MLIRError"
        r"|Compilation error occurred on Neuron(?!(?s:.*)"
        rf"({_COMPILER_LOST}))",
        meaning="the compiler rejects a graph, on any host",
        retry=False,
        action="correct the program; the log has the compiler's message",
    ),
    NeuronFault(
        name="process group",
        pattern=r"no_hier no_mesh|replica id (#\d+ )?not seen"
        r"|Failed to execute the device barrier 2\b",
        meaning="the devices' network, or the compiler, does not support a group of ranks",
        retry=False,
        action="create groups with `init_device_mesh`, in a shape that the network routes",
    ),
    NeuronFault(
        name="input",
        pattern=r"\bNRT_(INVALID|INVALID_HANDLE|EXEC_BAD_INPUT|EXEC_OOB"
        r"|EXEC_COMPLETED_WITH_NUM_ERR)\b|Invalid NEFF, instruction, or input"
        r"|Invalid input to exec\(\)|numerical errors \(NaN\)"
        r"|indirect memcopies and/or embedding updates are out of bound"
        rf"|{_status_pattern(2, 3, 1002, 1003, 1006)}",
        meaning="a graph or its input is invalid, or has values that are not finite, on any host",
        retry=False,
        action="correct the program; the log has the runtime's message",
    ),
)
"""All kinds in order of precedence: a broken device explains any other message."""

# The statuses of nrt_status.h, but not those of HTTP, such as 404.
_ANY_STATUS = _numbered(r"\d\d?|101|1\d{3}")
UNSPECIFIC_FAULT = (
    r"Non-specific failure|Execution completed with errors|Software notification queue overflow"
    r"|Execution input queue full|NRT not initialized|NRT already closed|Accessed an empty Queue"
    r"|Collective operation pending|FATAL-RT-UNDEFINED-STATE"
    rf"|{_COMPILER_LOST}|{_ANY_STATUS}|Unknown status \(status: \d+\)"
)
"""Messages for failures of the runtime that may have any cause, and TorchNeuron's for statuses that
are not listed above; they are retried, as are unknown names of statuses
(``training/core/failures.py``)."""


def find_neuron_fault(text: str) -> NeuronFault | None:
    """Return the kind of failure that an exception's text matches, if any."""
    return next((fault for fault in NEURON_FAULTS if fault.is_in(text)), None)
