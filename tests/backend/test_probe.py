"""Generator and trainer compared: their LM heads before the run, and after every push a few tokens."""

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fake_cluster import FakeLauncher, FakeRemote, Fault, Script, cluster_recipe, engine_spec, logp

from backend.probe import Probes, check_head, hidden_states, is_bfloat16
from backend.remote import Gone
from backend.trainers import Trainers
from sandbox.tasks.digit_sum import DigitSum
from scalerl.errors import EngineMismatch
from scalerl.metrics import Mean
from scalerl.site import Cluster

# --- LM heads ---


def product(weights: int = 0, precision: str = "float32") -> list[list[float]]:
    """Logits [8, 49] of a head of 16 channels."""
    head_DV = torch.randn(16, 49, generator=torch.Generator().manual_seed(weights)).bfloat16()
    hidden_ND = hidden_states(1, 8, 16, torch.bfloat16)
    if precision == "bfloat16":
        return (hidden_ND @ head_DV).float().tolist()
    return (hidden_ND.float() @ head_DV.float()).tolist()


def said(theirs: list[list[float]], ours: list[list[float]], head_dtype: str = "float32") -> str:
    with pytest.raises(EngineMismatch) as error:
        check_head(theirs, ours, "generator 1", head_dtype)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_equal_heads_pass(precision: str) -> None:
    check_head(product(precision=precision), product(precision=precision), "generator 1", precision)


def test_rounding_passes() -> None:
    """Of another order of summation in float32; of a bfloat16 product that was rounded differently."""
    exact_NV = np.array(product())
    check_head((exact_NV * (1 + 1e-6)).tolist(), exact_NV.tolist(), "generator 1", "float32")
    check_head(product(precision="bfloat16"), product(), "generator 1", "bfloat16")


def test_bfloat16_on_the_generators_side_alone() -> None:
    assert said(product(precision="bfloat16"), product()).startswith(
        "the LM head of generator 1 works in bfloat16, the recipe asks for float32 on both sides"
    )


def test_float32_where_bfloat16_was_asked_for() -> None:
    theirs, ours = product(), product(precision="bfloat16")
    assert "works in float32, the recipe asks for bfloat16" in said(theirs, ours, "bfloat16")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_other_weights(precision: str) -> None:
    theirs, ours = product(1, precision), product(0, precision)
    assert "their weights are not the same" in said(theirs, ours, precision)


def test_one_channel_of_other_weights_is_noticed() -> None:
    theirs_NV = np.array(product())
    theirs_NV[:, 7] += 0.1
    assert "differs from the trainer's by" in said(theirs_NV.tolist(), product())


def test_what_is_not_a_number_is_noticed() -> None:
    theirs_NV = np.array(product())
    theirs_NV[3, 3] = np.nan
    assert "differs from the trainer's by nan" in said(theirs_NV.tolist(), product())


def test_another_vocabulary() -> None:
    theirs = [row[:-1] for row in product()]
    assert "logits of shape (8, 48), the trainer's (8, 49)" in said(theirs, product())


def test_is_bfloat16() -> None:
    value_N = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert is_bfloat16(value_N.bfloat16().float().numpy())
    assert not is_bfloat16(value_N.numpy())
    assert is_bfloat16(np.array([0.0, 1.0, -2.0, np.inf], dtype=np.float32))
    one_off_N = value_N.bfloat16().float().numpy()
    one_off_N[50] = np.nextafter(one_off_N[50], np.float32(9))
    assert not is_bfloat16(one_off_N)


def test_states_are_the_same_everywhere() -> None:
    first, second = (hidden_states(3, 4, 5, torch.bfloat16) for _ in range(2))
    assert torch.equal(first, second) and first.shape == (4, 5) and first.dtype == torch.bfloat16
    assert not torch.equal(first, hidden_states(4, 4, 5, torch.bfloat16))


# --- probes ---

RECIPE = cluster_recipe(
    "site.mismatch_alarm=0.01", "site.mismatch_stop=0.1", "site.push_timeout_s=0.1"
)
PROMPTS = DigitSum().prompts("train")


def site() -> Cluster:
    assert isinstance(RECIPE.site, Cluster)
    return RECIPE.site


def started(
    launcher: FakeLauncher, version: int, generators: int = 2
) -> tuple[Probes, list[FakeRemote]]:
    """Probes on generators that have weights and number of a version."""
    probes, remotes = Probes(site(), PROMPTS), []
    for slot in range(generators):
        remote = launcher.generator(slot, engine_spec(RECIPE, f"generator {slot}"))
        remote.actor.weights = remote.actor.applied = version
        probes.start(slot, remote, version)
        remotes.append(remote)
    return probes, remotes


