"""OAuth2 with a real server (npm's oauth2-mock-server), whose tokens a real agent verifies (``make ways``)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from fleetsim.client import AgentClient, Credential
from fleetsim.client.credential import TokenRequest
from fleetsim.model.errors import AuthRefused
from tests.cli.world import Shell
from tests.field.doors import ApiDoor, HubDoor, running_fleet
from tests.testbed.serving import served

pytestmark = pytest.mark.interop

SERVER = Path(__file__).parent / "oauth2"
CARD = {
    "name": "Ledger",
    "protocolVersion": "0.3.0",
    "url": "",
    "preferredTransport": "JSONRPC",
    "skills": [{"id": "chat", "name": "Chat", "description": "Talks.", "tags": []}],
    "capabilities": {},
    "securitySchemes": {"login": {"type": "openIdConnect", "openIdConnectUrl": "https://login.example"}},
}
TASK = {
    "kind": "task",
    "id": "t-1",
    "contextId": "c-1",
    "status": {"state": "completed"},
    "artifacts": [{"artifactId": "a-1", "parts": [{"kind": "text", "text": "pong"}]}],
}


class Login:
    """A running OAuth2 server. ``secret`` is the file with its client's secret; ``lines`` has one for each token."""

    def __init__(self, folder: Path) -> None:
        self.secret = folder / "secret"
        self.url = ""
        self.lines: list[str] = []

    def set_secret(self, text: str) -> None:
        self.secret.write_text(text)
        self.secret.chmod(0o600)

    @property
    def discovery_url(self) -> str:
        return f"{self.url}/.well-known/openid-configuration"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Login]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "node", "server.mjs", str(self.secret), cwd=SERVER, stdin=pipe, stdout=pipe
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self.url = (await process.stdout.readline()).decode().removeprefix("READY ").strip()
        assert self.url, "is it installed? make ways installs it"
        reading = asyncio.create_task(self._read(process.stdout))
        try:
            yield self
        finally:
            process.stdin.close()
            await process.wait()
            await reading

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        async for line in stdout:
            self.lines.append(line.decode().strip())


class Guard:
    """An ASGI agent with a public card; its calls need a token that the server signed and has not revoked."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys
        self.revoked: set[str] = set()
        self.tokens: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await self._answer(send, 200, CARD)
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        try:
            jwt.decode(token, self._keys)
        except (JoseError, ValueError):
            token = ""
        if not token or token in self.revoked:
            await self._answer(send, 401, {"error": "invalid_token"}, (b"www-authenticate", b"Bearer"))
            return
        self.tokens.append(token)
        await self._answer(send, 200, {"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": TASK})

    async def _answer(self, send: Any, status: int, value: Any, *more: tuple[bytes, bytes]) -> None:
        headers = [(b"content-type", b"application/json"), *more]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(value).encode()})


@pytest_asyncio.fixture
async def login(tmp_path: Path) -> AsyncIterator[Login]:
    server = Login(tmp_path)
    server.set_secret("first")
    async with server.running():
        yield server


@pytest_asyncio.fixture
async def guard(login: Login) -> Guard:
    async with httpx.AsyncClient() as client:
        return Guard(KeySet.import_key_set((await client.get(f"{login.url}/jwks")).json()))


async def test_a_token_is_kept_renewed_after_a_401_and_its_secret_rotates_by_file(login: Login, guard: Guard) -> None:
    request = TokenRequest(client_id="fleet", discovery_url=login.discovery_url, scopes=("work",))
    credential = Credential("oauth2", file=str(login.secret), token_request=request)
    async with served(guard) as url, AgentClient(url, credential=credential) as agent:
        for _ in range(3):
            assert (await agent.send_task("hi")).text == "pong"
        assert (len(set(guard.tokens)), login.lines) == (1, ["token work"])
        guard.revoked.update(guard.tokens)
        login.set_secret("second")
        assert (await agent.send_task("hi")).text == "pong"
        assert (len(set(guard.tokens)), login.lines) == (2, ["token work"] * 2)


@pytest.mark.parametrize("client_auth", ["basic", "post"])
async def test_a_wrong_secret_is_reported_with_the_step_and_never_shown(
    login: Login, guard: Guard, client_auth: Any
) -> None:
    request = TokenRequest(client_id="fleet", token_url=f"{login.url}/token", client_auth=client_auth)
    wrong = Credential("oauth2", secret="s3cr3t-wrong", token_request=request)
    async with served(guard) as url:
        async with AgentClient(url, credential=wrong) as agent:
            with pytest.raises(AuthRefused, match=r"token request: .*invalid_client") as refused:
                await agent.send_task("hi")
        right = Credential("oauth2", secret="first", token_request=request)
        async with AgentClient(url, credential=right) as agent:
            assert (await agent.send_task("hi")).text == "pong"
    assert "s3cr3t" not in str(refused.value)


async def test_the_command_line_and_the_hub_call_an_agent_behind_it(
    login: Login, guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_SECRET", "first")
    auth = f"{{scheme: oauth2, clientId: fleet, discoveryUrl: '{login.discovery_url}', credentialsEnv: FLEET_SECRET}}"
    async with served(guard) as url:
        shell = Shell(tmp_path / "direct", env={"FLEET_SECRET": "first"})
        shell.home.mkdir()
        done = await shell.arun("send", url, "hi", "--auth", auth)
        assert (done.returncode, done.stdout) == (0, "pong\n"), done.stderr
        card = await asyncio.to_thread(shell.json, "card", url, "--auth", auth)
        assert card["credentials"]["answered"] is True
        refused = await shell.arun("send", url, "hi", "--auth", auth.replace("clientId: fleet", "clientId: nobody"))
        assert (refused.returncode, "token request" in refused.stderr) == (4, True)
        async with running_fleet(tmp_path, {"ledger": url}, keys={"ledger": f"auth: {auth}"}) as fleet:
            for door in (HubDoor, ApiDoor):
                (reply,) = await door(fleet).converse("ledger", "chat", "hi")
                assert (reply.state, reply.text) == ("completed", "pong")
