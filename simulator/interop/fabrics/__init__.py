"""Listings of a cluster's network as profiles."""
