"""One rank of the trainers: FSDP2 on torch.distributed, around the update of `scalerl.update`.

Every method that says "all ranks" has collectives inside: a rank that does not call it leaves the others waiting.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers.utils.import_utils import is_flash_attn_2_available

from backend.policy import PolicyModule, build, fill, shard
from backend.probe import hidden_states
from backend.sharding import fill_buckets
from backend.wire import Layout, rendezvous
from scalerl.batch import TrainBatch
from scalerl.errors import CheckpointError, InputError, first_line
from scalerl.logprobs import logits
from scalerl.metrics import Metric
from scalerl.recipe import Recipe
from scalerl.site import Cluster
from scalerl.update import (
    DTYPES,
    LossPair,
    Ranks,
    learning_rate,
    make_optimizer,
    policy_update,
    score,
)


class FsdpRanks(Ranks):
    """The ranks of the default process group; backward has summed their gradients already."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def most(self, count: int) -> int:
        most = torch.tensor(count, device=self.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return int(most)

    def any(self, flag: bool) -> bool:
        return self.most(int(flag)) > 0

    def norm(self, gradients: list[Tensor]) -> float:
        mine = [cast(DTensor, gradient).to_local() for gradient in gradients]
        square = torch.nn.utils.get_total_norm(mine).double().square()
        dist.all_reduce(square)
        return square.sqrt().item()


class Trainer:
    """Rank `rank` of `world_size`: its slice of the weights and of AdamW's moments, in float32."""

    policy: PolicyModule
    optimizer: torch.optim.AdamW

    def __init__(
        self, recipe: Recipe, folder: Path, *, rank: int, world_size: int, allow_code: bool
    ) -> None:
        """`folder` holds a policy in Hugging Face layout; every rank reads it.

        Raises:
            InputError: no such device, or a loss of the user's own that may not run or cannot be imported.
        """
        assert isinstance(recipe.site, Cluster)
        self.recipe, self.site, self.folder = recipe, recipe.site, folder
        self.rank, self.world_size = rank, world_size
        self.device = _device(self.site.device)
        self.dtype = DTYPES[self.site.dtype]
        self.ranks = FsdpRanks(self.device)
        self.loss = LossPair.of(recipe.loss, allow_code=allow_code)

    def start(self, address: str) -> None:
        """Join the others at host:port of rank 0, which listens there, and load this rank's slice of the policy.

        Raises:
            InputError: the policy cannot be loaded or trained.
        """
        host, _, port = address.rpartition(":")
        timeout = timedelta(seconds=self.site.step_timeout_s)
        store = rendezvous(
            host, int(port), rank=self.rank, size=self.world_size, timeout=timeout, wait=True
        )
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timeout,
        )
        self.policy = build(self.folder, _attention(self.device, self.dtype))
        shard(
            self.policy,
            dtype=self.dtype,
            activation_checkpointing=self.site.activation_checkpointing,
            mesh=init_device_mesh(self.device.type, (self.world_size,)),
        )
        fill(self.policy, self.folder, self.device)
        self.optimizer = make_optimizer(self.policy.parameters(), self.site.optimizer)

    def update(self, rows: TrainBatch, version: int) -> dict[str, Metric]:
        """All ranks: one optimiser step, of this rank's rows and the others'; metrics of this rank's, maybe none.

        Raises:
            BatchError: see `policy_update`.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.site.optimizer, version)
        return policy_update(
            self.policy,
            self.optimizer,
            rows.to(self.device),
            self.recipe,
            self.loss,
            micro_batch_tokens=self.site.micro_batch_tokens,
            temperature=self.site.temperature,
            version=version,
            ranks=self.ranks,
        )

    @torch.no_grad()
    def log_ratios(self, rows: TrainBatch) -> list[list[float]]:
        """All ranks: log pi(trainer) - log pi(generator) in nats of the trained tokens of each of this rank's rows."""
        rows = rows.to(self.device)
        # shards come in an order of their own: the advantage, which scoring does not read, carries the row's number
        numbered = replace(rows, adv_B=torch.arange(rows.rows, device=self.device).float())
        shards = numbered.shards(self.site.micro_batch_tokens, packed=True)
        missing = self.ranks.most(len(shards)) - len(shards)
        found: list[list[float]] = [[] for _ in range(rows.rows)]
        for part in shards:
            logp_N, _ = score(self.policy, part, self.recipe, self.site.temperature)
            ratio_N = logp_N - part.behavior_logp_BT[part.mask_BT]
            per_row = ratio_N.split(part.mask_BT.sum(1).tolist())
            for row, ratio in zip(part.adv_B.long().tolist(), per_row, strict=True):
                found[row] = ratio.tolist()
        for _ in range(missing):
            score(self.policy, rows.idle(), self.recipe, self.site.temperature)
        self._fsdp.reshard()
        return found

    @torch.no_grad()
    def head_probe(self, seed: int, rows: int = 8) -> list[list[float]]:
        """All ranks: logits [rows, V] that the head in use makes of `probe.hidden_states`."""
        self._fsdp.unshard()
        head_VD = self.policy.head_VD
        hidden_ND = hidden_states(seed, rows, head_VD.shape[1], self.dtype).to(self.device)
        z_NV = logits(hidden_ND, head_VD, DTYPES[self.recipe.head_dtype])
        self._fsdp.reshard()
        return z_NV.tolist()

    def layout(self) -> Layout:
        """All weights in `site.dtype`, by their names in the Hugging Face checkpoint; a tied head is not among them."""
        named = self._weights()
        return Layout(
            names=tuple(named),
            dtypes=(self.site.dtype,) * len(named),
            shapes=tuple(tuple(weight.shape) for weight in named.values()),
            bucket_bytes=max(1, int(self.site.push_bucket_mib * 2**16)) * 16,
        )

    @torch.no_grad()
    def gather_buckets(self, layout: Layout) -> Iterator[Tensor]:
        """All ranks, to the end: the buckets of the whole policy, one weight gathered at a time."""
        whole = (
            cast(DTensor, weight.to(self.dtype)).full_tensor()
            for weight in self._weights().values()
        )
        yield from fill_buckets(whole, layout)

    def save(self, folder: Path) -> None:
        """All ranks: weights and moments as safetensors, each rank's slices in a file of its own.

        Raises:
            CheckpointError: it could not be written.
        """
        state = {f"weight/{name}": weight for name, weight in self._weights().items()}
        for name, parameter in self.policy.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                state[f"{key}/{name}"] = value
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        _checkpoint(partial(state_dict_saver.save, state, storage_writer=writer), folder)

    def load(self, folder: Path) -> None:
        """All ranks: what `save` wrote, to the bit; ranks may be more or fewer than then.

        Raises:
            CheckpointError: it is missing, torn, or of another policy.
        """
        state = {f"weight/{name}": weight for name, weight in self._weights().items()}
        self.optimizer.state.clear()
        if _has_moments(folder):
            for name, parameter in self.policy.model.named_parameters():
                moments = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter.detach()),
                    "exp_avg_sq": torch.zeros_like(parameter.detach()),
                }
                self.optimizer.state[parameter] = moments
                state |= {f"{key}/{name}": value for key, value in moments.items()}
        reader = HuggingFaceStorageReader(str(folder))
        _checkpoint(partial(state_dict_loader.load, state, storage_reader=reader), folder)

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def _fsdp(self) -> FSDPModule:
        return cast(FSDPModule, self.policy)

    def _weights(self) -> dict[str, Tensor]:
        return {name: weight.detach() for name, weight in self.policy.model.named_parameters()}


def _device(setting: str) -> torch.device:
    """The process's first CUDA device, if there is one and the site leaves the choice."""
    if setting == "cuda" and not torch.cuda.is_available():
        raise InputError("site.device = 'cuda', but torch finds no CUDA device: take auto or cpu")
    return torch.device("cuda:0" if setting != "cpu" and torch.cuda.is_available() else "cpu")


def _attention(device: torch.device, dtype: torch.dtype) -> str:
    """torch's own masks packed rows at a cost that grows with the square of a micro-batch; the other skips them."""
    fits = device.type == "cuda" and dtype == torch.bfloat16
    return "flash_attention_2" if fits and is_flash_attn_2_available() else "sdpa"


def _has_moments(folder: Path) -> bool:
    """Whether the checkpoint was taken after the first optimiser step."""
    try:
        stored = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot read the checkpoint {folder}: {first_line(error)}"
        ) from error
    return any(key.startswith("step/") for key in stored)


def _checkpoint(action: Callable[[], object], folder: Path) -> None:
    try:
        action()
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        said = first_line(first)
        raise CheckpointError(
            f"the checkpoint {folder} cannot be used: {type(first).__name__}: {said}"
        ) from error
