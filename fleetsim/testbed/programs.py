"""The ``Programs`` port in memory: nothing is started, and what would have been is remembered."""

from __future__ import annotations

import asyncio

from fleetsim.runtime.ports import Program, ProgramResult


class MemoryPrograms:
    """Every program ends after ``took_s`` with ``result``; ``runs`` are those that were asked for."""

    def __init__(self) -> None:
        self.runs: list[Program] = []
        self.result = ProgramResult(status=0)
        self.took_s = 0.0

    async def run(self, program: Program) -> ProgramResult:
        """Remember it, and say how it ended."""
        self.runs.append(program)
        await asyncio.sleep(self.took_s)
        return self.result
