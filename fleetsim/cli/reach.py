"""How a verb reaches an agent directly, without a hub."""

from __future__ import annotations

from fleetsim.client import AgentClient, Credential
from fleetsim.runtime.ports import Runtime


def client_for(
    url: str,
    runtime: Runtime,
    *,
    api_key_env: str | None = None,
    bearer_env: str | None = None,
    dialect: str | None = None,
) -> AgentClient:
    """A client of the agent at ``url``. A URL without a scheme is taken as http on this machine's word."""
    if "://" not in url:
        url = f"http://{url}"
    credential = None
    if api_key_env:
        credential = Credential(scheme="apiKey", env=api_key_env)
    elif bearer_env:
        credential = Credential(scheme="bearer", env=bearer_env)
    return AgentClient(url, runtime=runtime, credential=credential, dialect=dialect)
