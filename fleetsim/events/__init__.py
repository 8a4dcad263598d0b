"""The events of requests and of the fleet, their log, and their JSON.

Read ``request`` first: it has the base class and the events of a request.
"""
