"""A page of offers: a table to sort, what it comes to in words, and a picture of it."""

from __future__ import annotations

from collections.abc import Container, Sequence

from simulator.report.page import environment

Cell = tuple[object, str, str]
"""What a column is sorted by, what is shown, and what stands below a number (or nothing)."""

View = tuple[str, list[str]]
"""A heading, and the lines below it."""

Part = tuple[str, list[str], list[list[str]]]
"""A heading, columns, of which the first names a row, and the rows below them."""


def offers_page(
    command: str,
    title: str,
    lead: str,
    columns: Sequence[tuple[str, bool]],
    rows: Sequence[Sequence[Cell]],
    *,
    table: str,
    naming: int = 0,
    aside: Container[str] = (),
    missed: str = "",
    problems: View | None = None,
    picture: tuple[str, str] | None = None,
    parts: Sequence[Part] = (),
    views: Sequence[View] = (),
) -> str:
    """Write offers as one page that needs nothing else.

    Parameters
    ----------
    command : str
        Who wrote it: "compare", "sweep".
    title, lead : str
        The heading, and the line below it.
    columns : sequence of (str, bool)
        Names of the columns, and whether they hold words.
    rows : sequence of cells
        In the order of the columns.
    table : str
        The heading of the table.
    naming : int
        How many of the first columns name a row.
    aside : container of str
        Columns that stand in a second table, which opens on demand, beside those that name a row.
    missed : str
        What a goal that nothing meets would take.
    problems : View, optional
        What could not be searched.
    picture : pair of str, optional
        A heading and inline SVG.
    parts : sequence of Part
        Small tables below it.
    views : sequence of View
        What to make of the offers.
    """
    sections = {"problems": problems[0]} if problems else {}
    sections["points"] = table
    if picture:
        sections["picture"] = picture[0]
    shown = [i for i, (name, _) in enumerate(columns) if name not in aside]
    more = [i for i, (name, _) in enumerate(columns) if name in aside]
    tables = [shown, [*range(naming), *more]] if more else [shown]
    tabled = [(f"part-{i}", *part) for i, part in enumerate(parts)]
    sections |= {anchor: heading for anchor, heading, *_ in tabled}
    anchored = [(f"view-{i}", *view) for i, view in enumerate(views)]
    sections |= {anchor: heading for anchor, heading, _ in anchored}
    return (
        environment()
        .get_template("offers_page.html.j2")
        .render(
            command=command,
            title=title,
            lead=lead,
            missed=missed,
            tables=[
                ([columns[i] for i in order], [[row[i] for i in order] for row in rows])
                for order in tables
            ],
            problems=problems[1] if problems else [],
            picture=picture[1] if picture else None,
            parts=tabled,
            views=anchored,
            sections=sections,
        )
    )
