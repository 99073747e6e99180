"""The files of deploy/: every command, option, variable and port in them is one that exists."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from loomlog.cli import loom, vmr, vsn
from loomlog.cli.console.options import parse_peers
from loomlog.net.address import split_address

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
APPS = {"vmr": vmr.app, "vsn": vsn.app, "loom": loom.app}
PORTS = {"vmr": {7400, 7480}, "vsn": {7401, 7481}, "console": {7490}}
VARIABLES_OF_LOOM = {"LOOM_CLUSTER"}
KUBERNETES_VERSIONS = ("1.31", "1.35", "1.37")  # the oldest, the first with zones, the newest known


def complaints(*words: str) -> str:
    """Run a checker that says nothing if it is satisfied; return what it says."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert said or done.returncode == 0
    return said


def documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def options_of(program: str, *commands: str) -> dict[str, Any]:
    """Return the options of a command by how they are written."""
    command: Any = typer.main.get_command(APPS[program])
    for name in commands:
        command = command.commands[name]
    return {written: option for option in command.params for written in option.opts}


def check_command(words: list[str], given: frozenset[str] = frozenset()) -> dict[str, str]:
    """Check that a command line is one that exists and is complete, with what variables give;
    return its options."""
    program, name, *rest = words
    options, found = options_of(program, name), {}
    while rest:
        option = options[rest.pop(0)]
        found[max(option.opts, key=len)] = "" if option.is_flag else rest.pop(0)
    required = {max(each.opts, key=len) for each in options.values() if each.required}
    variables = {max(o.opts, key=len) for o in options.values() if str(o.envvar) in given}
    assert required <= found.keys() | variables
    return found


def ports_in(options: dict[str, str]) -> set[int]:
    addresses = (options[name] for name in ("--listen", "--http") if name in options)
    return {split_address(address)[1] for address in addresses}


# ---- containers


def test_the_image_is_made_of_files_that_exist() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all((DEPLOY.parent / name).exists() for name in line.split())
    exposed = set(map(int, re.findall(r"\d+", re.findall(r"EXPOSE (.*)", text)[0])))
    assert exposed == set().union(*PORTS.values())
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    extras = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    [wanted] = re.findall(r"'\.\[(.*)\]'", text)
    assert set(wanted.split(",")) <= extras["optional-dependencies"].keys()


def test_the_context_of_the_image_has_what_it_copies_and_nothing_else() -> None:
    """An environment beside the source would be a gigabyte to send to the builder."""
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
    assert kept == {name for line in copied for name in line.split()}


def test_compose_starts_three_nodes_that_find_each_other() -> None:
    [content] = documents(DEPLOY / "docker" / "compose.yml")
    services = content["services"]
    nodes = set()
    for name, service in services.items():
        options = check_command(shlex.split(service["command"]))
        kind = name.partition("-")[0]
        assert ports_in(options) == PORTS[kind]
        if kind != "console":
            assert options["--advertise"] == f"{name}:{min(PORTS[kind])}"
        for published in service.get("ports", ()):
            host, outside, inside = published.split(":")
            assert (host, outside) == ("127.0.0.1", inside), "only this machine reaches it"
            assert int(inside) in PORTS[kind]
        for health in re.findall(r":(\d+)/", str(service.get("healthcheck", {}).get("test"))):
            assert int(health) in PORTS[kind]
        if kind == "vsn":
            assert options["--mr"] == "vmr:7400"
            assert name == f"vsn-{options['--storage-node-id']}"
            nodes.add(name)
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in content["volumes"]
    assert len(nodes) == 3
    metrics = check_command(shlex.split(services["console"]["command"]))["--metrics"]
    assert metrics.split(",") == ["vmr:7480", *(f"{name}:7481" for name in sorted(nodes))]
    assert all("healthcheck" in service for service in services.values())
    assert len({str(services[name]["volumes"]) for name in nodes}) == 3


def compose_complaints(path: Path) -> str:
    checker = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    return complaints(*checker, str(path)).removeprefix("ok -- validation done\n")


