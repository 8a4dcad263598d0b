"""How each dialect spells what a probe says and reads: plain JSON in, plain JSON out, nothing refused.

The product's own codecs are not used on purpose: they repair what a broken agent sends, and a probe must
see it. Method names alone come from the dialect's table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from fleetsim.check.evidence import written
from fleetsim.model.call import Operation
from fleetsim.model.errors import WireError
from fleetsim.model.task import TaskState
from fleetsim.wire.dialect import DIALECTS

STATES = frozenset(TaskState) - {TaskState.UNKNOWN}
WRAPPERS = {"task": "task", "message": "message", "statusUpdate": "status-update", "artifactUpdate": "artifact-update"}
KINDS = frozenset(WRAPPERS.values())


def version_of(name: str) -> str:
    """The version of a dialect, whatever its binding."""
    return name.partition("+")[0]


def mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """``value`` if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def among(value: Any, words: Collection[str]) -> bool:
    """Whether ``value`` is one of ``words``; what an agent puts there may not even be comparable to them."""
    return isinstance(value, str) and value in words


def url_parts(value: Any) -> SplitResult:
    """The parts of an address an agent names; all empty if it is none."""
    try:
        return urlsplit(str(value or ""))
    except ValueError:
        return urlsplit("")


def url_path(value: Any) -> str:
    """The path of an address an agent names, with its slash in front."""
    path = url_parts(value).path
    return path if path.startswith("/") else f"/{path}"


def below(url: str, path: str) -> str:
    """The address of a path, which may have a query, below an endpoint, which may have one too."""
    at, (path, _, query) = urlsplit(url), path.partition("?")
    return at._replace(path=at.path.rstrip("/") + path, query="&".join(filter(None, (at.query, query)))).geturl()


def state_word(holder: Any) -> str:
    """The state of a task or status update in any dialect, in the words of 0.3; empty if there is none."""
    raw = mapping(mapping(holder).get("status")).get("state")
    word = raw.removeprefix("TASK_STATE_").replace("_", "-").lower() if isinstance(raw, str) else ""
    return "canceled" if word == "cancelled" else word


