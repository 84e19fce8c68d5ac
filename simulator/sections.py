"""Every section of a scenario, in the order in which they are read, and read about.

A section that joins the list is read, checked, refused, listed and described from its record.
"""

from __future__ import annotations

import dataclasses

from simulator.between_sites.sites_section import SITES
from simulator.data_input.data_section import DATA
from simulator.distillation import DISTILLATION
from simulator.economics.economics_section import ECONOMICS
from simulator.goal import GOAL, SEARCH
from simulator.hardware.cluster_section import CLUSTER
from simulator.layout.layout_section import LAYOUT
from simulator.parameter_servers.server_section import PARAMETER_SERVER
from simulator.reliability.reliability_profile import RUN
from simulator.rollouts.rl_section import RL_SECTION
from simulator.software.software_section import RELEASE, SOFTWARE
from simulator.sparse_tables.dense_model import SPARSE
from simulator.workload.training_section import MODEL, TRAINING

READ = (
    *(MODEL, TRAINING, CLUSTER, RELEASE, SOFTWARE, LAYOUT, GOAL, RUN, SEARCH),
    *(DATA, SITES, PARAMETER_SERVER, DISTILLATION, ECONOMICS, SPARSE),
    RL_SECTION,
)
"""Sections and what is made of them; one that needs another's record stands behind it."""

SECTIONS = {section.name: section for section in READ if section.schemas}
"""Those that a file may have, by name."""


def fields_named(name: str) -> list[str]:
    """Fields of any section with this very name, each as ``section.field``."""
    return [
        f"{section.name}.{name}"
        for section in SECTIONS.values()
        if name in {field.name for kind in section.schemas for field in dataclasses.fields(kind)}
    ]
