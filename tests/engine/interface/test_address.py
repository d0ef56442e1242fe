import pytest

from engine.interface.address import KVEndpoint
from engine.interface.config import EngineConfig


@pytest.mark.parametrize(
    ("text", "replays"),
    [
        ("tcp://*:5557", "tcp://*:5558"),
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"),
        ("tcp://[::1]:65534", "tcp://[::1]:65535"),
    ],
)
def test_replays_have_the_next_port(text: str, replays: str) -> None:
    endpoint = KVEndpoint.parse(text)
    assert (endpoint.events, endpoint.replays) == (text, replays)


@pytest.mark.parametrize(
    "text",
    ["", "5557", "tcp://*", "tcp://*:0", "tcp://*:65535", "ipc:///tmp/a", "tcp://a b:1", "tcp://:5557", "tcp://*:٣"],
)
def test_another_form_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"kv_events is .*it must be tcp://HOST:PORT"):
        EngineConfig(kv_events=text)
