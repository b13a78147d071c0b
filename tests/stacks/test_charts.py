"""Values of the Helm charts: keys that the charts define, and the real charts if available.

HELM_CHARTS_DIR names a folder with the charts as written by `helm pull`, <chart>-<version>.tgz.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rehearsal.deployment import binaries
from tests.stacks.cluster_objects import CHART, chart_values, objects_of, with_cluster
from tests.stacks.synthesis import Deployment
from trainium_catalogue.charts import CHARTS, eks_registry
from trainium_catalogue.instances import INSTANCE_TYPES

RECORDED: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("chart_keys.toml").read_text(encoding="utf-8")
)
HELMS_THAT_HANG = ("v4.2.1",)
CHARTS_FOLDER = os.environ.get("HELM_CHARTS_DIR")


@pytest.fixture(scope="module")
def made() -> Deployment:
    return with_cluster()


def paths(values: dict[str, Any], start: str = "") -> Iterator[str]:
    """Yield the dotted names of all values."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from paths(value, f"{start}{key}.")
        else:
            yield f"{start}{key}"


def test_recorded_charts_are_installed_charts() -> None:
    recorded = {name: (each["chart"], each["version"]) for name, each in RECORDED.items()}

    assert recorded == {
        name: (each.chart.rpartition("/")[2], each.version) for name, each in CHARTS.items()
    }


@pytest.mark.parametrize("name", CHARTS)
def test_chart_gets_only_known_values(name: str, made: Deployment) -> None:
    given = set(paths(chart_values(made)[name]))

    assert given
    assert given <= set(RECORDED[name]["keys"])


def test_version_and_registry_can_be_chosen(made: Deployment) -> None:
    registry = "111122223333.dkr.ecr.us-west-2.amazonaws.com/docker-hub"
    chosen = with_cluster(
        eks_chart_versions="volcano=1.15.0,neuron=1.10.0", eks_image_registry=registry
    )
    versions = {each["Release"]: each["Version"] for each in chosen.resources("eks", CHART)}
    usual, own = (chart_values(each)["volcano"]["basic"] for each in (made, chosen))

    assert (versions["volcano"], versions["neuron"]) == ("1.15.0", "1.10.0")
    assert versions["fsx"] == CHARTS["fsx"].version
    assert (usual["image_tag_version"], own["image_tag_version"]) == ("v1.15.1", "v1.15.0")
    assert (usual.get("image_registry"), own["image_registry"]) == (None, registry)


def test_helm_timeout_is_below_function_timeout(made: Deployment) -> None:
    """The timeout is per operation, and a chart with hooks has two; the function has 15
    minutes."""
    timeouts = [each["Timeout"] for each in made.resources("eks", CHART)]

    assert len(timeouts) == len(CHARTS)
    assert all(2 * int(each.removesuffix("s")) < 15 * 60 for each in timeouts)


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="the layer's programs are for x86-64 Linux",
)
def test_cluster_helm_has_no_known_wait_bug() -> None:
    """Check the program itself: the layer's description names a version that it does not contain.

    4.2.1 waits for the whole timeout after what it deletes is gone (helm/helm issue 32214): with
    Volcano's hooks it stays in pending-install (volcano-sh/volcano issue 5468).
    """
    said = subprocess.run(
        [binaries.unpack("helm"), "version", "--template", "{{.Version}}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    assert said.startswith("v4.")
    assert said not in HELMS_THAT_HANG


def test_registry_chart_has_no_repository() -> None:
    """Helm 4 refuses --repo with oci:// (aws/aws-cdk issue 37143)."""
    for chart in CHARTS.values():
        assert chart.chart.startswith("oci://") is (chart.repository is None)


@pytest.mark.parametrize("instance_type", ["trn1.2xlarge", "trn2u.48xlarge"])
def test_device_plugins_select_deployed_instance_type(instance_type: str) -> None:
    instance = INSTANCE_TYPES[instance_type]
    region = next(iter(instance.zone_ids))
    values = chart_values(with_cluster(instance_type=instance_type, region=region))

    assert values["neuron"]["neuronInstances"] == [instance_type]
    assert ("efa" in values) is instance.supports_multi_node
    if "efa" in values:
        assert values["efa"]["image"]["repository"].startswith(f"{eks_registry(region)}/")


@pytest.mark.parametrize(
    ("region", "registry"),
    [
        ("us-east-2", "602401143452.dkr.ecr.us-east-2.amazonaws.com"),
        ("ap-south-2", "900889452093.dkr.ecr.ap-south-2.amazonaws.com"),
    ],
)
def test_efa_plugin_uses_regional_registry(region: str, registry: str) -> None:
    assert eks_registry(region) == registry


def test_no_storage_driver_is_installed_without_storage() -> None:
    assert "fsx" not in chart_values(with_cluster(lustre_gib=0))


@pytest.mark.skipif(CHARTS_FOLDER is None, reason="HELM_CHARTS_DIR names no folder with charts")
@pytest.mark.parametrize("name", CHARTS)
def test_real_chart_renders_valid_objects(name: str, made: Deployment, tmp_path: Path) -> None:
    chart = CHARTS[name]
    archive = Path(CHARTS_FOLDER or "") / f"{chart.chart.rpartition('/')[2]}-{chart.version}.tgz"
    values = tmp_path / "values.json"
    values.write_text(json.dumps(chart_values(made)[name]), encoding="utf-8")

    rendered = subprocess.run(
        [str(binaries.unpack("helm")), "template", name, str(archive), "--values", str(values),
         "--namespace", chart.namespace, "--kube-version", "1.35.0"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    objects = [each for each in yaml.safe_load_all(rendered) if each]
    ready = {each["metadata"]["name"] for each in objects_of(made) if each["kind"] == "Namespace"}
    assert objects
    assert {each["metadata"].get("namespace", chart.namespace) for each in objects} <= {
        chart.namespace, "kube-system", *ready
    }  # fmt: skip
    for each in objects:
        if re.fullmatch(r"v1|(apps|batch|policy)/.*|.*\.k8s\.io/v1", each["apiVersion"]):
            kubernetes_validate.validate(each, "1.35", strict=False)
