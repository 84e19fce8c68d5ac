"""Profiles of round numbers for these tests."""

from tests.round_profiles import round_profiles as round_profiles
