"""The texts of reference streams are compared, and the ledger of the attackers' process comes back."""

from __future__ import annotations

import pickle
from pathlib import Path

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.chaos import __main__ as command
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.pauses import Pauses
from benchmarks.chaos.reference_streams import ReferenceStream
from benchmarks.chaos.rounds import Stage

TEXTS = ["one", "two", "three"]  # of the first streams, which speak SSE


def completions(texts: list[str]) -> web.Application:
    """Answers each reference stream with its text, and other requests with 401."""
    by_prompt = {ReferenceStream(index).body["prompt"]: text for index, text in enumerate(texts)}

    async def answer(request: web.Request) -> web.StreamResponse:
        text = by_prompt.get((await request.json())["prompt"])
        if text is None:
            return web.json_response({"error": {"message": "a stranger"}}, status=401)
        choices = [{"index": 0, "text": piece, "finish_reason": None} for piece in text]
        choices[-1]["finish_reason"] = "length"
        body = b"".join(b"data: %b\n\n" % orjson.dumps({"choices": [choice]}) for choice in choices)
        return web.Response(body=body + b"data: [DONE]\n\n", content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    return app


async def stage_of(server: TestServer, session: aiohttp.ClientSession) -> Stage:
    streams = [ReferenceStream(index) for index in range(len(TEXTS))]
    return Stage(str(server.make_url("/")).rstrip("/"), session, streams, TEXTS, 2, Pauses(Path("/nonexistent")))


async def test_the_outcomes_of_attacks_and_the_gaps_beside_them_come_back() -> None:
    async with TestServer(completions(TEXTS)) as server, aiohttp.ClientSession() as session:
        stage = await stage_of(server, session)
        outcome = await stage.attacked(0.1, seed=1, name="wrong keys")
    assert stage.ledger.failures == []
    assert stage.ledger.outcomes["wrong keys"]["401"] > 0
    assert outcome.num_streams >= len(TEXTS)
    assert outcome.p99 >= outcome.p50 >= 0


async def test_a_wrong_text_is_a_failure() -> None:
    async with TestServer(completions(["one", "too", "three"])) as server, aiohttp.ClientSession() as session:
        stage = await stage_of(server, session)
        await stage.calm(0.05)
    assert stage.ledger.failures == ["reference stream 1 got 'too' and should have got 'two'"]


def test_ledgers_of_two_processes_add_up() -> None:
    ours, theirs = Ledger(), Ledger()
    ours.note("chat", "200")
    theirs.note_status("chat", 200, (200,))
    theirs.note_status("chat", 500, (200, 429))
    ours.add(pickle.loads(pickle.dumps(theirs)))  # noqa: S301 - of our own process
    assert ours.outcomes["chat"] == {"200": 2, "500": 1}
    assert ours.failures == ["chat: a request got status 500, expected 200 or 429"]
    assert ours.num_attacks == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--each", "5", "--only", "hard_grammar"], "no attack is called 'hard grammar'; there are cut stream, "),
        (["--each", "5", "--only", "fuzz,,chat"], "no attack is called ''; there are "),
        (["--only", "hard_grammars"], "argument --only: it needs --each"),
    ],
)
def test_attacks_that_cannot_be_run_alone_are_refused_before_a_server_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(command, "run_round", lambda *_: pytest.fail("a round has begun"))
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert message in " ".join(capsys.readouterr().err.split())


def test_attacks_are_named_with_spaces_or_underscores(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[list[str]] = []
    monkeypatch.setattr(command, "run_round", lambda name, options: named.append(options.only) or [])
    assert command.main(["--each", "5", "--only", "hard_grammars, operators race,fuzz"]) == 0
    assert named == [["hard grammars", "operators race", "fuzz"]]


@pytest.mark.parametrize("may_be_full", [False, True])
async def test_a_server_may_refuse_only_where_it_has_few_descriptors(may_be_full: bool) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=503)

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        stage = await stage_of(server, session)
        stage.ledger.may_be_full = may_be_full
        await stage.calm(0.05)
    stage.ledger.note_status("chat", 503, (200,))
    assert stage.ledger.outcomes["reference streams"]["refused"] == len(TEXTS)
    assert len(stage.ledger.failures) == (0 if may_be_full else len(TEXTS) + 1)
