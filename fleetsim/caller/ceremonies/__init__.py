"""Scheduled skill requests: reading them, knowing when they are due, firing each slot once."""
