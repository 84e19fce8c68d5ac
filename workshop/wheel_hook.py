"""What hatchling calls before it packs a wheel: machine code of the engine of events goes into it.

A wheel is as good without it, but slower at first use: where it cannot be made, a warning says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class AheadOfTime(BuildHookInterface[Any]):
    """Compile where what lies beside the modules is not of this text."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a wheel is packed; an editable install is left to the Makefile."""
        if version == "editable":
            return
        done = subprocess.run(
            [sys.executable, "-m", "workshop.ahead_of_time", "--if-changed"],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": self.root},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:]
            self.app.display_warning(f"compiled at first use, not ahead: {''.join(why)}")
