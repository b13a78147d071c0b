"""Emulates Fluent Bit: sends pod logs to CloudWatch as configured by the DaemonSet on the node.

The effects of its settings were recorded from Fluent Bit 5.0.9 (tests/emulators/test_log_agent.py).
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from trainium_emulators.kubernetes.nodes import admits
from trainium_emulators.kubernetes.resources import CONFIG_MAP, DAEMON_SET, NODE, Json
from trainium_emulators.kubernetes.store import Store, now
from trainium_emulators.nodes.events import emit
from trainium_emulators.nodes.node import Stream

OpenStream = Callable[[str, str, str], Stream]
"""Opens a CloudWatch log stream by region, group and name; raises if the group does not exist."""
_PROGRAM = "/fluent-bit/bin/fluent-bit"


@dataclass(slots=True, kw_only=True)
class _Route:
    """A route from an agent's input to a log stream."""

    source: Mapping[str, Any]
    output: Mapping[str, Any]
    name: str
    stream: Stream | None = None


class PodLog:
    """A container's log file on its node, read by the agents that mount it."""

    def __init__(self, store: Store, pod: Json, open_stream: OpenStream) -> None:
        self._store = store
        self._pod = pod
        self._open = open_stream
        self._routes: list[_Route] = []
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
        folder = "_".join(metadata[name] for name in ("namespace", "name", "uid"))
        self._path = PurePosixPath("/var/log/pods", folder, container, "0.log")

    def write(self, line: str) -> None:
        """Send one line."""
        if not self._routes:
            self._routes = list(self._find_routes())
        for route in self._routes:
            message = _message(route.source, route.output, line)
            # CloudWatch accepts no empty message, and the agent sends none.
            if not message:
                continue
            try:
                if route.stream is None:
                    group, region = route.output["log_group_name"], route.output["region"]
                    route.stream = self._open(region, group, route.name)
                route.stream.write(message)
            except Exception as error:  # a node continues without its agent
                emit("log-refused", stream=route.name, error=str(error))

    def _find_routes(self) -> Iterator[_Route]:
        for spec, config in self._agents():
            pipeline = config["pipeline"]
            for source in pipeline["inputs"]:
                tag = self._tag(spec, source)
                for output in pipeline["outputs"] if tag is not None else ():
                    if fnmatchcase(str(tag), output["match"]):
                        name = f"{output['log_stream_prefix']}{tag}"
                        yield _Route(source=source, output=output, name=name)

    def _agents(self) -> Iterator[tuple[Json, Any]]:
        """Yield the pod specs and configurations of the agents on this pod's node."""
        node = self._store.find(NODE, "", self._pod["spec"].get("nodeName", ""))
        for each in self._store.list(DAEMON_SET):
            spec = each["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            if container.get("command") != [_PROGRAM] or not (node is None or admits(node, spec)):
                continue
            path = PurePosixPath(container["args"][container["args"].index("--config") + 1])
            volume = _volumes(spec)[str(path.parent)]
            namespace = each["metadata"]["namespace"]
            config_map = self._store.get(CONFIG_MAP, namespace, volume["configMap"]["name"])
            environment = {item["name"]: item["value"] for item in container.get("env", ())}
            yield (
                spec,
                json.loads(string.Template(config_map["data"][path.name]).substitute(environment)),
            )

    def _tag(self, spec: Json, source: Mapping[str, Any]) -> str | None:
        """Return the tag of the log's records; None if the input ``source`` does not read it."""
        is_mounted = any(
            self._path.is_relative_to(mounted) and volume.get("hostPath", {}).get("path") == mounted
            for mounted, volume in _volumes(spec).items()
        )
        # In a path, an asterisk matches no slash, unlike in fnmatch.
        if not is_mounted or not self._path.match(source["path"]):
            return None
        match = re.match(source["tag_regex"].replace("(?<", "(?P<"), str(self._path))
        if match is None:
            return None
        groups = match.groupdict()
        return re.sub(r"<(\w+)>", lambda name: groups.get(name[1], "_"), source["tag"])


def _volumes(spec: Json) -> dict[str, Json]:
    """Return the volumes of a pod's container by mount point."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
    mounts = spec["containers"][0].get("volumeMounts", ())
    return {mount["mountPath"]: volumes[mount["name"]] for mount in mounts}


def _message(source: Mapping[str, Any], output: Mapping[str, Any], line: str) -> str:
    """Return the text of the log event, which is the bare line only with the right settings."""
    stamp = now()
    line = line if line.strip() else ""
    if source.get("multiline.parser") == "cri":
        record = {"time": stamp, "stream": "stdout", "_p": "F", "log": line}
    else:
        record = {"log": f"{stamp} stdout F {line}"}
    key = output.get("log_key")
    return str(record.get(key, "")) if key else json.dumps(record, separators=(",", ":"))
