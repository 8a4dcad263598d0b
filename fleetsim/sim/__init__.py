"""Whole fleets in virtual time."""
