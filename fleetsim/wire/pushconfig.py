"""Webhook registrations: both token shapes read, one written.

Knows configurations only; the bodies a webhook receives are in ``push``. Whether an address may be
called is the address policy's business, not the wire's.
"""

from __future__ import annotations

from typing import Any

from fleetsim.model.call import PushConfig, TaskPush
from fleetsim.model.errors import WireError
from fleetsim.model.task import JsonObject
from fleetsim.wire import fields

_WRAPPERS = ("pushNotificationConfig", "taskPushNotificationConfig", "pushNotification")


def read_push_config(value: Any) -> PushConfig:
    """A configuration with its token as ``token`` or as ``authentication.credentials``. Raises WireError.

    Top-level ``token`` wins when both are there; credentials of a scheme other than Bearer are no token
    (seed "Token parsing", A2A 1.0 section 4.3.2).
    """
    obj = fields.mapping(value, "push notification config")
    url = fields.text(obj, "url", chars_max=fields.URL_CHARS_MAX)
    if not url:
        raise WireError("url is missing or empty")
    scheme, credentials = _read_authentication(obj.get("authentication"))
    bearer = credentials if _is_bearer(scheme) else None
    return PushConfig(
        url=url,
        config_id=fields.identifier(obj, "id"),
        token=fields.text(obj, "token", chars_max=fields.URL_CHARS_MAX) or bearer,
        scheme=scheme,
        credentials=credentials,
        events=fields.texts(obj, "events") if obj.get("events") is not None else None,
    )


def _is_bearer(scheme: str | None) -> bool:
    return scheme is None or scheme.lower() == "bearer"


def _read_authentication(value: Any) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    obj = fields.mapping(value, "authentication")
    schemes = fields.texts(obj, "schemes")
    bearer = next((scheme for scheme in schemes if scheme.lower() == "bearer"), None)
    scheme = fields.text(obj, "scheme") or bearer or next(iter(schemes), None)
    return scheme or None, fields.text(obj, "credentials", chars_max=fields.URL_CHARS_MAX) or None


def read_task_push(value: Any) -> TaskPush:
    """A configuration with its task, nested (0.x) or flat (1.0). Raises WireError."""
    obj = fields.mapping(value, "task push notification config")
    nested = fields.member(obj, *_WRAPPERS)
    task_id = fields.need_identifier(obj, "taskId", *(() if nested is None else ("id",)))
    return TaskPush(task_id=task_id, config=read_push_config(obj if nested is None else nested))


def nested_config(params: JsonObject) -> Any:
    """The configuration inside a 0.x registration; the parameters themselves if nothing is nested."""
    nested = fields.member(params, *_WRAPPERS)
    return params if nested is None else nested


def write_push_config(config: PushConfig, *, schemes_listed: bool) -> dict[str, Any]:
    """A configuration; ``schemes_listed`` for 0.x (``schemes: [...]``), else 1.0 (``scheme``).

    A token that is also the Bearer credentials is written once, in the structured form.
    """
    authentication: dict[str, Any] = {}
    if config.scheme is not None or config.credentials is not None:
        scheme = config.scheme or "Bearer"
        authentication = {"schemes": [scheme]} if schemes_listed else {"scheme": scheme}
        authentication |= fields.present(credentials=config.credentials)
    implied = _is_bearer(config.scheme) and config.token == config.credentials
    token = None if implied else config.token
    return {
        **fields.present(id=config.config_id),
        "url": config.url,
        **fields.present(token=token, authentication=authentication),
    }
