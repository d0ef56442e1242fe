"""What the figures of models become on the metrics page."""

import time
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.interface.types import EngineStats, FinishReason
from server.startup.settings import MetricsNames
from server.telemetry.metrics import AdapterUse, Metrics
from server.telemetry.metrics_page import MetricsPage


@dataclass
class Named:
    model_name: str


def test_the_devices_idle_time_is_exported_as_totals_and_as_a_recent_share() -> None:
    metrics = Metrics()
    metrics.watch_engine(
        lambda: EngineStats(device_busy_seconds=30.5, device_idle_seconds=1.25, device_idle_fraction=0.125)
    )
    lines = MetricsPage({metrics: Named("tide")}).render().decode().splitlines()
    assert 'eagre_device_busy_seconds_total{model="tide"} 30.5' in lines
    assert 'eagre_device_idle_seconds_total{model="tide"} 1.25' in lines
    assert 'eagre_device_idle_fraction{model="tide"} 0.125' in lines
    assert "# TYPE eagre_device_busy_seconds_total counter" in lines
    assert "# TYPE eagre_device_idle_seconds_total counter" in lines
    assert "# TYPE eagre_device_idle_fraction gauge" in lines


def test_each_model_has_its_label_and_each_family_stands_in_one_piece() -> None:
    one, two = Metrics(), Metrics()
    one.num_prompt_tokens, two.num_prompt_tokens = 3, 4
    two.time_to_first_token.observe(0.5)
    lines = MetricsPage({one: Named("one"), two: Named('t"wo')}).render().decode().splitlines()
    families = [line for line in lines if line.startswith("# TYPE")]
    assert len(set(families)) == len(families)
    at = lines.index('eagre_prompt_tokens_total{model="one"} 3.0')
    assert lines[at + 1] == 'eagre_prompt_tokens_total{model="t\\"wo"} 4.0'
    assert 'eagre_time_to_first_token_seconds_count{model="one"} 0.0' in lines
    assert 'eagre_time_to_first_token_seconds_count{model="t\\"wo"} 1.0' in lines


def with_some_figures() -> Metrics:
    metrics = Metrics()
    metrics.num_prompt_tokens = 7
    metrics.num_finished[FinishReason.STOP] = 2
    metrics.time_to_first_token.observe(0.5)
    metrics.watch_engine(
        lambda: EngineStats(
            num_waiting=3,
            num_waiting_tokens=70,
            num_pages=20,
            num_active_pages=5,
            page_size=64,
            prefix_cache_queries=8,
            prefix_cache_hits=2,
        )
    )
    return metrics


# What the routers of the vLLM production-stack, llm-d and vLLM's own dashboard read.
VLLM_LINES = {
    'vllm:num_requests_waiting{model_name="tide"} 3.0',
    'vllm:num_requests_running{model_name="tide"} 0.0',
    'vllm:kv_cache_usage_perc{model_name="tide"} 0.25',
    'vllm:gpu_cache_usage_perc{model_name="tide"} 0.25',
    'vllm:gpu_prefix_cache_hit_rate{model_name="tide"} 0.25',
    'vllm:gpu_prefix_cache_hits_total{model_name="tide"} 2.0',
    'vllm:gpu_prefix_cache_queries_total{model_name="tide"} 8.0',
    'vllm:prefix_cache_hits_total{model_name="tide"} 2.0',
    'vllm:prompt_tokens_total{model_name="tide"} 7.0',
    'vllm:time_to_first_token_seconds_count{model_name="tide"} 1.0',
    'vllm:time_to_first_token_seconds_bucket{le="0.5",model_name="tide"} 1.0',
    'vllm:request_queue_time_seconds_count{model_name="tide"} 0.0',
    'vllm:request_success_total{finished_reason="stop",model_name="tide"} 2.0',
    'vllm:cache_config_info{block_size="64",model_name="tide",num_gpu_blocks="20"} 1.0',
}
EAGRE_LINES = {'eagre_num_requests_waiting{model="tide"} 3.0', 'eagre_prompt_tokens_total{model="tide"} 7.0'}
OWN_LINES = {'eagre_steps_total{model="tide"} 0.0', 'eagre_num_tokens_waiting{model="tide"} 70.0'}


@pytest.mark.parametrize("names", list(MetricsNames))
def test_the_names_are_eagres_or_vllms_or_both(names: MetricsNames) -> None:
    lines = set(MetricsPage({with_some_figures(): Named("tide")}, names).render().decode().splitlines())
    has_vllms = names in (MetricsNames.VLLM, MetricsNames.BOTH)
    assert (lines >= VLLM_LINES) == has_vllms
    assert lines.isdisjoint(VLLM_LINES) != has_vllms
    assert (lines >= EAGRE_LINES) == (names is not MetricsNames.VLLM)
    assert lines.isdisjoint(EAGRE_LINES) == (names is MetricsNames.VLLM)
    assert lines >= OWN_LINES, "a figure that vLLM has not keeps its name"
    assert len(families := [line for line in lines if line.startswith("# TYPE")]) == len(set(families))


def test_every_name_of_vllm_stands_for_a_figure_that_exists() -> None:
    page = MetricsPage({with_some_figures(): Named("tide"), with_some_figures(): Named("bore")}, MetricsNames.BOTH)
    families = {family.name: family for family in text_string_to_metric_families(page.render().decode())}
    for name in ("vllm:num_preemptions", "vllm:generation_tokens", "vllm:time_per_output_token_seconds"):
        assert {sample.labels["model_name"] for sample in families[name].samples} == {"tide", "bore"}


@pytest.mark.parametrize(
    ("names", "begins"),
    [(MetricsNames.EAGRE, 'eagre_lora_requests_info{max_lora="2",model="tide",'),
     (MetricsNames.VLLM, 'vllm:lora_requests_info{max_lora="2",model_name="tide",')],
)  # fmt: skip
def test_adapters_in_use_are_labels_of_a_time(names: MetricsNames, begins: str) -> None:
    metrics, without = with_some_figures(), with_some_figures()
    metrics.watch_adapters(lambda: AdapterUse(2, ["review", "tests"], ["other"]))
    before = time.time()
    lines = MetricsPage({metrics: Named("tide"), without: Named("bore")}, names).render().decode().splitlines()
    (line,) = (line for line in lines if "lora_requests_info{" in line)
    labels, _, value = line.rpartition(" ")
    assert labels == begins + 'running_lora_adapters="review,tests",waiting_lora_adapters="other"}'
    assert before <= float(value) <= time.time()
