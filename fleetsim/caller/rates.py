"""What tokens cost when an agent does not say: US dollars per token by model. Pure; the table is editable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, TypeAlias

from pydantic import ConfigDict, Field

from fleetsim.model.extensions import Usage
from fleetsim.runtime.explain import DECLARED

Usd: TypeAlias = Annotated[float, Field(ge=0, le=1e6, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """US dollars per million tokens. Cache reads and writes default to the usual share of the input price."""

    __pydantic_config__: ClassVar[ConfigDict] = DECLARED
    input_usd: Usd
    """Input."""
    output_usd: Usd
    """Output."""
    cache_read_usd: Usd | None = None
    """Input read from a cache."""
    cache_write_usd: Usd | None = None
    """Input written to a cache."""

    def price(self, usage: Usage) -> float:
        """US dollars for ``usage``."""
        read = self.input_usd * 0.1 if self.cache_read_usd is None else self.cache_read_usd
        write = self.input_usd * 1.25 if self.cache_write_usd is None else self.cache_write_usd
        total = usage.input_tokens * self.input_usd + usage.output_tokens * self.output_usd
        total += usage.cache_read_input_tokens * read + usage.cache_creation_input_tokens * write
        return total / 1e6


DEFAULT = "default"
BUILT_IN: Mapping[str, Rate] = {
    "claude-opus-4-6": Rate(input_usd=15, output_usd=75),
    "claude-sonnet-4-6": Rate(input_usd=3, output_usd=15),
    "claude-haiku-4-5": Rate(input_usd=0.25, output_usd=1.25),
    "gpt-4o": Rate(input_usd=2.5, output_usd=10),
    "gpt-4o-mini": Rate(input_usd=0.15, output_usd=0.6),
    DEFAULT: Rate(input_usd=3, output_usd=15),
}
"""Workstacean's table. A model's longest known prefix counts, so dated names find their rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The table in force. ``by_model`` must have ``default``."""

    by_model: Mapping[str, Rate] = field(default_factory=lambda: BUILT_IN)

    def rate(self, model: str | None) -> Rate:
        """The rate of ``model``: its own, else that of its longest listed prefix, else the default."""
        known = [name for name in self.by_model if model and model.startswith(name)]
        return self.by_model[max(known, key=len, default=DEFAULT)]

    def estimate(self, usage: Usage | None, model: str | None) -> float | None:
        """US dollars for tokens whose cost the agent did not report; None without tokens."""
        return self.rate(model).price(usage) if usage else None
