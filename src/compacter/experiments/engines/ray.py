"""Calls on a Ray cluster: one on this machine, or one that is running already.

Ray keeps a worker's process for the next call of the same kind, so imports are paid once for each.
A call whose worker or machine is lost is reported as lost; the sweep submits it again."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

from compacter.errors import ExperimentError, ExtraError
from compacter.experiments.engines import Call, Ended

REACH_SECONDS = 10


class Ray:
    """An engine for many machines, which must share the folder of the sweep."""

    def __init__(self, address: str | None = None, *, cpus: float = 1, gpus: float = 0) -> None:
        """`cpus` and `gpus` are those of one call."""
        if cpus <= 0 or gpus < 0:
            raise ExperimentError(
                f"cpus={cpus:g} and gpus={gpus:g} do not fit; expected more than 0, and 0 or more"
            )
        if any(share > 1 and share % 1 for share in (cpus, gpus)):
            raise ExperimentError(
                f"cpus={cpus:g} and gpus={gpus:g} do not fit; above 1, Ray takes whole numbers"
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise ExtraError(
                "the engine 'ray' needs ray, part of the extra 'ray': "
                "pip install 'compacter-peft[ray]'"
            ) from None
        self.ray: Any = ray
        try:
            _reach(address)
            ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ExperimentError(
                f"there is no Ray cluster at {address or 'this machine'!r}: {reason}"
            ) from None
        self.share = {"CPU": cpus, "GPU": gpus}
        self._check_share()
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)
        self.function: Any = remote(_serve)
        self.threads = max(1, int(cpus))
        self.pending: dict[Any, str] = {}

    @property
    def slots(self) -> int:
        """Of the machines that are there now; the cluster may grow."""
        return max(1, sum(map(self._calls_on, self._machines())))

    def submit(self, key: str, call: Call) -> None:
        self.pending[self.function.remote(call, os.getcwd(), self.threads)] = key

    def ended(self, timeout: float) -> list[Ended]:
        if not self.pending:
            time.sleep(timeout)
            return []
        ready, _ = self.ray.wait(list(self.pending), timeout=timeout)
        return [self._collect(reference) for reference in ready]

    def close(self) -> None:
        self.ray.shutdown()

    def _machines(self) -> list[dict[str, float]]:
        """What each machine of the cluster has."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def _calls_on(self, machine: dict[str, float]) -> int:
        """How many calls a machine holds at a time."""
        return min(int(machine.get(k, 0) // wanted) for k, wanted in self.share.items() if wanted)

    def _check_share(self) -> None:
        """A call that fits no machine would wait for ever."""
        machines = self._machines()
        if not any(map(self._calls_on, machines)):
            self.close()
            there = "; ".join(sorted({self._said(machine) for machine in machines}))
            raise ExperimentError(
                f"a run is to have {self._said(self.share)}, and no machine of the Ray cluster has "
                f"as much: they have {there}"
            )

    def _said(self, resources: dict[str, float]) -> str:
        return " and ".join(f"{resources.get(name, 0):g} {name}" for name in self.share)

    def _collect(self, reference: Any) -> Ended:
        key = self.pending.pop(reference)
        try:
            return Ended(key, self.ray.get(reference))
        except self.ray.exceptions.RayTaskError as error:
            return Ended(key, error=RuntimeError(str(error.cause)))
        except self.ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return Ended(key, lost=f"Ray lost the worker of the run: {lines[0]}")


def _reach(address: str | None) -> None:
    """Raise at once if nobody listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()


def _serve(call: Call, folder: str, threads: int) -> Any:
    import torch

    if os.path.isdir(folder):
        os.chdir(folder)  # names of files in a recipe are relative to where the sweep started
    torch.set_num_threads(threads)
    return call()
