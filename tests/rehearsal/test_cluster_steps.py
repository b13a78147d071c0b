"""The steps on the cluster: commands, expected output, and leftovers of a cluster."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from rehearsal.deployment.state import RehearsalFolder
from rehearsal.proofs import leftovers, tensorboard
from rehearsal.proofs.leftovers import AccountResource, compare
from rehearsal.receipt import NO_BROWSER, ClusterTraining, Receipt, ReceiptCheck
from rehearsal.steps import cluster as cluster_steps
from rehearsal.steps.jobs import judge
from rehearsal.steps.runner import Chain, RehearsalInterrupted, Runner, Step
from tests.rehearsal.rehearsals import settings
from tests.support.limits import scaled
from trainium_emulators.kubernetes import ClusterEmulator, EmulatorSettings, serve

ASKED = settings(orchestrators=("eks",), workloads=("mnist", "bert-tiny"))
JOBS = {"mnist": "mnist-a", "bert": "bert-b"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterEmulator]:
    running = serve(EmulatorSettings())
    yield running
    running.stop()


def all_steps() -> list[Step]:
    chains = (
        *cluster_steps.trainings(
            ASKED, Path("busy/wait.py"), cluster_steps.NodeTurns(), with_browser=True
        ),
        *cluster_steps.afterwards(JOBS),
    )
    return [step for chain in chains for step in chain.steps]


@pytest.mark.parametrize(
    ("said", "ok"),
    [
        ("a-0 Ready x trn1.32xlarge\na-1 Ready x trn1.32xlarge\na-2 Ready x trn1.32xlarge", True),
        ("a-0 Ready x trn1.32xlarge\na-1 NotReady x trn1.32xlarge", False),
        ("a-0 Ready x trn1.32xlarge\na-1 Ready x m5.xlarge", False),
    ],
)
def test_only_ready_nodes_of_the_right_type_count(said: str, ok: bool) -> None:
    (nodes,) = [step for step in all_steps() if step.name == "nodes"]
    ((_, pattern),) = nodes.expects.items()

    assert bool(re.search(pattern, said)) is ok


def runner_in(folder: Path, *, on_line: Callable[[str], None] = lambda line: None) -> Runner:
    return Runner(
        "x",
        folder=RehearsalFolder(folder),
        environment={},
        on_line=on_line,
        phase=lambda name: nullcontext(),
    )


def chain(*steps: Step, name: str = "a", after: tuple[str, ...] = ()) -> Chain:
    return Chain(name=name, steps=steps, after=after)


def python(code: str, *, name: str = "x", **changes: object) -> Step:
    program = Path(sys.executable).name
    return Step(name=name, program=program, argv=("-c", code), **changes)  # type: ignore[arg-type]


def test_chain_stops_at_first_unexpected_result(tmp_path: Path) -> None:
    runner = runner_in(tmp_path)

    fine = runner.run([chain(python("exit(2)", exit_code=2), python("exit(1)"), python("exit(0)"))])

    assert not fine
    assert [step.exit_code for step in runner.steps] == [2, 1]
    assert sum(step.problem is not None for step in runner.steps) == 1


def test_failed_chain_stops_only_dependent_chains(tmp_path: Path) -> None:
    runner = runner_in(tmp_path)

    fine = runner.run(
        [
            chain(python("exit(1)"), python("exit(0)")),
            chain(*[python("exit(0)")] * 2, name="b"),
            chain(python("exit(3)"), name="c", after=("a", "b")),
            chain(python("exit(4)"), name="d", after=("c",)),
        ]
    )

    assert not fine
    assert [step.exit_code for step in runner.steps] == [1, 0, 0]


def test_chain_waits_for_its_start_condition(tmp_path: Path) -> None:
    ended = threading.Event()
    (tmp_path / "x").touch()
    first = chain(python(f"import os; os.remove({str(tmp_path / 'x')!r})"))
    look = chain(python(f"import os; exit(os.path.exists({str(tmp_path / 'x')!r}))"), name="b")

    assert runner_in(tmp_path).run(
        [replace(look, wait=ended.wait), replace(first, ended=ended.set)]
    )


def test_interrupted_step_proves_and_reports_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    runner = Runner(
        "x",
        folder=RehearsalFolder(tmp_path),
        environment={},
        on_line=lambda line: runner.stop(),
        phase=lambda name: nullcontext(),
        note=told.append,
    )
    endless = python("import time; print('begun', flush=True); time.sleep(60)", expects={"y": "z"})

    with pytest.raises(RehearsalInterrupted):
        runner.run([chain(endless), chain(python("exit(0)"), name="b", after=("a",))])

    assert (told, runner.steps, runner.checks) == ([], [], [])


def test_interrupt_ends_commands_of_all_chains(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    begin = time.monotonic()
    speaks = python("import time; print(1, flush=True); time.sleep(600)", name="a")
    sleeps = python("import time; time.sleep(600)", name="b")

    with pytest.raises(KeyboardInterrupt):
        runner_in(tmp_path, on_line=interrupt).run([chain(speaks), chain(sleeps, name="b")])
    assert time.monotonic() - begin < scaled(30)


def test_expected_output_of_command_is_checked(tmp_path: Path) -> None:
    runner = runner_in(tmp_path)

    runner.run([chain(python("print('a b')", expects={"has a": "a", "has c": "c"}))])

    assert [check.ok for check in runner.checks] == [True, False]


def test_lost_pod_needs_no_exit_code_of_the_attempt_that_volcano_deleted() -> None:
    node = {"node": 0, "attempts": [
        {"number": 2, "exit_code": 0, "reason": None, "started_at_ms": 1, "stopped_at_ms": 2}
    ]}  # fmt: skip
    status = {
        "status": "SUCCEEDED", "status_reason": None, "job_id": "x", "num_nodes": 1,
        "attempts": [{"exit_code": None}, {"exit_code": 0}], "nodes": [node],
    }  # fmt: skip

    def differences(*, on_cluster: bool) -> list[str]:
        return judge(
            run="x", fault="kill-child", status=status, jobs_exit_code=0, sizes=None, seconds=1,
            on_cluster=on_cluster,
        ).differences  # fmt: skip

    assert differences(on_cluster=True) == []
    assert differences(on_cluster=False) != []


def test_rehearsal_without_browser_reports_unchecked_page() -> None:
    receipt = Receipt(settings=ASKED)
    assert NO_BROWSER not in receipt.unproven
    receipt.cluster = ClusterTraining()
    assert NO_BROWSER in receipt.unproven
    receipt.cluster.checks.append(ReceiptCheck(name=tensorboard.DRAWN, ok=True, detail=""))

    assert NO_BROWSER not in receipt.unproven


def test_undeleted_cluster_object_is_leftover(cluster: ClusterEmulator) -> None:
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "forgotten"}})

    found = leftovers.take_cluster_inventory(cluster.endpoint)

    # Nothing else, although a cluster always contains some objects.
    assert compare(before=(), after=found, toolkit=())[1] == [
        AccountResource("kubernetes", "secret", "default/forgotten")
    ]
