"""The bodies of the hub's HTTP API. The hub reads them, and its client checks them before it sends them."""
