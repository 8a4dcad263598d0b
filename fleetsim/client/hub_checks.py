"""What is wrong with a call of the hub's API, before it is made: the hub's own models, so its own words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic.alias_generators import to_camel

from fleetsim.api.bodies import ChatBody, CreateCeremonyBody, DelegateBody, UpdateCeremonyBody, read
from fleetsim.ceremony.written import KEYS, check_changes, checked, timed, written
from fleetsim.model.errors import ConfigError
from fleetsim.model.work import ceremony_id


def new_ceremony(of: str, keys: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The body that makes the ceremony ``of`` with these keys. Raises BodyInvalid, CeremonyInvalid."""
    body = {"id": of, **_given(keys)}
    checked(written(timed({**body, "targets": read(CreateCeremonyBody, body).targets}, now)))
    return body


def changes(of: str, keys: Mapping[str, Any], without: Sequence[str], now: datetime) -> dict[str, Any]:
    """The body that changes the ceremony ``of``. Raises ConfigError, BodyInvalid, CeremonyInvalid."""
    ceremony_id(of)
    body = {**_given(keys), **dict.fromkeys(without)}
    if not body:
        updatable = ", ".join(key for key in KEYS if key not in {"id", "createdBy", "notifyWebhookEnv"})
        raise ConfigError("update changes nothing", hint=f"name at least one of {updatable}")
    read(UpdateCeremonyBody, body)
    check_changes(body, now)
    return body


def _given(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What is not None, under the keys of a ceremony's file: ``notifyChannel`` and ``in``."""
    plain = {to_camel(name.removesuffix("_")): value for name, value in keys.items() if value is not None}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}


def chat(body: Mapping[str, Any]) -> None:
    """Raises BodyInvalid."""
    read(ChatBody, dict(body))


def delegation(body: Mapping[str, Any]) -> None:
    """Raises BodyInvalid."""
    read(DelegateBody, dict(body))
