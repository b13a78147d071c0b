"""The compiler's input: collectives and work of two layers of Llama-2-7B at degree 8.

With sequences divided, each of the two layers gathers its two inputs and scatters its two sums, and
gathers the inputs once more for the gradients of weights; the gradient of a gathering is scattered,
and that of a scattering gathered. The embedding and the last projection do half of that each, and
the loss sums three times.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.nxd import on_cpu
from tests.nxd.hlo import Cost, cost

WORDS = ("llama2-7b", "--num-layers=2", "--activation-checkpointing=false")
WHOLE = "--sequence-parallel=false"
UPDATE = "update"


def lowered(folder: Path, *words: str, part: str = "micro-batch") -> Cost:
    """Return the counts of one rank's micro-batch, or of its update."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.nxd.lowering", str(folder), *words],
        env=on_cpu.process_environment(folder, lazy=True),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = cost((folder / f"{part}.hlo").read_text())
    print(
        f"{found.flops / 1e9:,.0f} GFLOP, {dict(found.counts)}, "
        f"{found.sent_bytes / 2**20:,.0f} MiB sent"
    )
    print("\n".join(found.reduced))
    return found


def test_two_layers_of_llama2_7b_at_degree_8_gather_15_times_and_scatter_10(tmp_path: Path) -> None:
    found = lowered(tmp_path, *WORDS)

    assert found.counts == {"all-gather": 15, "reduce-scatter": 10, "all-reduce": 3}
    # Numbers of the loss, not activations.
    assert set(found.reduced) == {"f32[4096,1] f32[] over 8"}


def test_the_update_sums_the_gradients_of_norms_over_the_ranks_of_a_model(tmp_path: Path) -> None:
    found = lowered(tmp_path, *WORDS, part=UPDATE)

    assert found.reduced.count("f32[4096] f32[] over 8") == 5


def test_fused_projections_of_whole_sequences_sum_13_times(tmp_path: Path) -> None:
    assert lowered(tmp_path, *WORDS, WHOLE).counts == {"all-reduce": 13}


def test_the_count_detects_the_sums_nxd_drops_by_default(tmp_path: Path) -> None:
    found = lowered(tmp_path, "--defect", *WORDS, WHOLE, "--fused-projections=false")

    # Those of the gradients of inputs: of q, k, v, gate and up in each layer, and of the logits.
    assert found.counts == {"all-reduce": 19 - 11}
