"""Pod Security: what a namespace forbids whose label enforces a level.

Of the standard's levels only Baseline is known, and taken for Restricted as well
(kubernetes.io/docs/concepts/security/pod-security-standards).
"""

from __future__ import annotations

from collections.abc import Iterator

from trainium_emulators.kubernetes.resources import Json

LABEL = "pod-security.kubernetes.io/enforce"
_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        *(
            f"net.ipv4.{name}"
            for name in [
                "ip_local_port_range",
                "ip_local_reserved_ports",
                "ip_unprivileged_port_start",
                "ping_group_range",
                "tcp_fin_timeout",
                "tcp_keepalive_intvl",
                "tcp_keepalive_probes",
                "tcp_keepalive_time",
                "tcp_syncookies",
            ]
        ),
    }
)


def violations(namespace: Json, spec: Json) -> list[str]:
    """What a pod has that the namespace forbids; nothing where it enforces nothing."""
    level = (namespace["metadata"].get("labels") or {}).get(LABEL, "privileged")
    return [] if level == "privileged" else [*_of_pod(spec), *_of_containers(spec)]


def _of_pod(spec: Json) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"host namespaces ({name}=true)"
    for volume in spec.get("volumes") or ():
        if "hostPath" in volume:
            yield f'hostPath volumes (volume "{volume["name"]}")'
    context = spec.get("securityContext") or {}
    for sysctl in context.get("sysctls") or ():
        if sysctl["name"] not in _SYSCTLS:
            yield f"forbidden sysctls ({sysctl['name']})"
    if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
        yield "seccompProfile (Unconfined)"


def _of_containers(spec: Json) -> Iterator[str]:
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        name, context = container["name"], container.get("securityContext") or {}
        if context.get("privileged"):
            yield f'privileged (container "{name}")'
        added = set((context.get("capabilities") or {}).get("add") or ()) - _CAPABILITIES
        if added:
            yield f'non-default capabilities (container "{name}": {", ".join(sorted(added))})'
        if any(port.get("hostPort") for port in container.get("ports") or ()):
            yield f'hostPort (container "{name}")'
        if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
            yield f'seccompProfile (container "{name}": Unconfined)'
