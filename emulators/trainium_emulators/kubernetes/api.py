"""Serves Kubernetes' REST API for the store, and the discovery documents that clients read first.

Lists, watches, patches and deletions follow kubernetes.io/docs/reference/using-api/api-concepts;
the tests run the real kubectl, Python client and TorchX against this server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from trainium_emulators.kubernetes import errors, rbac, responses, schemas
from trainium_emulators.kubernetes.connections import Runs, run_in_pod
from trainium_emulators.kubernetes.requests import (
    Target,
    check_name_and_namespace,
    find_target,
    patched,
    read_body,
)
from trainium_emulators.kubernetes.resources import (
    BUILT_IN,
    DEPLOYMENT,
    POD,
    SERVICE,
    ApiResource,
    Json,
)
from trainium_emulators.kubernetes.store import Store

_ALL = (POD, SERVICE, DEPLOYMENT)
"""Kinds that ``kubectl get all`` shows."""
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Identify = Callable[[str], rbac.Caller | None]
"""Returns the caller of a bearer token (empty if missing); None if the token is unknown."""
_CALLER: web.RequestKey[rbac.Caller] = web.RequestKey("caller", rbac.Caller)


_VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.0-rehearsal",
    "gitCommit": "rehearsal",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
"""``/version``: the version that the stack requests from EKS."""
_CORE_VERSIONS = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
"""``/api``."""


def group_list() -> Json:
    """Return ``/apis``."""
    names = dict.fromkeys((kind.group, kind.version) for kind in BUILT_IN if kind.group)
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group_entry(group, version) for group, version in names],
    }


def _group_entry(group: str, version: str) -> Json:
    entry = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def resource_list(api_version: str) -> Json | None:
    """Return ``/api/v1`` or ``/apis/<group>/<version>``; None if there is no such group."""
    rows = []
    for kind in BUILT_IN:
        if kind.api_version != api_version:
            continue
        common = {"namespaced": kind.namespaced, "kind": kind.kind}
        rows.append(
            {
                "name": kind.plural,
                "singularName": kind.kind.lower(),
                "verbs": VERBS,
                "shortNames": list(kind.short),
                "categories": ["all"] if kind in _ALL else [],
                **common,
            }
        )
        subresources = ["status"] + (["log", "exec"] if kind.plural == "pods" else [])
        rows += [
            {"name": f"{kind.plural}/{name}", "singularName": "", "verbs": ["get"], **common}
            for name in subresources
        ]
    if not rows:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version,
        "resources": rows,
    }


def openapi_index() -> Json:
    """Return ``/openapi/v3``."""
    places = dict.fromkeys(_openapi_path(kind) for kind in BUILT_IN)
    return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}


def openapi_document(place: str) -> Json:
    """Return ``/openapi/v3/<place>``: enough for kubectl to leave validation to the server.

    kubectl looks for a PATCH with the parameter ``fieldValidation`` on the kind it will send.
    """
    paths = {}
    for kind in BUILT_IN:
        if _openapi_path(kind) != place:
            continue
        known = {"group": kind.group, "kind": kind.kind, "version": kind.version}
        paths[f"/{place}/{kind.plural}/{{name}}"] = {
            "patch": {
                "x-kubernetes-group-version-kind": known,
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "responses": {},
            }
        }
    info = {"title": "Kubernetes", "version": "v1.35.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths}


def _openapi_path(kind: ApiResource) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"


def application(
    store: Store,
    runs: Runs,
    *,
    identify: Identify,
) -> web.Application:
    """Create the server."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            caller = identify(given)
            if caller is None:
                raise errors.ApiError(401, "Unauthorized", "Unauthorized")
            groups = request.headers.getall("Impersonate-Group", [])
            request[_CALLER] = rbac.resolve_impersonation(caller, request.headers, groups)
            # TorchX does a dry run of each creation.
            if "dryRun" in request.query and request.method != "POST":
                raise errors.bad_request(
                    "the rehearsal supports dry runs only when objects are created"
                )
            return await handler(request)
        except errors.ApiError as error:
            return web.json_response(error.status(), status=error.code)

    def document(body: Json) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(body)

        return answer

    api = Api(store, runs)
    app = web.Application(middlewares=[guard], client_max_size=16 * 2**20)
    for path, handler in (
        ("/version", document(_VERSION)),
        ("/api", document(_CORE_VERSIONS)),
        ("/apis", document(group_list())),
        ("/openapi/v3", document(openapi_index())),
        ("/openapi/v3/{place:.*}", api.openapi),
        ("/api/{version}", api.kinds),
        ("/apis/{group}/{version}", api.kinds),
    ):
        app.router.add_get(path, handler)
    app.router.add_route("*", "/{path:apis?/.*}", api.answer)
    return app


