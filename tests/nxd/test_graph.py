"""What the compiler would be given: collectives and work of two layers of Llama-2-7B at degree 8.

Each of the two layers sums four times over the ranks of a model (attention and MLP, forward and
backward, the forward's once more where activations are recomputed), and the embedding, the loss
and the last projection's input once or more.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.nxd import on_cpu
from tests.nxd.hlo import Cost, cost

WORDS = ("llama2-7b", "--num-layers=2", "--activation-checkpointing=false")


def lowered(folder: Path, *words: str) -> Cost:
    """Of one rank's micro-batch."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.nxd.lowering", str(folder), *words],
        env=on_cpu.environment_of_a_process(folder, lazy=True),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return cost((folder / "micro-batch.hlo").read_text())


def test_two_layers_of_llama2_7b_at_degree_8_sum_19_times(tmp_path: Path) -> None:
    found = lowered(tmp_path, *WORDS)
    print(
        f"{found.flops / 1e9:,.0f} GFLOP, {dict(found.counts)}, "
        f"{found.sent_bytes / 2**20:,.0f} MiB sent"
    )
    print("\n".join(found.reduced))

    assert found.counts == {"all-reduce": 19}


def test_the_count_sees_the_sums_that_nxd_loses_by_default(tmp_path: Path) -> None:
    found = lowered(tmp_path, "--defect", *WORDS)

    # Those of the gradients of inputs: of q, k, v, gate and up in each layer, and of the logits.
    assert found.counts == {"all-reduce": 19 - 11}
