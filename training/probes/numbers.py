"""What the checks of the workload ``verify`` say about claims: sums, losses, a resumed run."""

from __future__ import annotations

from training.probes.node import PROBES, Node
from trainium_catalogue.probing import Missing, Seen

_FIRST_COUNTED = 3
"""The step before it still compiles; step 5 comes after a checkpoint, which copies tensors."""
_LAST_COUNTED = 4


@PROBES.probe("device-all-reduce", needs=("neuron", "check sums"))
def all_reduce(node: Node) -> Seen:
    """An all-reduce over all ranks is exact on the device."""
    check = node.checks["sums"]
    return Seen(ok=check.ok, seen=check.detail, expected="exact sums in int32 and fp32")


@PROBES.probe("nxd-semantics", needs=("torch_xla", "check parity", "check resume"))
def nxd(node: Node) -> Seen:
    """Several ranks train as a CPU does, and go on from a checkpoint as if nothing had been."""
    parity, resume = node.checks["parity"], node.checks["resume"]
    return Seen(
        ok=parity.ok and resume.ok and node.num_ranks > 1,
        seen=f"{node.num_ranks} ranks; {parity.detail}; {resume.detail}",
        expected="several ranks whose losses and norms are a CPU's, before and after a checkpoint",
    )


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


@PROBES.probe("first-step-compiles", needs=("neuron", "check parity"))
def first_step(node: Node) -> Seen:
    """Compiling the tiny model takes less than the time after which silence is a hang."""
    seconds, limit = node.checks["parity"].seconds, node.context.hang_limit_s
    return Seen(
        ok=seconds < limit,
        seen=f"{seconds:.0f} s for the steps of the tiny model, compilation included",
        expected=f"less than {limit:.0f} s",
    )


@PROBES.probe("one-graph-a-step", needs=("torch_xla", "check parity"))
def one_graph(node: Node) -> Seen:
    """Steps after the first, whose learning rate differs, compile nothing."""
    if _FIRST_COUNTED not in node.graphs or _LAST_COUNTED not in node.graphs:
        raise Missing("torch_xla's count of compiled graphs")
    first, last = node.graphs[_FIRST_COUNTED], node.graphs[_LAST_COUNTED]
    counts = ", ".join(str(node.graphs[step]) for step in sorted(node.graphs))
    return Seen(
        ok=first == last,
        seen=f"graphs at the beginning of each step: {counts}",
        expected=f"none between steps {_FIRST_COUNTED} and {_LAST_COUNTED}",
    )
