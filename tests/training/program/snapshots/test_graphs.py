"""Persisting and restoring compiled graphs."""

from __future__ import annotations

from pathlib import Path

from tests.training.program.snapshots.kept_nodes import Job, paths, tree
from training.program.snapshots.graphs import usable
from training.program.snapshots.manifest import Root

_CACHE = "neuronxcc-2.21"
_DONE = {
    f"{_CACHE}/MODULE_1+a/{name}" for name in ("model.neff", "model.done", "model.hlo_module.pb")
}
_OLD = {f"{_CACHE}/MODULE_2+a/model.neff"}
_OTHER = {f"{_CACHE}/version.txt", "tune.json"}
_LOCKS = {f"{_CACHE}/MODULE_1+a/model.hlo_module.pb.lock", f"{_CACHE}/cache.lock"}
_COMPILING = {f"{_CACHE}/MODULE_3+a/{n}" for n in ("model.neff", "model.hlo_module.pb.lock")}
_FAILED = {f"{_CACHE}/MODULE_4+a/{n}" for n in ("model.log", "model.hlo_module.pb")}
_USABLE = _DONE | _OLD | _OTHER
_ALL = _USABLE | _LOCKS | _COMPILING | _FAILED


def _fill(folder: Path) -> None:
    for name in _ALL:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_locks_and_uncompiled_graphs_are_not_usable() -> None:
    folders = {f"{_CACHE}/MODULE_{number}+a" for number in range(1, 5)}
    assert usable(_ALL | folders) == _USABLE | {
        f"{_CACHE}/MODULE_1+a",
        f"{_CACHE}/MODULE_2+a",
    }


def test_only_usable_graphs_are_kept_while_the_program_runs_and_at_the_end(
    local_job: Job,
) -> None:
    (node,) = local_job.attempt()
    _fill(node.settings.cache)
    written = {f"{_CACHE}/tune/{name}" for name in ("whole", "open")}
    (node.settings.cache / _CACHE / "tune").mkdir()
    (node.settings.cache / _CACHE / "tune" / "whole").touch()
    opened = node.settings.cache / _CACHE / "tune" / "open"
    program = node.run(f"file = open({str(opened)!r}, 'w'); print('open', flush=True); input()")
    assert program.stdout is not None and program.stdout.readline()
    node.start_snapshots()
    local_job.wait_for(lambda found: paths(found) == _USABLE)
    program.communicate("\n")
    (node.folder / "latest.pt").write_text("x")
    node.end()
    assert node.wait().failure is None

    assert paths(local_job.newest()) == _USABLE | written | {"latest.pt"}


def test_unusable_graphs_of_an_older_snapshot_are_not_restored(local_job: Job) -> None:
    local_job.put(1, {path: path for path in _ALL}, Root.CACHE)

    (node,) = local_job.attempt()
    node.restore(local_job.snapshots)

    given = {path for path, content in tree(node.settings.cache).items() if content is not None}
    assert given == _USABLE
    assert not list(node.settings.cache.glob("*/MODULE_[34]*"))