class RawDialect:
    """How one dialect writes params and shapes, and how an answer in it is read, however broken."""

    def __init__(self, name: str, url: str = "", tenant: str = "") -> None:
        spoken = DIALECTS[name].at(url)
        self._tenant = tenant if spoken.takes_tenant else ""
        self.name = name
        self.version = version_of(name)
        self.current = spoken.says_version
        self.legacy = spoken.caller_names_task
        self.binding, self._media_type, self._paths = spoken.binding, spoken.media_type, spoken.paths
        self.over_http = bool(spoken.paths)
        self.proto = self.current or (self.over_http and not spoken.kinds)
        """Whether objects are those of the protocol's .proto file: full names of enums, and a wrapper around events."""
        self._methods = {operation: names[0] for operation, names in spoken.methods.items()}
        self._read_names = getattr(spoken, "read_names", None) if self.proto and not self.current else None

    def bare(self, value: Any) -> Any:
        """The result in a body over HTTP+JSON; of 0.3's with the names that its JSON-RPC binding has."""
        if self._read_names is None:
            return value
        try:
            return self._read_names(value)
        except WireError:
            return None

    # Saying.

    def method(self, operation: Operation) -> str:
        """The method's name at this agent; raises KeyError if the dialect has none."""
        return self._methods[operation]

    def standard_method(self, operation: Operation) -> str:
        """The name that the dialect gives the method, whatever this agent calls it."""
        return DIALECTS[self.name].methods[operation][0]

    def use_name(self, operation: Operation, method: str) -> None:
        """From now on use another name that the agent knows an operation by."""
        self._methods[operation] = method

    def operation(self, method: Any) -> Operation | None:
        """Which operation a method's name means at this agent; an operation means itself."""
        if isinstance(method, Operation):
            return method
        return next((operation for operation, name in self._methods.items() if name == method), None)

    def headers(self, body: bytes) -> dict[str, str]:
        """The headers of a request in the dialect, beside those of every JSON request."""
        version = {"a2a-version": self.version} if self.current else {}
        if not self.over_http:
            return version
        content = {"content-type": self._media_type} if body else {}
        return {**version, **content, "accept": f"{self._media_type}, application/json"}

    def with_tenant(self, params: Any) -> Any:
        """Params with the tenant that the interface of the card names (1.0 4.4.6)."""
        return {**params, "tenant": self._tenant} if self._tenant and isinstance(params, dict) else params

    def http_call(self, operation: Operation, params: Any) -> tuple[str, str, bytes]:
        """HTTP method, path with query below the endpoint, and body of a call over HTTP+JSON."""
        method, template = self._paths[operation]
        left = dict(mapping(params))
        if self.proto and not self.current and isinstance(message := left.get("message"), dict):
            left["message"] = {"content" if name == "parts" else name: value for name, value in message.items()}
        pieces = [
            quote(str(left.pop(piece[1:-1], "none")), safe="") if piece.startswith("{") else piece
            for piece in re.split(r"(\{\w+\})", template)
        ]
        path = "".join([f"/{quote(self._tenant, safe='')}" if self._tenant else "", *pieces])
        if method == "POST":
            return method, path, written(self.with_tenant(left))
        query = urlencode({name: str(v).lower() if isinstance(v, bool) else v for name, v in left.items()})
        return method, f"{path}?{query}" if query else path, b""

    def part(self, text: str) -> dict[str, Any]:
        """A text part as the dialect writes it, with ``kind``, ``type`` or neither."""
        if self.proto:
            return {"text": text}
        return {"type" if self.legacy else "kind": "text", "text": text}

    def data_part(self, data: Any) -> dict[str, Any]:
        """A data part as the dialect writes it, with ``kind``, ``type`` or neither."""
        if self.proto:
            return {"data": data if self.current else {"data": data}}
        return {"type" if self.legacy else "kind": "data", "data": data}

    def message(self, text: str, message_id: str, **more: Any) -> dict[str, Any]:
        """A user's message; ``more`` are members as written."""
        parts = {"parts": [self.part(text)], **more}
        if self.legacy:
            return {"role": "user", **parts}
        role = "ROLE_USER" if self.proto else "user"
        kind = {} if self.proto else {"kind": "message"}
        return {**kind, "messageId": message_id, "role": role, **parts}

    def send(
        self,
        message: Mapping[str, Any],
        *,
        wait: bool | None = False,
        push: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Params of a send; ``wait`` None leaves it unsaid."""
        configuration: dict[str, Any] = {"acceptedOutputModes": []}
        if wait is not None:
            configuration |= {"returnImmediately": not wait} if self.current else {"blocking": wait}
        if push is not None:
            old = "pushNotification" if self.proto else "pushNotificationConfig"
            configuration["taskPushNotificationConfig" if self.current else old] = dict(push)
        params: dict[str, Any] = {"message": dict(message), "configuration": configuration}
        if self.legacy:
            params = {"message": dict(message)} | ({"pushNotification": dict(push)} if push else {})
        return {**params, "metadata": dict(metadata)} if metadata else params

    def by_id(self, task_id: Any, **more: Any) -> dict[str, Any]:
        """Params that name a task; ``more`` are members as written, such as historyLength."""
        return {"id": task_id, **more}

    def hook(self, url: str, **more: Any) -> dict[str, Any]:
        """A webhook's config. ``credentials`` are written as the dialect has them."""
        config: dict[str, Any] = {"url": url, **{name: value for name, value in more.items() if value is not None}}
        credentials = config.pop("credentials", None)
        if credentials is not None:
            scheme = {"scheme": "Bearer"} if self.current else {"schemes": ["Bearer"]}
            config["authentication"] = {**scheme, "credentials": credentials}
        return config

    def set_hook(self, task_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Params that register a webhook, as our caller writes them: flat in 1.0, the config nested in older ones."""
        if self.current:
            return {"taskId": task_id, **config}
        if self.proto:
            name = f"tasks/{task_id}/pushNotificationConfigs/{config.get('id', '')}"
            named = {"configId": config["id"]} if "id" in config else {}
            whole = {"name": name, "pushNotificationConfig": dict(config)}
            return {"taskId": task_id, "parent": f"tasks/{task_id}", **named, "config": whole}
        nested = {"id" if self.legacy else "taskId": task_id, "pushNotificationConfig": dict(config)}
        return {**config, **nested} if self.over_http else nested

    def of_hook(self, task_id: str, config_id: str | None = None) -> dict[str, Any]:
        """Params that name a registered webhook, or all of a task."""
        if self.current:
            return {"taskId": task_id} | ({"id": config_id} if config_id is not None else {})
        return {"id": task_id} | ({"pushNotificationConfigId": config_id} if config_id is not None else {})

    # Reading.

    def task(self, result: Any) -> Mapping[str, Any]:
        """The task of an answer to a send; empty if it is none."""
        found = mapping(result)
        inner = mapping(found.get("task"))
        if inner:
            return inner
        return found if "status" in found and "id" in found else {}

    def event(self, result: Any) -> tuple[str, Mapping[str, Any]]:
        """Kind and content of a streamed result or webhook body, by key, else by kind, else by shape."""
        found = mapping(result)
        for key, kind in WRAPPERS.items():
            if isinstance(found.get(key), dict) and len(found) <= 2 and "status" not in found:
                return kind, found[key]
        if among(found.get("kind"), KINDS):
            return str(found["kind"]), found
        if "status" in found:
            whole = "id" in found and (found.keys() & {"contextId", "sessionId", "artifacts", "history"})
            return "task" if whole and "final" not in found and "taskId" not in found else "status-update", found
        if "artifact" in found:
            return "artifact-update", found
        return "message" if "parts" in found else "", found

    def state(self, holder: Any) -> str:
        return state_word(holder)

    def spelled(self, holder: Any) -> bool:
        """Whether the state is spelled as this dialect spells it."""
        raw = mapping(mapping(holder).get("status")).get("state")
        word = self.state(holder)
        expected = f"TASK_STATE_{word.replace('-', '_').upper()}" if self.proto else word
        if self.proto and not self.current:
            expected = expected.replace("CANCELED", "CANCELLED")
        return word in STATES and raw == expected

    def task_id(self, kind: str, content: Mapping[str, Any]) -> Any:
        """The id of the task an event is about: ``id`` of a task and in 0.1, else ``taskId``."""
        return content.get("id") if kind == "task" or self.legacy else content.get("taskId")

    def context_id(self, content: Mapping[str, Any]) -> Any:
        return content.get("sessionId" if self.legacy else "contextId")


def texts(parts: Any) -> str:
    """The text of all text parts, joined; parts of other kinds are passed over."""
    return "".join(str(part["text"]) for part in listed(parts) if isinstance(mapping(part).get("text"), str))


def answer_text(task: Mapping[str, Any]) -> str:
    """The text of a task's artifacts, joined."""
    return "".join(texts(mapping(artifact).get("parts")) for artifact in listed(task.get("artifacts")))


def message_text(task: Mapping[str, Any]) -> str:
    """The text of a task's status message."""
    return texts(mapping(mapping(task.get("status")).get("message")).get("parts"))


def snake_keys(value: Any, at: str = "") -> list[str]:
    """Paths of members written with an underscore, outside of free-form objects."""
    found: list[str] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{at}.{key}" if at else str(key)
            if "_" in str(key).strip("_"):
                found.append(path)
            if key not in {"data", "metadata", "params", "securitySchemes", "security", "securityRequirements"}:
                found += snake_keys(inner, path)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            found += snake_keys(inner, f"{at}[{number}]")
    return found
