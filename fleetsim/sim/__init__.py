"""The fleet simulator: a whole fleet, its hub and its weather, played on virtual time from one seed."""
