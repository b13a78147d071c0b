"""Compiling a run's graphs once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.llama.conftest import CONTEXT
from tests.training.nodes import node_on
from training.core.arguments import parse
from training.core.contract import DeviceKind
from training.core.progress import ENV_SCRATCH, read_failures, read_states
from training.launcher import compile_graphs
from training.launcher.compile_graphs import (
    CompileCache,
    Summary,
    cache_key,
    code_version,
    compile_command,
    main,
)
from training.launcher.settings import System, worker_environment
from trainium_catalogue.parameters.parameter import Value

WORDS = ("llama-tiny", "--compile-only")
# As logged by neuron_parallel_compile of SDK 2.21 to 2.28.
LOG = """\
2025-01-17 01:16:07.000981:  32201  INFO ||NEURON_PARALLEL_COMPILE||: Total graphs: {graphs}
2025-01-17 01:16:07.000981:  32201  INFO ||NEURON_PARALLEL_COMPILE||: Total successful compilations: 1
2025-01-17 01:16:07.000981:  32201  INFO ||NEURON_PARALLEL_COMPILE||: Total failed compilations: {failed}
"""  # noqa: E501


TOLD = {"NEURON_COMPILE_CACHE_URL": "s3://b/cache/neuron"}


def values(**changed: Value) -> dict[str, Value]:
    return {**parse(WORDS).values, **{k.replace("_", "-"): v for k, v in changed.items()}}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build the settings of a launch on a single-node job; results go below the folder."""
    monkeypatch.chdir(tmp_path)
    CONTEXT.write(tmp_path)
    return tmp_path


def compile_with(scratch: Path, *command: str, argv: tuple[str, ...] = WORDS) -> int:
    return main([*argv, "--", *command], {ENV_SCRATCH: str(scratch)})


def printing(text: str, *, status: int = 0) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import sys; print({text!r}); sys.exit({status})")


@pytest.mark.parametrize(("kind", "tool"), [("trn1.32xlarge", 1), (None, 0)])
def test_the_command_is_passed_on_with_the_tool_if_there_is_a_device(
    kind: str | None, tool: int
) -> None:
    command = compile_command(node_on(kind), ["torchrun", "-m", "x y"], python="python", argv=WORDS)
    assert command == [
        *("python", "-m", "training.launcher.compile_graphs", *WORDS, "--"),
        *(["neuron_parallel_compile"] * tool),
        *("torchrun", "-m", "x y"),
    ]


def test_what_changes_the_graphs_changes_the_key() -> None:
    others: list[dict[str, Any]] = [
        {"num_nodes": 2},
        {"neuron_release": "2.29.1"},
        {"instance_type": "trn1n.32xlarge"},
    ]
    keys = [
        *(cache_key(replace(CONTEXT, **changed), values()) for changed in others),
        *(
            cache_key(CONTEXT, each)
            for each in (values(), values(seq_len=32), values(eval_every=9))
        ),
    ]
    assert len(set(keys)) == len(keys)


def test_what_does_not_change_the_graphs_keeps_the_key() -> None:
    other = replace(CONTEXT, run="another", job_id="another", attempt=2)
    changed = values(lr=0.5, seed=1, dataset="d", init_from="llama", eval_every=500)
    assert cache_key(other, changed) == cache_key(CONTEXT, values(eval_every=10))


def test_changed_code_changes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, code = code_version(), compile_graphs._CODE
    monkeypatch.setattr(compile_graphs, "_CODE", tmp_path)
    versions = [before, code_version()]
    # Compiler flags and the code that runs the steps, besides models and backends.
    for name in (
        *("models/llama/network.py", "backends/native.py", "launcher/settings.py"),
        *("trainer/loop.py", "trainer/compiling.py"),
    ):
        assert (code / name).is_file()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for content in ("x = 1\n", "x = 2\n"):
            path.write_text(content)
            versions.append(code_version())
    assert len(set(versions)) == len(versions)


