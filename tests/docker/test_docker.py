"""What stands in docker/ beside what it speaks of: flags, routes, metrics, files."""

from __future__ import annotations

import configparser
import fnmatch
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from server.startup.settings import ServerSettings
from server.telemetry.metrics import Metrics
from server.telemetry.metrics_page import MetricsPage
from tests.server.conftest import StartServer, start_server  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))


COMPOSE = documents("compose.yaml")[0]
EAGRE = COMPOSE["services"]["eagre"]
(POD,) = [found["spec"]["template"]["spec"] for found in documents("kubernetes.yaml") if found["kind"] == "Deployment"]
(CONTAINER,) = POD["containers"]
DOCKERFILE = (FOLDER / "Dockerfile").read_text("utf-8")
DASHBOARD = json.loads((FOLDER / "grafana/dashboards/eagre.json").read_text("utf-8"))
ALERTS = documents("prometheus/alerts.yml")[0]["groups"][0]["rules"]


def of_image() -> dict[str, str]:
    """The variables of the image."""
    return dict(re.findall(r"\b(EAGRE_[A-Z_]+)=(\S+)", DOCKERFILE))


def of_compose() -> dict[str, str]:
    defaults = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for name, value in EAGRE["environment"].items()}
    return of_image() | defaults


def of_pod() -> dict[str, str]:
    return of_image() | {item["name"]: item.get("value", "a-key") for item in CONTAINER["env"]}


def of_unit() -> dict[str, str]:
    return dict(
        re.findall(r"\b(EAGRE_[A-Z_]+)=(\S+)", (FOLDER / "eagre.service").read_text("utf-8").split("[Unit]")[1])
    )


@pytest.mark.parametrize("read", [of_image, of_compose, of_pod, of_unit])
def test_every_variable_is_a_setting(read: Any) -> None:
    environment = read()
    known = {"EAGRE_" + setting.key.upper() for setting in ServerSettings.declared()} | {"EAGRE_CACHE"}
    assert environment
    assert environment.keys() <= known
    ServerSettings.from_sources({}, environment)


def test_what_compose_starts_listens_for_the_host_and_for_prometheus() -> None:
    settings = ServerSettings.from_sources({}, of_compose())
    assert settings.api_keys == ()
    assert EAGRE["ports"] == [f"127.0.0.1:8000:{settings.port}"]
    (target,) = documents("prometheus/prometheus.yml")[0]["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"eagre:{settings.metrics_port}"
    assert settings.allowed_hosts == ("eagre",)
    assert f"EXPOSE {settings.port}\n" in DOCKERFILE


def test_streams_have_time_to_end() -> None:
    assert float(EAGRE["stop_grace_period"].rstrip("s")) > ServerSettings().shutdown_timeout
    pause = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    timeout = ServerSettings.from_sources({}, of_pod()).shutdown_timeout
    assert POD["terminationGracePeriodSeconds"] > pause + timeout
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FOLDER / "eagre.service")
    assert float(unit["Service"]["TimeoutStopSec"]) > ServerSettings().shutdown_timeout


async def test_probes_are_routes(start_server: StartServer) -> None:  # noqa: F811
    server = await start_server(api_keys=("a-key-of-some-length",))
    in_image = re.findall(r"127\.0\.0\.1:8000(/\w+)", DOCKERFILE)
    in_pod = [CONTAINER[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
    assert len(in_image) == 1
    for path in in_image + in_pod:
        async with server.http.get(server.url + path) as response:
            assert response.status == 200


def test_every_metric_of_the_dashboard_and_the_alerts_exists() -> None:
    text = MetricsPage({Metrics(): SimpleNamespace(model_name="tide")}).render().decode()
    served = {family.name for family in text_string_to_metric_families(text)}
    served |= {f"{name}_total" for name in served} | {f"{name}_bucket" for name in served} | {"up"}
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(expressions) > 12
    named = set[str]()
    for expression in expressions + [rule["expr"] for rule in ALERTS]:
        named |= set(re.findall(r"\beagre_\w+", expression))
    assert len(named) > 12
    assert named <= served


def test_alerts_say_what_is_wrong() -> None:
    for rule in ALERTS:
        assert rule["annotations"]["summary"].endswith(".")
        assert "$labels.instance" in rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_image_gets_every_file_that_a_wheel_is_made_of() -> None:
    rules = (FOLDER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    packages = re.search(r"packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text("utf-8"), re.DOTALL)
    assert packages is not None
    needed = {name.split(".")[0] for name in re.findall(r'"([\w.]+)"', packages[1])}
    needed |= {"eagre.py", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"}
    assert needed <= set(kept)
    assert all((ROOT / name).exists() for name in kept if "*" not in name)
    for lock in re.findall(r"docker/[\w-]+\.lock", DOCKERFILE):
        assert any(fnmatch.fnmatch(lock, rule) for rule in kept)
        assert (ROOT / lock).is_file()


def test_volumes_of_compose_exist() -> None:
    for service in COMPOSE["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (FOLDER / source).is_dir() if source.startswith(".") else source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-cuda.lock"])
def test_images_have_the_versions_that_the_tests_run_with(name: str) -> None:
    def pins(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", path.read_text("utf-8"), re.MULTILINE))

    tested, shipped = pins(ROOT / "requirements.lock"), pins(FOLDER / name)
    assert {"jax", "aiohttp", "numpy"} <= shipped.keys()
    assert "pytest" not in shipped
    assert {package: version for package, version in shipped.items() if tested.get(package, version) != version} == {}


def test_everything_that_an_image_installs_is_pinned_by_hash_and_runs_outside_the_working_directory() -> None:
    installs = re.findall(r"pip install[^\n]*", DOCKERFILE)
    assert len(installs) == 3
    assert all("--require-hashes" in line or line.endswith("/tmp/wheel/eagre-*.whl") for line in installs)
    assert all("--no-build-isolation" in line for line in re.findall(r"pip wheel[^\n]*", DOCKERFILE))
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    assert {"jaxlib", "setuptools"} <= set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    calls = re.findall(r"(?:python[\"', ]+-\S+)", DOCKERFILE)
    assert calls
    assert all(re.fullmatch(r"python[\"', ]+-I[\"',]*", call) for call in calls)
