"""Where scenarios come from: a file of the person's, or one of those that come with fleetsim."""

from __future__ import annotations

from pathlib import Path

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.explain import did_you_mean
from fleetsim.runtime.yaml import YamlDocument
from fleetsim.sim.ceremony_span import folder_files
from fleetsim.sim.scenario import SCENARIO_BYTES_MAX, Scenario

FOLDER = Path(__file__).with_name("scenarios")


def scenarios() -> dict[str, Path]:
    """The shipped ones by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def read(scenario: str) -> tuple[str, bytes, Path]:
    """Its source as errors name it, its text, and the folder it is in. Raises ConfigError if there is none."""
    path = Path(scenario)
    known = scenarios()
    if not path.exists() and scenario in known:
        path = known[scenario]
    try:
        with path.open("rb") as file:
            return scenario, file.read(SCENARIO_BYTES_MAX + 1), path.parent
    except OSError as error:
        hint = "`fleetsim sim list` names those that come with fleetsim"
        if "/" not in scenario and not path.suffix:
            raise ConfigError(f"there is no scenario '{scenario}'{did_you_mean(scenario, known)}", hint=hint) from None
        raise ConfigError(f"{scenario}: {error.strerror}", hint=hint) from None


def ceremonies_of(scenario: Scenario, written: YamlDocument, folder: Path) -> dict[str, bytes]:
    """The files of its ceremonies, by name. Raises ConfigError for a missing folder."""
    if scenario.ceremonies is None:
        return {}
    where = folder / scenario.ceremonies
    if not where.is_dir():
        raise written.error(("ceremonies",), f"there is no folder {where}")
    return folder_files(where)
