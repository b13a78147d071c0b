"""API errors as Kubernetes ``Status`` objects."""

from __future__ import annotations

from dataclasses import dataclass

from trainium_emulators.kubernetes.resources import ApiResource, Json


class ApiError(Exception):
    """A request that the API server rejects."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None):
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}

    def status(self) -> Json:
        """Return the response body."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def not_found(kind: ApiResource, name: str) -> ApiError:
    """Build the error for an object that does not exist."""
    details = {"name": name, "group": kind.group, "kind": kind.plural}
    return ApiError(404, "NotFound", f'{kind.reference} "{name}" not found', details)


def already_exists(kind: ApiResource, name: str) -> ApiError:
    """Build the error for a name that is taken."""
    details = {"name": name, "group": kind.group, "kind": kind.plural}
    return ApiError(409, "AlreadyExists", f'{kind.reference} "{name}" already exists', details)


def conflict(kind: ApiResource, name: str) -> ApiError:
    """Build the error for an object that was modified since it was read."""
    details = {"name": name, "group": kind.group, "kind": kind.plural}
    message = (
        f'Operation cannot be fulfilled on {kind.reference} "{name}": the object has been '
        "modified; please apply your changes to the latest version and try again"
    )
    return ApiError(409, "Conflict", message, details)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusCause:
    """One invalid field of an object."""

    field: str
    reason: str
    """Reason such as ``FieldValueRequired`` (apimachinery, meta/v1, CauseType)."""
    message: str


def invalid(kind: ApiResource, name: str, *causes: StatusCause) -> ApiError:
    """Build the error for an invalid object (apimachinery, errors.NewInvalid)."""
    details = {
        "name": name,
        "group": kind.group,
        "kind": kind.kind,
        # kubectl shows the causes and omits the message.
        "causes": [
            {"reason": each.reason, "message": each.message, "field": each.field} for each in causes
        ],
    }
    texts = [f"{each.field}: {each.message}" for each in causes]
    why = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    qualified = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {why}', details)


def denied(webhook: str, why: str) -> ApiError:
    """Build the error of an admission webhook (apiserver, plugin/webhook/errors)."""
    return ApiError(400, "BadRequest", f'admission webhook "{webhook}" denied the request: {why}')


def forbidden(kind: ApiResource, name: str, why: str) -> ApiError:
    """Build the error of a built-in admission plugin (apiserver, admission.NewForbidden)."""
    return ApiError(403, "Forbidden", f'{kind.reference} "{name}" is forbidden: {why}')


def bad_request(why: str) -> ApiError:
    """Build the error for an invalid request (apimachinery, NewBadRequest)."""
    return ApiError(400, "BadRequest", why)


def not_allowed() -> ApiError:
    """Build the error for a verb that a path does not support."""
    why = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", why)


def no_such_path() -> ApiError:
    """Build the error for an unknown path or kind."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")
