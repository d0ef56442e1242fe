from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from engine.interface.config import EngineConfig
from server.startup.settings import ServerSettings, SettingsError

SWITCHES = (
    "no_slots",
    "no_playground",
    "no_prefix_caching",
    "synchronous",
    "strict_parameters",
    "inspect_requests",
    "ignore_media",
    "language_model_only",
    "enable_lora",
)


def parse(*arguments: str, **environment: str) -> ServerSettings:
    parser = argparse.ArgumentParser()
    ServerSettings.add_flags(parser)
    return ServerSettings.from_sources(vars(parser.parse_args(arguments)), environment)


def test_without_flags_and_variables_the_defaults_apply() -> None:
    settings = parse()
    assert settings == ServerSettings()
    assert (settings.host, settings.port, settings.max_body_bytes) == ("127.0.0.1", 8000, 4 * 1024 * 1024)


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    assert parse("--port", "1", EAGRE_PORT="2").port == 1
    assert parse(EAGRE_PORT="2").port == 2


def test_a_cache_in_an_unknown_home_is_a_bad_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGRE_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(SettingsError, match="home"):
        parse()


def test_every_setting_has_a_flag_and_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "eagre.toml"
    file.write_text("")
    given = {
        "host": "0.0.0.0",
        "port": "9",
        "uds": "/run/eagre.socket",
        "api_prefix": "/llm",
        "apis": "openai, ollama",
        "no_slots": "1",
        "no_playground": "1",
        "metrics_port": "9090",
        "metrics_names": "both",
        "ssl_certfile": "chain.pem",
        "ssl_keyfile": "key.pem",
        "api_key": "first-key-1, second-key-2",
        "api_key_file": "keys",
        "admin_key": "operator-key",
        "allowed_hosts": "a.example, .b.example",
        "config": str(file),
        "model": "m.gguf",
        "served_model_name": "s",
        "lora": "review=adapters/review, adapters",
        "enable_lora": "1",
        "max_loras": "3",
        "max_lora_rank": "32",
        "models_max": "2",
        "models_max_bytes": "1000000",
        "dtype": "auto",
        "quantize": "int4",
        "matmul_backend": "native",
        "attention_backend": "xla",
        "tensor_parallel": "1",
        "num_hosts": "1",
        "host_index": "0",
        "coordinator": "node-0:9000",
        "coordinator_key": "a-secret-of-all-hosts",
        "coordinator_key_file": "host-key",
        "max_model_len": "64",
        "max_num_seqs": "4",
        "max_num_batched_tokens": "96",
        "target_gap": "20",
        "page_size": "8",
        "num_pages": "20",
        "memory_utilization": "0.5",
        "kv_cache_bytes": "1000000",
        "kv_cache_dtype": "int8",
        "no_prefix_caching": "1",
        "prefix_cache_dir": "pages",
        "prefix_cache_bytes": "1048576",
        "prefix_cache_listen": "0.0.0.0:9100",
        "prefix_cache_peers": "node-1:9100, [::1]:9100",
        "prefix_cache_key": "a-secret-of-page-servers",
        "synchronous": "true",
        "decode_chunk": "4",
        "seed": "5",
        "max_num_queued_requests": "6",
        "max_num_queued_tokens": "7",
        "request_timeout": "60",
        "queue_timeout": "5.5",
        "stall_timeout": "90",
        "inspect_requests": "1",
        "inspect_bytes": "4194304",
        "kv_events": "tcp://*:5557",
        "kv_events_topic": "kv@a@b",
        "kv_events_format": "arrays",
        "data_parallel": "2",
        "front_key": "a-secret-of-fronts-alone",
        "replica_name": "left",
        "max_body_bytes": "2048",
        "body_timeout": "4",
        "max_preparing_bytes": "65536",
        "max_preparing_requests": "9",
        "max_connections": "10",
        "max_websockets": "11",
        "keep_alive_timeout": "12",
        "max_grammar_bytes": "4096",
        "grammar_timeout": "2.5",
        "shutdown_timeout": "1.5",
        "ping_interval": "2",
        "write_timeout": "3",
        "allowed_media_hosts": "pictures.example, 10.0.0.7",
        "allowed_media_path": "pictures",
        "ignore_media": "1",
        "language_model_only": "1",
        "mmproj": "mmproj.gguf",
        "allowed_origins": "https://a.example, https://b.example",
        "playground_peers": "http://a.example:8001,https://b.example",
        "trusted_proxies": "10.0.0.0/8, fd00::1",
        "mcp_config": "mcp.json",
        "store": "store.sqlite",
        "store_bytes": "1048576",
        "store_records": "12",
        "store_file_bytes": "131072",
        "max_file_bytes": "65536",
        "max_batch_requests": "3",
        "sleep_idle_seconds": "600",
        "resume_grace": "90",
        "resume_max_bytes": "1000000",
        "resume_max_streams": "7",
        "tool_call_parser": "hermes",
        "additional_properties": "open",
        "reasoning_parser": "qwen3",
        "chat_template": "chat.jinja",
        "default_chat_template_kwargs": '{"enable_thinking": false}',
        "mm_processor_kwargs": '{"max_pixels": 200704}',
        "strict_parameters": "1",
        "task": "embed",
        "pooling": "none",
        "sampling_defaults": "openai",
        "log_level": "debug",
        "log_format": "json",
    }
    keys = [setting.key for setting in ServerSettings.declared()]
    assert sorted(given) == sorted(keys)  # no setting of the server is named as one of the engine
    from_environment = parse(**{"EAGRE_" + name.upper(): value for name, value in given.items()})
    flags = []
    for name, value in given.items():
        flags += ["--" + name.replace("_", "-")] + ([] if name in SWITCHES else [value])
    assert parse(*flags) == from_environment
    assert from_environment.allowed_origins == ("https://a.example", "https://b.example")
    assert from_environment.allowed_media_hosts == ("pictures.example", "10.0.0.7")
    assert from_environment.api_keys == ("first-key-1", "second-key-2")
    assert "first-key-1" not in repr(from_environment)
    assert "operator-key" not in repr(from_environment)
    config = from_environment.engine_config((2,))
    assert (config.max_model_len, config.max_num_seqs, config.page_size) == (64, 4, 8)
    assert (config.dtype, config.quantize) == ("auto", "int4")
    assert (config.matmul_backend, config.attention_backend) == ("native", "xla")
    assert config.decode_chunk == 4
    assert (config.overlap, config.enable_prefix_caching, config.eos_token_ids) == (False, False, (2,))


