"""What the engine's figures become on the metrics page."""

from engine.border.types import EngineStats
from server.answering.metrics import Metrics


def test_the_devices_idle_time_is_exported_as_totals_and_as_a_recent_share() -> None:
    metrics = Metrics()
    metrics.watch_engine(
        lambda: EngineStats(device_busy_seconds=30.5, device_idle_seconds=1.25, device_idle_fraction=0.125)
    )
    lines = metrics.render().decode().splitlines()
    assert "eagre_device_busy_seconds_total 30.5" in lines
    assert "eagre_device_idle_seconds_total 1.25" in lines
    assert "eagre_device_idle_fraction 0.125" in lines
    assert "# TYPE eagre_device_busy_seconds_total counter" in lines
    assert "# TYPE eagre_device_idle_seconds_total counter" in lines
    assert "# TYPE eagre_device_idle_fraction gauge" in lines
