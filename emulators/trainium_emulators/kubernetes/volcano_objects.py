"""Creates and removes the objects of a Volcano job: pod group, pods and plugins' objects."""

from __future__ import annotations

import copy

from trainium_catalogue.kubernetes import LABEL_RUN
from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.quantities import job_requests
from trainium_emulators.kubernetes.resources import (
    CONFIG_MAP,
    EVENT,
    POD,
    POD_GROUP,
    SERVICE,
    ApiResource,
    Json,
)
from trainium_emulators.kubernetes.store import Store, now

JOB_NAME = "volcano.sh/job-name"
JOB_VERSION = "volcano.sh/job-version"
RETRY_COUNT = "volcano.sh/job-retry-count"
TASK = "volcano.sh/task-spec"
QUEUE_NAME = "volcano.sh/queue-name"


def is_alive(pod: Json) -> bool:
    """Return whether a pod is unfinished."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def is_terminating(pod: Json) -> bool:
    """Return whether a pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def run_of(job: Json) -> str:
    """Return the run that a job belongs to, or its own name if it has no label."""
    labels = job["metadata"].get("labels") or {}
    return str(labels.get(LABEL_RUN, job["metadata"]["name"]))


def age(job: Json) -> tuple[str, str]:
    """Return the scheduler's sort key, oldest job first: creation time in seconds, then uid."""
    return job["metadata"]["creationTimestamp"], job["metadata"]["uid"]


def count_by_task(pods: list[Json]) -> Json:
    """Return the part of a job's status that counts the pods of each task by phase."""
    tasks: dict[str, Json] = {}
    for pod in pods:
        if not is_terminating(pod):
            task = pod["metadata"]["annotations"][TASK]
            phases = tasks.setdefault(task, {"phase": {}})["phase"]
            phase = pod["status"]["phase"]
            phases[phase] = phases.get(phase, 0) + 1
    return {"taskStatusCount": tasks}


def owner(job: Json) -> list[Json]:
    """Return the ``ownerReferences`` of objects that belong to the job."""
    reference = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return [reference]


def group_name(job: Json) -> str:
    """Return the name of the job's pod group."""
    return f"{job['metadata']['name']}-{job['metadata']['uid']}"


def pod_group(job: Json) -> Json:
    """Return the pod group: the gang as the scheduler sees it (createOrUpdatePodGroup)."""
    spec = job["spec"]
    # Volcano's field is a ResourceList, whose values are quantities; plain numbers are valid.
    wanted = {name: f"{float(amount):.0f}" for name, amount in job_requests(job).items()}
    return {
        "metadata": {
            "name": group_name(job),
            "ownerReferences": owner(job),
            "labels": job["metadata"].get("labels", {}),
        },
        "spec": {
            "minMember": spec["minAvailable"],
            "minTaskMember": {task["name"]: task["minAvailable"] for task in spec["tasks"]},
            "minResources": wanted,
            "queue": spec["queue"],
        },
        "status": {"phase": "Pending"},
    }


def hosts(job: Json) -> dict[str, str]:
    """Return the data of the svc plugin's ConfigMap (plugins/svc/svc.go, GenerateHosts)."""
    name = job["metadata"]["name"]
    data = {}
    for task in job["spec"]["tasks"]:
        names = [f"{name}-{task['name']}-{i}.{name}" for i in range(task["replicas"])]
        key = task["name"].replace("-", "_")
        data[f"{key}.host"] = "\n".join(names)
        data[f"VC_{key.upper()}_HOSTS"] = ",".join(names)
        data[f"VC_{key.upper()}_NUM"] = str(len(names))
    return data


def config_map(job: Json) -> Json:
    """Return the ConfigMap with the host names of all tasks."""
    name = f"{job['metadata']['name']}-svc"
    return {"metadata": {"name": name, "ownerReferences": owner(job)}, "data": hosts(job)}


def service(job: Json) -> Json:
    """Return the headless service that gives pods their host names."""
    name = job["metadata"]["name"]
    early = "--publish-not-ready-addresses" in job["spec"].get("plugins", {}).get("svc", ())
    selector = {JOB_NAME: name, "volcano.sh/job-namespace": job["metadata"]["namespace"]}
    return {
        "metadata": {"name": name, "ownerReferences": owner(job)},
        "spec": {
            "clusterIP": "None",
            "selector": selector,
            "publishNotReadyAddresses": early,
        },
    }