def test_a_second_job_finds_the_cache_warm_and_runs_nothing(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compile_with(scratch, *printing(LOG.format(graphs=1, failed=0))) == 0
    first = capsys.readouterr().out
    assert "compile: cache is cold" in first
    assert "compiled (1 graph)" in first

    assert compile_with(scratch, "/does/not/exist") == 0
    assert "compile: cache is warm: compiled 20" in capsys.readouterr().out
    assert [state.done for state in read_states(scratch).values()] == [True]


def cache_on(
    device: str, folder: Path, *, compiled: int = 0, bucket: str | None = "b"
) -> CompileCache:
    """Return the cache seen by a node of this kind, with graphs of earlier jobs."""
    # Storage on disk replaces the bucket; the contract states whether one exists.
    cache = CompileCache(replace(CONTEXT, device=DeviceKind(device)), values(), local=folder)
    cache._node = replace(cache._node, bucket=bucket)
    for index in range(compiled):
        cache._graphs.put(f"neuronxcc-2.21/MODULE_{index}+0/model.neff", b"x")
        cache._graphs.put(f"neuronxcc-2.21/MODULE_{index}+0/model.done", b"")
    return cache


def test_graphs_in_the_bucket_prove_a_warm_cache(tmp_path: Path) -> None:
    assert cache_on("xla", tmp_path, compiled=3).why_incomplete(3, TOLD) is None


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"NEURON_COMPILE_CACHE_URL": "/var/tmp/cache"},
        {**TOLD, "NEURON_CC_FLAGS": "--model-type transformer --cache_dir=/var/tmp/cache"},
    ],
)
def test_graphs_written_elsewhere_are_not_in_the_bucket(
    told: dict[str, str], tmp_path: Path
) -> None:
    found = cache_on("xla", tmp_path, compiled=3).why_incomplete(3, told)

    assert (
        found
        == "the compiler is configured to store its graphs somewhere other than s3://b/cache/neuron"
    )


@pytest.mark.parametrize(
    ("device", "compiled", "graphs", "reason"),
    [
        ("xla", 2, 3, "contains only 2 compiled graphs"),
        ("xla", 0, 0, "contains only 0 compiled graphs"),
        ("xla", 3, None, "did not report the number"),
        ("torchneuron", 3, None, "compiles during training"),
    ],
)
def test_a_cache_is_not_called_warm_without_proof(
    device: str, compiled: int, graphs: int | None, reason: str, tmp_path: Path
) -> None:
    found = cache_on(device, tmp_path, compiled=compiled).why_incomplete(graphs, TOLD)

    assert found is not None and reason in found


def test_without_a_bucket_nothing_persists_for_the_next_job(tmp_path: Path) -> None:
    cache = cache_on("xla", tmp_path, compiled=1, bucket=None)

    assert cache.why_incomplete(1, TOLD) == "this node has no bucket"


def test_an_unconfirmed_compilation_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    replace(CONTEXT, device=DeviceKind.XLA).write(tmp_path)

    assert compile_with(tmp_path, *printing(LOG.format(graphs=1, failed=0))) == 0
    assert "but not recorded as complete: " in capsys.readouterr().out
    assert not list(tmp_path.glob("build/cache/compiled/*/*"))


def test_a_cache_is_warm_only_when_every_node_has_compiled(tmp_path: Path) -> None:
    nodes = [replace(CONTEXT, num_nodes=2, node_index=index) for index in range(2)]
    caches = [CompileCache(node, values(), local=tmp_path) for node in nodes]
    caches[0].record(3)
    assert [cache.find() for cache in caches] == [None, None]
    caches[1].record(3)
    found = caches[0].find()
    assert found is not None
    assert found.startswith("cache is warm: compiled 20") and found.endswith(" by tiny")


def test_a_failed_compilation_fails_the_job_even_if_the_tool_succeeds(scratch: Path) -> None:
    assert compile_with(scratch, *printing(LOG.format(graphs=3, failed=2))) == 1

    (failure,) = read_failures(scratch)
    assert failure.whose == ""
    assert failure.error.startswith("2 of 3 graphs failed to compile")
    assert not list(scratch.glob("build/cache/compiled/*/*"))


def test_a_failed_compilation_run_is_not_recorded(scratch: Path) -> None:
    assert compile_with(scratch, *printing("no summary", status=7)) == 7
    assert not list(scratch.glob("build/cache/compiled/*/*"))


def test_an_unwritable_marker_fails_nothing(
    scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (scratch / "build").write_text("not a folder")
    assert compile_with(scratch, *printing("done")) == 0
    assert "the marker could not be written" in capsys.readouterr().out


def test_the_worst_of_several_summaries_counts() -> None:
    summary = Summary()
    for line in (LOG.format(graphs=4, failed=1) + LOG.format(graphs=2, failed=0)).splitlines():
        summary.read(line)
    assert (summary.graphs, summary.failed) == (4, 1)


AWS = System(kernel="6.1", interface="eth0", has_cache=True)


def test_all_nodes_share_one_cache_in_the_bucket() -> None:
    node = replace(node_on("trn1.32xlarge", num_nodes=4), bucket="b")
    env, _ = worker_environment({}, node, AWS)
    assert env["NEURON_COMPILE_CACHE_URL"] == "s3://b/cache/neuron"


def test_a_workload_without_write_access_to_the_cache_uses_local_disk() -> None:
    node = replace(node_on("trn1.32xlarge"), bucket="b")
    env, _ = worker_environment({}, node, replace(AWS, has_cache=False))
    assert "NEURON_COMPILE_CACHE_URL" not in env
