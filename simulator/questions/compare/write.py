"""Writing a comparison: page, picture, document and table, all of them or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.plain_files import write_files
from simulator.questions.compare.page import compare_page, compare_picture
from simulator.report.canvas import png_bytes

if TYPE_CHECKING:
    from simulator.questions.compare.answer import Comparison


def write_comparison(answer: Comparison, out_dir: Path) -> list[Path]:
    """Write page, document, table (CSV) and picture (PNG, SVG); return their paths."""
    document = json.dumps(answer.document(), indent=2, allow_nan=False) + "\n"
    picture = compare_picture(answer)
    drawn = (
        {}
        if picture is None
        else {
            "compare.png": png_bytes(picture()),
            "compare.svg": picture(svg=True).svg().encode(),
        }
    )
    contents = {
        "compare.html": compare_page(answer).encode(),
        "compare.json": document.encode(),
        "compare.csv": answer.to_frame().to_csv(index=False).encode(),
        **drawn,
    }
    placed = {out_dir / name: content for name, content in contents.items()}
    write_files(placed)
    return list(placed)
