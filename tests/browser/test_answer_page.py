"""The page of a link on a phone, in a real Chromium: both colors, nothing fetched, and a tap decides."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetsim.agent.builtin import reference_agent
from tests.browser.chromium import Tab, chromium
from tests.browser.served import until
from tests.cli.world import Shell

pytestmark = [pytest.mark.browser, pytest.mark.sockets, pytest.mark.slow]
PHONE_PIXELS = 390


async def test_a_person_reads_the_question_on_a_phone_and_answers_it(tmp_path: Path) -> None:
    shell, notice = Shell(tmp_path), tmp_path / "notice"
    async with reference_agent("scout").serving() as url:
        page = f"{{kind: command, argv: [/bin/sh, -c, 'cat > {notice}.new; mv {notice}.new {notice}'], person: ann}}"
        shell.write(
            "agents.yaml",
            "fleet: {base_url: 'https://hub.example', question_channels: [ops]}\n"
            f"channels: {{ops: {{sinks: [{page}]}}}}\nagents: [{{name: scout, url: '{url}/a2a'}}]\n",
        )
        with shell.up():
            await shell.arun("send", "scout", "hi", "--skill", "ask")
            await until(notice.exists)
            link = notice.read_text().split()[-1]
            here = link.replace("https://hub.example", shell.told[0].split()[2].rstrip(","))
            async with chromium(width=PHONE_PIXELS, height=844) as context:
                tab = Tab(await context.new_page())
                for scheme in ("light", "dark"):
                    await tab.page.emulate_media(color_scheme=scheme)
                    await tab.page.goto(here)
                    assert "Who shall I greet?" in await tab.page.inner_text("main")
                    assert await tab.page.evaluate("document.documentElement.scrollWidth") == PHONE_PIXELS
                    assert await tab.page.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
                    await tab.page.screenshot(path=tmp_path / f"{scheme}.png")
                assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()
                await tab.page.fill("textarea", "the crew")
                await tab.page.click("text=Send the answer")
                assert (await tab.page.inner_text("main")).startswith("ann answered this question on ")
                assert tab.trouble == []
                assert set(tab.requests) == {here}
            assert (await asyncio.to_thread(shell.json, "inbox", "list"))["questions"] == []
