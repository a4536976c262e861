"""`check_loss`: correct losses of every style pass; faulty ones fail with the right law first and a test to show it."""

import inspect
import itertools
import re
import time
from types import SimpleNamespace
from typing import Any

import bad_losses
import good_losses
import pytest
import torch
from bad_losses import BAD

from scalerl.errors import InputError
from scalerl.invariants import CATALOGUE, Case, Invariant, adapt, check_loss
from scalerl.invariants.check import NO_TIME
from scalerl.invariants.conventions import CONVENTIONS
from scalerl.invariants.report import as_json, as_test, as_text, notes

GOOD: dict[str, tuple[str | None, str]] = {
    "dr_grpo": ("dr-grpo", "constant"),
    "dual_clip_packed": ("dual-clip", "token_mean"),
    "tis_chunked": ("tis", "token_mean"),
    "gspo_token": ("gspo-token", "sample_mean"),
    "gspo_loop": ("gspo", "sample_mean"),
    "cispo_by_prompt": ("cispo", "prompt_mean"),
    "reinforce_dot": ("reinforce", "sum"),
    "icepop": ("icepop", "token_mean"),
    "icepop_leaving": ("icepop", "token_mean"),
    "decoupled_tis": ("dapo", "token_mean"),
    "weighted": ("grpo", "prompt_mean"),
    "grpo_in_float32": ("grpo", "token_mean"),
    "cispo_clamped_both_ways": ("cispo", "token_mean"),
    "soft_gate": (None, "token_mean"),
    "asymmetric_tis": (None, "token_mean"),
    "product_of_ratios": (None, "constant"),
    "rejected_above_two": ("icepop", "token_mean"),
    "correction_capped_at_one": ("grpo", "token_mean"),
    "old_is_the_generator": ("grpo", "token_mean"),
}
"""Correct loss -> its kind, if it has a name, and the aggregation to be measured."""


def fails(source: str, loss: Any, because: str) -> bool:
    """Whether the test that a report offers fails for this loss, run as it stands."""
    lines = [line for line in source.splitlines() if not line.endswith("as loss_fn")]
    namespace: dict[str, Any] = {"loss_fn": loss}
    exec(compile("\n".join(lines), "reproduction", "exec"), namespace)
    [test] = [value for name, value in namespace.items() if name.startswith("test_")]
    try:
        test()
    except AssertionError:
        return True
    except Exception as error:
        if str(error).splitlines()[0] not in because:
            raise  # the test failed by itself
        return True
    return False


def right(logp, behavior_logp, adv, mask, group_id):
    """CISPO with no fault, for tests that compare two calls: any right loss passes them."""
    weight = (
        torch.where(mask, logp - behavior_logp, 0.0).detach().clamp(max=20).exp().clamp(max=5.0)
    )
    term = -weight * adv[:, None] * torch.where(mask, logp, 0.0)
    return torch.where(mask, term, 0.0).sum() / mask.sum().clamp(min=1)


@pytest.mark.parametrize("name", GOOD)
def test_a_correct_loss_passes_measured_and_told(name: str) -> None:
    loss = getattr(good_losses, name)
    measured = check_loss(loss, examples=12)
    assert measured.ok, as_text(measured)
    kind, weights = GOOD[name]
    assert measured.traits.weights == weights
    told = check_loss(loss, kind=kind, aggregation=weights, examples=12, seed=1)
    assert told.ok, as_text(told)
    assert told.traits.shape == measured.traits.shape
    assert (kind is None) == bool(notes(measured)) or kind == "reinforce"


@pytest.mark.parametrize("convention", ["verl", "trl", "prime-rl"])
def test_conventions_of_other_frameworks(convention: str) -> None:
    loss = getattr(good_losses, f"{convention.replace('-', '_')}_style")
    report = check_loss(CONVENTIONS[convention](loss), examples=12)
    assert report.ok, as_text(report)
    assert report.traits.weights == "token_mean"
    assert {"E07", "E08"} <= {
        law.id for law in report.held
    }  # they divide by counts of the whole batch


@pytest.mark.parametrize("loss", BAD, ids=lambda loss: loss.__name__)
def test_a_faulty_loss_is_blamed_for_its_fault(loss: Any) -> None:
    law, told = BAD[loss]
    started = time.process_time()
    report = check_loss(loss, first=True, **told)
    assert time.process_time() - started < 10.0
    assert [finding.invariant.id for finding in report.findings] == [law], as_text(report)
    found = report.findings[0].violation
    source = as_test(report.findings[0], report)
    assert fails(source, loss, found.because)
    general = law not in (
        "A05",
        "A07",
        "D08",
        "H04",
    )  # those are of sequence ratios, other masks, half precision
    if found.twin and general and list(inspect.signature(loss).parameters) == ADAPTER:
        assert not fails(source, right, "")
    assert f"VIOLATED  {law}" in as_text(report) and as_json(report)["findings"][0]["id"] == law


