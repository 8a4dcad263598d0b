"""The assembled caller with its HTTP face."""
