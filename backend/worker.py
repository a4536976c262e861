"""What is mixed into vLLM's worker: weights are received beside its work and applied in one call.

Methods are called by name through `collective_rpc`, between two steps of the engine; arguments and results are plain.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.receiver import Receiver
from backend.wire import Kind, Layout
from scalerl.errors import PushFailed

PINNED = "pinned-{handle}.bin"


class WeightsOfWorker:
    """Extension of a worker (`worker_extension_cls`); names begin with `weights_`, as vLLM's own must not be hidden."""

    weights_receiver: Receiver
    weights_pinned: dict[int, tuple[int, Tensor]]
    weights_trace: list[float]
    weights_timeout_s: float

    def weights_alive(self: Any) -> bool:
        """An answer is all that is asked for."""
        return True

    def weights_connect(
        self: Any, layout: dict[str, Any], kind: Kind, host: str, port: int, timeout_s: float
    ) -> None:
        """Join the channel that a trainer rank opens for this engine; the staging buffer is made the first time."""
        if not hasattr(self, "weights_receiver"):
            self.weights_receiver = Receiver(
                Layout.from_json(layout), kind=kind, timeout_s=timeout_s, device=self.device
            )
            self.weights_pinned = {}
            self.weights_timeout_s = timeout_s
        self.weights_receiver.connect("the trainer", host, port)

    def weights_receive(self: Any, version: int) -> None:
        """Begin to receive, in a thread; returns at once."""
        self.weights_receiver.begin(version)

    def weights_apply(self: Any, version: int) -> None:
        """Load what has been received, all of it in this call.

        Raises:
            PushFailed: it has not arrived whole.
        """
        self._weights_load(self.weights_receiver.finish(version, self.weights_timeout_s))

    def weights_pin(self: Any, version: int, handle: int) -> None:
        """Keep what has been received in host memory, under a handle, and go on with the weights that are loaded."""
        buffer = self.weights_receiver.finish(version, self.weights_timeout_s)
        self.weights_pinned[handle] = (version, buffer.to("cpu", copy=True))

    def weights_apply_pinned(self: Any, handle: int) -> None:
        _, buffer = self.weights_pinned[handle]
        self._weights_load(buffer)

    def weights_release(self: Any, handle: int) -> None:
        self.weights_pinned.pop(handle, None)

    def weights_save_pinned(self: Any, folder: str) -> list[tuple[int, int]]:
        """Write every pinned copy; returns (handle, version) of each."""
        for handle, (_, buffer) in self.weights_pinned.items():
            buffer.numpy().tofile(Path(folder) / PINNED.format(handle=handle))
        return [(handle, version) for handle, (version, _) in self.weights_pinned.items()]

    def weights_load_pinned(self: Any, folder: str, pinned: list[tuple[int, int]]) -> None:
        nbytes = self.weights_receiver.layout.nbytes
        for handle, version in pinned:
            path = Path(folder) / PINNED.format(handle=handle)
            if path.stat().st_size != nbytes:
                raise PushFailed(f"{path} has {path.stat().st_size} bytes, the model {nbytes}")
            buffer = torch.from_file(str(path), size=nbytes, dtype=torch.uint8).clone()
            self.weights_pinned[handle] = (version, buffer)

    def _weights_load(self: Any, buffer: Tensor) -> None:
        """vLLM's own life cycle of a reload, in one go: in between, parameters are on the meta device."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        model = self.model_runner.model
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            initialize_layerwise_reload(model)
            model.load_weights(self.weights_receiver.layout.views(buffer))
            finalize_layerwise_reload(model, self.model_config)

    def weights_head(self: Any, seed: int, rows: int) -> list[list[float]]:
        """Logits of seeded random hidden states [rows, D]: what the trainer's head makes of the same must be equal."""
        from backend.probe import hidden_states

        width = self.model_config.get_hidden_size()
        hidden_ND = hidden_states(seed, rows, width, self.model_config.dtype).to(self.device)
        with torch.inference_mode():
            return self.model_runner.model.compute_logits(hidden_ND).float().tolist()

    def weights_watch(self: Any) -> None:
        """Note when each step begins, from now on: what a benchmark of pauses needs."""
        self.weights_trace = []
        execute = self.model_runner.execute_model

        def noted(*args: Any, **options: Any) -> Any:
            self.weights_trace.append(time.monotonic())
            return execute(*args, **options)

        self.model_runner.execute_model = noted

    def weights_steps(self: Any) -> list[float]:
        """When the steps since `weights_watch` began, by the machine's monotonic clock."""
        return self.weights_trace
