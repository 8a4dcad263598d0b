"""Credentials: read per request, never shown."""

from __future__ import annotations

import pytest

from fleetsim.client import Credential
from fleetsim.model.errors import ConfigError


def test_each_scheme_has_its_header() -> None:
    assert Credential.of("bearer", "s3cr3t").headers() == {"authorization": "Bearer s3cr3t"}
    assert Credential.of("apiKey", "s3cr3t").headers() == {"x-api-key": "s3cr3t"}
    assert Credential("apiKey", header="X-Key", secret="s3cr3t").headers() == {"x-key": "s3cr3t"}


def test_the_environment_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    credential = Credential("bearer", "AGENT_KEY")
    monkeypatch.setenv("AGENT_KEY", " one\n")
    assert credential.headers() == {"authorization": "Bearer one"}
    monkeypatch.setenv("AGENT_KEY", "two")
    assert credential.headers() == {"authorization": "Bearer two"}
    monkeypatch.delenv("AGENT_KEY")
    with pytest.raises(ConfigError, match="AGENT_KEY"):
        credential.headers()


@pytest.mark.parametrize("secret", ["", "  ", "a\r\nX: 1", "a\nb", "é", "a\x00b", "x" * 9_000])
def test_what_no_header_can_carry_is_refused_and_not_shown(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as caught:
        Credential.of("apiKey", secret).headers()
    assert len(secret) < 3 or secret not in str(caught.value)


def test_a_secret_is_in_no_repr() -> None:
    assert "s3cr3t" not in repr(Credential.of("bearer", "s3cr3t"))
