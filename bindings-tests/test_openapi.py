"""Random calls by the published description: answers are of the described shapes, and nothing breaks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from python_worker import PythonWorker, mine, serving_a_model
from serving import Served, served

SECRET = b"open sesame"
EXAMPLES = 6
# Random calls take as long as they take; a call for events may wait, so not for long.
pytestmark = pytest.mark.timeout(400)
WAIT = ("--event-wait-max-s", "0.2")


def schemathesis(service: Served, *options: str) -> None:
    # 3.0 is no whole number here.
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        "run",
        f"http://127.0.0.1:{service.port}/openapi.json",
    ]
    command += ["--exclude-checks", "positive_data_acceptance", "--max-examples", str(EXAMPLES), "--seed", "1"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, env=os.environ | {"NO_COLOR": "1"}
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    status, check = service.call("GET", "/healthz")
    assert (status, check) == (200, {"status": "ok"})


def test_the_placement_service_is_as_described() -> None:
    with served(*WAIT) as service:
        service.add_pair()
        schemathesis(service)
        status, check = service.call("GET", "/v1/check")
        assert (status, check["ok"]) == (200, True)


def test_a_service_with_a_model_is_as_described(tmp_path: Path) -> None:
    with (
        serving_a_model(tmp_path, SECRET, *WAIT) as (service, workers),
        PythonWorker(workers, mine("python"), SECRET),
    ):
        schemathesis(service, "--header", f"Authorization: Bearer {SECRET.decode()}", "--request-timeout", "20")