def task_pod(job: Json, task: Json, index: int) -> Json:
    """Return a pod of a task (createJobPod, and the plugins env and svc)."""
    template = copy.deepcopy(task["template"])
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    metadata, spec = template.get("metadata") or {}, template["spec"]
    common = {
        "volcano.sh/task-index": str(index),
        JOB_NAME: name,
        TASK: task["name"],
        QUEUE_NAME: job["spec"]["queue"],
    }
    annotations = {
        **(metadata.get("annotations") or {}),
        **common,
        "scheduling.k8s.io/group-name": group_name(job),
        JOB_VERSION: str(job["status"].get("version", 0)),
        RETRY_COUNT: str(job["status"].get("retryCount", 0)),
        "volcano.sh/template-uid": f"{name}-{task['name']}",
    }
    labels = {**(metadata.get("labels") or {}), **common, "volcano.sh/job-namespace": namespace}
    plugins = job["spec"].get("plugins", {})
    for container in spec["containers"]:
        container["env"] = [*(container.get("env") or ()), *_plugin_variables(job, plugins, index)]
    pod_name = f"{name}-{task['name']}-{index}"
    if "svc" in plugins:
        spec.setdefault("hostname", pod_name)
        spec.setdefault("subdomain", name)
    spec.setdefault("schedulerName", job["spec"]["schedulerName"])
    return {
        "metadata": {
            "name": pod_name,
            "ownerReferences": owner(job),
            "annotations": annotations,
            "labels": labels,
        },
        "spec": spec,
    }


def _plugin_variables(job: Json, plugins: Json, index: int) -> list[Json]:
    variables: list[Json] = []
    if "env" in plugins:
        variables += [{"name": n, "value": str(index)} for n in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
    if "svc" in plugins:
        name = f"{job['metadata']['name']}-svc"
        variables += [
            {"name": key, "valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}
            for key in hosts(job)
            if key.startswith("VC_")
        ]
    return variables


def record_event(store: Store, subject: Json, *, reason: str, message: str, type_: str) -> None:
    """Write an Event, or increment the count of an identical one."""
    metadata = subject["metadata"]
    namespace = metadata.get("namespace", "default")
    name = f"{metadata['name']}.{abs(hash((metadata['uid'], reason, message))):x}"
    moment = now()
    old = store.find(EVENT, namespace, name)
    if old is not None:
        # Counted at most once per second, the interval at which Volcano checks.
        if old["lastTimestamp"] != moment:
            again = {"count": old["count"] + 1, "lastTimestamp": moment}
            store.update(EVENT, namespace, name, lambda entry: {**entry, **again})
        return
    reference = {
        "apiVersion": subject["apiVersion"],
        "kind": subject["kind"],
        "name": metadata["name"],
        "namespace": namespace,
        "uid": metadata["uid"],
    }
    store.create(
        EVENT,
        namespace,
        {
            "metadata": {"name": name},
            "involvedObject": reference,
            "reason": reason,
            "message": message,
            "type": type_,
            "count": 1,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "source": {"component": "volcano"},
        },
    )


def ensure(store: Store, job: Json) -> None:
    """Create missing objects: the pod group, and the svc plugin's ConfigMap and service."""
    objects: list[tuple[ApiResource, Json]] = [(POD_GROUP, pod_group(job))]
    if "svc" in job["spec"].get("plugins", {}):
        objects += [(CONFIG_MAP, config_map(job)), (SERVICE, service(job))]
    namespace = job["metadata"]["namespace"]
    for kind, entry in objects:
        if store.find(kind, namespace, entry["metadata"]["name"]) is None:
            store.create(kind, namespace, entry)


def remove(store: Store, job: Json) -> None:
    """Delete the objects that belong to a job, except its pods."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    for kind, object_name in (
        (CONFIG_MAP, f"{name}-svc"),
        (SERVICE, name),
        (POD_GROUP, group_name(job)),
    ):
        if store.find(kind, namespace, object_name) is not None:
            store.delete(kind, namespace, object_name)


def remain(store: Store, job: Json, pods: list[Json]) -> bool:
    """Return whether pods or the pod group remain to be deleted after the job has ended."""
    group = store.find(POD_GROUP, job["metadata"]["namespace"], group_name(job))
    alive = (pod for pod in pods if is_alive(pod) and not is_terminating(pod))
    return group is not None or any(alive)


def create_pods(store: Store, job: Json, pods: list[Json]) -> None:
    """Create missing pods; record the first refusal as an event."""
    present = {pod["metadata"]["name"] for pod in pods}
    for task in job["spec"]["tasks"]:
        for index in range(task["replicas"]):
            pod = task_pod(job, task, index)
            if pod["metadata"]["name"] in present:
                continue
            try:
                store.create(POD, job["metadata"]["namespace"], pod)
            except errors.ApiError as error:
                if error.code != 403:
                    raise
                message = f"Error creating pods: [{error}]"
                record_event(store, job, reason="FailedCreate", message=message, type_="Warning")
                return
