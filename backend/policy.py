"""A Hugging Face causal language model as the trainer runs it: rows packed end to end, the head applied outside.

`build` on the meta device, `shard` over the ranks, then `fill`: each rank reads its own slice of every weight, so
that nobody holds a whole copy.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from backend.sharding import packed_length_B
from scalerl.errors import InputError, first_line

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
PACKABLE = {"full_attention", "sliding_attention"}


class PolicyModule(nn.Module):
    """`scalerl.update.PredictingPolicy` on a Hugging Face model, whole or sharded by `shard`."""

    packs_rows = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.eval()  # no dropout: the generator has none
        # The padding token is a token like any other here, and its embedding has a gradient.
        cast(nn.Embedding, model.get_input_embeddings()).padding_idx = None

    @property
    def head_VD(self) -> Tensor:
        """The LM head's weight; of a sharded module it is whole between a forward pass and `reshard`."""
        return cast(nn.Linear, self.model.get_output_embeddings()).weight

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder layers, first to last."""
        return list(cast(nn.ModuleList, self.model.base_model.layers))

    def forward(self, token_1N: Tensor, position_1N: Tensor) -> Tensor:
        """Hidden states [1, N, D] after the final norm; a row begins wherever positions begin anew."""
        # transformers keeps packed rows apart by their positions, where neither mask nor cache is given
        out = self.model.base_model(input_ids=token_1N, position_ids=position_1N, use_cache=False)
        return out.last_hidden_state

    def predicting(self, token_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Hidden states [N, D] that predict the N tokens which `mask_BT` marks, row by row.

        A row without a mark runs its first token: an idle shard too must pass through every layer.
        """
        place_BT = torch.arange(token_BT.shape[1], device=token_BT.device).expand_as(token_BT)
        packed_BT = place_BT < packed_length_B(mask_BT)[:, None]
        hidden_1ND = self(token_BT[packed_BT][None], place_BT[packed_BT][None])
        predicts_BT = F.pad(mask_BT[:, 1:], (0, 1))  # the state at t predicts token t + 1
        return hidden_1ND[0, predicts_BT[packed_BT]]


def load(folder: Path, device: torch.device | str = "cpu") -> PolicyModule:
    """The whole policy on one device, in float32.

    Raises:
        InputError: see `build` and `fill`.
    """
    module = build(folder)
    fill(module, folder, device)
    return module


def build(folder: Path, attention: str = "sdpa") -> PolicyModule:
    """The model of a Hugging Face folder on the meta device, in float32, without its weights.

    Args:
        attention: transformers' name of an implementation that keeps packed rows apart.

    Raises:
        InputError: no model that can be built, or one whose policy gradient would be wrong here.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        _refuse(folder, config.get_text_config())
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation=attention
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unloadable(folder, error) from error
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise InputError(f"{folder}: its LM head has a bias, which log-probs here would leave out")
    return PolicyModule(model)


def shard(
    module: PolicyModule, *, dtype: torch.dtype, activation_checkpointing: bool, mesh: DeviceMesh
) -> None:
    """Divide each decoder layer, then the rest, over the ranks; gradients are summed over them, in float32.

    Args:
        dtype: of weights and activations in forward and backward; the master weights stay as they are.
        activation_checkpointing: compute a layer's activations again in the backward pass.
    """
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in module.layers:
        if activation_checkpointing:
            # inside of what FSDP does around a layer, so that weights are gathered once in the backward pass
            again: Any = _checkpointed(layer.forward)
            layer.forward = again
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    # The head is used after the forward pass of the root has ended: it stays whole until backward is done.
    fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no other


def fill(module: PolicyModule, folder: Path, device: torch.device | str) -> None:
    """Allocate on `device` and read the weights from safetensors: of a sharded module, this rank's slices.

    Raises:
        InputError: a weight is missing or of another shape, or the files cannot be read.
    """
    buffers = _buffers(module.model, folder)
    module.to_empty(device=torch.device(device))
    if not isinstance(module, FSDPModule):
        module.model.tie_weights()  # to_empty has parted a head from its embedding; sharded ones stay one
    try:
        place = _places(folder)
        with torch.no_grad():
            for name, parameter in module.model.named_parameters():
                with safe_open(place[name], framework="pt") as file:
                    _read(file.get_slice(name), name, parameter)
            for name, buffer in module.model.named_buffers():
                buffer.copy_(buffers[name])
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _unloadable(folder, error) from error


def _refuse(folder: Path, config: Any) -> None:
    for name in EXPERTS:
        if (experts := getattr(config, name, None) or 1) > 1:
            raise InputError(
                f"{folder} is a mixture of experts ({name} = {experts}): router replay is missing, so trainer and "
                "generator would take different experts; take a dense model"
            )
    for name in SCALES:
        if (scale := getattr(config, name, None)) not in (None, 1):
            raise InputError(
                f"{folder} changes its logits ({name} = {scale}), which log-probs here would leave out; "
                "take a model without it"
            )
    if strange := set(getattr(config, "layer_types", None) or ()) - PACKABLE:
        raise InputError(
            f"{folder} has layers of kind {', '.join(sorted(strange))}, in which packed rows would see each other; "
            "take a model of attention layers only"
        )


def _checkpointed(forward: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return run


def _buffers(model: PreTrainedModel, folder: Path) -> dict[str, Tensor]:
    """What no checkpoint holds (rotary frequencies), computed anew from the configuration."""
    found: dict[str, Tensor] = {}
    for place, part in model.named_modules():
        if not list(part.buffers(recurse=False)):
            continue
        try:
            fresh = type(part)(model.config.get_text_config())
        except (TypeError, AttributeError) as error:
            raise _unloadable(folder, error) from error
        found |= {f"{place}.{name}": b for name, b in fresh.named_buffers(recurse=False)}
    return found


def _places(folder: Path) -> dict[str, Path]:
    """The file that holds each weight, by its name."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return {n: folder / file for n, file in json.loads(index.read_text())["weight_map"].items()}
    whole = folder / "model.safetensors"
    with safe_open(whole, framework="pt") as file:
        return dict.fromkeys(file.keys(), whole)


def _read(stored: Any, name: str, parameter: Tensor) -> None:
    """Copy the rows that this rank holds; FSDP gives each rank the same number, the last ones fewer or none."""
    if (shape := tuple(stored.get_shape())) != tuple(parameter.shape):
        raise ValueError(f"{name} is {shape}, and the configuration wants {tuple(parameter.shape)}")
    local, start = parameter, 0
    if isinstance(parameter, DTensor):
        mesh, local = parameter.device_mesh, parameter.to_local()
        start = mesh.get_local_rank() * -(-parameter.shape[0] // mesh.size())
    if local.numel():
        local.copy_(stored[start : start + local.shape[0]])


def _unloadable(folder: Path, error: Exception) -> InputError:
    said = first_line(error)
    return InputError(f"cannot load the policy in {folder}: {type(error).__name__}: {said}")
