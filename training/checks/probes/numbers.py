"""What the checks of the workload ``verify`` say about claims: sums, losses, a resumed run."""

from __future__ import annotations

from training.checks.probes.node import PROBES, Node
from trainium_catalogue.probing import Seen


@PROBES.probe("device-all-reduce", needs=("neuron", "check sums"))
def all_reduce(node: Node) -> Seen:
    """An all-reduce over all ranks is exact on the device."""
    check = node.checks["sums"]
    return Seen(ok=check.ok, seen=check.detail, expected="exact sums in int32 and fp32")


@PROBES.probe(
    "nxd-semantics", needs=("torch_xla", "check gradients", "check parity", "check resume")
)
def nxd(node: Node) -> Seen:
    """Several ranks train as a CPU does, and go on from a checkpoint as if nothing had been."""
    checks = [node.checks[name] for name in ("gradients", "parity", "resume")]
    return Seen(
        ok=all(check.ok for check in checks) and node.num_ranks > 1,
        seen=f"{node.num_ranks} ranks; {'; '.join(check.detail for check in checks)}",
        expected="several ranks whose gradients, losses and norms are a CPU's, before and after a "
        "checkpoint",
    )


@PROBES.probe("nxd-input-gradients", needs=("torch_xla", "check gradients"))
def gradients(node: Node) -> Seen:
    """Every gradient is a CPU's, at the tensor-parallel degree of llama2-7b."""
    check = node.checks["gradients"]
    return Seen(ok=check.ok, seen=check.detail, expected="gradients of a CPU")


@PROBES.probe("data-parallel-gradients", needs=("torch_xla", "check data-parallel"))
def data_parallel(node: Node) -> Seen:
    """BERT and MNIST's network have a CPU's gradients, losses and norms on all ranks."""
    check = node.checks["data-parallel"]
    return Seen(ok=check.ok, seen=check.detail, expected="gradients, losses and norms of a CPU")


@PROBES.probe("eager-attention-compiles", needs=("neuron", "check parity"))
def eager_attention(node: Node) -> Seen:
    """The modules of Llama, of which verify trains a tiny one, compile and compute right."""
    check = node.checks["parity"]
    return Seen(ok=check.ok, seen=check.detail, expected="losses of a CPU")


@PROBES.probe("nxd-upload", needs=("torch_xla", "a bucket", "check resume"))
def nxd_upload(node: Node) -> Seen:
    """Ranks on NxD wrote a checkpoint to the bucket and read it back."""
    check = node.checks["resume"]
    return Seen(ok=check.ok, seen=check.detail, expected="a checkpoint from which the losses go on")


@PROBES.probe("first-step-compiles", needs=("neuron", "check gradients"))
def first_step(node: Node) -> Seen:
    """Compiling the tiny model takes less than the time after which silence is a hang."""
    seconds, limit = node.checks["gradients"].seconds, node.context.hang_limit_s
    return Seen(
        ok=seconds < limit,
        seen=f"{seconds:.0f} s for the first step of the tiny model, compilation included",
        expected=f"less than {limit:.0f} s",
    )


@PROBES.probe("one-graph-a-step", needs=("torch_xla", "check graphs"))
def one_graph(node: Node) -> Seen:
    """Nothing is compiled after the first step, however late in a run, nor to resume."""
    check = node.checks["graphs"]
    return Seen(ok=check.ok, seen=check.detail, expected="as many graphs as after the first step")
