"""The servers of deploy/ run here: their commands and variables as they are written, each machine
with an address of loopback in place of its name."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from cli_rig import Loom, environment, program
from poll import wait_until

from loomlog.testing.ports import free_address

DEPLOY = Path(__file__).parents[2] / "deploy"
STOPS_WITHIN_S = 20  # stop_grace_period of compose, the shortest of all
UNVERIFIED = ssl._create_unverified_context()  # as the probes of Kubernetes


def own_address(number: int) -> str:
    """Return an address of this machine; the ports of deploy/ are free there."""
    high, low = divmod(os.getpid(), 256)
    return f"127.{100 + high % 100}.{low}.{number}"


class Machines:
    """Names of machines, each with an address of its own."""

    def __init__(self, names: Iterable[str]) -> None:
        self.addresses = {name: own_address(n) for n, name in enumerate(names, start=2)}

    def placed(self, text: str, name: str) -> str:
        """Return a text that machine `name` uses, with addresses in place of names."""
        found = re.sub(r"(?<![\w.])(0\.0\.0\.0|127\.0\.0\.1)(?=:\d)", self.addresses[name], text)
        return re.sub(
            r"(?<![\w.-])([a-z][\w.-]*)(?=:\d)",
            lambda part: self.addresses.get(part[1], part[1]),
            found,
        )


@contextmanager
def running(words: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """A server, which stops in time and without complaint."""
    command = program(Path(words[0]).name, *words[1:])
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env=environment(**(variables or {}))
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            code = process.wait(STOPS_WITHIN_S)
        finally:
            process.kill()
    assert code == 0


def is_answered(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10, context=UNVERIFIED) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def use(loom: Loom, metadata: str, nodes: int, page: str) -> None:
    """Use a cluster; it must know itself by the addresses that it is reached at."""
    loom.says("log", "create", "events", "--streams", "2", "--replicas", str(nodes))
    loom.says("append", "events", given="hello\nworld\n")
    assert loom.says("tail", "events") == "hello\nworld\n"
    assert loom.json("status")["metadata_address"] == metadata
    found = loom.json("doctor")["findings"]
    reached = [each for each in found if each["check"] == "address"]
    assert {each["result"] for each in reached} == {"ok"}
    assert len(reached) == 1 + nodes
    assert is_answered(page)


def test_a_vmr_that_listens_everywhere_is_known_by_what_it_advertises(tmp_path: Path) -> None:
    _, _, port = free_address().rpartition(":")
    address = f"{own_address(1)}:{port}"
    words = ["vmr", "start", "--cluster-id", "one", "--data", str(tmp_path), "--http", "none"]
    listens = ["--listen", f"0.0.0.0:{port}", "--advertise", address, "--insecure"]
    with running([*words, *listens]):
        wait_until(lambda: Loom(address).run("status").returncode == 0)
        assert Loom(address).json("status")["metadata_address"] == address
        found = Loom(address).json("doctor")["findings"]
        assert f"is reached at {address}" in [each["text"] for each in found]


# ---- containers


def test_the_services_of_compose_are_a_cluster(tmp_path: Path) -> None:
    services = yaml.safe_load((DEPLOY / "docker" / "compose.yml").read_text())["services"]
    machines = Machines(services)
    first = [name for name, service in services.items() if not service.get("depends_on")]

    def is_healthy(name: str) -> bool:
        kind, python, *words = services[name]["healthcheck"]["test"]
        assert (kind, python) == ("CMD", "python")
        placed = [machines.placed(word, name) for word in words]
        return subprocess.run([sys.executable, *placed], capture_output=True).returncode == 0

    with ExitStack() as stack:
        for name in sorted(services, key=lambda name: name not in first):
            for other in services[name].get("depends_on", ()):
                wait_until(partial(is_healthy, other))
            place = tmp_path / name
            place.mkdir(mode=0o700)
            command = machines.placed(services[name]["command"], name)
            words = shlex.split(command.replace("/var/lib/loomlog", str(place)))
            stack.enter_context(running(words))
        for name in services:
            wait_until(partial(is_healthy, name))
        at = machines.addresses
        metadata = f"{at['vmr']}:7400"
        nodes = [name for name in services if name.startswith("vsn")]
        assert len(nodes) == 3
        use(Loom(metadata), metadata, len(nodes), f"http://{at['console']}:7490/v1/status")


# ---- with certificates


def make_certificates(place: Path, cluster: str, hosts: Mapping[str, str]) -> Path:
    """Make certificates as docs/deploy.md says, and one for browsers; return their directory.
    `hosts` are servers, such as vmr-1 and vsn-2."""
    certs, loom = place / "certs", Loom("")
    made = ("--dir", str(certs))
    loom.says("certs", "init", str(certs), "--cluster-id", cluster)
    for server, host in hosts.items():
        kind, _, number = server.partition("-")
        kind = {"vmr": "metadata", "vsn": "node"}[kind]
        loom.says("certs", kind, number, "--host", host, *made)
    loom.says("certs", "client", "root", "--operator", *made)
    shutil.copy(certs / "metadata-1.pem", certs / "console.pem")
    return certs


def test_the_units_of_systemd_are_a_cluster(tmp_path: Path) -> None:
    here = own_address(1)
    certs = make_certificates(tmp_path, "prod", {"vmr-1": here, "vsn-1": here})
    text = (DEPLOY / "systemd" / "loomlog.toml").read_text().replace("10.0.0.1", here)
    places = {"/etc/loomlog/certs": certs, "/etc/loomlog/console.pem": certs / "console.pem"}
    for number, made in enumerate(("/var/lib/loomlog", "/srv/loomlog")):
        places[made] = tmp_path / str(number)
        places[made].mkdir(mode=0o700)
    for path, place in places.items():
        text = text.replace(f'"{path}', f'"{place}')
    options = tomllib.loads(text)
    Path(options["vsn"]["volumes"][0]).mkdir()
    file = tmp_path / "loomlog.toml"
    file.write_text(text)
    with ExitStack() as stack:
        for server in ("console", "vsn", "vmr"):  # systemd starts them all at once
            unit = ConfigParser(strict=False)
            unit.read(DEPLOY / "systemd" / f"loomlog-{server}.service")
            words = unit["Service"]["ExecStart"].replace("/etc/loomlog/loomlog.toml", str(file))
            stack.enter_context(running(shlex.split(words)))
        wait_until(lambda: is_answered(f"https://{options['vmr']['http']}/readyz"))
        wait_until(lambda: is_answered(f"https://{options['vsn']['http']}/readyz"))
        page = f"https://{options['console']['listen']}/healthz"
        wait_until(lambda: is_answered(page))
        loom = Loom(options["console"]["cluster"], tls=str(certs / "operator-root.pem"))
        use(loom, options["vmr"]["listen"], 1, page)


# ---- Kubernetes


def manifests(kind: str) -> list[dict[str, Any]]:
    base = DEPLOY / "kubernetes" / "base"
    files = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    found = [each for name in files for each in yaml.safe_load_all((base / name).read_text())]
    return [each for each in found if each["kind"] == kind]


def config_map() -> dict[str, str]:
    file = DEPLOY / "kubernetes" / "base" / "kustomization.yaml"
    [made] = yaml.safe_load(file.read_text())["configMapGenerator"]
    return dict(literal.split("=", 1) for literal in made["literals"])


class Pod:
    """A pod of a workload, as Kubernetes would start it."""

    def __init__(self, workload: dict[str, Any], number: int) -> None:
        self.name = f"{workload['metadata']['name']}-{number}"
        self.spec = workload["spec"]["template"]["spec"]
        [self.container] = self.spec["containers"]
        service = workload["spec"].get("serviceName")
        self.host = f"{self.name}.{service}.loomlog.svc" if service else self.name
        self._number = str(number)

    def variables(self) -> dict[str, str]:
        fields = {
            "metadata.name": self.name,
            "metadata.labels['apps.kubernetes.io/pod-index']": self._number,
            "metadata.labels['topology.kubernetes.io/zone']": "",
        }
        found = config_map()
        for each in self.container.get("env", ()):
            if "value" in each:
                found[each["name"]] = re.sub(
                    r"\$\((\w+)\)", lambda name: found[name[1]], each["value"]
                )
            else:
                found[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        return found

    def url(self, probe: str, address: str) -> str:
        get = self.container[probe]["httpGet"]
        ports = {each["name"]: each["containerPort"] for each in self.container["ports"]}
        return f"{get['scheme'].lower()}://{address}:{ports[get['port']]}{get['path']}"


def test_the_pods_of_kubernetes_are_a_cluster(tmp_path: Path) -> None:
    pods = [
        Pod(workload, number)
        for workload in (*manifests("StatefulSet"), *manifests("Deployment"))
        for number in range(1, workload["spec"]["replicas"] + 1)
    ]
    machines = Machines(pod.host for pod in pods)
    at = {pod.name: machines.addresses[pod.host] for pod in pods}
    servers = {n.removeprefix("loomlog-"): a for n, a in at.items() if "console" not in n}
    secret = make_certificates(tmp_path, config_map()["LOOM_VMR_CLUSTER_ID"], servers)
    with ExitStack() as stack:
        for pod in pods:
            places = {"/secret": secret}
            for mount in pod.container["volumeMounts"]:
                place = tmp_path / pod.name / mount["name"]
                place.mkdir(parents=True, mode=0o700)
                places[mount["mountPath"]] = place

            def placed(text: str, pod: Pod = pod, places: dict[str, Path] = places) -> str:
                for path, place in places.items():
                    text = re.sub(rf"(?<![\w.]){path}(?![\w.])", str(place), text)
                return machines.placed(text, pod.host)

            for before in pod.spec["initContainers"]:
                subprocess.run([placed(word) for word in before["command"]], check=True)
            given = {name: placed(value) for name, value in pod.variables().items()}
            words = [placed(word) for word in pod.container["args"]]
            stack.enter_context(running(words, given))
        for pod in pods:
            url = pod.url("readinessProbe", at[pod.name])
            wait_until(partial(is_answered, url))
            assert is_answered(pod.url("livenessProbe", at[pod.name]))
        cluster = f"{at['loomlog-vmr-1']}:7400"
        loom = Loom(cluster, tls=str(secret / "operator-root.pem"))
        console = next(name for name in at if "console" in name)
        use(loom, cluster, len(servers) - 1, f"https://{at[console]}:7490/healthz")
