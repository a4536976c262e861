"""Ray: where actors run, what they are given, and how their failures come back."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from backend.actors import EvaluatorActor, GeneratorActor, TrainerActor
from backend.engine import CPU_ENVIRONMENT, ENVIRONMENT, EngineSpec
from backend.remote import Gone, silent
from scalerl.errors import InputError
from scalerl.site import Cluster
from scalerl.user_code import OWN

OBJECT_STORE_BYTES = 512 << 20  # of a local Ray; rollouts and batches pass through it
CLOSE_S = 10.0
# All of Ray on loopback, as it does on a Mac whatever the first name says; no report of usage to its makers.
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
_LO = "lo0" if sys.platform == "darwin" else "lo"
LOOPBACK = {  # what the actors open
    "GLOO_SOCKET_IFNAME": _LO,
    "NCCL_SOCKET_IFNAME": _LO,
    "VLLM_HOST_IP": "127.0.0.1",
}
CALLS = 100_000  # at a time on an engine's actor: every group that it holds is one, and control must get through


class RayActor:
    """A handle on a Ray actor."""

    def __init__(self, name: str, handle: Any) -> None:
        self._name, self.handle = name, handle

    @property
    def name(self) -> str:
        return self._name

    def call(self, method: str, *args: Any) -> Awaitable[Any]:
        reference = getattr(self.handle, method).remote(*args)  # sent now, in the order of calls
        return self._result(asyncio.wrap_future(reference.future()))

    async def _result(self, future: asyncio.Future[Any]) -> Any:
        with self._as_ours():
            return await future

    def begin(self, method: str, *args: Any) -> Callable[[float], Any]:
        import ray

        reference = getattr(self.handle, method).remote(*args)

        def wait(seconds: float) -> Any:
            with self._as_ours():
                try:
                    return ray.get(reference, timeout=seconds)
                except ray.exceptions.GetTimeoutError:
                    raise silent(self, method, seconds) from None

        return wait

    def kill(self) -> None:
        import ray

        with suppress(Exception):  # it may be dead already
            ray.kill(self.handle)

    @contextmanager
    def _as_ours(self) -> Iterator[None]:
        """What an actor raised as it raised it, and `Gone` for a dead one."""
        import ray

        try:
            yield
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except ray.exceptions.RayActorError as error:
            raise Gone(f"{self._name} died ({type(error).__name__})") from None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for a crash, with a trace; here it asks a run to stop."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in kept.items():
                signal.signal(number, handler)


def check_installed() -> None:
    """Raise InputError, with the way out, where a cluster site cannot run."""
    missing = [name for name in ("ray", "vllm", "transformers") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"a cluster site needs {' and '.join(missing)}, which this Python does not have: "
            "make cluster, then .venv-cluster/bin/scalerl"
        )


class RayLauncher:
    """Actors on a Ray cluster: the one that RAY_ADDRESS names, or one of this machine alone."""

    def __init__(self, site: Cluster, device: str, folder: Path) -> None:
        self.site, self.device, self.folder = site, device, folder.resolve()
        self.elsewhere = os.environ.get("RAY_ADDRESS", "")
        self._actors: list[RayActor] = []

    @property
    def exposed(self) -> str:
        """What to say where the run can be reached from other machines; empty on a Ray of this machine alone."""
        return self.elsewhere and (
            f"RAY_ADDRESS={self.elsewhere}: weights and completions travel between machines unencrypted, on ports "
            "that take whoever comes; a private network only (docs/security.md)"
        )

    def open(self) -> None:
        """Connect or start Ray; one started here listens on loopback alone.

        Ray puts the working directory first on the workers' import path: a folder that happens to hold a `backend/` of
        its own would take this one's place. The run folder holds none.
        """
        actors = self.site.generators + self.site.trainers + self.site.evaluators
        local: dict[str, Any] = {
            "address": "local",
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "num_cpus": actors + 1,
        }
        if not self.elsewhere:
            os.environ |= ALONE
        logging.getLogger("ray").setLevel(logging.ERROR)  # of a dead actor the world says more
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray  # reads the environment

        with _signals_kept(), contextlib.chdir(self.folder):
            ray.init(
                **({} if self.elsewhere else local),
                configure_logging=False,
                log_to_driver=False,
                namespace=f"scalerl-{os.getpid()}",
            )
        if self.device == "cuda" and (have := ray.cluster_resources().get("GPU", 0)) < actors:
            raise InputError(
                f"site {self.site.name!r} asks for {actors} GPUs, Ray has {have:g}: lower site.generators or "
                "site.trainers, or set RAY_ADDRESS to a larger cluster"
            )

    def generator(self, slot: int, spec: EngineSpec) -> RayActor:
        return self._start(f"generator {slot}", GeneratorActor, spec)

    def evaluator(self, spec: EngineSpec, task: Any) -> RayActor:
        from ray import cloudpickle

        for name, module in list(sys.modules.items()):
            if name.startswith(OWN):  # a task of the user's own travels with its code
                cloudpickle.register_pickle_by_value(module)
        return self._start("the evaluator", EvaluatorActor, spec, task)

    def trainer(self, rank: int, *args: Any) -> RayActor:
        return self._start(f"trainer rank {rank}", TrainerActor, *args)

    def _start(self, name: str, kind: type, *args: Any) -> RayActor:
        import ray

        cpu = self.device == "cpu"
        environment = ENVIRONMENT | (CPU_ENVIRONMENT if cpu else {})
        environment |= {} if self.elsewhere else LOOPBACK
        options = {
            "num_cpus": 1,
            "num_gpus": 0 if cpu else 1,
            "max_restarts": 0,
            **({} if kind is TrainerActor else {"max_concurrency": CALLS}),
            "runtime_env": {"env_vars": environment},
        }
        handle = ray.remote(kind).options(**options).remote(*args)
        if cpu:
            handle.keep_to.remote(1 if kind is TrainerActor else 0)
        actor = RayActor(name, handle)
        self._actors.append(actor)
        return actor

    def close(self) -> None:
        """End the actors' children with them, then the actors, then a Ray that was started here."""
        import ray

        if not ray.is_initialized():
            return
        closing = []
        for actor in self._actors:
            with suppress(Exception):
                closing.append(actor.handle.close.remote())
        with suppress(Exception):
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for actor in self._actors:
            actor.kill()
        ray.shutdown()
