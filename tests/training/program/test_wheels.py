"""The wheels workload, with real pip, this environment's packages and an index on loopback."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

import pytest

from tests.training.program.conftest import KEY, Collect
from tests.training.program.package_index import PackageIndex
from training.core.failures import classify, describe
from training.program.wheels.collect import build_environment, collect
from training.program.wheels.packages import Package, constraints
from training.program.wheels.resolution import IndexUnreachable, RequirementsRefused, failure
from training.storage import LocalObjects
from trainium_catalogue.exit_codes import ExitCode

TORCH = version("torch")


def refusal(collected: Collect, *requirements: str) -> str:
    """Return the message to the user, in the job's last line."""
    with pytest.raises(RequirementsRefused) as caught:
        collected(*requirements)
    assert classify(caught.value) is ExitCode.WORKLOAD
    line = describe(caught.value)
    assert not line.endswith("..."), "the line is too long to be shown whole"
    return line.removeprefix("RequirementsRefused: ")


def names(wheels: LocalObjects) -> list[str]:
    return [item.key for item in wheels.list()]


def test_only_packages_missing_from_the_image_are_collected(
    collected: Collect, wheels: LocalObjects, index: PackageIndex
) -> None:
    index.add("p4-model", "1.0", ["p4-layers>=2", "torch>=2", "numpy"])
    index.add("p4-layers", "1.0")
    index.add("p4-layers", "2.1", ["torch", "filelock"])
    collected("p4-model")
    model, layers = "p4_model-1.0-py3-none-any.whl", "p4_layers-2.1-py3-none-any.whl"
    assert names(wheels) == sorted(["complete.json", "requirements.lock", model, layers])
    hashes = {name: hashlib.sha256(wheels.get(name)).hexdigest() for name in (model, layers)}
    assert sorted(wheels.get("requirements.lock").decode().splitlines()) == [
        f"p4-layers==2.1 --hash=sha256:{hashes[layers]}",
        f"p4-model==1.0 --hash=sha256:{hashes[model]}",
    ]
    document: Any = json.loads(wheels.get("complete.json"))
    assert (document["format"], document["key"]) == (1, KEY)
    assert {item["name"]: item["sha256"] for item in document["wheels"]} == hashes
    assert document["image"]["packages"]["torch"] == TORCH


def test_a_wheel_is_preferred_to_newer_source_and_source_is_built_without_one(
    collected: Collect, wheels: LocalObjects, index: PackageIndex
) -> None:
    index.add("p4-both", "1.0")
    index.add_source("p4-both", "1.1")
    index.add_source("p4-source", "1.0")
    collected("p4-both", "p4-source")
    made = {f"p4_{name}-1.0-py3-none-any.whl" for name in ("both", "source")}
    assert made < set(names(wheels))


def test_a_complete_set_is_not_collected_again(
    collected: Collect, wheels: LocalObjects, index: PackageIndex
) -> None:
    wheels.put("complete.json", b"{}")
    collected("p4-model")
    assert index.requests == []


def test_another_torch_is_refused_with_the_conflict(
    collected: Collect, wheels: LocalObjects, index: PackageIndex
) -> None:
    index.add("torch", "2.1.0")
    assert refusal(collected, "torch==2.1.0") == (
        f"the requirements name torch==2.1.0, but the image has torch {TORCH}, which cannot be "
        "replaced; loosen the requirements, or deploy an image of your own (image_uri)"
    )
    assert names(wheels) == []


def test_a_package_that_needs_another_torch_is_refused_with_the_conflict(
    collected: Collect, index: PackageIndex
) -> None:
    index.add("p4-old", "1.0", ["torch==2.0.0"])
    index.add("p4-old", "1.1", ["torch<2.5"])
    index.add("p4-model", "1.0", ["p4-old"])
    assert refusal(collected, "p4-model").startswith(
        f"p4-old 1.1 needs torch<2.5 (and 1 more, see above), but the image has torch {TORCH}, "
        "which cannot be replaced; loosen"
    )


def test_dependencies_of_the_images_torch_are_also_fixed(
    collected: Collect, index: PackageIndex
) -> None:
    index.add("fsspec", "0.5.0")
    index.add("p4-old", "1.0", ["fsspec<0.6"])
    assert refusal(collected, "p4-old").startswith(
        f"p4-old 1.0 needs fsspec<0.6, but the image's torch {TORCH} needs fsspec>="
    )


def test_a_torch_at_a_url_does_not_replace_the_images(
    collected: Collect, wheels: LocalObjects, index: PackageIndex
) -> None:
    other, same = (quote(index.add("torch", number).name) for number in ("2.1.0", TORCH))
    said = refusal(collected, f"torch @ {index.url}torch/{other}")
    assert f"but the image has torch {TORCH}, which cannot be replaced" in said
    collected(f"torch @ {index.url}torch/{same}")
    assert names(wheels) == ["complete.json", "requirements.lock"]


def test_a_limit_set_by_the_requirements_is_named(collected: Collect, index: PackageIndex) -> None:
    index.add("p4-base", "2.0")
    said = refusal(collected, "p4-base>=2", "# constraint: p4-base<2")
    assert said.startswith(
        "the requirements name p4-base>=2, but a constraint in the requirements is p4-base<2; "
    )


