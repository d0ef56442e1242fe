"""What changes the fingerprint, and what does not."""

import os

import pytest

from engine.kv_transfer.fingerprint import ModelChanged, ModelFiles, fingerprint


def test_it_follows_the_content_of_the_files_and_the_parts(tmp_path):
    kept = tmp_path / "kept"
    model, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    model.write_bytes(b"weights" * 1000)
    other.write_bytes(b"weights" * 999 + b"w3ights")
    seen = {
        fingerprint(ModelFiles(model), ["float32"], kept),
        fingerprint(ModelFiles(model), ["bfloat16"], kept),
        fingerprint(ModelFiles(model), ["bfloat", "16"], kept),
        fingerprint(ModelFiles(other), ["float32"], kept),
    }
    assert len(seen) == 4
    assert fingerprint(ModelFiles(model), ["float32"], kept) in seen  # by the digest that was kept
    moved = tmp_path / "moved.gguf"
    model.rename(moved)
    assert fingerprint(ModelFiles(moved), ["float32"], kept) in seen


def test_a_folder_counts_with_all_its_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = ModelFiles(tmp_path).digest(None)
    (tmp_path / "config.json").write_text('{"rope_theta": 1}')
    assert ModelFiles(tmp_path).digest(None) != before


def test_a_digest_that_was_kept_half_is_computed_again(tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    digest = ModelFiles(model).digest(tmp_path / "kept")
    for path in (tmp_path / "kept").iterdir():
        path.write_text("12ab")
    assert ModelFiles(model).digest(tmp_path / "kept") == digest


def test_files_that_changed_since_they_were_read_have_no_fingerprint(tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    files = ModelFiles(model)
    model.write_bytes(b"w3ights")
    os.utime(model, ns=(1, 1))
    with pytest.raises(ModelChanged, match=r"model\.gguf has changed"):
        files.digest(None)