ADAPTER = ["logp", "behavior_logp", "adv", "mask", "group_id"]
ALONE: dict[str, tuple[Any, dict[str, Any]]] = {
    "A01": (bad_losses.lower_cap_in_cispo, {"kind": "cispo"}),
    "A11": (bad_losses.fused_with_a_wrong_backward, {"kind": "dapo"}),
    "A16": (bad_losses.max_for_min, {"kind": "dapo"}),
    "A17": (bad_losses.lower_cap_in_cispo, {"kind": "importance"}),
    "A19": (bad_losses.divided_twice, {"aggregation": "token_mean"}),
}
"""Laws that every fault here breaks after another law: what breaks them all the same."""


@pytest.mark.parametrize("law", CATALOGUE, ids=lambda law: law.id)
def test_every_law_can_fail(law: Invariant) -> None:
    blamed = {id: (loss, told) for loss, (id, told) in BAD.items()}
    loss, told = blamed.get(law.id) or ALONE[law.id]
    others = [other.id for other in CATALOGUE if other.id != law.id]
    report = check_loss(loss, skip=others, **told)
    assert [finding.invariant.id for finding in report.findings] == [law.id]
    assert fails(as_test(report.findings[0], report), loss, report.findings[0].violation.because)


def test_faults_are_of_every_class_of_the_catalogue() -> None:
    blamed = {law for law, _ in BAD.values()}
    classes = {law.rstrip("0123456789") for law in blamed}
    assert len(BAD) >= 20 and classes == {"A", "C", "CL", "D", "E", "G", "H"}


def cispo(logp, behavior_logp, adv, mask, cap=5.0):
    ratio = torch.where(mask, logp - behavior_logp, 0.0).detach().exp()
    return torch.where(
        mask, -ratio.clamp(max=cap) * adv[:, None] * torch.where(mask, logp, 0.0), 0.0
    )


def test_a_loss_is_held_to_what_its_author_says() -> None:
    assert check_loss(cispo, kind="cispo", cap=5.0, examples=5).ok
    assert check_loss(cispo, keywords={"cap": 2.0}, examples=5).traits.cap == pytest.approx(2.0)
    wrong_cap = check_loss(cispo, kind="cispo", cap=4.0, first=True)
    assert wrong_cap.findings[0].invariant.id == "A15"
    wrong_kind = check_loss(cispo, kind="reinforce", first=True)
    assert wrong_kind.findings[0].invariant.id == "A21"
    skipped = check_loss(cispo, kind="cispo", cap=4.0, skip=["A15", "A01", "H01"], examples=5)
    assert skipped.ok and skipped.left_out["A15"] == "skipped"


