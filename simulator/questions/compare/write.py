"""Writing a comparison: page, picture, document and table, all of them or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.plain_files import write_files
from simulator.questions.compare.page import compare_page
from simulator.questions.compare.picture import comparison_picture
from simulator.report.canvas import png_bytes

if TYPE_CHECKING:
    from simulator.questions.compare.answer import Comparison


def write_comparison(answer: Comparison, out_dir: Path) -> list[Path]:
    """Write page, document, table (CSV) and picture (PNG, SVG); return their paths."""
    document = json.dumps(answer.document(), indent=2, allow_nan=False) + "\n"
    drawn = comparison_picture(answer)
    pages = (comparison_picture(answer, narrow=phone, svg=True) for phone in (False, True))
    wide, narrow = (page.svg() for page in pages)
    contents = {
        "compare.html": compare_page(answer, wide, narrow).encode(),
        "compare.json": document.encode(),
        "compare.csv": answer.to_frame().to_csv(index=False).encode(),
        "compare.png": png_bytes(drawn),
        "compare.svg": wide.encode(),
    }
    placed = {out_dir / name: content for name, content in contents.items()}
    write_files(placed)
    return list(placed)
