"""Python calls inside the package that one cold prediction takes, by file.

``python tests/house/count_calls.py [FILES]`` prints the total and the files that are entered most.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).resolve().parents[2] / "simulator")


def calls_of_predict() -> Counter[str]:
    """Predict llama-3.1-8b on dgx-h100 with nothing imported yet, counted from the first import."""
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            counts[name.removeprefix(f"{PACKAGE}/")] += 1

    sys.setprofile(count)
    try:
        from simulator import predict

        predict(model="llama-3.1-8b", cluster="dgx-h100", gpus=64, tp=2)
    finally:
        sys.setprofile(None)
    return counts


if __name__ == "__main__":
    files = calls_of_predict()
    print(files.total())
    for file, calls in files.most_common(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        print(f"{calls:6} {file}")
