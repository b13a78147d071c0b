"""Invalid objects that the emulated API server refuses."""

from __future__ import annotations

import copy
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.emulators.volcano_jobs import job
from trainium_catalogue.charts import VOLCANO_VERSION
from trainium_emulators.kubernetes import errors, schemas
from trainium_emulators.kubernetes.resources import BUILT_IN, ApiResource

Json = dict[str, Any]
CHARTS_FOLDER = os.environ.get("HELM_CHARTS_DIR")
SERVICE: Json = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"ports": [{"port": 80}]},
}


def changed(manifest: Json, *path: str | int, to: Any) -> Json:
    """A copy with another value in one place."""
    result = copy.deepcopy(manifest)
    *before, last = path
    inside: Any = result
    for part in before:
        inside = inside[part]
    inside[last] = to
    return result


def kind_of(manifest: Json) -> ApiResource:
    (found,) = (
        each
        for each in BUILT_IN
        if (each.api_version, each.kind) == (manifest["apiVersion"], manifest["kind"])
    )
    return found


def refusal(manifest: Json) -> tuple[int, str]:
    """Status and message of the answer."""
    with pytest.raises(errors.ApiError) as caught:
        schemas.check(kind_of(manifest), manifest)
    return caught.value.code, str(caught.value)


@pytest.mark.parametrize(
    ("manifest", "code", "message"),
    [
        (
            changed(SERVICE, "spec", "prots", to=[]),
            400,
            'Service in version "v1" cannot be handled as a Service: strict decoding error: '
            'unknown field "spec.prots"',
        ),
        (
            changed(SERVICE, "spec", "ports", 0, "port", to="eighty"),
            400,
            'Service in version "v1" cannot be handled as a Service: json: cannot unmarshal string '
            "into Go struct field Service.spec.ports[0].port of type int32",
        ),
        (
            changed(SERVICE, "spec", "ports", 0, to={"name": "http"}),
            422,
            'Service "web" is invalid: spec.ports[0].port: Required value',
        ),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Web_1"}},
            422,
            'metadata.name: Invalid value: "Web_1": a lowercase RFC 1123 subdomain must consist of',
        ),
        (
            changed(SERVICE, "metadata", "labels", to={"trainium/run": "-a"}),
            422,
            'metadata.labels: Invalid value: "-a": a valid label must be an empty string or',
        ),
    ],
)
def test_built_in_object_is_validated_by_kubernetes_schema(
    manifest: Json, code: int, message: str
) -> None:
    found, said = refusal(manifest)

    assert found == code
    assert message in said


JOB = job("gang", ["true"])


@pytest.mark.parametrize(
    ("path", "value", "code", "message"),
    [
        (
            ("spec", "minAvailable"),
            "2",
            422,
            'spec.minAvailable in body must be of type integer: "',
        ),
        (("spec", "maxRetries"), 3, 400, 'strict decoding error: unknown field "spec.maxRetries"'),
        (("spec", "queue"), "My Queue", 422, "spec.queue in body should match '^[a-z0-9]"),
        (("spec", "tasks", 0, "name"), "n" * 64, 422, "Too long: may not be more than 63 bytes"),
        (("spec", "plugins", "env"), "all", 422, "spec.plugins.env in body must be of type array"),
        (
            ("spec", "policies"),
            [{"event": "PodLost", "action": "RestartJob"}],
            422,
            'spec.policies[0].event: Unsupported value: "PodLost": supported values: "*", "Command',
        ),
        (
            ("spec", "tasks", 0, "template", "spec", "hostNetwrok"),
            True,
            400,
            'unknown field "spec.tasks[0].template.spec.hostNetwrok"',
        ),
    ],
)
def test_volcano_job_is_validated_by_its_definition(
    path: tuple[str | int, ...], value: Any, code: int, message: str
) -> None:
    found, said = refusal(changed(JOB, *path, to=value))

    assert found == code
    assert message in said
    assert code == 400 or said.startswith('Job.batch.volcano.sh "gang" is invalid: ')


def test_several_errors_are_reported_together() -> None:
    wrong = changed(changed(JOB, "spec", "minAvailable", to=-1), "spec", "maxRetry", to=-1)

    assert refusal(wrong)[1].count("should be greater than or equal to 0") == 2


@pytest.mark.skipif(CHARTS_FOLDER is None, reason="HELM_CHARTS_DIR names no folder with charts")
@pytest.mark.parametrize("kind", schemas.SCHEMAS, ids=lambda kind: kind.plural)
def test_every_rule_is_one_of_the_real_definitions(kind: ApiResource) -> None:
    archive = Path(CHARTS_FOLDER or "") / f"volcano-{VOLCANO_VERSION}.tgz"
    name = f"/{kind.group}_{kind.plural}.yaml"
    with tarfile.open(archive) as chart:
        files = [m.name for m in chart.getmembers() if m.name.endswith(name)]
        content = chart.extractfile(files[0])
        assert content is not None
        (version,) = yaml.safe_load(content)["spec"]["versions"]
    real = version["schema"]["openAPIV3Schema"]

    assert version["name"] == kind.version
    assert list(differences(schemas.SCHEMAS[kind], real, "")) == []


def differences(ours: Mapping[str, Any], real: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield rules of our schema that the real one does not have."""
    for rule in ("minimum", "maxLength", "minLength", "pattern", "minItems", "enum", "required"):
        if ours.get(rule) and ours[rule] != real.get(rule) and set(ours[rule]) != set(
            real.get(rule, ())
        ):  # fmt: skip
            yield f"{path}: {rule} is {real.get(rule)}"
    if ours.get("type") == "integer" and ours["maximum"] != real.get("maximum", 2**31 - 1):
        yield f"{path}: maximum is {real.get('maximum')}"
    if isinstance(ours.get("type"), str) and ours["type"] != real.get("type"):
        yield f"{path}: type is {real.get('type')}"
    if isinstance(ours.get("items"), Mapping):
        yield from differences(ours["items"], real["items"], f"{path}[]")
    if isinstance(ours.get("additionalProperties"), Mapping):
        yield from differences(
            ours["additionalProperties"], real["additionalProperties"], f"{path}.*"
        )
    for name, each in ours.get("properties", {}).items():
        if name not in real["properties"]:
            yield f"{path}.{name}: unknown"
        else:
            yield from differences(each, real["properties"][name], f"{path}.{name}")
