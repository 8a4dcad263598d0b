"""Real programs, run like the commands of a channel: their input and environment, and the end of those that hang."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleetsim.runtime.ports import Program, ProgramResult
from fleetsim.runtime.programs import SystemPrograms, desktop_program

pytestmark = pytest.mark.sockets

ENV = {**os.environ, "QUINN_API_KEY": "canary", "LANG": "C.UTF-8"}


def python(code: str, *, stdin: bytes = b"", seconds: float = 30.0, passed: tuple[str, ...] = ()) -> Program:
    return Program(argv=(sys.executable, "-I", "-c", code), stdin=stdin, seconds=seconds, passed=passed)


async def run(program: Program) -> ProgramResult:
    return await SystemPrograms(ENV).run(program)


async def test_a_program_reads_the_whole_text_from_its_standard_input(tmp_path: Path) -> None:
    target = tmp_path / "said"
    code = f"import sys; open({str(target)!r}, 'wb').write(sys.stdin.buffer.read())"
    text = "größe\n".encode() * 5_000
    assert await run(python(code, stdin=text)) == ProgramResult(status=0)
    assert target.read_bytes() == text


async def test_a_program_gets_none_of_our_keys_and_no_open_file(tmp_path: Path) -> None:
    target = tmp_path / "said"
    code = f"import os; print(sorted(os.environ), os.getcwd(), os.listdir('/dev/fd'), file=open({str(target)!r}, 'w'))"
    with (tmp_path / "secret").open("w"):
        await run(python(code))
    said = target.read_text()
    assert "QUINN_API_KEY" not in said
    assert set(eval(said.partition("]")[0] + "]")) <= {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ"}
    assert " / " in said
    assert len(eval("[" + said.rpartition("[")[2])) <= 5  # the three standard streams, its file, the listing


async def test_a_variable_that_is_passed_on_is_set() -> None:
    code = "import os, sys; sys.exit(os.environ.get('QUINN_API_KEY') != 'canary')"
    assert (await run(python(code, passed=("QUINN_API_KEY",)))).status == 0
    assert (await run(python(code))).status == 1


async def test_a_failure_contains_the_status_and_the_last_line_without_control_characters() -> None:
    result = await run(
        python(r"import sys; print('first', flush=True); print('\x1b[31mno pager', file=sys.stderr); sys.exit(3)")
    )
    assert result == ProgramResult(status=3, reason="ended with 3: \N{REPLACEMENT CHARACTER}[31mno pager")
    assert await run(python("import os; os.kill(os.getpid(), 9)")) == ProgramResult(
        status=-9, reason="ended by signal 9"
    )


async def test_a_missing_program_is_a_failure_that_says_so() -> None:
    for name in ("/nowhere/page", "page-that-is-not-installed"):
        result = await run(Program(argv=(name,)))
        assert (result.status, result.reason.startswith(f"{name} ")) == (None, True)


async def test_a_program_that_hangs_is_ended_with_every_process_it_started(tmp_path: Path) -> None:
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    code = (
        f"import os, time; kept = open({str(pipe)!r}, 'w'); kept.write('x'); kept.flush(); os.fork(); time.sleep(600)"
    )
    assert await run(python(code, seconds=1.5)) == ProgramResult(reason="did not end within 1.5 s")
    async with reading(reader) as alive, asyncio.timeout(20):
        assert await alive.read() == b"x"  # end of file: no process holds it any more


@asynccontextmanager
async def reading(descriptor: int) -> AsyncIterator[asyncio.StreamReader]:
    reader = asyncio.StreamReader()
    loop, file = asyncio.get_running_loop(), os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield reader
    finally:
        transport.close()


async def test_a_program_that_floods_its_output_is_ended_before_its_time() -> None:
    result = await run(python("while True: print('x' * 1000)", seconds=600))
    assert (result.status, "65536 bytes" in result.reason) == (None, True)


async def test_a_program_that_ignores_its_input_is_not_a_failure() -> None:
    assert (await run(python("pass", stdin=b"x" * 1_000_000))).status == 0


async def test_a_cancelled_run_leaves_no_process(tmp_path: Path) -> None:
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    code = f"import os, time; os.write(os.open({str(pipe)!r}, os.O_WRONLY), b'%d.' % os.getpid()); time.sleep(600)"
    async with reading(os.open(pipe, os.O_RDWR | os.O_NONBLOCK)) as said, asyncio.timeout(20):
        running = asyncio.ensure_future(run(python(code, seconds=600)))
        pid = int((await said.readuntil(b"."))[:-1])
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_input_of_a_program_is_not_in_its_repr() -> None:
    assert "sesame" not in repr(Program(argv=("page", "sesame"), stdin=b"sesame"))


def test_a_notification_cannot_be_an_option_or_markup() -> None:
    shown = desktop_program("--help", "<b>1 & 2</b>", platform="linux")
    assert shown.argv == ("notify-send", "--app-name=fleetsim", "--", "--help", "‹b›1 + 2‹/b›")
    assert "DBUS_SESSION_BUS_ADDRESS" in shown.passed
    assert shown.seconds == 5


def test_a_notification_on_a_mac_is_an_argument_and_not_a_script() -> None:
    shown = desktop_program('say "x"', '" & do shell script "id', platform="darwin")
    assert shown.argv[0] == "osascript"
    assert shown.argv[-3:] == ("--", 'say "x"', '" & do shell script "id')
    assert "id" not in "".join(shown.argv[:-2])
