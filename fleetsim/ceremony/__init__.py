"""Ceremonies: the keys of a file, due times, and writing the file. Pure: without folders and without a hub.

The package is below client and hub, so that a client checks a ceremony exactly as the hub does.
"""
