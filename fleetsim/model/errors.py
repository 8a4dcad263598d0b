"""The errors that a package may raise, with the blame and a hint of each.

``sent`` of a failed connection decides about retries: work that cannot have started may be sent again, work that may
have started may not (A2A 1.0 section 3.3.1 makes deduplication optional).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar


class Blame(StrEnum):
    """The party that caused a failure."""

    AGENT = "agent"
    CALLER = "caller"
    NETWORK = "network"
    HUMAN = "human"
    NOBODY = "nobody"


class FleetsimError(Exception):
    """The base class. ``str(error)`` is one line for a person; agent text in it is already neutralised."""

    blame: Blame = Blame.CALLER
    retryable: bool = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(FleetsimError):
    """A file, flag or variable is wrong.

    For a value in a file, ``path`` holds its keys from the root, and ``said`` the problem without the place.
    """

    path: tuple[str | int, ...] = ()
    said: str = ""


class NoSharedInterface(FleetsimError):
    """The card offers only bindings or versions of A2A that fleetsim does not speak. fleetsim sent no request."""

    blame = Blame.NOBODY


class CardNotTrusted(FleetsimError):
    """The card lacks the signature that the operator requires (``trust: signed``). fleetsim does not use it."""

    blame = Blame.AGENT


class UnknownTarget(FleetsimError):
    """No agent has that name, or no agent offers the skill."""


class UnfitAnswer(FleetsimError):
    """The data of an answer does not fit the question's schema."""


class NotAccepting(FleetsimError):
    """The hub refuses new work for now, and did not record the request."""

    retryable = True


class MayHaveRun(FleetsimError):
    """The agent may have done the work already: to send it again needs a confirmation."""


class OverLimit(FleetsimError):
    """A limit of agents.yaml has no room for the request, which was not recorded. ``resets_at`` is the end of its
    period, ``retry_after_s`` the seconds until then.
    """

    retryable = True
    limit: str
    resets_at: datetime
    retry_after_s = 0.0


class QuestionNotOpenYet(NotAccepting):
    """The question is still being recorded; the hub accepts the answer in a moment."""


class InvalidMove(FleetsimError):
    """A task may not go from this state to that one."""


class WireError(FleetsimError):
    """The peer's reply breaks the protocol."""

    blame = Blame.AGENT


class EmptyStream(WireError):
    """The agent opened the stream and ended it without an event. It may have acted."""

    def __init__(
        self, message: str = "the agent ended the stream without an event", *, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)


class LimitReached(FleetsimError):
    """A published limit was reached; the message names the limit and its unit."""

    blame = Blame.AGENT


class BodyTooLarge(LimitReached):
    """The body of a reply has more bytes than allowed. ``size`` is None if its length is unknown."""

    def __init__(self, message: str, *, size: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.size = size


class BlockedAddress(FleetsimError):
    """The address policy refused a destination."""


class TransportError(FleetsimError):
    """The connection failed; ``sent``: the peer may have acted."""

    blame = Blame.NETWORK

    def __init__(self, message: str, *, sent: bool = True, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent
        self.retryable = not sent


class Unreachable(TransportError):
    """The connection was refused, not resolved, or failed before a byte of the request was sent.

    ``retry_after_s`` is the pause that a token endpoint asked for.
    """

    def __init__(
        self, message: str, *, sent: bool = False, hint: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, sent=sent, hint=hint)
        self.retry_after_s = retry_after_s


class TimedOut(TransportError):
    """A deadline passed."""


class ConnectionLost(TransportError):
    """The connection broke after the request was sent."""


class HttpRefused(FleetsimError):
    """An HTTP status outside 2xx without a JSON-RPC reply. ``said`` is one line about its body."""

    blame = Blame.AGENT

    def __init__(
        self, message: str, *, status: int, said: str = "", retry_after_s: float | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.said = said
        self.retry_after_s = retry_after_s
        self.retryable = status in {408, 425, 429, 503}

    @property
    def sent(self) -> bool:
        """Whether the agent may have acted.

        A 5xx other than 503 may hide a lost reply. A status below 200 or in no known class does not tell.
        """
        return self.status < 200 or (self.status >= 500 and self.status != 503)


class AuthRefused(HttpRefused):
    """401 or 403: the credential is missing or wrong. ``why`` states which of them, without the address."""

    blame = Blame.CALLER

    def __init__(self, message: str, *, status: int, why: str = "", said: str = "", hint: str | None = None) -> None:
        super().__init__(message, status=status, said=said, hint=hint)
        self.why = why or message


class RpcError(FleetsimError):
    """A JSON-RPC error object. ``wire_code`` is the number that was received, ``data`` the member ``data``.

    ``request_id`` is the id of the refused request, or None if it could not be read.
    """

    blame = Blame.AGENT
    code: ClassVar[int] = -32000
    title: ClassVar[str] = "Server error"

    def __init__(
        self, message: str | None = None, *, data: Any = None, code: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message or self.title, hint=hint)
        self.data = data
        self.wire_code = self.code if code is None else code
        self.request_id: str | int | float | None = None


class ParseError(RpcError):
    """The body is not JSON (JSON-RPC 2.0 section 5.1)."""

    code, title = -32700, "Parse error"


class InvalidRequest(RpcError):
    """The JSON is not a JSON-RPC request."""

    code, title = -32600, "Invalid request"


class MethodNotFound(RpcError):
    """No such method in this dialect."""

    code, title = -32601, "Method not found"


class InvalidParams(RpcError):
    """A parameter is missing, of the wrong type, or refused (for example an unsafe webhook address)."""

    code, title = -32602, "Invalid params"


class InternalError(RpcError):
    """The agent had an internal failure."""

    code, title = -32603, "Internal error"


class TaskNotFound(RpcError):
    """The task does not exist, or belongs to another caller (A2A 1.0 section 3.3.2)."""

    code, title = -32001, "Task not found"


class TaskNotCancelable(RpcError):
    """The task is already terminal."""

    code, title = -32002, "Task cannot be canceled"


class PushNotSupported(RpcError):
    """The agent offers no push notifications."""

    code, title = -32003, "Push notifications are not supported"


class UnsupportedOperation(RpcError):
    """The operation is not possible in this state or at this agent."""

    code, title = -32004, "Operation is not supported"


class ContentTypeNotSupported(RpcError):
    """The agent does not accept the media type."""

    code, title = -32005, "Content type is not supported"


class InvalidAgentResponse(RpcError):
    """The agent's own reply was malformed."""

    code, title = -32006, "Invalid agent response"


class ExtendedCardNotConfigured(RpcError):
    """The agent has no extended card."""

    code, title = -32007, "Extended agent card is not configured"


class ExtensionRequired(RpcError):
    """The agent demands an extension the client did not declare (1.0 only)."""

    code, title = -32008, "Extension support is required"


class VersionNotSupported(RpcError):
    """The agent does not serve the requested A2A-Version (1.0 section 3.6.2)."""

    code, title = -32009, "Protocol version is not supported"


RPC_ERRORS: dict[int, type[RpcError]] = {error.code: error for error in RpcError.__subclasses__()}
"""JSON-RPC code to class (A2A 0.3 section 8, 1.0 section 5.4)."""
