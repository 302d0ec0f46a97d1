"""A worker in Python alone serves completions behind the service, and `splitcore load` measures it."""

import json

import httpx2 as httpx
import pytest

from python_worker import PythonWorker, drawn, mine, serving_a_model
from splitcore import load
from splitcore.client import PlacementClient

SECRET = b"open sesame"
LIMIT_S = 20
HEADERS = {"authorization": f"Bearer {SECRET.decode()}"}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of a service with one worker."""
    with (
        serving_a_model(tmp_path_factory.mktemp("service"), SECRET) as (running, workers),
        PythonWorker(workers, mine("python", blocks=4096), SECRET),
    ):
        url = f"http://127.0.0.1:{running.port}"
        with PlacementClient(url, secret=SECRET.decode(), timeout_s=LIMIT_S) as client:
            for _ in range(1000):
                if client.readyz() == "ready":
                    break
                client.events(wait_s=0.02)
            assert client.readyz() == "ready"
        yield url


def words(tokens):
    return " ".join(f"w{token}" for token in tokens)


def test_a_completion_is_what_the_engine_has_drawn(url):
    prompt = [1, 5, 9, 2]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=HEADERS, timeout=LIMIT_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"].split() == words(drawn(prompt, 12)).split()
    assert answer.json()["usage"]["completion_tokens"] == 12


def test_load_measures_it(url, cli, tmp_path):
    (tmp_path / "secret").write_bytes(SECRET)
    run = ("--rate", "40", "--max-requests", "30", "--prompt-max", "60", "--output-max", "8", "--vocab", "60")
    done = cli("load", url, *run, "--secret-file", "secret", "--out", "-")
    summary = json.loads(done.stdout)
    assert (summary["requests"]["completed"], summary["errors"], summary["model"]) == (30, {}, "tiny")
    _, planned = load.plan.requests(
        {"rate": 40.0, "trace": "azure-conv", "seed": 0}, max_requests=30, prompt_max=60, output_max=8
    )
    assert summary["output_tokens"] == sum(request.output_tokens for request in planned)
    assert 0 < summary["ttft_s"]["p50"] <= summary["e2e_s"]["p50"]
    table = cli("top", url, "--once", "--secret-file", "secret").stdout
    assert "python" in table
    assert "mixed, mixed" in table
    assert "placed 31" in table
