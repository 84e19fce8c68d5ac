"""SkyPilot: hold every task against what it asks for before it is launched.

In ``~/.sky/config.yaml``: ``admin_policy: skypilot_policy.ForeshardPolicy``, with this file where
Python finds it; FORESHARD_CLUSTER names the cluster profile of the machines, and
FORESHARD_BUDGET a cap.
"""

# ruff: noqa: INP001
from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import sky
import yaml


class ForeshardPolicy(sky.AdminPolicy):
    """Refuse what does not fit, print what is tight; tasks that train nothing pass."""

    @classmethod
    def validate_and_mutate(cls, user_request: sky.UserRequest) -> sky.MutatedUserRequest:
        """Ask ``foreshard admit``; exit code 1 refuses, 3 warns, 2 is no training task."""
        task = user_request.task
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "task.yaml"
            path.write_text(yaml.safe_dump(task.to_yaml_config()))
            command = ["foreshard", "admit", str(path)]
            command += ["--cluster", os.environ.get("FORESHARD_CLUSTER", "dgx-h100")]
            if budget := os.environ.get("FORESHARD_BUDGET"):
                command += ["--budget", budget]
            asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode == 1:
            raise RuntimeError(asked.stdout)
        if asked.returncode == 3:
            print(asked.stdout)
        return sky.MutatedUserRequest(task, user_request.skypilot_config)
