"""What training frameworks call the fields of a scenario, both ways: written and read.

A dialect is added in six files: a module here with what it writes (``NAME_block(row, scenario)``),
what it has no words for (``NAME_unsaid``) and what it reads (``read_NAME(settings)``), its settings
as rows of ``table.py`` where that is shorter; a line in ``interop/exporting.py: LAUNCHERS`` or
``interop/exporting.py: FORMS``; a line in ``launch_files/recognising.py``, which knows its files;
its keys that bear on nothing in ``idle_keys.toml``; a case in ``tests/interop/test_round_trip.py``,
which asks that every field of [layout] comes back or is named; its seed in tests/mutations. One
that is only read (``torchtune.py``) has no writer, and tests of its own in place of a round trip.

A trainer that is only read, from a configuration of keys and values or from calls of a Python
script, is a table alone: ``trainers/NAME.toml``, as ``trainer_tables.py`` says, with a sample in
``tests/interop/trainer_samples.py``.

What may come from input (names, paths) is written by ``simulator/quoting.py`` alone: a writer for
each language, never an f-string.
"""
