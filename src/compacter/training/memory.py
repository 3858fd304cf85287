"""The most memory that a run held at one time, and what to do where it is not enough."""

from __future__ import annotations

import gc
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from compacter.errors import TrainingError

OUT_OF_MEMORY = (
    "the memory is not enough: make batch_size smaller and gradient_accumulation larger by the "
    "same factor (the result stays the same), or make max_length smaller"
)


@contextmanager
def memory_advice() -> Iterator[None]:
    """Advice in place of the error of whoever ran out of memory."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise TrainingError(OUT_OF_MEMORY) from None
    except RuntimeError as error:  # torch has no class of its own for a CPU's memory
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise TrainingError(OUT_OF_MEMORY) from None


def reset_peak_memory() -> None:
    """Forget earlier runs of this process. Where the system cannot, peaks of earlier runs count."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # Linux alone has it
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """Bytes: the allocator's peak on CUDA, else the peak of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
