"""One A2A client for every dialect."""
