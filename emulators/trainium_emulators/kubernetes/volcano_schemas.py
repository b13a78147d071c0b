"""What Volcano's custom resource definitions allow, as far as this project writes its objects.

Field by field after config/crd/volcano/bases of github.com/volcano-sh/volcano, 1.15.1 (generated
from volcano.sh/apis); a pod's template is judged by Kubernetes' own schema. A field that is left
out here is refused as if Volcano did not know it.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainium_emulators.kubernetes.resources import (
    COMMAND,
    POD_GROUP,
    QUEUE,
    VOLCANO_JOB,
    Json,
    Kind,
)

JOB = VOLCANO_JOB
_NAME = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_EVENTS = [
    "*", "PodPending", "PodRunning", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted",
    "OutOfSync", "CommandIssued", "JobUpdated", "TaskFailed",
]  # fmt: skip


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
_QUEUE_NAME = _text(253, _SUBDOMAIN)
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
    name=_text(63, _NAME),
    replicas=_number(),
    minAvailable=_number(),
    maxRetry=_number(),
    policies=_POLICIES,
    dependsOn=_object(name=_list(_text()), iteration=_text()),
    topologyPolicy={
        "type": "string",
        "enum": ["none", "best-effort", "restricted", "single-numa-node"],
    },
    template={"type": "object"},
)
_OWNER = _object(
    "apiVersion", "kind", "name", "uid",
    apiVersion=_text(), kind=_text(), name=_text(), uid=_text(),
    controller={"type": "boolean"}, blockOwnerDeletion={"type": "boolean"},
)  # fmt: skip


def _top(**properties: Json) -> Json:
    return _object(apiVersion=_text(), kind=_text(), metadata={"type": "object"}, **properties)


SCHEMAS: Mapping[Kind, Json] = {
    JOB: _top(
        spec=_object(
            schedulerName=_text(63),
            queue=_QUEUE_NAME,
            priorityClassName=_text(253, _SUBDOMAIN),
            minAvailable=_number(),
            minSuccess=_number(minimum=1),
            maxRetry=_number(),
            ttlSecondsAfterFinished=_number(),
            runningEstimate=_text(),
            plugins=_map(_list(_text())),
            policies=_POLICIES,
            tasks=_list(_TASK, minItems=1),
            volumes=_list(
                _object(
                    "mountPath",
                    mountPath={"type": "string", "minLength": 1, "pattern": "^[^:]+$"},
                    volumeClaimName=_text(253),
                    volumeClaim={"type": "object"},
                )
            ),
        )
    ),
    COMMAND: _top(action=_text(), message=_text(), reason=_text(), target=_OWNER),
    POD_GROUP: _top(
        spec=_object(
            minMember=_number(),
            minTaskMember=_map(_number(minimum=None)),
            minResources=_QUANTITIES,
            queue=_QUEUE_NAME,
            priorityClassName=_text(253),
        )
    ),
    QUEUE: _top(
        spec=_object(
            weight=_number(minimum=1, maximum=65_535),
            priority=_number(),
            reclaimable={"type": "boolean"},
            capability=_QUANTITIES,
            deserved=_QUANTITIES,
            guarantee=_object(resource=_QUANTITIES),
            parent=_QUEUE_NAME,
            dequeueStrategy={"type": "string", "enum": ["fifo", "traverse"]},
        )
    ),
}
