"""Policies whose behaviour is known beforehand, and log-probs computed the long way round."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sandbox import vocabulary as words
from sandbox.engine import Cache, Engine
from sandbox.model import ModelConfig, Policy

VOCABULARY = words.FIRST_DIGIT + 10  # the words of digit_sum


def chain_policy(follows: Mapping[int, int]) -> Policy:
    """After each token comes the one that `follows` names, nearly surely (1 in 25,000 goes astray).

    Attention and MLP add nothing and embeddings are one-hot, so the final norm yields sqrt(49) = 7 times the last
    token's unit vector. A head of 2 where it is followed gives a logit of 14 against 48 of 0:
    p = e^14 / (e^14 + 48) = 0.99996, so a sampled token has a log-prob of -4e-5: not 0, as a forced one has.
    """
    policy = Policy(ModelConfig(vocab_size=VOCABULARY, hidden_size=VOCABULARY))
    with torch.no_grad():
        for block in policy.blocks:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
        policy.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY))
        policy.lm_head.weight.zero_()
        for token, after in follows.items():
            policy.lm_head.weight[after, token] = 2.0
    return policy


def chain(*tokens: int) -> Policy:
    """What follows <think> is these tokens, each once."""
    return chain_policy(dict(pairwise((words.THINK, *tokens))))


def random_policy(seed: int = 0, spread: float = 1.0, **sizes: int) -> Policy:
    """Every weight random, norms included, so that no two parts can be mistaken for each other."""
    policy = Policy(ModelConfig(**{"vocab_size": VOCABULARY, **sizes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(
                1 + 0.3 * noise
                if parameter.dim() == 1
                else spread * noise / parameter.shape[-1] ** 0.5
            )
    return policy


@torch.no_grad()
def full_logp(
    policy: Policy,
    prompt: list[int],
    tokens: list[int],
    temperature: float = 1.0,
    head_dtype: torch.dtype = torch.float32,
) -> list[float]:
    """Log-prob of every token after the prompt, by one forward pass over the whole sequence."""
    hidden_TD = policy.hidden(torch.tensor([[*prompt, *tokens]]))[0, len(prompt) - 1 : -1]
    return _logp(policy, hidden_TD, tokens, temperature, head_dtype)


@torch.no_grad()
def replayed_logp(
    policies: Mapping[int, Policy], prompt: list[int], tokens: list[int], versions: list[int]
) -> list[float]:
    """Log-probs of one sequence, token by token, each by the weights of its version and the cache as it then was.

    Keys and values of earlier tokens stay as the weights of *their* time made them, which is what a generator
    does that keeps its cache across weight pushes.
    """
    cache = Cache(policies[versions[0]].config, 1, len(prompt) + len(tokens), "cpu")
    found: list[float] = []
    for place, version in enumerate(versions):
        policy = policies[version]
        if place == 0:
            hidden_ND = Engine(policy).prefill(torch.tensor([prompt]), cache)[:, -1]
        else:
            position = len(prompt) + place - 1
            hidden_ND = Engine(policy).decode(
                torch.tensor([tokens[place - 1]]), torch.tensor([position]), cache, position + 1
            )
        found += _logp(policy, hidden_ND, [tokens[place]])
    return found


def worst(recorded: Sequence[float], expected: Sequence[float], sampled: Sequence[bool]) -> float:
    """Largest difference over sampled tokens, in nats; in parts of the log-prob where that is below -1."""
    triples = zip(recorded, expected, sampled, strict=True)
    return max(abs(r - e) / max(1.0, -e) for r, e, s in triples if s)


def _logp(
    policy: Policy,
    hidden_ND: Tensor,
    tokens: list[int],
    temperature: float = 1.0,
    head_dtype: torch.dtype = torch.float32,
) -> list[float]:
    z_NV = (hidden_ND.to(head_dtype) @ policy.head_VD.T.to(head_dtype)).float() / temperature
    return z_NV.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()
