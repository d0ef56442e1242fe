"""Maps Eagre's metrics to vLLM's names, so that GET /metrics has either or both; metrics.py defines Eagre's own.

Routers and dashboards made for vLLM ask for its names (vllm/v1/metrics/loggers.py in that project, the label
`model_name`); the production-stack's router still asks for the older ones that begin with `gpu_`.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

from prometheus_client.core import Metric

from server.startup.settings import MetricsNames

_LABELS = {"model": "model_name", "finish_reason": "finished_reason"}

# Ours and vLLM's, both without `_total`.
_VLLM_NAMES = {
    "eagre_time_to_first_token_seconds": ("vllm:time_to_first_token_seconds",),
    "eagre_inter_token_latency_seconds": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "eagre_e2e_request_latency_seconds": ("vllm:e2e_request_latency_seconds",),
    "eagre_request_queue_time_seconds": ("vllm:request_queue_time_seconds",),
    "eagre_request_prefill_time_seconds": ("vllm:request_prefill_time_seconds",),
    "eagre_request_decode_time_seconds": ("vllm:request_decode_time_seconds",),
    "eagre_request_inference_time_seconds": ("vllm:request_inference_time_seconds",),
    "eagre_request_prompt_tokens": ("vllm:request_prompt_tokens",),
    "eagre_request_generation_tokens": ("vllm:request_generation_tokens",),
    "eagre_request_max_num_generation_tokens": ("vllm:request_max_num_generation_tokens",),
    "eagre_request_params_n": ("vllm:request_params_n",),
    "eagre_request_params_max_tokens": ("vllm:request_params_max_tokens",),
    "eagre_iteration_tokens_total": ("vllm:iteration_tokens_total",),
    "eagre_request_success": ("vllm:request_success",),
    "eagre_prompt_tokens": ("vllm:prompt_tokens",),
    "eagre_generation_tokens": ("vllm:generation_tokens",),
    "eagre_num_requests_running": ("vllm:num_requests_running",),
    "eagre_num_requests_waiting": ("vllm:num_requests_waiting",),
    "eagre_kv_cache_usage_perc": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "eagre_num_preemptions": ("vllm:num_preemptions",),
    "eagre_prefix_cache_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "eagre_prefix_cache_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    "eagre_mm_cache_queries": ("vllm:mm_cache_queries",),
    "eagre_mm_cache_hits": ("vllm:mm_cache_hits",),
    "eagre_cache_config_info": ("vllm:cache_config_info",),
    "eagre_lora_requests_info": ("vllm:lora_requests_info",),
}


def named(family: Metric, names: MetricsNames) -> Iterator[Metric]:
    """Yields `family` under each configured name. A metric without a vLLM name keeps Eagre's."""
    others = _VLLM_NAMES.get(family.name, ())
    if names is not MetricsNames.VLLM or not others:
        yield family
    if names in (MetricsNames.VLLM, MetricsNames.BOTH):
        for name in others:
            yield _renamed(family, name)


def _renamed(family: Metric, name: str) -> Metric:
    renamed = copy(family)
    renamed.name = name
    renamed.samples = [
        sample._replace(
            name=name + sample.name.removeprefix(family.name),
            labels={_LABELS.get(label, label): value for label, value in sample.labels.items()},
        )
        for sample in family.samples
    ]
    return renamed
