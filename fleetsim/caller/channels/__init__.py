"""Telling people: channels and their sinks, what is put into a notice, and how a notice is delivered."""