def test_packages_at_an_address_are_collected_and_built_at_their_commit(
    collected: Collect, wheels: LocalObjects, index: PackageIndex
) -> None:
    folder = index.folder / "repository"
    folder.mkdir()
    source = index.add_source("p4-kept", "1.0")
    subprocess.run(["tar", "-xf", str(source), "-C", str(folder)], check=True)

    def git(*words: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        command = ["git", "-C", str(folder), *who, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")
    (folder / "p4_kept-1.0" / "backend.py").write_text("broken")
    git("commit", "--quiet", "--all", "--message", "two")
    git("update-server-info")  # for a static file server
    address = f"git+{index.url}repository/.git@{commit}#subdirectory=p4_kept-1.0"
    wheel = index.add("p4-direct", "1.0").name
    collected(f"p4-kept @ {address}", f"p4-direct @ {index.url}p4-direct/{wheel}")
    assert {"p4_kept-1.0-py3-none-any.whl", wheel} < set(names(wheels))


def test_any_other_package_of_the_image_may_be_replaced(
    collected: Collect,
    wheels: LocalObjects,
    index: PackageIndex,
    capfd: pytest.CaptureFixture[str],
) -> None:
    there = version("safetensors")
    index.add("safetensors", "0.4.2")
    collected("safetensors==0.4.2")
    assert "safetensors-0.4.2-py3-none-any.whl" in names(wheels)
    said = capfd.readouterr().out
    assert f"wheels: safetensors 0.4.2 instead of the image's {there}\n" in said
    assert (
        f"the image's transformers {version('transformers')} needs safetensors>=0.4.3, but gets "
        "safetensors 0.4.2; do not use the two together\n" in said
    )


def test_requirements_that_contradict_each_other_are_refused(
    collected: Collect, index: PackageIndex
) -> None:
    for number in ("1.0", "2.0"):
        index.add("p4-base", number)
    index.add("p4-left", "1.0", ["p4-base==1.0"])
    index.add("p4-right", "1.0", ["p4-base==2.0"])
    assert refusal(collected, "p4-left", "p4-right").startswith(
        "p4-left 1.0 needs p4-base==1.0 and p4-right 1.0 needs p4-base==2.0, which conflict; loosen"
    )


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        (
            "p4-unknown",
            "Could not find a version that satisfies the requirement p4-unknown "
            "(from versions: none); correct the requirements",
        ),
        ("p4-new", "'p4-new' requires a different Python"),
        (f"p4-model==1.0 --hash=sha256:{'0' * 64}", "DO NOT MATCH THE HASHES"),
    ],
)
def test_a_package_that_cannot_be_used_is_refused_in_pips_words(
    collected: Collect, index: PackageIndex, requirement: str, reason: str
) -> None:
    index.add("p4-new", "1.0", python=">=3.99")
    index.add("p4-model", "1.0")
    assert reason in refusal(collected, requirement)


def test_a_package_that_cannot_be_built_is_named(
    collected: Collect, index: PackageIndex, capfd: pytest.CaptureFixture[str]
) -> None:
    index.add_source("p4-broken", "1.0", build="raise SystemExit('no gcc-99 here')")
    said = refusal(collected, "p4-broken")
    assert said.startswith("p4-broken cannot be built: ")
    assert "no gcc-99 here" in capfd.readouterr().out


def test_an_unreachable_index_is_retried(
    wheels: LocalObjects, pip_environment: dict[str, str]
) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # and not listening
        address = f"http://127.0.0.1:{unheard.getsockname()[1]}/"
        with pytest.raises(IndexUnreachable, match="CPU instances need access to the inter") as why:
            collect(
                wheels,
                key=KEY,
                text=f"--index-url {address}\np4-model\n",
                environment=pip_environment,
                report=lambda step: None,
            )
    assert classify(why.value) is ExitCode.HOST
    assert not describe(why.value).endswith("...")


def test_code_that_runs_while_a_package_is_built_finds_no_credentials() -> None:
    kept = {
        "PATH": "/usr/bin",
        "PIP_INDEX_URL": "https://packages.example/simple",
        # Used by the launcher and the rehearsal to find a job's output.
        "TRAINIUM_SCRATCH": "/tmp/1",
        "AWS_BATCH_JOB_ID": "1",
    }
    hidden = {
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/1",
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
        "PYTHONPATH": "/opt/trainium/app",
    }
    metadata = {"AWS_EC2_METADATA_DISABLED": "true"}
    assert build_environment({**kept, **hidden}) == {**kept, **metadata}


def test_additions_of_newer_pip_versions_are_not_part_of_a_conflict() -> None:
    # Printed by pip 26.3.
    output = """\
ERROR: Cannot install torch==2.1.0 because these package versions have conflicting dependencies.

The conflict is caused by:
    The user requested torch==2.1.0
    The user requested (constraint) torch==2.9.0

Additionally, some packages in these conflicts have no matching distributions available for \
your environment:
    torch

To fix this you could try to:
1. loosen the range of package versions you've specified
"""
    image = Package(name="torch", version="2.9.0", requires=())
    said = str(failure(output.splitlines(), constraints({"torch": image})))
    assert said.startswith("the requirements name torch==2.1.0, but the image has torch 2.9.0, wh")