def test_compose_keeps_the_rules_of_compose(tmp_path: Path) -> None:
    file = DEPLOY / "docker" / "compose.yml"
    assert compose_complaints(file) == ""
    wrong = tmp_path / "compose.yml"
    wrong.write_text(file.read_text().replace("start_period", "start_perod"))
    assert "start_perod" in compose_complaints(wrong)


# ---- systemd


def unit_complaints(place: Path, change: tuple[str, str] = ("", "")) -> str:
    """Return what systemd says of the units, with the programs of this environment."""
    for file in (DEPLOY / "systemd").glob("*.service"):
        text = file.read_text().replace("/opt/loomlog/bin", str(Path(sys.executable).parent))
        (place / file.name).write_text(text.replace(*change) if change[0] else text)
    units = map(str, sorted(place.glob("*.service")))
    return complaints("systemd-analyze", "verify", "--man=no", *units)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    assert unit_complaints(tmp_path) == ""
    assert "specifier" in unit_complaints(tmp_path, ("Restart=always", "Restart=allways"))


@pytest.mark.parametrize("program", ["vmr", "vsn", "console"])
def test_units_start_servers_with_options_from_the_file(program: str) -> None:
    unit = ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / f"loomlog-{program}.service")
    service = unit["Service"]
    path, *words = shlex.split(service["ExecStart"])
    content = tomllib.loads((DEPLOY / "systemd" / "loomlog.toml").read_text())
    common = {key: value for key, value in content.items() if not isinstance(value, dict)}
    options = (
        options_of("loom", "console") if program == "console" else options_of(program, "start")
    )
    keys = (common | content[program]).keys() - ({"cluster-id"} if program == "console" else set())
    assert {f"--{key}" for key in keys} <= options.keys()
    variables = frozenset(str(options[f"--{key}"].envvar) for key in keys)
    check_command([Path(path).name, *words], variables)
    written = {f"--{key}": value for key, value in content[program].items()}
    assert ports_in(written) == PORTS[program]
    assert (service["Restart"], service["User"]) == ("always", "loomlog")
    assert service["ReadWritePaths"] == "/srv/loomlog" if program == "vsn" else True


# ---- Kubernetes


def literals(path: Path) -> dict[str, str]:
    [content] = documents(path / "kustomization.yaml")
    found: dict[str, str] = {}
    for each in content["configMapGenerator"]:
        found |= dict(literal.split("=", 1) for literal in each["literals"])
    return found


def resources(kind: str) -> Iterator[dict[str, Any]]:
    [content] = documents(KUBERNETES / "base" / "kustomization.yaml")
    for name in content["resources"]:
        yield from (d for d in documents(KUBERNETES / "base" / name) if d["kind"] == kind)


def schema_complaints(version: str, *paths: Path) -> str:
    """Return what the schemas of a version of Kubernetes do not allow, unknown fields included."""
    checker = (sys.executable, "-m", "kubernetes_validate", "--strict", "--quiet", "-k", version)
    return complaints(*checker, *map(str, paths))


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_manifests_keep_the_schemas_of_kubernetes(version: str) -> None:
    [content] = documents(KUBERNETES / "base" / "kustomization.yaml")
    files = [KUBERNETES / "base" / name for name in content["resources"]]
    assert len(files) == 4
    assert schema_complaints(version, *files) == ""


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
@pytest.mark.parametrize("overlay", ["base", "several-vmr"])
def test_what_kustomize_makes_keeps_the_schemas(overlay: str, tmp_path: Path) -> None:
    made = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / overlay)], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("kind: StatefulSet") == 2
    file = tmp_path / "made.yaml"
    file.write_text(made.stdout)
    for version in KUBERNETES_VERSIONS:
        assert schema_complaints(version, file) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("readinessProbe:", "readinesProbe:"), ("minReadySeconds: 10", "minReadySeconds: ten")],
)
def test_the_schemas_find_mistakes(right: str, wrong: str, tmp_path: Path) -> None:
    text = (KUBERNETES / "base" / "vsn.yaml").read_text()
    assert right in text
    file = tmp_path / "vsn.yaml"
    file.write_text(text.replace(right, wrong))
    assert wrong.split(":")[0] in schema_complaints(KUBERNETES_VERSIONS[-1], file)


