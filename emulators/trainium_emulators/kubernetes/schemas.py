"""Validates single objects as the API server does: schema, names and labels.

Built-in kinds are validated with Kubernetes' own OpenAPI schemas, from kubernetes-validate.
Volcano's follow config/crd/volcano/bases of github.com/volcano-sh/volcano, 1.15.1 (generated from
volcano.sh/apis), but contain only the fields that this project uses: any other field is refused as
unknown. Messages are the API server's: apimachinery (util/validation, runtime/serializer) and
kube-openapi (validation/errors).

A real server drops unknown fields with a warning, unless the client requests strict validation, as
kubectl does. Programs do not read the warning, so this server is always strict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import jsonschema
from kubernetes_validate import utils
from referencing import Registry, Resource

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.resources import (
    COMMAND,
    POD_GROUP,
    QUEUE,
    VOLCANO_JOB,
    ApiResource,
    Json,
)

_TASK_NAME = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_EVENTS = [
    "*", "PodPending", "PodRunning", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted",
    "OutOfSync", "CommandIssued", "JobUpdated", "TaskFailed",
]  # fmt: skip
VERSION = "1.35"
_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_NAME}(\.{_NAME})*")
_LABEL = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_NAME, _MAX_LABEL = 253, 63
# Groups whose objects' names need not be DNS names (rbac/validation, ValidateRBACName).
_WITHOUT_DNS_NAMES = ("rbac.authorization.k8s.io",)


def _object(*required: str, **properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(of: Json, **more: int) -> Json:
    return {"type": "array", "items": of, **more}


def _map(of: Json) -> Json:
    return {"type": "object", "additionalProperties": of}


def _text(max_length: int | None = None, pattern: str | None = None) -> Json:
    bounds: Json = {"maxLength": max_length, "pattern": pattern}
    return {"type": "string", **{key: each for key, each in bounds.items() if each is not None}}


def _number(minimum: int | None = 0, maximum: int = 2**31 - 1) -> Json:
    lower = {} if minimum is None else {"minimum": minimum}
    return {"type": "integer", "maximum": maximum, **lower}


_QUANTITIES = _map({"type": ["integer", "string"], "pattern": _QUANTITY})
_QUEUE_NAME = _text(253, _SUBDOMAIN_PATTERN)
_POLICIES = _list(
    _object(
        action=_text(),
        event={"type": "string", "enum": _EVENTS},
        events=_list({"type": "string", "enum": _EVENTS}),
        exitCode=_number(minimum=None),
        timeout=_text(),
    )
)
_TASK = _object(
    name=_text(63, _TASK_NAME),
    replicas=_number(),
    minAvailable=_number(),
    maxRetry=_number(),
    policies=_POLICIES,
    template={"type": "object"},
)
_OWNER = _object(
    "apiVersion", "kind", "name", "uid",
    apiVersion=_text(), kind=_text(), name=_text(), uid=_text(),
    controller={"type": "boolean"}, blockOwnerDeletion={"type": "boolean"},
)  # fmt: skip


def _top(**properties: Json) -> Json:
    return _object(apiVersion=_text(), kind=_text(), metadata={"type": "object"}, **properties)


SCHEMAS: Mapping[ApiResource, Json] = {
    VOLCANO_JOB: _top(
        spec=_object(
            schedulerName=_text(63),
            queue=_QUEUE_NAME,
            priorityClassName=_text(253, _SUBDOMAIN_PATTERN),
            minAvailable=_number(),
            maxRetry=_number(),
            ttlSecondsAfterFinished=_number(),
            plugins=_map(_list(_text())),
            policies=_POLICIES,
            tasks=_list(_TASK, minItems=1),
        )
    ),
    COMMAND: _top(action=_text(), message=_text(), reason=_text(), target=_OWNER),
    POD_GROUP: _top(
        spec=_object(
            minMember=_number(),
            minTaskMember=_map(_number(minimum=None)),
            minResources=_QUANTITIES,
            queue=_QUEUE_NAME,
        )
    ),
    QUEUE: _top(
        spec=_object(
            weight=_number(minimum=1, maximum=65_535),
            reclaimable={"type": "boolean"},
            capability=_QUANTITIES,
        )
    ),
}


def check(kind: ApiResource, entry: Json) -> None:
    """Raise the API server's error if an object is invalid; its status is not validated."""
    spec = {key: value for key, value in entry.items() if key != "status"}
    spec |= {"apiVersion": kind.api_version, "kind": kind.kind}
    mistakes = sorted(_mistakes(kind, spec), key=lambda each: [str(part) for part in each.path])
    unknown = [_unknown(each) for each in mistakes if each.validator == "additionalProperties"]
    if unknown:
        fields = ", ".join(f'unknown field "{name}"' for names in unknown for name in names)
        message = (
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
            f"strict decoding error: {fields}"
        )
        raise errors.ApiError(400, "BadRequest", message)
    for mistake in mistakes:
        if mistake.validator == "type" and not kind.is_custom:
            raise errors.ApiError(400, "BadRequest", _decoding_error(kind, mistake))
    causes = [*(_cause(each) for each in mistakes), *_of_metadata(kind, spec.get("metadata") or {})]
    if causes:
        raise errors.invalid(kind, (spec.get("metadata") or {}).get("name", ""), *causes)


