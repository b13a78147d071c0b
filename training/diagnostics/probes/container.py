"""Probes of the container's environment, network, DNS, credentials and packages."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import socket
import subprocess
import sys
import urllib.error
import urllib.request

from training.core.orchestrators import (
    BATCH_ATTEMPT,
    BATCH_JOB_ID,
    BATCH_MAIN_ADDRESS,
    BATCH_MAIN_INDEX,
    BATCH_NODE_INDEX,
    BATCH_NUM_NODES,
)
from training.diagnostics.health import failed_imports
from training.diagnostics.probes.node import PROBES, ProbedNode
from trainium_catalogue.contract import ENV_MAIN_HOST_FROM, RESERVED_PORTS
from trainium_catalogue.probing import ProbeResult, SubjectMissing

_METADATA_TOKEN = "http://169.254.169.254/latest/api/token"
_METADATA_TIMEOUT_S = 2
_HEALTH_TIMEOUT_S = 240
CONTAINER_ROLE = "container-role"
"""botocore's name for credentials from ECS or EKS Pod Identity; ``iam-role`` is the host's."""

# docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html and mnp-env-vars.html
BATCH_VARIABLES = (
    "AWS_BATCH_CE_NAME",
    "AWS_BATCH_JQ_NAME",
    BATCH_JOB_ID,
    BATCH_ATTEMPT,
    BATCH_NODE_INDEX,
    BATCH_NUM_NODES,
    BATCH_MAIN_INDEX,
)


@PROBES.probe("batch-environment", needs=("Batch",))
def batch_environment(node: ProbedNode) -> ProbeResult:
    """The variables that Batch documents for every node are set; the node count is the job's."""
    missing = [name for name in BATCH_VARIABLES if not node.env.get(name)]
    number = node.env.get(BATCH_NUM_NODES)
    return ProbeResult(
        ok=not missing and number == str(node.context.num_nodes),
        seen=f"{len(BATCH_VARIABLES) - len(missing)} variables, {number} nodes"
        + (f"; not set: {', '.join(missing)}" if missing else ""),
        expected=f"{len(BATCH_VARIABLES)} variables, {node.context.num_nodes} nodes",
    )


@PROBES.probe("main-address", needs=("Batch", "two nodes"))
def main_address(node: ProbedNode) -> ProbeResult:
    """Batch sets the main node's address on the children, but not on the main node itself."""
    main = node.env.get(BATCH_MAIN_INDEX) == node.env.get(BATCH_NODE_INDEX)
    address = node.env.get(BATCH_MAIN_ADDRESS)
    return ProbeResult(
        ok=(address is None) == main,
        seen=f"{'main node' if main else 'child'}: {address or 'no address'}",
        expected="no address on the main node, one on each child",
    )


@PROBES.probe("single-node-multi-node-job", needs=("Batch", "AWS", "one node"))
def single_node(node: ProbedNode) -> ProbeResult:
    """A multi-node job with one node starts."""
    index, number = (node.env.get(name) for name in (BATCH_NODE_INDEX, BATCH_NUM_NODES))
    return ProbeResult(
        ok=number == "1",
        seen=f"node {index} of {number}",
        expected="node 0 of 1, as in a multi-node job",
    )


@PROBES.probe("nodes-join", needs=("Batch", "two nodes"))
def nodes_join(node: ProbedNode) -> ProbeResult:
    """The nodes have joined: the launchers' link and torchrun's store are both connected."""
    number = node.env.get(BATCH_NUM_NODES)
    return ProbeResult(
        ok=number == str(node.context.num_nodes),
        seen=f"{node.context.num_nodes} nodes with {node.num_ranks} ranks joined",
        expected=f"the job's {number} nodes",
    )


@PROBES.probe("job-without-imds", needs=("Batch", "AWS"))
@PROBES.probe("pod-without-imds", needs=("EKS", "AWS"))
def without_metadata(node: ProbedNode) -> ProbeResult:
    """The host's metadata service (IMDS) does not respond; the credentials are the job's own."""
    answer, method = request_metadata_token(_METADATA_TOKEN), credentials_method()
    return ProbeResult(
        ok=answer is None and method == CONTAINER_ROLE,
        seen=f"{answer or 'no answer from the metadata service'}; credentials from {method}",
        expected=f"no answer from the metadata service; credentials from {CONTAINER_ROLE}",
    )


