from __future__ import annotations

import random
from collections import Counter

import pytest

from fleetsim.fleet.access import OWNER
from fleetsim.fleet.registry import Registry, judge, resolve
from fleetsim.model.errors import UnknownTarget
from tests.caller.fleet import FixedFleet

OFFERS = {"quinn": {"pr_review", "bug_triage"}, "ava": {"bug_triage", "sitrep"}, "frank": set[str]()}


def pick(skill: str | None, *targets: str, weights: dict[str, float] | None = None, chance: float = 0.0) -> list[str]:
    return list(resolve(skill, targets, offers=OFFERS, weights=weights or {}, chance=lambda: chance))


def refusal(skill: str | None, *targets: str) -> str:
    with pytest.raises(UnknownTarget) as caught:
        pick(skill, *targets)
    return f"{caught.value} | {caught.value.hint}"


def test_a_misspelled_target_is_an_error_and_never_another_agent() -> None:
    assert "“quinn”" in refusal("bug_triage", "quin")
    assert "known: ava, frank, quinn" in refusal("bug_triage", "zzz")


def test_a_disabled_agent_is_refused_with_the_reason() -> None:
    with pytest.raises(UnknownTarget):
        resolve(
            None,
            ("sid",),
            offers=OFFERS,
            weights={},
            chance=lambda: 0.0,
            disabled={"sid": "its credential SID_KEY is not set"},
        )


def test_one_unknown_target_among_known_ones_refuses_the_whole_request() -> None:
    assert "unknown agent “nobody”" in refusal("bug_triage", "quinn", "nobody")
    assert "unknown agent “nobody”" in refusal("bug_triage", "all", "nobody")


def test_a_target_without_the_skill_is_refused_with_the_agents_that_have_it() -> None:
    assert refusal("sitrep", "quinn").endswith("| ava offers it")
    assert "quinn, ava offer it" in refusal("bug_triage", "frank")
    assert "its card has not been read" in refusal("dance", "frank")
    assert "did you mean “pr_review”" in refusal("pr_revew", "quinn")


def test_several_targets_each_get_the_request_once_in_order() -> None:
    assert pick("bug_triage", "ava", "quinn", "ava") == ["ava", "quinn"]


def test_all_means_every_agent_with_the_skill() -> None:
    assert pick("bug_triage", "all") == ["quinn", "ava"]
    assert pick("sitrep", "all") == ["ava"]
    assert pick(None, "all") == ["quinn", "ava", "frank"]
    assert "“dance”" in refusal("dance", "all")


def test_a_request_without_a_skill_goes_to_its_target() -> None:
    assert pick(None, "frank") == ["frank"]
    assert refusal(None)


def test_an_unknown_skill_is_refused_with_the_nearest() -> None:
    assert "“bug_triage”" in refusal("bugtriage")


def test_a_request_to_an_empty_fleet_is_refused_as_such() -> None:
    with pytest.raises(UnknownTarget):
        resolve("x", (), offers={}, weights={}, chance=lambda: 0.0)


def test_an_only_candidate_is_chosen_at_any_health() -> None:
    assert pick("sitrep", weights={"ava": 0.0}) == ["ava"]


def test_work_is_shared_by_success_rate_and_cost() -> None:
    weights = {"quinn": 0.9, "ava": 0.3}
    chance = random.Random(7).random
    drawn = Counter(resolve("bug_triage", (), offers=OFFERS, weights=weights, chance=chance)[0] for _ in range(4_000))
    assert drawn["quinn"] / 4_000 == pytest.approx(0.75, abs=0.03)


def test_an_agent_without_history_weighs_one() -> None:
    assert pick("bug_triage", weights={"quinn": 0.25}, chance=0.19) == ["quinn"]
    assert pick("bug_triage", weights={"quinn": 0.25}, chance=0.21) == ["ava"]


def test_if_every_weight_is_zero_the_first_agent_is_chosen() -> None:
    assert pick("bug_triage", weights={"quinn": 0.0, "ava": 0.0}, chance=0.99) == ["quinn"]


def test_a_failing_agent_gets_no_work_while_a_healthy_one_is_available() -> None:
    for chance in (0.0, 0.5, 0.999999):
        assert pick("bug_triage", weights={"quinn": 0.0, "ava": 1.0}, chance=chance) == ["ava"]


def test_control_characters_in_names_are_replaced_in_the_message() -> None:
    assert "\x1b" not in refusal("x\x1b[31m", "quinn")
    assert "\x1b" not in refusal("x", "qui\x1b[31mnn")


class Seeded:
    def stream(self, room: str) -> random.Random:
        return random.Random(room)


def test_the_registry_reads_the_current_offers_of_the_fleet() -> None:
    fleet = FixedFleet({"quinn": {"a"}})
    registry = Registry(fleet, fleet, Seeded())
    assert registry.resolve("a") == ("quinn",)
    fleet.skills = {"quinn": {"b"}}
    with pytest.raises(UnknownTarget):
        registry.resolve("a")
    assert registry.resolve("b", ["quinn"]) == ("quinn",)


def test_a_request_with_targets_and_a_skill_goes_only_to_these_targets() -> None:
    registry = Registry(FixedFleet(OFFERS), FixedFleet(), Seeded())
    for targets in (("ava",), ("quinn",), ("ava", "quinn")):
        assert registry.resolve("bug_triage", targets) == targets
        assert registry.resolve("bug_triage", targets, avoid={"frank"}) == targets
    with pytest.raises(UnknownTarget):
        registry.resolve("pr_review", ("ava",))


@pytest.mark.parametrize(
    ("skill", "target", "says"),
    [
        ("pr_review", "quinn", ""),
        ("pr_review", "all", ""),
        ("pr_review", "ava", "agent “ava” does not offer the skill “pr_review” (quinn offers it)"),
        ("pr_review", "quin", "unknown agent “quin” (did you mean “quinn”?)"),
        ("sing", "all", "no agent offers the skill “sing” (known: bug_triage, pr_review, sitrep)"),
        ("sing", "sid", "agent “sid” takes no work: not enabled in agents.yaml"),
    ],
)
def test_a_judge_gives_the_reason_for_which_a_request_would_be_refused(skill: str, target: str, says: str) -> None:
    say = judge(offers=OFFERS, disabled={"sid": "not enabled in agents.yaml"})
    assert say(skill, target, OWNER) == says


def test_skills_of_an_unread_card_are_not_doubted() -> None:
    say = judge(offers=OFFERS, unread={"frank"})
    assert (say("sing", "frank", OWNER), say("sing", "all", OWNER)) == ("", "")
    assert say("sing", "ava", OWNER) != ""