def _mistakes(kind: ApiResource, entry: Json) -> Iterator[Any]:
    validator = _validator(kind)
    if validator is None:
        return
    for mistake in validator.iter_errors(entry):
        yield from _innermost(mistake)
    if kind == VOLCANO_JOB:
        for index, task in enumerate((entry.get("spec") or {}).get("tasks") or ()):
            if isinstance(task, dict) and isinstance(task.get("template"), dict):
                for mistake in _of_file("podtemplatespec-v1.json").iter_errors(task["template"]):
                    for inner in _innermost(mistake):
                        inner.path.extendleft(["template", index, "tasks", "spec"])
                        yield inner


def _innermost(mistake: Any) -> Iterable[Any]:
    """Find the innermost error where one of several forms is allowed (mostly "or null")."""
    if not mistake.context:
        return (mistake,)
    deepest = max(len(each.absolute_path) for each in mistake.context)
    return [each for each in mistake.context if len(each.absolute_path) == deepest][:1]


_cached_contents = cache(utils.schema_contents)


@cache
def _validator(kind: ApiResource) -> Any:
    """Return the kind's validator; None for a kind without a schema."""
    if kind in SCHEMAS:
        return jsonschema.Draft202012Validator(SCHEMAS[kind])
    group = kind.group.partition(".")[0]
    name = "-".join(filter(None, [kind.kind.lower(), group, kind.version]))
    try:
        return _of_file(f"{name}.json")
    except FileNotFoundError:
        return None


@cache
def _of_file(name: str) -> Any:
    folder = f"kubernetes-json-schema/v{VERSION}.0-local-strict"
    schema = utils.schema_contents(f"{folder}/{name}", VERSION)
    definitions = _cached_contents(f"{folder}/_definitions.json", VERSION)
    registry: Any = Resource.from_contents(schema) @ Registry()
    registry = Resource.from_contents(definitions) @ registry
    return jsonschema.Draft202012Validator(schema, registry=registry)


def _path(mistake: Any, *more: str) -> str:
    text = ""
    for part in (*mistake.absolute_path, *more):
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _unknown(mistake: Any) -> list[str]:
    known = mistake.schema.get("properties", {})
    return [_path(mistake, name) for name in mistake.instance if name not in known]


def _decoding_error(kind: ApiResource, mistake: Any) -> str:
    return (
        f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: json: cannot '
        f"unmarshal {_json_type(mistake.instance)} into Go struct field {kind.kind}."
        f"{_path(mistake)} of type {_go_type(mistake.validator_value)}"
    )


def _json_type(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "bool", type(None): "null"}
    return names.get(type(value), "number")


def _go_type(wanted: str | list[str]) -> str:
    name = wanted if isinstance(wanted, str) else next(each for each in wanted if each != "null")
    return {"integer": "int32", "boolean": "bool", "array": "[]", "object": "map"}.get(name, name)


def _cause(mistake: Any) -> errors.StatusCause:
    path, value, limit = _path(mistake), json.dumps(mistake.instance), mistake.validator_value
    body = f"{path} in body"
    match mistake.validator:
        case "required":
            missing = next(name for name in limit if name not in mistake.instance)
            return errors.StatusCause(
                field=_path(mistake, missing), reason="FieldValueRequired", message="Required value"
            )
        case "type":
            shown = f'"{_json_type(mistake.instance)}"'
            message = f"Invalid value: {shown}: {body} must be of type {limit}: {shown}"
            return errors.StatusCause(field=path, reason="FieldValueTypeInvalid", message=message)
        case "enum":
            known = ", ".join(json.dumps(each) for each in sorted(limit))
            message = f"Unsupported value: {value}: supported values: {known}"
            return errors.StatusCause(field=path, reason="FieldValueNotSupported", message=message)
        case "maxLength":
            message = f"Too long: may not be more than {limit} bytes"
            return errors.StatusCause(field=path, reason="FieldValueTooLong", message=message)
        case "minimum":
            why = f"{body} should be greater than or equal to {limit}"
        case "maximum":
            why = f"{body} should be less than or equal to {limit}"
        case "pattern":
            why = f"{body} should match '{limit}'"
        case "minItems":
            value, why = str(len(mistake.instance)), f"{body} should have at least {limit} items"
        case _:
            why = mistake.message
    return _wrong(path, value, why)


def _wrong(field: str, value: str, why: str) -> errors.StatusCause:
    return errors.StatusCause(
        field=field, reason="FieldValueInvalid", message=f"Invalid value: {value}: {why}"
    )


def _of_metadata(kind: ApiResource, metadata: Json) -> Iterator[errors.StatusCause]:
    """Check names and labels, whose format no schema defines."""
    name = str(metadata.get("name") or "")
    shown = json.dumps(name)
    if name and kind.group not in _WITHOUT_DNS_NAMES:
        if len(name) > _MAX_NAME:
            yield _wrong("metadata.name", shown, f"must be no more than {_MAX_NAME} bytes")
        elif not _SUBDOMAIN.fullmatch(name):
            yield _wrong(
                "metadata.name",
                shown,
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
                "characters, '-' or '.', and must start and end with an alphanumeric character",
            )
    for value in (metadata.get("labels") or {}).values():
        if len(value) > _MAX_LABEL:
            why = f"must be no more than {_MAX_LABEL} bytes"
            yield _wrong("metadata.labels", json.dumps(value), why)
        elif value and not _LABEL.fullmatch(value):
            yield _wrong(
                "metadata.labels",
                json.dumps(value),
                "a valid label must be an empty string or consist of alphanumeric characters, "
                "'-', '_' or '.', and must start and end with an alphanumeric character",
            )
