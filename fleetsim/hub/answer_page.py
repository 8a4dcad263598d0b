"""The page behind the link in a question's notice. GET decides nothing, because chats fetch the links they show."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from fleetsim.api.answers import AccessRole
from fleetsim.channels.page import PAGE_HEADERS, answer_of, how_it_ended, question_page, sentence_page
from fleetsim.hub.http import refuse
from fleetsim.hub.hub import Hub
from fleetsim.model.errors import FleetsimError, UnknownTarget
from fleetsim.model.limits import KIB
from fleetsim.model.parts import answer_parts
from fleetsim.runtime.inbound import BodyReader, PacedResponse, Refusal

FORM_BYTES_MAX = 256 * KIB
_bodies = BodyReader(bytes_max=FORM_BYTES_MAX, seconds=10.0, all_bytes_max=16 * FORM_BYTES_MAX)


class AnswerPages:
    """The page of a link (GET), and its form (POST)."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def answer_page(self, request: Request) -> Response:
        """Show the question; with POST answer, reject or veto."""
        hub, decides = self._hub, request.method == "POST"
        barred = {person.person for person in hub.people.keys if person.role is AccessRole.VIEWER} if hub.people else ()
        found = hub.channels.read_link(request.path_params["token"])
        if found is None or found[1] in barred:
            return _page(sentence_page("This link is not valid."), 404)
        question_id, reader = found
        form, problem, status, over = dict[str, str](), "", 200, 409 if decides else 410
        question = await hub.tracker.find_question(question_id)
        may_veto = any(question and question.correlation_id == veto.correlation_id for veto in hub.hitl.vetoes())
        if decides and question is not None:
            try:
                form = dict(parse_qsl((await _bodies.read(request)).decode("utf-8", "replace"), max_num_fields=10))
                choice, cid = form.get("decision", ""), question.correlation_id
                if choice == "veto" and not may_veto:
                    raise Refusal(409, "NO_VETO", "the time for a veto is over")
                await hub.tracker.answer(answer_of(question, reader, choice, form.get("text", "")))
                if choice == "veto":  # after the answer, because the ledger takes one of all that are given
                    await hub.hitl.veto(cid, by=reader)
                about, role = {"by": reader, "correlation_id": cid, "detail": "by a link"}, AccessRole.ANSWERER
                hub.note_action(choice, question_id, role=role, **about)
                question, over = None, 200
            except UnknownTarget:  # somebody else was faster
                question = None
            except (FleetsimError, ValueError) as error:
                problem = f"Nothing was sent: {error}"
                status = refuse(error).status_code if isinstance(error, FleetsimError) else 400
        if question is None:
            return _page(sentence_page(how_it_ended(await hub.ledger.question(question_id))), over)
        track, typed = await hub.tracker.find_track(question.correlation_id), form.get("text", "")
        files = {str(part): part.raw for part in answer_parts(track.task)[0]} if track and track.task else {}
        return _page(question_page(question, files, reader, typed, problem, may_veto=may_veto), status)

    answer_form = answer_page


def _page(text: str, status: int) -> Response:
    return PacedResponse(text, status, PAGE_HEADERS, media_type="text/html")
