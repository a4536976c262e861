"""The policy gradient itself, where nothing is off-policy."""

import torch
from hypothesis import strategies as st

from scalerl.invariants.case import Case, f64
from scalerl.invariants.catalogue import Invariant, Violation, both, compare, needs, needs_shape
from scalerl.invariants.strategies import cases
from scalerl.invariants.subject import LossUnderTest
from scalerl.invariants.traits import Traits


def on_policy(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """A03."""
    expected_BT = -traits.weight_BT(case) * case.adv_B[:, None]
    return compare(
        loss,
        traits,
        case,
        torch.where(case.mask_BT, expected_BT, 0.0),
        f"where pi = mu every loss has the gradient of REINFORCE, -w A, here with the weights of {traits.weights}",
        fix=lambda grad_BT, value: _zero_fix(grad_BT),
    )


def on_policy_direction(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """A03 where the aggregation is unknown: along a row the gradient is one multiple of -A."""
    grad_BT = loss.evaluate(case).grad_BT
    weight_BT = -grad_BT / case.adv_B[:, None]
    mean_B = torch.where(case.mask_BT, weight_BT, 0.0).sum(dim=1) / case.tokens_B.clamp(min=1)
    mean_B = torch.where(mean_B > 0, mean_B, 1.0 / case.tokens_B.sum())
    expected_BT = torch.where(case.mask_BT, -mean_B[:, None] * case.adv_B[:, None], 0.0)
    return compare(
        loss,
        traits,
        case,
        expected_BT,
        "where pi = mu every loss has the gradient of REINFORCE: -A times a positive weight, the same along the row",
        fix=lambda grad_BT, value: _zero_fix(grad_BT),
    )


def _zero_fix(grad_BT: torch.Tensor) -> str:
    if not bool(grad_BT.any()):
        return "no gradient reaches logp: the factor log pi is missing, or detached"
    return ""


def on_policy_law(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """A03, as far as the aggregation is known."""
    if traits.weights == "other":
        return on_policy_direction(loss, traits, case)
    return on_policy(loss, traits, case)


def expectation(
    loss: LossUnderTest, traits: Traits, drawn: tuple[list[float], list[float], int]
) -> Violation | None:
    """A19: all G-tuples of one-token completions of a softmax policy with three words."""
    z_V, reward, G = torch.tensor(drawn[0], dtype=f64), drawn[1], drawn[2]
    logp_V = torch.log_softmax(z_V, 0)
    p_V = logp_V.exp()
    total_V = torch.zeros(3, dtype=f64)
    for words in torch.cartesian_prod(*[torch.arange(3)] * G).tolist():
        case = _tuple_case(logp_V, words, reward)
        grad_B = loss.evaluate(case).grad_BT[:, 0]
        for word, g in zip(words, grad_B, strict=True):
            # d log p(word) / dz = onehot(word) - p
            score_V = torch.nn.functional.one_hot(torch.tensor(word), 3) - p_V
            total_V += p_V[words].prod() * g * score_V
    reward_V = torch.tensor(reward, dtype=f64)
    gradient_V = p_V * (reward_V - (p_V * reward_V).sum())
    expected_V = -(1 - 1 / G) * gradient_V * _weight_of_one_token(traits, G) * G
    if torch.allclose(total_V, expected_V, rtol=1e-5, atol=1e-7):
        return None
    return Violation(
        _tuple_case(logp_V, [0, 1, 2][:G], reward),
        f"summed over all {3**G} groups, each with its probability, the gradient in the logits {drawn[0]} is "
        f"{_short(total_V)}; (1 - 1/G) grad J, minimised, is {_short(expected_V)} (rewards of the words: {reward})",
    )


def _tuple_case(logp_V: torch.Tensor, words: list[int], reward: list[float]) -> Case:
    mean = sum(reward[w] for w in words) / len(words)
    return Case.of(
        [[float(logp_V[w])] for w in words],
        adv=[reward[w] - mean for w in words],
        group=[0] * len(words),
    )


def _weight_of_one_token(traits: Traits, G: int) -> float:
    return traits.scale * (1.0 if traits.weights == "sum" else 1.0 / G)


def _short(x: torch.Tensor) -> list[float]:
    return [round(v, 6) for v in x.tolist()]


def _softmax_policies() -> st.SearchStrategy[tuple[list[float], list[float], int]]:
    three = st.lists(st.sampled_from((0.0, 1.0, -1.0, 0.5, 2.0)), min_size=3, max_size=3)
    varied = three.filter(lambda r: len(set(r)) > 1)
    return st.tuples(three, varied, st.sampled_from((2, 3)))


INVARIANTS = [
    Invariant(
        id="A03",
        name="REINFORCE when pi = mu",
        statement="Where nothing is off-policy, the gradient of every loss is that of REINFORCE.",
        formula="behavior_logp = logp  =>  dL/dlogp_it = -w_it A_i",
        inputs=lambda traits: cases("one"),
        check=on_policy_law,
        means=(
            "the log-prob factor is missing, a constant is wrong, or the aggregation is not the"
            " one meant"
        ),
        fault=(
            "open-instruct #1269: CISPO without log pi, gradient 0; TRL #3823: a sequence loss "
            "broadcast over tokens"
        ),
    ),
    Invariant(
        id="A19",
        name="expectation of the gradient",
        statement=(
            "Over all groups that a softmax policy can sample, the gradient is (1 - 1/G) times "
            "that of the expected reward."
        ),
        formula="sum over G-tuples of p(tuple) grad L = -(1 - 1/G) grad J",
        inputs=lambda traits: _softmax_policies(),
        check=expectation,
        means="the loss is not an unbiased policy gradient even on-policy",
        applies=both(
            needs("for known aggregations", lambda t: t.weights != "other"),
            needs_shape("reinforce", "importance", "truncated", "clipped", "band"),
        ),
    ),
]
