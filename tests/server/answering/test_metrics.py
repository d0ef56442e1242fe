"""What the figures of models become on the metrics page."""

from dataclasses import dataclass

from engine.border.types import EngineStats
from server.answering.metrics import Metrics
from server.answering.metrics_page import MetricsPage


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
