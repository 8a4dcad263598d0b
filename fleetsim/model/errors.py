"""Every error that may leave a package, and what each says about blame and what to do.

::

    FleetsimError            .blame  .retryable  .hint
      ConfigError            a file or flag a person wrote; says file:line and the nearest valid key
      NoSharedInterface      the agent's card offers nothing that fleetsim speaks; nothing was sent
      UnknownTarget          no such agent or skill
      UnfitAnswer            an answer's data is not what the question's schema asks for
      NotAccepting           the hub cannot accept work now (disk full, shutting down)
        QuestionNotOpenYet   the question is being recorded; its answer is accepted in a moment
      InvalidMove            a state change the table does not allow
      WireError              what arrived is not the protocol (bytes, JSON, shape)
        EmptyStream          a stream was taken and ended without an event; the peer may have acted
      LimitReached           a size, count or time limit, named
      BlockedAddress         the address policy refused a destination
      TransportError         the connection failed; ``sent`` says whether the peer may have acted
        Unreachable          nothing was sent
        TimedOut             a deadline passed
        ConnectionLost       the connection broke after bytes were sent
      HttpRefused            an HTTP status instead of an answer
        AuthRefused          401 or 403
      RpcError               a JSON-RPC error object; one subclass per code of the specification

``sent`` decides what may be retried: work that cannot have started may be sent again, work that may
have started may not (A2A 1.0 section 3.3.1 makes deduplication optional).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar


class Blame(StrEnum):
    """Whose fault something was."""

    AGENT = "agent"
    CALLER = "caller"
    NETWORK = "network"
    HUMAN = "human"
    NOBODY = "nobody"


class FleetsimError(Exception):
    """The root. ``str(error)`` is one line fit for a person; agent text in it is already neutralised."""

    blame: Blame = Blame.CALLER
    retryable: bool = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(FleetsimError):
    """A file, flag or variable a person wrote is wrong.

    Of a value in a file, ``path`` is its keys from the root, and ``said`` what is wrong without the place.
    """

    path: tuple[str | int, ...] = ()
    said: str = ""


class NoSharedInterface(FleetsimError):
    """An agent's card offers only bindings or versions of A2A that fleetsim does not speak. Nothing was sent."""

    blame = Blame.NOBODY


class UnknownTarget(FleetsimError):
    """No agent of that name, or none that offers the skill."""


class UnfitAnswer(FleetsimError):
    """The data of an answer is not what the question's schema asks for."""


class NotAccepting(FleetsimError):
    """New work is refused for now; nothing was recorded."""

    retryable = True


class QuestionNotOpenYet(NotAccepting):
    """An answer to a question that is being recorded; it is accepted in a moment."""


class InvalidMove(FleetsimError):
    """A task may not go from this state to that one."""


class WireError(FleetsimError):
    """The peer's bytes are not the protocol it claims."""

    blame = Blame.AGENT


class EmptyStream(WireError):
    """The agent took the request, opened its stream and ended it without a single event. It may have acted."""

    def __init__(self, message: str = "the agent ended the stream without a word", *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)


class LimitReached(FleetsimError):
    """A published limit was reached; the message names it and its unit."""

    blame = Blame.AGENT


class BlockedAddress(FleetsimError):
    """The address policy refused a destination."""


class TransportError(FleetsimError):
    """The connection failed."""

    blame = Blame.NETWORK

    def __init__(self, message: str, *, sent: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent
        self.retryable = not sent


class Unreachable(TransportError):
    """Refused, unresolved or failed before a byte of the request left."""

    def __init__(self, message: str, *, sent: bool = False, hint: str | None = None) -> None:
        super().__init__(message, sent=sent, hint=hint)


class TimedOut(TransportError):
    """A deadline passed."""

    def __init__(self, message: str, *, sent: bool = True, hint: str | None = None) -> None:
        super().__init__(message, sent=sent, hint=hint)


class ConnectionLost(TransportError):
    """The connection broke after the request was sent."""

    def __init__(self, message: str, *, sent: bool = True, hint: str | None = None) -> None:
        super().__init__(message, sent=sent, hint=hint)


class HttpRefused(FleetsimError):
    """An HTTP status outside 2xx, with no JSON-RPC answer in it. ``said`` is one line about its body."""

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
        """Whether the agent may have acted: a 5xx other than 503 may hide a lost reply.

        A status that is no end of a request (101) or of no known class says nothing of what became of it.
        """
        return self.status < 200 or (self.status >= 500 and self.status != 503)


class AuthRefused(HttpRefused):
    """401 or 403: the credential is missing or wrong. ``why`` states which, without the address."""

    blame = Blame.CALLER

    def __init__(self, message: str, *, status: int, why: str = "", said: str = "", hint: str | None = None) -> None:
        super().__init__(message, status=status, said=said, hint=hint)
        self.why = why or message


class RpcError(FleetsimError):
    """A JSON-RPC error object. ``code`` is the wire's number; ``data`` whatever came with it.

    ``request_id`` is the id of the request that was refused, as far as it could be read.
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
    """A parameter is missing, mistyped or refused (an unsafe webhook address is one)."""

    code, title = -32602, "Invalid params"


class InternalError(RpcError):
    """The agent failed inside."""

    code, title = -32603, "Internal error"


class TaskNotFound(RpcError):
    """No such task, or not yours (A2A 1.0 section 3.3.2)."""

    code, title = -32001, "Task not found"


class TaskNotCancelable(RpcError):
    """The task is already terminal."""

    code, title = -32002, "Task cannot be canceled"


class PushNotSupported(RpcError):
    """The agent offers no push notifications."""

    code, title = -32003, "Push notifications are not supported"


class UnsupportedOperation(RpcError):
    """Not possible in this state or by this agent."""

    code, title = -32004, "Operation is not supported"


class ContentTypeNotSupported(RpcError):
    """A media type the agent does not take."""

    code, title = -32005, "Content type is not supported"


class InvalidAgentResponse(RpcError):
    """The agent's own answer was malformed."""

    code, title = -32006, "Invalid agent response"


class ExtendedCardNotConfigured(RpcError):
    """There is no extended card."""

    code, title = -32007, "Extended agent card is not configured"


class ExtensionRequired(RpcError):
    """The agent demands an extension the client did not declare (1.0 only)."""

    code, title = -32008, "Extension support is required"


class VersionNotSupported(RpcError):
    """The A2A-Version asked for is not served (1.0 section 3.6.2)."""

    code, title = -32009, "Protocol version is not supported"


RPC_ERRORS: dict[int, type[RpcError]] = {
    error.code: error
    for error in (
        ParseError,
        InvalidRequest,
        MethodNotFound,
        InvalidParams,
        InternalError,
        TaskNotFound,
        TaskNotCancelable,
        PushNotSupported,
        UnsupportedOperation,
        ContentTypeNotSupported,
        InvalidAgentResponse,
        ExtendedCardNotConfigured,
        ExtensionRequired,
        VersionNotSupported,
    )
}
"""The one error table: JSON-RPC code to class (A2A 0.3 section 8, 1.0 section 5.4)."""