def test_the_engine_keeps_its_defaults_but_for_the_folder_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGRE_CACHE", "/somewhere")
    assert parse().engine_config((2,)) == EngineConfig(compilation_cache="/somewhere/compiled", eos_token_ids=(2,))


def test_the_help_shows_every_flag_with_its_default() -> None:
    parser = argparse.ArgumentParser()
    ServerSettings.add_flags(parser)
    shown = " ".join(parser.format_help().split())
    for setting in ServerSettings.declared():
        flag = "--" + setting.key.replace("_", "-")
        assert f" {flag} {setting.summary if setting.is_switch else setting.metavar}" in shown
        default = ", ".join(setting.default) if setting.kind is tuple else setting.default
        if not setting.is_switch and default not in (None, ""):
            assert f"{setting.summary} (default {default})" in shown


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (("--port", "x"), {}, "--port is 'x'; it must be an integer"),
        ((), {"EAGRE_PORT": "x"}, "EAGRE_PORT is 'x'; it must be an integer"),
        (("--port", "70000"), {}, "--port is 70000; it must be from 0 to 65535"),
        (("--ping-interval", "0"), {}, "--ping-interval is 0.0; it must be above 0"),
        (("--memory-utilization", "2"), {}, "--memory-utilization is 2.0"),
        (("--dtype", "float16"), {}, "float32 or bfloat16"),
        (("--quantize", "int3"), {}, "--quantize is 'int3'; it must be int8 or int4"),
        (("--quantize", "int8", "--dtype", "float32"), {}, "--quantize is int8 and dtype float32; quantised weights"),
        (("--matmul-backend", "cuda"), {}, "--matmul-backend is 'cuda'; it must be auto, native or xla"),
        ((), {"EAGRE_ATTENTION_BACKEND": "x"}, "EAGRE_ATTENTION_BACKEND is 'x'; it must be auto, native or xla"),
        (("--log-level", "loud"), {}, "--log-level is 'loud'; it must be one of debug, info, warning, error"),
        (("--host", ""), {}, "--host is ''; it must not be empty"),
        (("--decode-chunk", "0"), {}, "--decode-chunk is 0; it must be at least 1"),
        ((), {"EAGRE_DECODE_CHUNK": "few"}, "EAGRE_DECODE_CHUNK is 'few'; it must be an integer"),
        ((), {"EAGRE_SYNCHRONOUS": "maybe"}, "EAGRE_SYNCHRONOUS is 'maybe'; it must be true or false"),
        (("--max-grammar-bytes", "0"), {}, "--max-grammar-bytes is 0; it must be from 1 to 262144"),
        (("--grammar-timeout", "0"), {}, "--grammar-timeout is 0.0; it must be above 0"),
        (("--max-lora-rank", "0"), {}, "--max-lora-rank is 0; it must be from 1 to 512"),
        (("--ssl-certfile", "x"), {}, "--ssl-certfile and --ssl-keyfile go together"),
        (("--metrics-port", "-1"), {}, "--metrics-port is -1; it must be from 0 to 65535"),
        (("--sleep-idle-seconds", "0"), {}, "--sleep-idle-seconds is 0.0; it must be above 0"),
        (("--max-body-bytes", "5"), {}, "--max-body-bytes is 5; it must be at least 1024"),
        (("--trusted-proxies", "10.0.0.0/33"), {}, "each must be an address or a network such as 10.0.0.0/8"),
    ],
)
def test_bad_values_are_named(arguments: tuple[str, ...], environment: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError) as error:
        parse(*arguments, **environment)
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["ping-interval", "write-timeout", "shutdown-timeout"])
@pytest.mark.parametrize("seconds", ["inf", "nan", "86401"])
def test_times_have_limits(name: str, seconds: str) -> None:
    with pytest.raises(SettingsError, match=f"--{name} is .*86400"):
        parse(f"--{name}", seconds)


def test_a_budget_that_would_starve_prompts_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(SettingsError, match="--max-num-batched-tokens is 63; it must be at least 64"):
        parse("--max-num-batched-tokens", "63")
