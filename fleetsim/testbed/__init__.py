"""The ground that tests and simulation stand on: virtual time and an in-memory network."""
