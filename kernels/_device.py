"""The device that is measured: what it is, what it runs, how warm it is.

Programs take it from `_timing`. Sizes are bytes, clocks MHz, power watts, temperatures Celsius.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
try:
    import torch
except ImportError:
    print("these programs need torch: pip install torch", file=sys.stderr)
    raise SystemExit(2) from None

DEFAULT_CACHE_BYTES = 64 * 2**20
"""Assumed last-level cache where the system does not tell."""


class Sensors:
    """Clocks, power and temperature of one GPU: by `pynvml`, else nvidia-smi, else nothing."""

    QUERY = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks.max.sm,power.limit"
    NVML_PAUSE_S, SMI_PAUSE_S = 0.2, 10.0
    """Not read more often than that: nvidia-smi takes long."""

    def __init__(self, uuid: str | None) -> None:
        """Look for a way to read the GPU called `uuid` ("GPU-..."); None: there is no GPU."""
        self.uuid, self.last, self.nvml, self.smi = uuid, {}, None, None
        self.limits, self.driver, self.read_at = {}, None, -math.inf
        if uuid is None:
            return
        try:
            self._open_nvml(uuid)
        except Exception:  # no pynvml, no permission, a MIG slice: all mean "not this way"
            self.nvml, self.smi = None, shutil.which("nvidia-smi")
            self.driver = self._ask_smi("driver_version")[0]
            self.read()

    def _open_nvml(self, uuid: str) -> None:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        driver = pynvml.nvmlSystemGetDriverVersion()
        self.driver = driver.decode() if isinstance(driver, bytes) else driver
        self.limits = {
            "clock_max_sm_mhz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "power_limit_watt": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        }
        self.nvml, self.handle = pynvml, handle

    def _ask_smi(self, query: str) -> list[str | None]:
        wanted = query.split(",")
        if self.smi is None:
            return [None] * len(wanted)
        command = [self.smi, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                [*command, "-i", self.uuid], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.SubprocessError):
            return [None] * len(wanted)
        found = [part.strip() for part in done.stdout.split(",")]
        return found if done.returncode == 0 and len(found) == len(wanted) else [None] * len(wanted)

    def read(self) -> dict[str, object]:
        """Read now, unless it was read a moment ago, and remember it in `last`."""
        pause_s = self.NVML_PAUSE_S if self.nvml else self.SMI_PAUSE_S
        if (self.nvml or self.smi) and time.monotonic() - self.read_at > pause_s:
            self.read_at = time.monotonic()
            with contextlib.suppress(Exception):
                self.last = self._read_nvml() if self.nvml else self._read_smi()
        return self.last

    def _read_nvml(self) -> dict[str, object]:
        nvml, handle = self.nvml, self.handle
        clocks = {
            "sm": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        }
        heat = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        watt = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        return {"clocks_mhz": clocks, "power_watt": watt, "temperature_c": heat}

    def _read_smi(self) -> dict[str, object]:
        sm, memory, watt, heat, most, limit = map(_number, self._ask_smi(self.QUERY))
        self.limits = {"clock_max_sm_mhz": most, "power_limit_watt": limit}
        found = {"clocks_mhz": {"sm": sm, "memory": memory}} if sm is not None else {}
        found |= {"power_watt": watt} if watt is not None else {}
        return found | ({"temperature_c": heat} if heat is not None else {})


def _number(text: str | None) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


class Device:
    """Where to measure: `kind` ("cuda" or "cpu"), the torch `device`, its `facts`, its cache."""

    def __init__(self, name: str = "auto") -> None:
        """Take "auto", "cpu", "cuda" or "cuda:1"; ValueError where there is no such device."""
        found = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(found if name == "auto" else name)
        self.kind = self.device.type
        if self.kind not in ("cuda", "cpu"):
            raise ValueError(f"must be auto, cpu, cuda or cuda:N, got {name!r}")
        if self.kind == "cuda":
            if found == "cpu" or (self.device.index or 0) >= torch.cuda.device_count():
                raise ValueError(f"torch sees no such device, got {name!r}")
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)
        uuid = getattr(self._properties(), "uuid", None)
        self.sensors = Sensors(None if uuid is None else f"GPU-{uuid}")
        self.facts = self._cuda_facts() if self.kind == "cuda" else _cpu_facts()
        self.cache_bytes = int(self.facts["cache_bytes"] or DEFAULT_CACHE_BYTES)

    def _properties(self):
        return torch.cuda.get_device_properties(self.device) if self.kind == "cuda" else None

    def _cuda_facts(self) -> dict[str, object]:
        has = self._properties()
        return {
            "kind": "cuda",
            "name": has.name,
            "count": torch.cuda.device_count(),
            "capability": f"{has.major}.{has.minor}",
            "memory_bytes": has.total_memory,
            "sms": has.multi_processor_count,
            "cache_bytes": getattr(has, "L2_cache_size", None),
            **self.sensors.limits,
        }

    def synchronize(self) -> None:
        """Wait until the device has done everything it was given."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.device)

    def free_bytes(self) -> int:
        """Return the memory that can still be allocated (GPU, or the host for a CPU)."""
        if self.kind == "cuda":
            cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            return torch.cuda.mem_get_info(self.device)[0] + cached
        return host_free_bytes()

    def release(self) -> None:
        """Give back the memory of everything that is no longer referred to."""
        gc.collect()
        if self.kind == "cuda":
            torch.cuda.empty_cache()

    def answers(self) -> bool:
        """Tell whether the device still works after an error; after a bad access none does."""
        try:
            self.synchronize()
            return torch.ones(2, device=self.device).sum().item() == 2
        except RuntimeError:
            return False

    def has_fp8(self) -> bool:
        """Tell whether torch can multiply fp8 here: a GPU of capability 8.9 or newer."""
        if self.kind != "cuda" or not hasattr(torch, "_scaled_mm") or torch.version.hip:
            return False
        return torch.cuda.get_device_capability(self.device) >= (8, 9)


def _read_text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def host_free_bytes() -> int:
    """Return the host's memory that can still be allocated."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", _read_text("/proc/meminfo"))
    free = int(found.group(1)) * 1024 if found else 2 * 2**30
    limit, used = (_read_text(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    return min(free, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else free


def _cpu_facts() -> dict[str, object]:
    model = re.search(r"model name\s*:\s*(.+)", _read_text("/proc/cpuinfo"))
    total = re.search(r"MemTotal:\s+(\d+) kB", _read_text("/proc/meminfo"))
    caches = [
        int(text[:-1]) * 1024
        for level in range(5)
        if (text := _read_text(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size"))[-1:] == "K"
    ]
    return {
        "kind": "cpu",
        "name": model.group(1).strip() if model else platform.processor() or platform.machine(),
        "count": 1,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "memory_bytes": int(total.group(1)) * 1024 if total else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cache_bytes": max(caches, default=None),
    }


def software(device: Device) -> dict[str, object]:
    """Return the versions that a measurement depends on; None where there is none."""
    nccl = cudnn = None
    with contextlib.suppress(Exception):
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if device.kind == "cuda" else None
        cudnn = torch.backends.cudnn.version() if device.kind == "cuda" else None
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "nccl": nccl,
        "driver": device.sensors.driver,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
