"""What every test shares: property tests that draw the same examples each time.

``pytest --hypothesis-profile=explore`` draws fresh and many more; a failure that it finds
is worth an ``@example`` line.
"""

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile("same")
