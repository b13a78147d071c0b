"""What belongs to an attempt of a Volcano job: its gang, what its plugins make, and its pods."""

from __future__ import annotations

from trainium_emulators.kubernetes import errors, objects
from trainium_emulators.kubernetes.resources import CONFIG_MAP, POD, POD_GROUP, SERVICE, Json, Kind
from trainium_emulators.kubernetes.store import Store


def ensure(store: Store, job: Json) -> None:
    """Make what is not there: the gang, host names and the service behind them."""
    made: list[tuple[Kind, Json]] = [(POD_GROUP, objects.pod_group(job))]
    if "svc" in job["spec"].get("plugins", {}):
        made += [(CONFIG_MAP, objects.config_map(job)), (SERVICE, objects.service(job))]
    namespace = job["metadata"]["namespace"]
    for kind, entry in made:
        if store.find(kind, namespace, entry["metadata"]["name"]) is None:
            store.create(kind, namespace, entry)


def remove(store: Store, job: Json) -> None:
    """Delete all of it but the pods."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    for kind, made in (
        (CONFIG_MAP, f"{name}-svc"),
        (SERVICE, name),
        (POD_GROUP, objects.group_name(job)),
    ):
        if store.find(kind, namespace, made) is not None:
            store.delete(kind, namespace, made)


def remain(store: Store, job: Json, pods: list[Json]) -> bool:
    """Whether there is anything that has to go when the job has ended."""
    group = store.find(POD_GROUP, job["metadata"]["namespace"], objects.group_name(job))
    alive = (pod for pod in pods if objects.is_alive(pod) and not objects.is_leaving(pod))
    return group is not None or any(alive)


def create_pods(store: Store, job: Json, pods: list[Json]) -> None:
    """Make the pods that are not there; the first that is refused leaves an event."""
    present = {pod["metadata"]["name"] for pod in pods}
    for task in job["spec"]["tasks"]:
        for index in range(task["replicas"]):
            pod = objects.pod(job, task, index)
            if pod["metadata"]["name"] in present:
                continue
            try:
                store.create(POD, job["metadata"]["namespace"], pod)
            except errors.ApiError as error:
                if error.code != 403:
                    raise
                words = f"Error creating pods: [{error}]"
                objects.record_event(
                    store, job, reason="FailedCreate", message=words, type_="Warning"
                )
                return