def request_metadata_token(url: str) -> str | None:
    """Describe the metadata service's response to a token request; None if there is none."""
    request = urllib.request.Request(
        url, method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    # Bypass proxies, which would answer instead.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_METADATA_TIMEOUT_S) as response:
            return f"the metadata service answers with {response.status}"
    except urllib.error.HTTPError as error:
        return f"the metadata service answers with {error.code}"
    except OSError:
        return None


def credentials_method() -> str:
    """Name the source of boto3's credentials, in botocore's terms."""
    from botocore.session import Session

    credentials = Session().get_credentials()
    return "no source" if credentials is None else str(credentials.method)


@PROBES.probe("pod-identity-s3-clients", needs=("EKS", "AWS", "check cache"))
def pod_identity(node: ProbedNode) -> ProbeResult:
    """S3 is accessed with the credentials of EKS Pod Identity, not the node's."""
    method, check = credentials_method(), node.checks["cache"]
    agent = "AWS_CONTAINER_CREDENTIALS_FULL_URI" in node.env
    return ProbeResult(
        ok=method == CONTAINER_ROLE and agent and check.ok,
        seen=f"credentials from {method}, the agent's address is {'set' if agent else 'not set'}; "
        f"{check.detail}",
        expected=f"credentials from the EKS Pod Identity agent ({CONTAINER_ROLE}), with access to "
        "the bucket",
    )


@PROBES.probe("node-dns", needs=("AWS",))
def name_service(node: ProbedNode) -> ProbeResult:
    """/etc/resolv.conf lists a name server that resolves the S3 endpoint."""
    lines = node.text("etc/resolv.conf").splitlines()
    servers = [line.split()[1] for line in lines if line.startswith("nameserver ")]
    name = f"s3.{node.context.region}.amazonaws.com"
    address = look_up(name)
    return ProbeResult(
        ok=bool(servers) and address is not None,
        seen=f"name servers {', '.join(servers) or 'none'}; {name}: {address or 'no address'}",
        expected=f"a name server, and an address for {name}",
    )


def look_up(name: str) -> str | None:
    """Resolve a name to IPv4; None if it has no address."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


@PROBES.probe("pod-name-in-dns", needs=("EKS", "two nodes", "AWS"))
def pod_name(node: ProbedNode) -> ProbeResult:
    """The main pod's host name resolves through the headless Service."""
    if node.is_main:
        raise SubjectMissing("a child node, which resolves the main node's name")
    host = node.env.get(node.env.get(ENV_MAIN_HOST_FROM, ""), "").partition(",")[0]
    address = look_up(host)
    return ProbeResult(
        ok=address is not None,
        seen=f"{host}: {address or 'no address'}",
        expected="the main pod's host name resolves to an address",
    )


@PROBES.probe("reserved-ports-on-host", needs=("Batch", "AWS"))
def reserved_ports(node: ProbedNode) -> ProbeResult:
    """The host's sysctl does not apply to the task's network namespace."""
    ports = node.text("proc/sys/net/ipv4/ip_local_reserved_ports").strip()
    return ProbeResult(
        ok=not ports,
        seen=f"reserved in the container: {ports or 'none'}",
        expected="reserved in the container: none",
    )


@PROBES.probe("pod-security", needs=("EKS", "AWS"))
def pod_security(node: ProbedNode) -> ProbeResult:
    """The pod has a shared process namespace and its reserved ports."""
    first = node.text("proc/1/comm").strip()
    reserved = node.text("proc/sys/net/ipv4/ip_local_reserved_ports").strip()
    return ProbeResult(
        ok=first == "pause" and all(str(port) in reserved for port in RESERVED_PORTS),
        seen=f"process 1 is {first}; reserved ports: {reserved or 'none'}",
        expected=f"process 1 is pause; reserved ports: {', '.join(map(str, RESERVED_PORTS))}",
    )


@PROBES.probe("image-contents", needs=("neuron",))
def image_contents(node: ProbedNode) -> ProbeResult:
    """Every module that workloads need can be imported on a device."""
    code, last_line = check_health()
    return ProbeResult(ok=code == 0, seen=last_line, expected="all modules can be imported")


def check_health() -> tuple[int, str]:
    """Run ``training.diagnostics.health``; return its exit code and last line.

    Uses a separate process, so that its imports do not affect this rank's compilation.
    """
    command = [sys.executable, "-m", "training.diagnostics.health"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_HEALTH_TIMEOUT_S, check=False
    )
    lines = (done.stderr if done.returncode else done.stdout).splitlines()
    return done.returncode, lines[-1] if lines else "no output"


@PROBES.probe("torchneuron-fallback", needs=("neuron", "TorchNeuron"))
def torchneuron_fallback(node: ProbedNode) -> ProbeResult:
    """TorchNeuron has the functions that report which operators ran on the CPU."""
    from training.backends.native import FALLBACK_FUNCTIONS  # only this device needs it

    module = importlib.import_module("torch_neuronx")
    found = [name for name in FALLBACK_FUNCTIONS if callable(getattr(module, name, None))]
    return ProbeResult(
        ok=found == list(FALLBACK_FUNCTIONS),
        seen=f"torch_neuronx has {', '.join(found) or 'neither'}",
        expected=f"torch_neuronx has {', '.join(FALLBACK_FUNCTIONS)}",
    )


@PROBES.probe("boto3-beside-s3fs", needs=("neuron",))
def boto3_beside_s3fs(node: ProbedNode) -> ProbeResult:
    """boto3 and s3fs can be imported in one process."""
    if importlib.util.find_spec("s3fs") is None:
        raise SubjectMissing("s3fs in the image")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("boto3", "s3fs"))
    problems = failed_imports(("boto3", "s3fs"))
    return ProbeResult(
        ok=not problems,
        seen="; ".join((versions, *problems)),
        expected="both can be imported",
    )