class Api:
    """The API's verbs."""

    def __init__(self, store: Store, runs: Runs) -> None:
        self._store = store
        self._runs = runs
        self._authorizer = rbac.Authorizer(store)

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        """Return the OpenAPI document of one group."""
        return web.json_response(openapi_document(request.match_info["place"]))

    async def kinds(self, request: web.Request) -> web.StreamResponse:
        """Return the kinds of one group."""
        parts = [request.match_info.get(key, "") for key in ("group", "version")]
        resources = resource_list("/".join(filter(None, parts)))
        if resources is None:
            raise errors.no_such_path()
        return web.json_response(resources)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Handle any request for objects."""
        target = find_target(request.path)
        watching = responses.wants_watch(request)
        accesses = rbac.wanted(request.method, target, watching=watching)
        self._authorizer.check(request[_CALLER], accesses)
        if target.kind == POD and target.subresource == "log":
            return await responses.log(request, self._pod(target), self._runs)
        if target.kind == POD and target.subresource == "exec":
            return await run_in_pod(request, self._pod(target), self._runs)
        if target.subresource not in (None, "status"):
            raise errors.no_such_path()
        verb = {
            "GET": self._get if target.name else self._list,
            "POST": self._create,
            "PUT": self._replace,
            "PATCH": self._patch,
            "DELETE": self._delete if target.name else None,
        }.get(request.method)
        if verb is None:
            raise errors.not_allowed()
        return await verb(request, target)

    def _pod(self, target: Target) -> Json:
        assert target.namespace is not None and target.name is not None
        return self._store.get(POD, target.namespace, target.name)

    async def _get(self, request: web.Request, target: Target) -> web.StreamResponse:
        assert target.namespace is not None and target.name is not None
        entry = self._store.get(target.kind, target.namespace, target.name)
        if responses.wants_table(request):
            return web.json_response(
                responses.table(target.kind, [entry], version=self._store.version)
            )
        return web.json_response(entry)

    async def _list(self, request: web.Request, target: Target) -> web.StreamResponse:
        if responses.wants_watch(request):
            return await responses.watch(request, self._store, target)
        version = self._store.version
        entries = self._store.list(
            target.kind,
            target.namespace,
            labels=request.query.get("labelSelector", ""),
            fields=request.query.get("fieldSelector", ""),
        )
        if responses.wants_table(request):
            return web.json_response(responses.table(target.kind, entries, version=version))
        return web.json_response(
            {
                "kind": f"{target.kind.kind}List",
                "apiVersion": target.kind.api_version,
                "metadata": {"resourceVersion": str(version)},
                "items": entries,
            }
        )

    async def _create(self, request: web.Request, target: Target) -> web.StreamResponse:
        if target.namespace is None or target.name is not None:
            raise errors.not_allowed()
        body = await read_body(request, target.kind)
        check_name_and_namespace(target, body)
        schemas.check(target.kind, body)
        entry = self._store.create(
            target.kind, target.namespace, body, dry_run=request.query.get("dryRun") == "All"
        )
        return web.json_response(entry, status=201)

    async def _replace(self, request: web.Request, target: Target) -> web.StreamResponse:
        body = await read_body(request, target.kind)
        check_name_and_namespace(target, body)
        return self._change(target, lambda old: body)

    async def _patch(self, request: web.Request, target: Target) -> web.StreamResponse:
        body = await read_body(request, target.kind)
        return self._change(target, lambda old: patched(request.content_type, old, body))

    def _change(self, target: Target, make: Callable[[Json], Json]) -> web.Response:
        """Change an object except its status, or only its status, depending on the path."""
        assert target.namespace is not None and target.name is not None

        def change(old: Json) -> Json:
            new = make(old)
            if target.subresource == "status":
                version = new.get("metadata", {}).get("resourceVersion")
                metadata = {**old["metadata"], "resourceVersion": version}
                return {**old, "metadata": metadata, "status": new.get("status", {})}
            schemas.check(target.kind, new)
            return {**new, **{key: old[key] for key in ("status",) if key in old}}

        return web.json_response(
            self._store.update(target.kind, target.namespace, target.name, change)
        )

    async def _delete(self, request: web.Request, target: Target) -> web.StreamResponse:
        assert target.namespace is not None and target.name is not None
        options = await read_body(request, target.kind)
        given = request.query.get("gracePeriodSeconds", options.get("gracePeriodSeconds"))
        grace_s = None if given is None else int(given)
        entry = self._store.delete(target.kind, target.namespace, target.name, grace_s=grace_s)
        if target.kind == POD:
            return web.json_response(entry)
        details = {
            "name": target.name,
            "group": target.kind.group,
            "kind": target.kind.plural,
            "uid": entry["metadata"]["uid"],
        }
        body = {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details}
        return web.json_response({**body, "metadata": {}})
