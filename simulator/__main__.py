"""``python -m simulator``: the command ``foreshard`` where it is not on the path."""

from __future__ import annotations

from simulator.cli.main import app

if __name__ == "__main__":
    app(prog_name="foreshard")
