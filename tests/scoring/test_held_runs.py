"""No prediction moves unseen: shipped runs, models, documents of commands, screens and exports.

Most parts of a step are held to hand counts and laws; a wrong part of a part that table, closed
form and twin share shows here. What is to move is looked at and written again
(``python -m tests.scoring.held_runs``, and so ``held_models``, ``held_answers``, ``held_screens``).
"""

import pytest

from tests.scoring import held_answers, held_models, held_runs, held_screens


@pytest.mark.parametrize(
    ("held", "least"),
    [(held_runs, 350), (held_models, 300), (held_answers, 250), (held_screens, 55)],
)
def test_predictions_are_as_they_were(held, least):
    now, before = held.predicted(), held_runs.held(held.PATH)
    assert len(before) > least
    assert set(now) == set(before)
    moved = held_runs.moved(now, before, held.HEAD)
    shown = "\n".join(moved[:20])
    assert not moved, f"{len(moved)} moved; {held.__name__} writes {held.PATH.name}\n{shown}"
