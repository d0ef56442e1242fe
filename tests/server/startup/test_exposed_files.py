"""Files with keys or records that other users may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.interface.config import EngineConfig
from server.startup.exposed_files import exposed_files
from server.startup.settings import ServerSettings


@pytest.mark.parametrize(("mode", "words"), [(0o644, "read"), (0o620, "change"), (0o666, "read and change")])
@pytest.mark.parametrize("setting", ["api_key_file", "ssl_keyfile", "mcp_config", "store"])
def test_a_file_that_others_may_use_is_found(tmp_path: Path, setting: str, mode: int, words: str) -> None:
    path = tmp_path / "file"
    path.touch()
    others = {"ssl_certfile": str(path)} if setting == "ssl_keyfile" else {}
    settings = ServerSettings(**{setting: str(path)}, **others)  # type: ignore[arg-type]
    path.chmod(0o600)
    assert list(exposed_files(settings)) == []
    path.chmod(mode)
    (found,) = map(str, exposed_files(settings))
    assert found == f"--{setting.replace('_', '-')} {path} has the mode {mode:o}: other users may {words} it"


def test_a_file_of_settings_may_be_read_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "eagre.toml"
    path.touch()
    path.chmod(0o644)
    assert list(exposed_files(ServerSettings(config=str(path)))) == []
    path.chmod(0o664)
    (found,) = exposed_files(ServerSettings(config=str(path)))
    assert found.setting == "config"
    path.write_text('admin-key = "a-key-of-operators"\n')
    path.chmod(0o644)
    (found,) = exposed_files(ServerSettings(config=str(path)))
    assert found.mode == 0o644
    path.chmod(0o600)
    assert list(exposed_files(ServerSettings(config=str(path)))) == []


def test_the_key_of_hosts_is_found_in_the_users_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hosts-key").touch()
    (tmp_path / "hosts-key").chmod(0o640)
    settings = ServerSettings(engine=EngineConfig(coordinator_key_file="~/hosts-key"))
    (found,) = exposed_files(settings)
    assert (found.setting, found.mode) == ("coordinator_key_file", 0o640)


def test_a_folder_of_prefixes_too_and_what_is_missing_is_no_find(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    settings = ServerSettings(api_key_file=str(tmp_path / "none"), engine=EngineConfig(prefix_cache_dir=str(folder)))
    assert list(exposed_files(settings)) == []
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (found,) = exposed_files(settings)
    assert (found.setting, found.mode) == ("prefix_cache_dir", 0o755)
    folder.chmod(0o700)
    assert list(exposed_files(settings)) == []
