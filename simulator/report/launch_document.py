"""The document of `plan --from`: what launch files say, what it takes, the cheapest changes."""

from __future__ import annotations

import math
from typing import Any

from simulator.interop.launch_files.advising import Advice
from simulator.report.document import layout_document, plain, predict_document


def advice_document(advice: Advice) -> dict[str, Any]:
    """Write the first answer to a launch script as a document."""
    return {
        **predict_document(advice.prediction, advice.memory),
        "command": "plan",
        "from": plain(advice.imported.document()),
        "changes": [
            {
                "choices": list(change.choices),
                "fields": plain(
                    {name: {"before": a, "after": b} for name, (a, b) in change.fields.items()}
                ),
                "gain": change.gain if math.isfinite(change.gain) else None,
                **layout_document(change.prediction, 0),
                "files": files,
                "by_hand": list(unsaid),
            }
            for change, files, unsaid in zip(
                advice.changes, advice.changed, advice.unsaid, strict=True
            )
        ],
    }
