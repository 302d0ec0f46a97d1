"""A service and workers on hosts of their own: network namespaces joined by a bridge, and a link that breaks."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from python_worker import drawn, model_folder
from splitcore.launch import Child

HERE = Path(__file__).parent
HOSTS = {"daemon": "10.213.0.1", "prompt": "10.213.0.2", "token": "10.213.0.3"}
LIMIT_S = 60
IP = shutil.which("ip") or "ip"


def ip(*arguments):
    """Run `ip`; gives what it says where it fails."""
    done = subprocess.run([IP, *arguments], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


class Network:
    """Hosts that reach one another, as long as the block lasts."""

    def __init__(self):
        self.mark = f"sc{os.getpid()}"
        self.spaces = [f"{self.mark}-{name}" for name in ("bridge", *HOSTS)]

    def __enter__(self):
        try:
            for space in self.spaces:
                if why := ip("netns", "add", space):
                    pytest.skip(f"no network namespace can be made: {why}")
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _join(self):
        bridge = self.spaces[0]
        steps = [("-n", bridge, "link", "add", "br0", "type", "bridge"), ("-n", bridge, "link", "set", "br0", "up")]
        for (name, address), space in zip(HOSTS.items(), self.spaces[1:], strict=True):
            steps += [
                ("-n", space, "link", "set", "lo", "up"),
                ("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", bridge),
                ("-n", space, "address", "add", f"{address}/24", "dev", "eth0"),
                ("-n", space, "link", "set", "eth0", "up"),
                ("-n", bridge, "link", "set", name, "master", "br0", "up"),
            ]
        for step in steps:
            if why := ip(*step):
                pytest.skip(f"no network between namespaces: ip {' '.join(step)}: {why}")

    def __exit__(self, *_):
        for space in self.spaces:
            ip("netns", "del", space)

    def on(self, host, *command):
        """The command line that runs a Python program on a host."""
        return [IP, "netns", "exec", f"{self.mark}-{host}", sys.executable, *command]

    def break_link(self):
        """Nothing goes from the prompt worker's host to the token worker's any more, nor back."""
        for here, there in (("prompt", "token"), ("token", "prompt")):
            assert not ip("-n", f"{self.mark}-{here}", "route", "add", "blackhole", HOSTS[there])

    def mend_link(self):
        for here, there in (("prompt", "token"), ("token", "prompt")):
            assert not ip("-n", f"{self.mark}-{here}", "route", "del", "blackhole", HOSTS[there])


@pytest.fixture
def network():
    if shutil.which("ip") is None:
        pytest.skip("the program `ip` is not there")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with Network() as network:
        yield network


class Service:
    """A daemon, a prompt worker and a token worker, each on its host."""

    def __init__(self, network, folder):
        self.network, self.folder, self.children = network, folder, {}

    def __enter__(self):
        address = HOSTS["daemon"]
        model_folder(self.folder / "tiny")
        options = ("--listen", f"{address}:8090", "--workers", f"{address}:8091", "--model", str(self.folder / "tiny"))
        times = ("--grace-s", "0", "--handoff-limit-s", "1", "--retry-interval-s", "0.1")
        try:
            self._start("daemon", "-m", "splitcore.cli", "serve", *options, *times)
            self.children["daemon"].wait_for(re.compile("listening on"), LIMIT_S)
            for role in ("prompt", "token"):
                self._start(role, str(HERE / "host_parts.py"), "work", f"{address}:8091", f"{role}-0", role)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, host, *command):
        environment = os.environ | {"PYTHONPATH": f"{HERE.parent / 'python'}:{HERE}", "NO_COLOR": "1"}
        line = self.network.on(host, *command)
        self.children[host] = Child(host, line, environment, self.folder / f"{host}.log")

    def __exit__(self, *_):
        for child in self.children.values():
            child.end(signal.SIGKILL, LIMIT_S)

    def ask(self, count):
        """Requests from the daemon's host; each must end as if there were one host."""
        asks = ("ask", f"{HOSTS['daemon']}:8090", "2", str(count))
        command = self.network.on("daemon", str(HERE / "host_parts.py"), *asks)
        environment = os.environ | {"PYTHONPATH": f"{HERE.parent / 'python'}:{HERE}"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=3 * LIMIT_S
        )
        assert done.returncode == 0, done.stderr
        for status, prompt, answer in json.loads(done.stdout):
            assert status == 200, (answer, *(line for child in self.children.values() for line in child.lines))
            wanted = [f"w{token}" for token in drawn(prompt, 12)]
            assert answer["choices"][0]["text"].split() == wanted

    def handoffs(self, host):
        """How many there were, told at the end."""
        child = self.children[host]
        child.process.send_signal(signal.SIGTERM)
        return int(child.wait_for(re.compile(r"handoffs: (\d+)"), LIMIT_S)[1])


def test_workers_on_other_hosts_are_told_addresses_that_they_reach_and_hand_over(network, tmp_path):
    with Service(network, tmp_path) as service:
        service.ask(8)
        for role in ("prompt", "token"):
            child = service.children[role]
            child.wait_for(re.compile(f"peers at {HOSTS[role]}:"), LIMIT_S)
            child.wait_for(re.compile(f"--transfer-listen {HOSTS[role]}:0 is open to the network"), LIMIT_S)
        assert service.handoffs("prompt") == 8


def test_requests_end_right_where_two_hosts_that_reach_the_daemon_do_not_reach_each_other(network, tmp_path):
    with Service(network, tmp_path) as service:
        service.ask(2)
        network.break_link()
        service.ask(4)
        network.mend_link()
        service.ask(4)
