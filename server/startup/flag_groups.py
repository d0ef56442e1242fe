"""The groups in which `--help` shows the flags of `eagre serve`, and the dozen that matter first."""

from collections.abc import Mapping

# By keys of settings. Each setting is in one group.
FLAG_GROUPS: Mapping[str, tuple[str, ...]] = {
    "model": (
        "model", "config", "served_model_name", "task", "pooling", "models_max", "models_max_bytes", "dtype",
        "quantize",
        "max_model_len", "language_model_only", "mmproj", "mm_processor_kwargs", "chat_template",
        "default_chat_template_kwargs",
        "sampling_defaults", "seed", "tool_call_parser", "reasoning_parser", "lora", "enable_lora", "max_loras",
        "max_lora_rank",
    ),
    "address": (
        "host", "port", "uds", "api_prefix", "apis", "no_slots", "no_playground", "metrics_port", "metrics_names",
        "ssl_certfile", "ssl_keyfile",
    ),
    "access": (
        "api_key", "api_key_file", "admin_key", "allowed_hosts", "allowed_origins", "playground_peers",
        "trusted_proxies", "allowed_media_hosts", "allowed_media_path", "mcp_config", "inspect_requests",
        "inspect_bytes",
    ),
    "speed and memory": (
        "max_num_seqs", "memory_utilization", "kv_cache_bytes", "kv_cache_dtype", "num_pages", "page_size",
        "target_gap", "max_num_batched_tokens", "decode_chunk", "synchronous", "matmul_backend", "attention_backend",
        "sleep_idle_seconds",
    ),
    "cached prefixes": (
        "no_prefix_caching", "prefix_cache_dir", "prefix_cache_bytes", "prefix_cache_listen", "prefix_cache_peers",
        "prefix_cache_key", "kv_events", "kv_events_topic", "kv_events_format",
    ),
    "what is kept": (
        "store", "store_bytes", "store_records", "store_file_bytes", "resume_grace", "resume_max_bytes",
        "resume_max_streams",
    ),
    "limits of requests": (
        "max_num_queued_requests", "max_num_queued_tokens", "request_timeout", "queue_timeout", "stall_timeout",
        "max_body_bytes", "body_timeout", "max_preparing_bytes", "max_preparing_requests", "max_connections",
        "max_websockets", "max_file_bytes", "max_batch_requests", "keep_alive_timeout", "ping_interval",
        "write_timeout", "max_grammar_bytes", "grammar_timeout", "strict_parameters", "additional_properties",
        "ignore_media",
    ),
    "several processes and devices": (
        "data_parallel", "tensor_parallel", "num_hosts", "host_index", "coordinator", "coordinator_key",
        "coordinator_key_file", "front_key", "replica_name",
    ),
    "process": ("log_level", "log_format", "shutdown_timeout"),
}  # fmt: skip

# Those that `--help` shows; `--help=all` shows all.
FIRST_FLAGS = frozenset(
    {
        "model", "dtype", "max_model_len", "host", "port", "api_key_file", "max_num_seqs", "memory_utilization",
        "kv_cache_dtype", "target_gap", "store", "log_level",
    }
)  # fmt: skip
