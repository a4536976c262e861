"""Two trainer ranks in processes of their own, and rollouts of the shipped policy for them."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from backend.wire import Layout, free_port
from sandbox.model import Policy, load_policy
from sandbox.world import start_policy
from scalerl.batch import RolloutBatch
from scalerl.recipe import Recipe
from scalerl.rollout import Completion, Group
from scalerl.site import Cluster

FOLDER = start_policy("digit_sum")
PATIENCE_S = 120.0  # starting up takes 20 s where cores are shared


def recipe(site: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """ScaleRL on a small cluster site, in float32."""
    settings = {
        "name": "test",
        "dtype": "float32",
        "device": "cpu",
        "updates": 4,
        "thinking_tokens": 24,
        "answer_tokens": 8,
        "optimizer": {"learning_rate": 1e-3, "warmup_updates": 2},
        "evaluation": {"every_updates": 4},
        "start_timeout_s": 60.0,
        **(site or {}),
    }
    return Recipe.model_validate({"site": Cluster.model_validate(settings), **changes})


def rollouts(seed: int = 0, groups: int = 4, size: int = 4, longest: int = 24) -> RolloutBatch:
    """Random completions of unequal length with forced tokens in between, log-probs near the shipped policy's.

    Every group is mixed but the last, which is all right.
    """
    random = Random(seed)
    made = [
        Group(
            request_id=10 - g,
            prompt_id=g,
            prompt_ids=[random.randrange(49) for _ in range(random.randint(2, 6))],
            completions=[
                _completion(random, longest, correct=g == groups - 1 or i % 2 == 0)
                for i in range(size)
            ],
        )
        for g in range(groups)
    ]
    batch = RolloutBatch.from_groups(made)
    logp_BT = log_probs(load_policy(FOLDER), batch.token_BT)
    noise_BT = torch.randn(logp_BT.shape, generator=torch.Generator().manual_seed(seed))
    near_BT = (logp_BT + 0.5 * noise_BT).clamp(max=0.0).masked_fill(~batch.mask_BT, 0.0)
    return replace(batch, behavior_logp_BT=near_BT)


@torch.no_grad()
def log_probs(policy: Policy, token_BT: Tensor) -> Tensor:
    """Log-prob of each token given those before it, [B, T], 0 for the first: the sandbox's model, padded."""
    z_BTV = policy.hidden(token_BT[:, :-1]) @ policy.head_VD.T
    logp_BT = z_BTV.log_softmax(-1).gather(2, token_BT[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(logp_BT, (1, 0))


def _completion(random: Random, longest: int, *, correct: bool) -> Completion:
    length, begun = random.randint(1, longest), random.randint(0, 1)
    return Completion(
        token_ids=[random.randrange(49) for _ in range(length)],
        logp=[-1.0] * length,
        version=sorted(random.randint(begun, 1) for _ in range(length)),
        sampled=[random.random() < 0.8 for _ in range(length)],
        reward=1.0 if correct else -1.0,
        correct=correct,
    )


class Rank:
    """What one process holds, and what can be asked of it."""

    def __init__(self, rank: int) -> None:
        from backend.trainer import Trainer

        self.rank, self.make = rank, Trainer
        self.trainer: Any = None

    def start(self, recipe: Recipe, folder: Path, address: str) -> None:
        """A new trainer, in the place of an older one."""
        if self.trainer is not None:
            self.trainer.close()
        self.trainer = self.make(recipe, folder, rank=self.rank, world_size=2, allow_code=False)
        self.trainer.start(address)

    def of_trainer(self, method: str, *arguments: Any) -> Any:
        return getattr(self.trainer, method)(*arguments)

    def gradients(self) -> dict[str, Tensor]:
        """Whole gradients by name."""
        return {n: _whole(p.grad) for n, p in self._model.named_parameters() if p.grad is not None}

    def weights(self) -> dict[str, Tensor]:
        """Whole master weights by name."""
        return {n: _whole(p.detach()) for n, p in self._model.named_parameters()}

    def local_shapes(self) -> dict[str, tuple[int, ...]]:
        return {n: tuple(p.to_local().shape) for n, p in self._model.named_parameters()}

    def buckets(self) -> tuple[Layout, list[Tensor]]:
        layout = self.trainer.layout()
        return layout, list(self.trainer.gather_buckets(layout))

    @property
    def _model(self) -> Any:
        return self.trainer.policy.model


def _whole(value: Any) -> Tensor:
    assert isinstance(value, DTensor)
    return value.full_tensor()


class TwoRanks:
    """Two processes, started once; each call runs on both and waits for both."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.connections: list[Connection] = []
        self.processes = []
        for rank in (0, 1):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank), daemon=True)
            process.start()
            self.connections.append(ours)
            self.processes.append(process)

    def start(self, recipe: Recipe, folder: Path = FOLDER) -> None:
        address = f"127.0.0.1:{free_port()}"
        for reply in self.ask("start", recipe, folder, address):
            assert reply is None, reply

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """The same question to both; an error is an answer."""
        return self.ask_each(method, [arguments, arguments])

    def ask_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        for connection, of_one in zip(self.connections, arguments, strict=True):
            connection.send_bytes(pickle.dumps((method, of_one)))  # tensors by value
        return [self._answer(connection) for connection in self.connections]

    def trainer(self, method: str, *arguments: Any) -> list[Any]:
        """A method of both trainers, with the same arguments."""
        return self.ask("of_trainer", method, *arguments)

    def trainer_each(self, method: str, *per_rank: tuple[Any, ...]) -> list[Any]:
        return self.ask_each("of_trainer", [(method, *arguments) for arguments in per_rank])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    @staticmethod
    def _answer(connection: Connection) -> Any:
        assert connection.poll(PATIENCE_S), f"a rank hangs: no answer in {PATIENCE_S:g} s"
        return pickle.loads(connection.recv_bytes())


def _serve(connection: Connection, number: int) -> None:
    torch.set_num_threads(1)
    rank = Rank(number)
    while True:
        method, arguments = pickle.loads(connection.recv_bytes())
        try:
            answer = getattr(rank, method)(*arguments)
        except Exception as error:
            answer = error
        connection.send_bytes(pickle.dumps(answer))


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest difference over the largest value of all."""
    assert found.keys() == expected.keys()
    largest = max(value.abs().max().item() for value in expected.values())
    return max((found[n] - value).abs().max().item() for n, value in expected.items()) / largest


def tied_policy(folder: Path) -> Any:
    """A random Qwen3 of three layers whose head is its embedding, saved in several files."""
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=49,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.save_pretrained(folder, max_shard_size="40KB")
    return model
