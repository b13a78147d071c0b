"""The launcher of a thousand-node job, with all nodes but the main one simulated."""

from __future__ import annotations

import os

import pytest

from benchmarks.peers import MANY, PeerFault, SimulatedJob
from trainium_catalogue.exit_codes import ExitCode


@pytest.mark.parametrize(
    "fault",
    [
        PeerFault.DROPPED,
        # Waits for silence to count; test_peers tests that rule with one child.
        pytest.param(PeerFault.SILENT, marks=pytest.mark.full),
    ],
)
def test_one_lost_node_of_a_thousand_ends_the_job_for_a_retry(fault: PeerFault) -> None:
    """``SimulatedJob.run`` raises beyond its limits of time and memory."""
    judged = SimulatedJob(num_nodes=MANY, environment=dict(os.environ)).run(fault)

    assert judged.exit_code == ExitCode.HOST, judged.output
