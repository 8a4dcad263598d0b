"""An A2A 0.3 agent made with a2akit, over HTTP+JSON alone: its own worker, storage and webhook sender."""

from __future__ import annotations

import asyncio

from a2akit import A2AServer, AgentCardConfig, CapabilitiesConfig, SkillConfig, TaskContext, Worker
from script import SCRIPT, executed, skill_of
from serving import serve


class Mill(Worker):
    """The skills of script.json."""

    async def handle(self, ctx: TaskContext) -> None:
        text = ctx.user_text
        executed(text)
        if any(said.role == "agent" for said in ctx.history):
            await self._answer(ctx, SCRIPT["answer_prefix"] + text)
            return
        match skill_of(text):
            case "stream":
                for at, chunk in enumerate(SCRIPT["chunks"]):
                    await asyncio.sleep(SCRIPT["chunk_gap_s"])
                    last = at == len(SCRIPT["chunks"]) - 1
                    await ctx.emit_text_artifact(chunk, artifact_id="streamed", append=at > 0, last_chunk=last)
                await ctx.complete()
            case "fail":
                await ctx.fail(SCRIPT["failure"])
            case "ask":
                await ctx.request_input(SCRIPT["question"])
            case "slow":
                for _ in range(int(SCRIPT["slow_s"] * 10)):
                    if ctx.is_cancelled:
                        return
                    await asyncio.sleep(0.1)
                await self._answer(ctx, SCRIPT["echo_prefix"] + text)
            case _:
                await self._answer(ctx, SCRIPT["echo_prefix"] + text)

    async def _answer(self, ctx: TaskContext, text: str) -> None:
        await ctx.emit_text_artifact(text, artifact_id="answer", last_chunk=True)
        await ctx.complete()


def build(url: str) -> object:
    skill = SkillConfig(id="mill", name="Mill", description="Does as the first word says", tags=["interop"])
    card = AgentCardConfig(
        name="a2akit",
        description="a2akit",
        version="1.0.0",
        protocol="http+json",
        capabilities=CapabilitiesConfig(streaming=True, push_notifications=True),
        skills=[skill],
    )
    server = A2AServer(
        worker=Mill(), agent_card=card, push_allow_http=True, push_allowed_hosts={"127.0.0.1"}, enable_telemetry=False
    )
    return server.as_fastapi_app()


if __name__ == "__main__":
    serve(build)
