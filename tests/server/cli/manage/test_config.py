"""`eagre config check`: a file that can be used is summed up, and another one's error names file, table and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.cli import main as cli


def test_a_file_that_can_be_used_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = tmp_path / "wave.gguf", tmp_path / "eagre.toml"
    model.write_bytes(b"GGUF")
    path.write_text(
        f'[models.coder]\nmodel = "{model}"\naliases = ["gpt-4o-mini"]\npinned = true\n'
        '[models.poet]\nmodel = "coder"\n[models.hub]\nmodel = "nobody/nothing-of-this-name"\n'
    )
    assert cli.main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out == (
        f"{path} can be used; it serves\n  coder: {model} (also gpt-4o-mini, poet; pinned)\n"
        "  hub: nobody/nothing-of-this-name (fetched at its first use)\n"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot = 1", "PATH: there is no key 'prot'; did you mean port?"),
        ("[models.coder]\npinned = true", "PATH, [models.coder]: the key model is missing: a built-in name, a path, or "
         "owner/name of the Hub"),
        ('[models.coder]\nmodel = "./nowhere.gguf"', "PATH, the model coder: "),
    ],
)  # fmt: skip
def test_the_error_names_file_table_and_key(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "eagre.toml"
    path.write_text(content)
    assert cli.main(["config", "check", str(path)]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("eagre: " + message.replace("PATH", str(path)))


def test_a_misspelt_action_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["config", "chek", "x.toml"])
    assert "did you mean check?" in capsys.readouterr().err
