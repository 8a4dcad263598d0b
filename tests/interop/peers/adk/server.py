"""An agent of Google's ADK behind the package's own ``to_a2a``, mounted below a path; what it says is script.json."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import BaseAgent
from google.adk.events import Event
from google.genai.types import Content, FunctionCall, Part
from script import SCRIPT, executed, skill_of
from serving import serve

MOUNT = "/agents/mill"


class Mill(BaseAgent):
    """The skills of script.json."""

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        parts = ctx.user_content.parts
        if answers := [part.function_response.response for part in parts if part.function_response]:
            yield said(ctx, SCRIPT["answer_prefix"] + str(answers[0]["result"]))
            return
        text = "".join(part.text or "" for part in parts)
        executed(text)
        match skill_of(text):
            case "fail":
                raise RuntimeError(SCRIPT["failure"])
            case "ask":
                call = FunctionCall(id=uuid.uuid4().hex, name="colour", args={"question": SCRIPT["question"]})
                yield Event(
                    author=self.name,
                    invocation_id=ctx.invocation_id,
                    content=Content(role="model", parts=[Part(function_call=call)]),
                    long_running_tool_ids={call.id},
                )
                return
            case "stream":
                for chunk in SCRIPT["chunks"]:
                    await asyncio.sleep(SCRIPT["chunk_gap_s"])
                    yield said(ctx, chunk, partial=True)
                yield said(ctx, "".join(SCRIPT["chunks"]))
                return
            case "slow":
                await asyncio.sleep(SCRIPT["slow_s"])
        yield said(ctx, SCRIPT["echo_prefix"] + text)


def said(ctx: Any, text: str, *, partial: bool = False) -> Event:
    content = Content(role="model", parts=[Part(text=text)])
    return Event(author="mill", invocation_id=ctx.invocation_id, content=content, partial=partial)


def build(url: str) -> object:
    where = urlsplit(url)
    return to_a2a(
        Mill(name="mill", description="Does as the first word says"),
        host=where.hostname or "",
        port=where.port or 0,
        rpc_path=where.path,
    )


if __name__ == "__main__":
    serve(build, MOUNT)
