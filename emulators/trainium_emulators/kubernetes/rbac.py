"""Authenticates callers, and authorizes them by the roles in the store, like Kubernetes' RBAC.

Sources: kubernetes.io/docs/reference/access-authn-authz (authorization, RBAC, user impersonation)
and, for connections to pods, pkg/registry/core/pod/rest of 1.35, where a websocket's GET also needs
permission to create (feature gate AuthorizePodWebsocketUpgradeCreatePermission).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trainium_emulators.kubernetes import errors
from trainium_emulators.kubernetes.requests import Target
from trainium_emulators.kubernetes.resources import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
    Json,
)
from trainium_emulators.kubernetes.store import Store

MASTERS = "system:masters"
"""The group that may do everything, regardless of roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A user with groups, as determined by an authenticator."""

    name: str
    groups: frozenset[str] = frozenset()


ADMIN = Caller(name="rehearsal", groups=frozenset({MASTERS}))
"""The caller where no authentication is required."""


_ACCOUNT_PREFIX = "system:serviceaccount:"


def service_account(namespace: str, name: str) -> str:
    """Return a service account's user name, which is also its token here."""
    return f"{_ACCOUNT_PREFIX}{namespace}:{name}"


def account_of(token: str) -> Caller | None:
    """Return the service account with this token, whose permissions come only from roles."""
    if not token.startswith(_ACCOUNT_PREFIX):
        return None
    namespace = token.removeprefix(_ACCOUNT_PREFIX).partition(":")[0]
    groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}"}
    return Caller(name=token, groups=frozenset({*groups, "system:authenticated"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One permission that a request needs."""

    verb: str
    group: str
    resource: str
    """Resource with its subresource, such as ``pods/log``."""
    namespace: str
    """Namespace; empty for the whole cluster."""
    name: str = ""


def wanted(method: str, target: Target, *, watching: bool) -> tuple[Access, ...]:
    """Return the permissions that a request needs; all of them must be granted."""
    resource = target.kind.plural + (f"/{target.subresource}" if target.subresource else "")

    def access(verb: str) -> Access:
        return Access(
            verb=verb,
            group=target.kind.group,
            resource=resource,
            namespace=target.namespace or "",
            name=target.name or "",
        )

    verb = {
        "GET": "get" if target.name else ("watch" if watching else "list"),
        "POST": "create",
        "PUT": "update",
        "PATCH": "patch",
        "DELETE": "delete" if target.name else "deletecollection",
    }.get(method, method.lower())
    if target.subresource == "exec" and method == "GET":
        return access("get"), access("create")
    return (access(verb),)


def resolve_impersonation(
    caller: Caller, headers: Mapping[str, str], groups: Iterable[str]
) -> Caller:
    """Return the user whom an administrator impersonates, as with ``kubectl --as``, or the caller.

    Any other caller who impersonates a user is refused.
    """
    name = headers.get("Impersonate-User")
    if name is None:
        return caller
    if MASTERS not in caller.groups:
        raise errors.ApiError(
            403, "Forbidden", f'User "{caller.name}" cannot impersonate resource "users"'
        )
    return Caller(name=name, groups=frozenset(groups))


class Authorizer:
    """Authorizes requests by the roles in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def check(self, caller: Caller, accesses: Iterable[Access]) -> None:
        """Refuse requests that are not allowed."""
        for access in accesses:
            if not self._allows(caller, access):
                raise _forbidden(caller, access)

    def _allows(self, caller: Caller, access: Access) -> bool:
        if MASTERS in caller.groups:
            return True
        return any(covers(rule, access) for rule in self._rules(caller, access.namespace))

    def _rules(self, caller: Caller, namespace: str) -> Iterator[Json]:
        bindings = self._store.list(CLUSTER_ROLE_BINDING)
        if namespace:
            bindings += self._store.list(ROLE_BINDING, namespace)
        for binding in bindings:
            if not any(_is_subject(caller, subject) for subject in binding.get("subjects") or ()):
                continue
            reference = binding["roleRef"]
            role = (
                self._store.find(ROLE, namespace, reference["name"])
                if reference["kind"] == ROLE.kind
                else self._store.find(CLUSTER_ROLE, "", reference["name"])
            )
            yield from (role or {}).get("rules") or ()


def _is_subject(caller: Caller, subject: Json) -> bool:
    match subject["kind"]:
        case "User":
            return bool(subject["name"] == caller.name)
        case "Group":
            return subject["name"] in caller.groups
        case _:
            account = f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
            return account == caller.name


def covers(rule: Json, access: Access) -> bool:
    """Return whether a rule grants a permission; a rule with resource names never covers lists."""
    names = rule.get("resourceNames") or ()
    return (
        _includes(rule.get("verbs"), access.verb)
        and _includes(rule.get("apiGroups"), access.group)
        and _includes(rule.get("resources"), access.resource)
        and (not names or access.name in names)
    )


def _includes(values: Iterable[str] | None, value: str) -> bool:
    return any(each in ("*", value) for each in values or ())


def _forbidden(caller: Caller, access: Access) -> errors.ApiError:
    """Format a refusal as the API server does (apiserver, responsewriters, ForbiddenMessage
    and errors.NewForbidden)."""
    plural = access.resource.partition("/")[0]
    qualified = f"{plural}.{access.group}" if access.group else plural
    named = f'{qualified} "{access.name}"' if access.name else qualified
    place = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
    return errors.ApiError(
        403,
        "Forbidden",
        f'{named} is forbidden: User "{caller.name}" cannot {access.verb} resource '
        f'"{access.resource}" in API group "{access.group}" {place}',
        {"name": access.name, "group": access.group, "kind": plural},
    )
