"""A run says what goes wrong with it, once, and ends where its site says so; what it says survives a resume."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from scripted import SITE, Script, ScriptedWorld, play, scripted_recipe

from scalerl.errors import NotFinite, RunFailed
from scalerl.events import Event
from scalerl.rollout import Group
from scalerl.site import Supervision
from scalerl.supervision import MEAN_OF, Supervisor
from scalerl.world import EvalResult, Handle, UpdateStats


def update(number: int, clock: float, **fields: object) -> Event:
    plain = {"skipped": False, "zero_variance": 0.1, "wait_s": 0.5}
    return {"kind": "update", "update": number, "clock": clock, **plain, **fields}


def evaluation(number: int, rate: float | None) -> Event:
    return {
        "kind": "eval",
        "set": "validation",
        "C": float(number),
        "pass_rate": rate,
        "clock": 0.0,
    }


def names(events: Sequence[Event]) -> list[list[str]]:
    supervisor = Supervisor(Supervision())
    return [[trouble.name for trouble in supervisor.look(event)] for event in events]


RISING = [0.2, 0.25, 0.31, 0.36, 0.4, 0.45, 0.49, 0.52, 0.55, 0.57, 0.59, 0.6]


def test_a_healthy_run_has_no_trouble() -> None:
    events = [update(n, 10.0 * n + n % 3) for n in range(60)]
    events += [evaluation(n, rate) for n, rate in enumerate(RISING)]
    assert not any(names(events))


def test_groups_without_a_mixed_outcome_are_said_once() -> None:
    bad = [update(n, 10.0 * n, zero_variance=0.95) for n in range(20)]
    found = names(bad)
    assert found[MEAN_OF - 1] == ["no_variance"] and sum(map(len, found)) == 1


def test_a_trouble_that_passed_is_said_again() -> None:
    shares = [0.95] * MEAN_OF + [0.0] * MEAN_OF + [0.95] * MEAN_OF
    found = names([update(n, 10.0 * n, zero_variance=v) for n, v in enumerate(shares)])
    assert sum(map(len, found)) == 2


def test_nothing_to_train_on_is_a_trouble_whatever_the_shares() -> None:
    found = names([update(n, 10.0 * n, skipped=True) for n in range(MEAN_OF)])
    assert found == [[]] * (MEAN_OF - 1) + [["no_variance"]]


@pytest.mark.parametrize(("late", "said"), [(99.0, []), (101.0, ["starved"])])
def test_a_starved_trainer(late: float, said: list[str]) -> None:
    events = [update(n, 10.0 * n) for n in range(12)]
    assert names([*events, update(12, 110.0 + late, wait_s=late)]) == [[]] * 12 + [said]


def test_a_long_checkpoint_starves_nobody() -> None:
    """Only what was waited for the batch counts."""
    clock = [20.0 * n + 300.0 * (n // 10) for n in range(40)]
    assert not any(names([update(n, c, wait_s=5.0) for n, c in enumerate(clock)]))


def test_a_damaged_line_of_the_past_is_passed_over() -> None:
    spoiled = [{"kind": "update"}, update(2, 1.0, wait_s=None), {**update(3, 2.0), "clock": "x"}]
    assert not any(names([*spoiled, *(update(n, 10.0 * n) for n in range(4, 20))]))


def test_a_run_that_stops_learning() -> None:
    rates = [*RISING, 0.5, 0.4, 0.3, 0.25, 0.2, 0.2]
    found = names([evaluation(n, rate) for n, rate in enumerate(rates)])
    assert [["not_learning"]] == [each for each in found if each]
    assert not any(found[: len(RISING)])


def test_an_evaluation_without_a_number() -> None:
    assert names([evaluation(0, 0.2), evaluation(1, None)]) == [[], ["not_learning"]]


def test_what_was_said_before_a_resume_is_not_said_again() -> None:
    bad = [update(n, 10.0 * n, zero_variance=0.95) for n in range(20)]
    supervisor = Supervisor(Supervision())
    supervisor.remember(bad[:12])
    assert not any(supervisor.look(event) for event in bad[12:])


# ---- in the loop ----


class Falling(ScriptedWorld):
    """Learns, and then unlearns."""

    async def evaluate(self, handle: Handle, sets: Sequence[str]) -> list[EvalResult]:
        await super().evaluate(handle, sets)
        at = handle.version
        right = min(at, 2 * 20 - 2 * at) if at < 20 else 0
        return [EvalResult(name, at, 100, [max(right, 0) * 5] * 4) for name in sets]


def site(**act: str) -> dict[str, object]:
    every = SITE.evaluation.model_copy(update={"every_updates": 1})
    return SITE.model_copy(
        update={"evaluation": every, "supervision": Supervision.model_validate(act)}
    ).model_dump()


def test_a_run_that_unlearns_goes_on_with_a_warning() -> None:
    heard: list[Event] = []
    recipe = scripted_recipe().on(type(SITE).model_validate(site()))
    outcome = play(recipe, Script(), world_class=Falling, listen=heard.append)
    assert outcome.status == "done"
    said = [e["what"] for e in heard if e["kind"] == "warning"]
    assert len(said) == 1 and said[0].startswith("the run no longer learns: the last third")


def test_a_run_that_unlearns_ends_if_its_site_says_so(tmp_path: Path) -> None:
    recipe = scripted_recipe().on(type(SITE).model_validate(site(not_learning="stop")))
    said = r"Unhealthy: the run no longer learns: .*not_learning = 'stop'.*--from RUN@UPDATE"
    with pytest.raises(RunFailed, match=said):
        play(recipe, Script(), world_class=Falling, checkpoints=tmp_path)


class NoNumber(ScriptedWorld):
    """Two batches have a loss that is no number."""

    async def update(self, groups: Sequence[Group]) -> UpdateStats:
        if len(self.trained) in (3, 4):
            self.trained.append([group.request_id for group in groups])
            raise NotFinite("the loss is nan, so nothing was updated")
        return await super().update(groups)


def test_a_loss_that_is_no_number_ends_the_run() -> None:
    with pytest.raises(RunFailed, match=r"^NotFinite: the loss is nan"):
        play(scripted_recipe(), Script(), world_class=NoNumber)


def test_or_its_batch_is_passed_over() -> None:
    recipe = scripted_recipe().on(type(SITE).model_validate(site(not_finite="skip")))
    outcome = play(recipe, Script(), world_class=NoNumber)
    assert outcome.status == "done" and outcome.state.version == outcome.state.updates - 2
    reports = [e for e in outcome.events if e["kind"] == "update"]
    assert [e["update"] for e in reports if e["skipped"]] == [4, 5]
    whole = next(e for e in reports if not e["skipped"])
    skipped = reports[3]
    assert skipped.keys() == whole.keys() and skipped["length_mean_tokens"] == 3.0
    assert 0 <= skipped["pass_rate"] <= 1 and skipped["reward"] == 2 * skipped["pass_rate"] - 1
    warned = [e["what"] for e in outcome.events if e["kind"] == "warning"]
    assert warned == [f"update {n}: the loss is nan, so nothing was updated" for n in (4, 5)]
