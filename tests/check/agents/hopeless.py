# mypy: ignore-errors
"""Agents that cannot be run, or that end in the middle: each is one function or attribute."""

from __future__ import annotations

import os
import sys

import plain
from starlette.applications import Starlette

number = 7


class Server:
    """A value that some frameworks return in place of an application."""

    def build(self):
        """The application."""
        return plain.make()


server = Server()


def raises():
    """Raises."""
    raise RuntimeError("no model today\nand not tomorrow")


def exits():
    """Ends the program."""
    sys.exit("not today")


def dies():
    """Ends the process after many words: the last ones are still on their way then."""
    for number in range(5_000):
        print("trying for the", number, "th time")
    print("I cannot go on")
    os._exit(3)


def no_start():
    """Raises in its lifespan."""

    async def lifespan(app):
        raise RuntimeError("no database")
        yield

    return Starlette(lifespan=lifespan)


def dies_at_work():
    """Ends the process at the second send."""
    agent = plain.make()
    sends = []

    async def app(scope, receive, send):
        if scope["type"] == "http" and scope["method"] == "POST":
            sends.append(scope)
            if len(sends) > 5:
                print("a fatal mistake")
                os._exit(9)
        await agent(scope, receive, send)

    return app


class Flask:
    """A WSGI application has this attribute."""

    wsgi_app = None


flask = Flask()
