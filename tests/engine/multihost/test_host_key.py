"""The secret of the hosts of one model: given, in a file, or missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.interface.config import EngineConfig
from engine.multihost.host_key import read_host_key

KEY = "a-key-of-all-hosts"


def configuration(**given: str) -> EngineConfig:
    return EngineConfig(num_hosts=2, tensor_parallel=2, coordinator="node-0:9000", **given)  # type: ignore[arg-type]


def test_it_is_given_or_the_first_line_of_a_file(tmp_path: Path) -> None:
    assert read_host_key(configuration(coordinator_key=KEY)) == KEY
    path = tmp_path / "key"
    path.write_text(f"{KEY}\nsomething else\n")
    assert read_host_key(configuration(coordinator_key_file=str(path))) == KEY


@pytest.mark.parametrize("content", [None, "", "short\n", "with a space in it\n"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"coordinator_key_file is .*key'") as raised:
        read_host_key(configuration(coordinator_key_file=str(path)))
    assert not content or content.strip() not in str(raised.value).replace(str(path), "")


def test_without_one_there_are_no_other_hosts() -> None:
    with pytest.raises(ValueError, match="coordinator_key is missing"):
        read_host_key(configuration())
    assert KEY not in repr(configuration(coordinator_key=KEY))
