"""The most memory that a run held at one time."""

from __future__ import annotations

import gc
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch


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