def measured(script: Script, version: int = 3, ranks: int = 2) -> tuple[Probes, dict[int, Mean]]:
    """The KL of every generator that can be scored, by slot."""

    async def main() -> tuple[Probes, dict[int, Mean]]:
        launcher = FakeLauncher(script)
        trainers = Trainers(
            [launcher.trainer(r, RECIPE, None, r, ranks, False) for r in range(ranks)], 5.0
        )
        for rank in trainers.ranks:
            rank.actor.version = version  # type: ignore[attr-defined]
        probes, _ = started(launcher, version)
        groups, missing = await probes.collect()
        found = await trainers.divergence(groups)
        assert missing == [] and await probes.collect() == ({}, [])
        launcher.close()
        return probes, found

    return asyncio.run(asyncio.wait_for(main(), 5))


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_equal_weights_diverge_by_nothing(ranks: int) -> None:
    probes, found = measured(Script(), ranks=ranks)
    assert list(found) == [0, 1] and probes.judge(found) == []
    for kl in found.values():
        assert kl.value == pytest.approx(0, abs=1e-9) and kl.weight > 0


def test_log_probs_that_are_off_by_a_known_amount() -> None:
    """KL = rho log rho - rho + 1 at rho = e^off: 0.2 nats give 0.0229 (an alarm), 0.6 give 0.271 (the end)."""
    probes, found = measured(Script(off={"generator 1": 0.2}))
    assert found[1].value == pytest.approx(0.2 * np.exp(0.2) - np.exp(0.2) + 1, rel=1e-4)
    (what,) = probes.judge(found)
    assert what.startswith(
        "generator 1 and the trainer disagree on tokens of version 3: KL = 0.023"
    )
    assert what.endswith("above site.mismatch_alarm = 0.01")
    probes, found = measured(Script(off={"generator 0": 0.6}))
    with pytest.raises(
        EngineMismatch, match=r"^generator 0 and .*above site\.mismatch_stop = 0\.1"
    ):
        probes.judge(found)


def test_what_is_not_a_number_stops() -> None:
    probes, _ = measured(Script())
    with pytest.raises(EngineMismatch, match="KL = nan"):
        probes.judge({0: Mean(float("nan"), 8)})


def test_nothing_measured_is_no_alarm() -> None:
    probes, _ = measured(Script())
    assert probes.judge({0: Mean(0.0, 0)}) == []


def collected(script: Script, change: int | None = None) -> dict[int, Sequence[int]]:
    """Slots that could be scored, with the versions of their tokens; generator 1 may get another number on the way."""

    async def main() -> dict[int, Sequence[int]]:
        launcher = FakeLauncher(script)
        probes, remotes = started(launcher, version=3)
        if change is not None:
            await asyncio.sleep(1.5 * script.token_s)
            remotes[1].actor.applied = change
        found, missing = await probes.collect()
        assert all(said.startswith("generator 1 was not probed at version 3") for said in missing)
        launcher.close()
        completions = {slot: group.completions for slot, group in found.items()}
        for each in sum(completions.values(), []):  # noqa: RUF017
            assert each.logp == pytest.approx([logp(token, 3) for token in each.token_ids])
        return {
            slot: sorted({v for c in each for v in c.version}) for slot, each in completions.items()
        }

    return asyncio.run(asyncio.wait_for(main(), 5))


def test_completions_with_tokens_of_other_versions_are_left_out() -> None:
    assert collected(Script()) == {0: [3], 1: [3]}
    # every one of generator 1 has three tokens or more, the number changes after the first
    assert collected(Script(token_s=0.002), change=4) == {0: [3]}
    assert collected(Script(token_s=0.002), change=2) == {0: [3]}


@pytest.mark.parametrize("does", ["die", "hang"])
def test_a_generator_that_is_gone_is_left_out(does: str) -> None:
    assert collected(Script([Fault("generator 1", "probe", does)])) == {0: [3]}  # type: ignore[arg-type]


class Slow:
    """A generator whose probes never end, or end as the test says."""

    name = "generator 0"

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Any]] = []

    def call(self, method: str, *args: Any) -> asyncio.Future[Any]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]

    def begin(self, method: str, *args: Any) -> Any:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError


def test_probes_that_nobody_will_collect_leave_nothing_behind() -> None:
    """One that is replaced, one whose generator dies, one that is given up: no task, and no error unseen."""

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: said.append(what))
        probes, slow, dying = Probes(site(), PROMPTS), Slow(), Slow()
        probes.start(0, slow, 3)
        probes.start(1, dying, 3)
        await asyncio.sleep(0)
        probes.start(0, slow, 4)
        dying.asked[0].set_exception(Gone("generator 1 died"))
        await asyncio.sleep(0)
        assert [future.cancelled() for future in slow.asked] == [True, False]
        probes.close()
        await asyncio.sleep(0)
        assert slow.asked[1].cancelled() and asyncio.all_tasks() == {asyncio.current_task()}

    said: list[dict[str, Any]] = []
    asyncio.run(main())
    gc.collect()
    assert said == []