@pytest.mark.parametrize(
    ("loss", "options", "said"),
    [
        (lambda a, b: a.sum(), {}, r"requires \(a, b\): expected \(logp, behavior_logp, adv, mask"),
        (lambda logp, behavior_logp, adv, mask: None, {}, "returned NoneType: a tensor is needed"),
        (lambda logp, behavior_logp, adv, mask: mask.sum(), {}, "int64 tensor of shape"),
        (lambda logp, behavior_logp, adv, mask: logp[0], {}, "one real number is needed, or one term per token"),
        (lambda logp, behavior_logp, adv, mask: 1 / 0, {}, r"raised ZeroDivisionError at test_check_loss.py:\d+"),
        (cispo, {"keywords": {"eps": 1}}, "takes no 'eps'; it takes logp, behavior_logp, adv, mask, cap"),
        (cispo, {"keywords": {"adv": 1}}, "'adv' is a part of the batch"),
        (lambda old_logprobs, logp, adv, mask: adv.sum(), {}, "in this order or by these names"),
        (lambda logp, behavior_logp, adv, mask: mask, {}, "bool terms: real numbers are needed"),
        (cispo, {"kind": "cispo", "cap": 0.0}, "cap = 0: must be above 0"),
        (cispo, {"kind": "cispo", "clip_low": 0.2}, "this loss is truncated, which has no such bound"),
        (cispo, {"clip_high": 0.2}, "this loss is truncated, which has no such bound"),
        (cispo, {"budget_s": 0.0}, "too few"),
        (cispo, {"aggregation": "tokens_mean"}, "'tokens_mean' is none of prompt_mean"),
        (lambda logp, behavior_logp, adv, mask, eps: adv, {}, "requires 'eps': give it as eps=VALUE"),
        (cispo, {"kind": "ppo2"}, "'ppo2' is none of reinforce, importance"),
        (cispo, {"skip": ["Z99"]}, "no invariant has the id 'Z99'"),
        (good_losses.dr_grpo, {"aggregation": "mean"}, "'mean' is none of prompt_mean"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_said_in_a_sentence(
    loss: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        check_loss(loss, **options)


@pytest.mark.parametrize("convention", ["verl", "trl", "prime-rl"])
def test_a_convention_says_what_does_not_fit(convention: str) -> None:
    with pytest.raises(InputError, match=r"takes no|raised"):
        CONVENTIONS[convention](cispo)


def test_the_same_seed_gives_the_same_report() -> None:
    first, second = (
        as_json(check_loss(bad_losses.masked_after_exp, seed=3, first=True)) for _ in range(2)
    )
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_time_that_ran_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))  # a second a look
    report = check_loss(cispo, budget_s=600.0)
    assert report.ok and 0 < len(report.held) < 25 and NO_TIME in report.left_out.values()
    assert re.search(r"no violation found, \d+ laws held, \d+ laws not reached", as_text(report))


def test_a_loss_that_leaves_is_said_to_have_raised() -> None:
    def leaves(logp, behavior_logp, adv, mask):
        raise SystemExit(7)

    with pytest.raises(InputError, match="raised SystemExit"):
        check_loss(leaves)


def test_modules_and_gathered_arguments() -> None:
    class Loss(torch.nn.Module):
        def forward(self, logp, behavior_logp, adv, mask):
            return cispo(logp, behavior_logp, adv, mask)

    def gathered(*parts):
        return cispo(*parts[:4])

    def named(**parts):
        return cispo(parts["logp"], parts["behavior_logp"], parts["adv"], parts["mask"])

    for loss in (Loss(), gathered, named):
        assert check_loss(loss, kind="cispo", examples=3).ok


def test_only_a_failure_of_the_ids_is_blamed_on_the_ids() -> None:
    def by_index(logp, behavior_logp, adv, mask, group_id):
        torch.zeros(int(group_id.max()) + 1)[group_id]
        return cispo(logp, behavior_logp, adv, mask).sum()

    def by_pairs(logp, behavior_logp, adv, mask, group_id):
        adv.view(-1, 2)
        return cispo(logp, behavior_logp, adv, mask).sum()

    assert check_loss(by_index, first=True).findings[0].invariant.id == "D02"
    found = check_loss(by_pairs, first=True).findings[0]
    assert found.invariant.id == "D07" and "invalid for input of size 1" in found.violation.because


def test_weights_and_old_log_probs_come_by_name() -> None:
    taken: dict[str, Any] = {}

    def loss(logp, behavior_logp, mask, adv, weight, old_logp, scale=2.0):
        taken.update(weight=weight, old_logp=old_logp, scale=scale)
        return (weight * logp * adv[:, None]).sum()

    subject = adapt(loss, aggregation="token_mean", keywords={"scale": 3.0})
    case = Case.of([[-1.0, -1.0]], adv=-2.0)
    assert subject.evaluate(case).value == pytest.approx(2.0)  # 2 tokens of 1/2 * -1 * -2
    assert taken["weight"].tolist() == [[0.5, 0.5]] and taken["scale"] == 3.0
    assert taken["old_logp"].tolist() == [[-1.0, -1.0]]
    assert subject.takes_old and subject.shards


def test_positional_losses_and_objects_with_a_call() -> None:
    class Loss:
        def __call__(self, a, b, c, d, e):
            return -(torch.where(d, a, 0.0) * c[:, None]).sum() / d.sum().clamp(min=1)

    assert check_loss(Loss(), examples=5).ok


def test_prime_rl_may_return_the_bare_loss() -> None:
    def loss(inputs):
        keep = inputs.loss_mask.bool()
        return -(inputs.trainer_logprobs[keep] * inputs.advantages[keep]).sum()

    assert CONVENTIONS["prime-rl"](loss).evaluate(Case.of([[-1.0, -3.0]])).value == pytest.approx(
        2.0
    )
    boxed = CONVENTIONS["prime-rl"](lambda inputs: SimpleNamespace(loss=loss(inputs)))
    assert boxed.evaluate(Case.of([[-1.0, -3.0]])).value == pytest.approx(2.0)
