"""The cases of the recording, from the tables of bodies; `player.py` says what a case may hold."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.golden.wire.bodies import (
    BAD,
    BAD_CHAT,
    BAD_COMPLETIONS,
    BAD_FRAMES,
    CHAT,
    CHAT_PARAMETERS,
    COMPLETION_PARAMETERS,
    COMPLETIONS,
    DEEP,
    GOOD,
    GOOD_CHAT,
    GOOD_COMPLETIONS,
    MESSAGES,
    NO_JSON,
    PROBES,
    PROMPT,
    SHARED_PARAMETERS,
    WISHES,
)

Case = dict[str, Any]
Exchange = dict[str, Any]

ROUTES = ("/", "/static/index.html", COMPLETIONS, CHAT, "/v1/stream", "/v1/models", "/v1/models/fake", "/version",
          "/liveness", "/readiness", "/health", "/metrics")  # fmt: skip
ASKED = ROUTES[5:]


def make_cases() -> Iterator[Case]:
    """Every case, without its answers. Names are unique."""
    yield from _good_cases()
    yield from _probes()
    yield from _refusals()
    yield from _structured_cases()
    yield from _body_cases()
    yield from _route_cases()
    yield from _state_cases()
    yield from _failure_cases()
    yield from _socket_cases()


def _case(name: str, *exchanges: Exchange, base: Mapping[str, Any] | None = None, **setup: Any) -> Case:
    """
    Args:
        base: what every JSON body of the exchanges has beside its own keys.
    """
    case: Case = {"name": name}
    if setup:
        case["setup"] = setup
    if base is not None:
        case["base"] = dict(base)
    paths = {exchange.get("path") for exchange in exchanges if "script" not in exchange}
    if len(paths) == 1 and len(exchanges) > 1:
        (case["path"],) = paths
        exchanges = tuple({key: exchange[key] for key in exchange if key != "path"} for exchange in exchanges)
    case["exchanges"] = list(exchanges)
    return case


def _post(path: str, body: Mapping[str, Any], **more: Any) -> Exchange:
    return {"path": path, "json": dict(body), **more}


def _get(path: str, **more: Any) -> Exchange:
    return {"method": "GET", "path": path, **more}


def _good_cases() -> Iterator[Case]:
    """Each as JSON, as a stream, and over a WebSocket."""
    for path, start, kinds in (
        (COMPLETIONS, PROMPT, {**GOOD, **GOOD_COMPLETIONS}),
        (CHAT, MESSAGES, {**GOOD, **GOOD_CHAT}),
    ):
        for number, (name, given) in enumerate(kinds.items()):
            body = {**start, **given}
            streamed = {"stream": True}
            exchanges = [] if given.get("stream_options") else [_post(path, {})]
            exchanges.append(_post(path, streamed))
            if (path == CHAT) == number % 2:
                exchanges.append({"script": [_generate("a", streamed), {"until": "a"}]})
            yield _case(f"{path}: {name}", *exchanges, base=body)
    yield _case("cached tokens", _post(COMPLETIONS, PROMPT), _post(CHAT, MESSAGES), num_cached_tokens=2)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    yield _case("cached tokens in a stream", _post(COMPLETIONS, {**PROMPT, **usage}), num_cached_tokens=2)


def _probes() -> Iterator[Case]:
    """Every parameter with every kind of value: completions over HTTP, chat over a WebSocket."""
    shortest = {"prompt": "a", "max_tokens": 1}
    for name in (*SHARED_PARAMETERS, *COMPLETION_PARAMETERS):
        posts = (_post(COMPLETIONS, {name: probe}) for probe in PROBES)
        yield _case(f"{COMPLETIONS}: every kind of {name}", *posts, base=shortest)
    shortest = {**MESSAGES, "max_tokens": 1}
    for name in CHAT_PARAMETERS:
        posts = (_post(CHAT, {name: probe}) for probe in PROBES)
        yield _case(f"{CHAT}: every kind of {name}", *posts, base=shortest)
    for name in SHARED_PARAMETERS:
        frames = (_generate("a", {name: probe}) for probe in PROBES[::3])
        script = [action for frame in frames for action in (frame, {"until": "a"})]
        yield _case(f"a WebSocket's chat: some kinds of {name}", {"script": script}, base=shortest)


def _refusals() -> Iterator[Case]:
    for path, base, bodies in (
        (COMPLETIONS, PROMPT, (*BAD, *BAD_COMPLETIONS)),
        (CHAT, MESSAGES, (*BAD[::3], *BAD_CHAT)),
    ):
        for number, given in enumerate(bodies):
            exchanges = [_post(path, given)]
            if number % 4 == 0 and "stream" not in given:
                exchanges.append({"script": [_generate("a", given), {"until": "a"}]})
            yield _case(f"{path}: refused {number}, {json.dumps(given)[:60]}", *exchanges, base=base)


def _structured_cases() -> Iterator[Case]:
    for number, (wish, says) in enumerate(WISHES):
        body = {**PROMPT, "max_tokens": 60, **wish}
        chat = {**MESSAGES, **wish}
        yield _case(
            f"structured {number}",
            _post(COMPLETIONS, body),
            _post(COMPLETIONS, {**body, "stream": True}),
            _post(CHAT, {**chat, "n": 2}),
            {"script": [_generate("a", body), {"until": "a"}]},
            says=says,
        )
    wish = {"structured_outputs": {"regex": "a" * 9}}
    yield _case("a grammar over the limit", _post(COMPLETIONS, {**PROMPT, **wish}), settings={"max_grammar_bytes": 8})
    yield _case("an answer cut short", _post(CHAT, {**MESSAGES, **WISHES[1][0], "max_tokens": 3}), says='{"a": 12}')


def _body_cases() -> Iterator[Case]:
    for path in (COMPLETIONS, CHAT):
        yield _case(f"{path}: what is no JSON object", *({"path": path, "text": text} for text in NO_JSON))
        yield _case(f"{path}: no UTF-8", {"path": path, "base64": base64.b64encode(b"\xff\xfe").decode()})
        large = "x" * 1100
        yield _case(
            f"{path}: a body over the limit",
            _post(path, {"prompt": large}),
            _post(path, {"prompt": large}, gzip=True, headers={"Content-Encoding": "gzip"}),
            _post(path, {**PROMPT, **MESSAGES}),
            settings={"max_body_bytes": 1024},
        )
    deep = [f'{{"model": null, "{name}": {nested}}}' for name in ("stop", "x") for nested in DEEP]
    yield _case("values nested deeply", *({"path": COMPLETIONS, "text": text} for text in (*deep, *DEEP)))
    gzipped = {"Content-Encoding": "gzip"}
    yield _case(
        "encodings and types of a body",
        _post(COMPLETIONS, PROMPT, gzip=True, headers=gzipped),
        _post(COMPLETIONS, PROMPT, headers={"Content-Type": "text/plain; charset=latin-1"}),
        _post(COMPLETIONS, PROMPT, headers={"Content-Type": "application/x-www-form-urlencoded"}),
        {"path": COMPLETIONS},
    )
    yield _case("a body that is not encoded as it says", {"path": COMPLETIONS, "text": "no gzip", "headers": gzipped})
    for name in ("my-id", "a b", "x" * 128, "x" * 129, "é"):
        headers = {"X-Request-Id": name}
        yield _case(
            f"X-Request-Id: {name[:20]}, {len(name)} characters",
            _post(COMPLETIONS, PROMPT, headers=headers),
            _post(CHAT, {**MESSAGES, "stream": True, "max_tokens": 2}, headers=headers),
            _post(COMPLETIONS, {**PROMPT, "request_id": "of-the-body"}, headers=headers),
            _get("/v1/nothing", headers=headers),
        )


def _route_cases() -> Iterator[Case]:
    for path in ROUTES:
        others = ("DELETE", "PUT", "PATCH", "OPTIONS", "HEAD", "GET" if path in (COMPLETIONS, CHAT) else "POST")
        yield _case(f"{path}: methods", *({"method": method, "path": path} for method in others))
    for path in ASKED:
        yield _case(f"GET {path}", _get(path))
    yield _case("GET /v1/stream without an upgrade", _get("/v1/stream"))
    yield _case("the page", *(_get(path, shows="type") for path in ("/", "/static/index.html", "/static/favicon.svg")))
    yield _case("the page that is known", _get("/", headers={"If-None-Match": "*"}))
    yield _case(
        "what is not there",
        *(
            _get(path)
            for path in (
                "/v1", "/v1/nothing", "/v1/completions/", "/static/", "/static/nothing.js", "/static/__init__.py",
                "/static/package.json", "/static/%2e%2e/pyproject.toml", "/v1/models/", "/v1/models/org/other",
                "/nothing?x=1", "/é", "/" + "x" * 200,
            )
        ),
        {"path": "/v1/nothing", "json": PROMPT},
    )  # fmt: skip
    named = {"served_model_name": "org/mine"}
    yield _case(
        "a name of the user's own",
        _get("/v1/models"),
        _get("/v1/models/org/mine"),
        _get("/v1/models/fake"),
        _post(COMPLETIONS, {**PROMPT, "model": "org/mine"}),
        _post(COMPLETIONS, {**PROMPT, "model": "fake"}),
        _post(CHAT, {**MESSAGES, "model": "org/mine", "stream": True}),
        {"script": [_generate("a", {**PROMPT, "model": "org/mine"}), {"until": "a"}]},
        settings=named,
    )


def _state_cases() -> Iterator[Case]:
    for state in ("loading", "draining", "failed", "dead"):
        yield _case(
            f"while {state}",
            *(_get(path) for path in ASKED),
            _get("/", shows="type"),
            _post(COMPLETIONS, PROMPT),
            _post(COMPLETIONS, {**PROMPT, "stream": True}),
            _post(COMPLETIONS, {}),
            {"path": COMPLETIONS, "text": "{"},
            _post(CHAT, MESSAGES),
            _post(CHAT, {**MESSAGES, "stream": True, "model": "other"}),
            {"script": [_generate("a", PROMPT), {"until": "a"}, _generate("b", {}), {"until": "b"}]},
            state=state,
        )
    yield _case("loading under a name", _get("/v1/models"), state="loading", settings={"served_model_name": "mine"})
    two = {"n": 2}
    yield _case(
        "a full queue",
        _post(COMPLETIONS, {**PROMPT, **two}),
        _post(COMPLETIONS, {**PROMPT, **two, "stream": True}),
        _post(CHAT, {**MESSAGES, **two}),
        {"script": [_generate("a", {**PROMPT, **two}), {"until": "a"}]},
        _post(COMPLETIONS, PROMPT),
        engine={"max_num_queued": 1},
    )
    yield _case("no chat template", _post(CHAT, MESSAGES), _post(COMPLETIONS, PROMPT), chat_template=None)
    refusing = "{{ raise_exception('only one message, please') }}"
    failing = "{{ messages[0].nothing.at_all }}"
    yield _case("a chat template that refuses", _post(CHAT, MESSAGES), chat_template=refusing)
    yield _case("a chat template that fails", _post(CHAT, MESSAGES), chat_template=failing)
    yield _case("a chat template that is empty", _post(CHAT, MESSAGES), chat_template="")


def _failure_cases() -> Iterator[Case]:
    """What happens to requests that run: at once, and after three tokens."""
    for kind in ("fail", "drain", "time out", "abort", "error", "error without words"):
        for steps in (0, 3):
            happening = {"steps": steps, "do": kind}
            given = {"return_token_ids": True, "max_tokens": 9, "stream_options": {"include_usage": True}}
            plain = {"n": 2, "max_tokens": 9}
            for name, exchange in (
                ("JSON", _post(COMPLETIONS, {**PROMPT, **plain})),
                ("a stream", _post(COMPLETIONS, {**PROMPT, **given, "stream": True})),
                ("a stream of two", _post(COMPLETIONS, {**PROMPT, **plain, "stream": True})),
                ("chat", _post(CHAT, {**MESSAGES, **plain})),
                ("a chat's stream", _post(CHAT, {**MESSAGES, **given, "stream": True})),
                ("a WebSocket", {"script": [_generate("a", {**PROMPT, **plain}), {"until": "a"}]}),
            ):
                after = "at once" if steps == 0 else f"after {steps} steps"
                yield _case(f"{kind} {after}: {name}", exchange, after=happening)
    yield _case(
        "an error that nobody foresaw",
        _post(COMPLETIONS, PROMPT),
        _post(CHAT, {**MESSAGES, "stream": True}),
        {"script": [_generate("a", PROMPT), {"until": "a"}]},
        crashes=True,
    )


def _generate(client_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"send": {"type": "generate", "id": client_id, **body}}


def _socket_cases() -> Iterator[Case]:
    for number, (frame, client_id) in enumerate(BAD_FRAMES):
        script = [{"send": frame}, {"until": client_id}, _generate("b", PROMPT), {"until": "b"}]
        yield _case(f"a bad frame {number}", {"script": script}, settings={"max_body_bytes": 4000})
    binary = {"send_binary": base64.b64encode(b'{"id":"a"}').decode()}
    yield _case("a binary frame", {"script": [binary, {"until": None}, _generate("a", PROMPT), {"until": "a"}]})
    far = [{"send": "x" * 70_000}, {"read": 1}]
    yield _case("a frame far over the limit", {"script": far}, settings={"max_body_bytes": 1024})
    several = [_generate(f"g{number}", {"prompt": f"story {number}", "n": 1 + number % 3}) for number in range(5)]
    yield _case("several at once", {"script": [*several, *({"until": f"g{number}"} for number in range(5))]})
    kinds = [
        _generate("é 🌊", {"prompt": "ab", "logprobs": 1, "return_token_ids": True}),
        _generate('"', {**MESSAGES, "logprobs": True, "top_logprobs": 2}),
        _generate("x" * 128, {"prompt": ["ab", [99]], "prompt_logprobs": 1}),
        _generate("s", {"prompt": "abcabc", "stop": "ca", "stream": True, "request_id": "mine"}),
    ]
    ends = [{"until": name} for name in ("é 🌊", '"', "x" * 128, "s")]
    yield _case("several of different kinds", {"script": [*kinds, *ends]})
    again = [_generate("a", PROMPT), {"until": "a"}]
    yield _case("an id used again", {"script": [*again, *again]})
    yield _case(
        "an id that runs already",
        {"script": [_generate("a", PROMPT), {"wait_running": 1}, _generate("a", MESSAGES), {"until": "a"},
                    {"step": 9}, {"until": "a"}]},
        is_manual=True,
    )  # fmt: skip
    cancel = {"send": {"type": "cancel", "id": "a"}}
    yield _case("a cancel at once", {"script": [_generate("a", PROMPT), cancel, {"until": "a"}]}, is_manual=True)
    yield _case(
        "a cancel between tokens",
        {"script": [_generate("a", PROMPT), _generate("b", {**PROMPT, "n": 2}), {"wait_running": 3}, {"step": 2},
                    cancel, {"until": "a"}, {"step": 9}, {"until": "b"}, cancel, {"until": "a"}]},
        is_manual=True,
    )  # fmt: skip
    yield _case(
        "a failure under several",
        {"script": [_generate("a", PROMPT), _generate("b", MESSAGES), {"wait_running": 2}, {"step": 2},
                    {"fail": "the device is gone"}, {"until": "a"}, {"until": "b"}, _generate("c", PROMPT),
                    {"until": "c"}]},
        is_manual=True,
    )  # fmt: skip
    many = [_generate(str(number), {}) for number in range(257)]
    yield _case(
        "too many at once",
        {
            "script": [*many, {"until": "256"}, {"step": 2}, {"until": "0"}, {"until": "255"}],
            "shows": ["0", "255", "256"],
        },
        base={"prompt": "x"},
        is_manual=True,
    )
    hello = [_generate("a", {"prompt": "x"}), {"until": "a"}]
    origins = ("<server>", "https://friend.example", "https://evil.example", "null", "http://127.0.0.1:1", "http://[")
    yield _case(
        "origins",
        {"script": hello},
        *({"script": hello, "headers": {"Origin": origin}} for origin in origins),
        *(_get("/v1/stream", headers={"Origin": origin}) for origin in origins[2:]),
        settings={"allowed_origins": ["https://friend.example"]},
    )
