"""The page benchmark: our side does the counted work, and vLLM's side is left out if it is not installed."""

from __future__ import annotations

import random
import sys

import pytest

from benchmarks.microbenchmarks.page_sides import PAGE_SIZE, OurSide
from benchmarks.microbenchmarks.page_workloads import PROMPT_TOKENS, WORKLOADS, measure
from benchmarks.pages import main
from tests.thoroughness import some


@pytest.fixture
def side() -> OurSide:
    return OurSide()


@pytest.mark.parametrize("workload", some(list(WORKLOADS), 2))
def test_every_workload_runs_to_its_end_and_can_run_again(side: OurSide, workload: str) -> None:
    assert measure(side, workload, seed=1) > 0.0
    assert measure(side, workload, seed=1) > 0.0


def test_a_prompt_is_named_page_by_page_as_it_grows(side: OurSide) -> None:
    token_ids = random.Random(0).choices(range(100), k=2 * PAGE_SIZE)
    whole, growing = side.prompt(token_ids), side.prompt(token_ids[:PAGE_SIZE])
    side.name_pages(whole)
    side.name_pages(growing)
    side.append(growing, token_ids[PAGE_SIZE:])
    side.name_pages(growing)
    assert len(whole.hashes) == 2
    assert growing.hashes == whole.hashes


def test_remembered_pages_are_found(side: OurSide) -> None:
    side.reset(num_pages=10)
    prompt = side.prompt(list(range(PROMPT_TOKENS))[: 3 * PAGE_SIZE])
    side.name_pages(prompt)
    assert side.look_up(prompt) == []
    pages = side.allocate(3)
    side.cache(prompt, pages)
    side.release(pages)
    assert side.look_up(prompt) == pages


def test_the_command_runs_our_side_in_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--workloads", "queue_ends"]) == 0
    output = capsys.readouterr().out
    assert "--vllm-python names an interpreter that has it" in output
    assert "queue_ends" in output


@pytest.mark.parametrize("python", ["/nowhere/python", sys.executable])
def test_without_vllm_its_side_is_left_out(python: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--workloads", "queue_ends", "--vllm-python", python]) == 0
    output = capsys.readouterr().out
    assert "vLLM's side is left out: " in output
    assert "No module named 'vllm'" in output or "/nowhere/python" in output
    assert "queue_ends" in output