def test_variables_in_kubernetes_are_those_of_options() -> None:
    servers = [options_of(name, "start") for name in ("vmr", "vsn")]
    known = {str(option.envvar) for options in servers for option in options.values()}
    several = literals(KUBERNETES / "several-vmr")
    known |= {str(option.envvar) for option in options_of("loom", "console").values()}
    base = literals(KUBERNETES / "base")
    assert {*base, *several} <= known | VARIABLES_OF_LOOM
    for found, members in ((base, 1), (base | several, 3)):
        vmr_pages = [f"loomlog-vmr-{n}.loomlog-vmr.loomlog.svc:7480" for n in range(1, members + 1)]
        vsn_pages = [f"loomlog-vsn-{n}.loomlog-vsn.loomlog.svc:7481" for n in (1, 2, 3)]
        assert found["LOOM_CONSOLE_METRICS"].split(",") == [*vmr_pages, *vsn_pages]
    peers = parse_peers(several["LOOM_VMR_PEERS"])
    assert ",".join(peers.values()) == several["LOOM_VSN_MR"] == several["LOOM_CLUSTER"]
    [overlay] = documents(KUBERNETES / "several-vmr" / "kustomization.yaml")
    assert overlay["replicas"] == [{"name": "loomlog-vmr", "count": len(peers)}]


@pytest.mark.parametrize("kind", ["vmr", "vsn"])
def test_pods_are_servers_with_probes_and_a_budget(kind: str) -> None:
    name = f"loomlog-{kind}"
    [workload] = (each for each in resources("StatefulSet") if each["metadata"]["name"] == name)
    [service] = (each for each in resources("Service") if each["metadata"]["name"] == name)
    [budget] = (
        each for each in resources("PodDisruptionBudget") if each["metadata"]["name"] == name
    )
    spec = workload["spec"]["template"]["spec"]
    [container] = spec["containers"]
    own = {each["name"]: each for each in container["env"]}
    options = check_command(
        container["args"], frozenset(own) | literals(KUBERNETES / "base").keys()
    )
    assert ports_in(options) == PORTS[kind]
    assert {each["containerPort"] for each in container["ports"]} == PORTS[kind]
    assert {each["port"] for each in service["spec"]["ports"]} == PORTS[kind]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert workload["spec"]["selector"]["matchLabels"] == labels
    assert workload["spec"]["ordinals"]["start"] == 1, "numbers of servers begin at 1"
    advertised = f"$(POD_NAME).{name}.loomlog.svc:{min(PORTS[kind])}"
    assert own[f"LOOM_{kind.upper()}_ADVERTISE"]["value"] == advertised
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    for option in ("--tls", "--data" if kind == "vmr" else "--volumes"):
        assert any(options[option].startswith(mount) for mount in mounts)
    assert spec["securityContext"]["runAsNonRoot"]


def test_nodes_say_where_they_are() -> None:
    [workload] = (e for e in resources("StatefulSet") if e["metadata"]["name"] == "loomlog-vsn")
    [container] = workload["spec"]["template"]["spec"]["containers"]
    own = {each["name"]: each for each in container["env"]}
    assert "topology.kubernetes.io/zone" in str(own["LOOM_VSN_LOCATION"])
    assert literals(KUBERNETES / "base")["LOOM_VSN_MR"].startswith("loomlog-vmr-1.loomlog-vmr.")


def test_the_console_is_served() -> None:
    [workload] = resources("Deployment")
    [container] = workload["spec"]["template"]["spec"]["containers"]
    assert ports_in(check_command(container["args"])) == PORTS["console"]
    for probe in ("readinessProbe", "livenessProbe"):
        wanted = {"path": "/healthz", "port": "http", "scheme": "HTTPS"}
        assert container[probe]["httpGet"] == wanted


def test_pods_keep_the_strictest_standard_of_kubernetes() -> None:
    [namespace] = resources("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for workload in (*resources("StatefulSet"), *resources("Deployment")):
        spec = workload["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["containers"], *spec["initContainers"]):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert own["readOnlyRootFilesystem"]
        for volume in spec["volumes"]:
            assert volume.keys() - {"name"} <= {"secret", "emptyDir"}
