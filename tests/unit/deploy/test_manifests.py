"""The manifests fit the schemas of what reads them, and agree with the package and each other."""

from __future__ import annotations

import copy
import inspect
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

from rl_service import __version__
from rl_service.cli.tune import tune
from rl_service.serving.deployment import build_app
from rl_service.serving.security import parse_tokens
from rl_service.tuning.plan import load_plan
from tests.support.dockerfile import DOCKERFILE, arguments, last, steps
from tests.support.manifests import KUBERNETES, ROOT, SCHEMAS, kustomize, problems, render

Manifest = dict[str, Any]
FOLDERS = {
    "shared": {"PersistentVolumeClaim", "NetworkPolicy"},
    "cluster": {"RayCluster"},
    "tuning": {"RayJob"},
    "serving": {"RayService"},
}
needs_kustomize = pytest.mark.skipif(
    kustomize() is None, reason="neither kustomize nor kubectl is installed"
)


def load(path: str) -> Manifest:
    loaded = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def values() -> dict[str, str]:
    data: dict[str, str] = load("deploy/kubernetes/base/values.yaml")["data"]
    return data


def pin(package: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [version] = [
        found[1]
        for line in project["dependencies"]
        if (found := re.fullmatch(rf"{package}(?:\[.*\])?==(.+)", line))
    ]
    return version


def cluster_spec(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest["spec"]
    return spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec


def templates(spec: Manifest) -> list[Manifest]:
    return [spec["headGroupSpec"]["template"]] + [
        group["template"] for group in spec["workerGroupSpecs"]
    ]


def serve_configs() -> tuple[Manifest, Manifest]:
    """That for any Ray cluster, and that of the RayService as it lies in its file."""
    service = load("deploy/kubernetes/serving/rayservice.yaml")
    return load("deploy/serve.yaml"), yaml.safe_load(service["spec"]["serveConfigV2"])


@pytest.fixture(scope="module", params=["cluster", "tuning", "serving"])
def on_ray(request: pytest.FixtureRequest) -> Manifest:
    """A RayCluster, RayJob or RayService as it is applied."""
    if kustomize() is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    [manifest] = render(KUBERNETES / request.param)
    return manifest


@needs_kustomize
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_applied_as_what_the_schemas_allow(folder: str) -> None:
    manifests = render(KUBERNETES / folder)
    assert {manifest["kind"] for manifest in manifests} == FOLDERS[folder]
    assert [problem for manifest in manifests for problem in problems(manifest)] == []


@pytest.mark.parametrize(
    "path",
    [
        "shared/storage.yaml",
        "shared/network.yaml",
        "base/raycluster.yaml",
        "tuning/rayjob.yaml",
        "serving/rayservice.yaml",
    ],
)
def test_a_misspelt_key_anywhere_is_a_problem(path: str) -> None:
    manifest = load(f"deploy/kubernetes/{path}")
    manifest["spec"].setdefault("rayClusterConfig", {"headGroupSpec": {"template": {}}})
    if manifest["kind"] != "RayService":
        del manifest["spec"]["rayClusterConfig"]
    assert problems(manifest) == []
    misspelt = list(with_one_key_misspelt(manifest))
    assert len(misspelt) > 5
    assert [place for place, wrong in misspelt if not problems(wrong)] == []


def with_one_key_misspelt(manifest: Manifest) -> list[tuple[str, Manifest]]:
    """Copies, one for each key whose name is given by a schema."""
    free = {"labels", "matchLabels", "rayStartParams", "requests", "limits"}  # hold any key

    def places(node: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if isinstance(node, list):
            return [p for i, item in enumerate(node) for p in places(item, (*path, i))]
        if not isinstance(node, dict):
            return []
        below = [p for key, item in node.items() if key not in free
                 for p in places(item, (*path, key))]  # fmt: skip
        return [*((*path, key) for key in node if key != "kind"), *below]

    found = []
    for place in places(manifest, ()):
        wrong = copy.deepcopy(manifest)
        node = wrong
        for step in place[:-1]:
            node = node[step]
        node[f"{place[-1]}x"] = node.pop(place[-1])
        found.append((".".join(map(str, place)), wrong))
    return found


def test_the_values_reach_every_place(on_ray: Manifest) -> None:
    value = values()
    assert "values:" not in json.dumps(on_ray)
    spec = cluster_spec(on_ray)
    for template in templates(spec):
        [container] = template["spec"]["containers"]
        assert container["image"] == value["image"]
        env = {each["name"]: each["value"] for each in container["env"]}
        assert env["RL_SERVICE_STORAGE"] == value["storage"]
        assert env["RL_SERVICE_REGISTRY"] == value["registry"]
    [group] = spec["workerGroupSpecs"]
    assert group["minReplicas"] == int(value["min_workers"])
    assert group["maxReplicas"] == int(value["max_workers"])
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": value["worker_cpu"], "memory": value["worker_memory"]}


def test_pods_have_few_rights_and_ask_for_what_they_may_use(on_ray: Manifest) -> None:
    spec = cluster_spec(on_ray)
    containers = [spec["autoscalerOptions"]]
    for template in templates(spec):
        containers += template["spec"]["containers"]
        security = template["spec"]["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert template["metadata"]["labels"] == _selected()
    for container in containers:
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def _selected() -> dict[str, str]:
    labels: dict[str, str] = load("deploy/kubernetes/shared/network.yaml")["spec"]["podSelector"][
        "matchLabels"
    ]
    return labels


def test_ray_asks_for_a_token_and_is_no_service_for_others(on_ray: Manifest) -> None:
    spec = cluster_spec(on_ray)
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert "enableIngress" not in spec["headGroupSpec"]
    open_to_all = [
        port["port"]
        for rule in load("deploy/kubernetes/shared/network.yaml")["spec"]["ingress"]
        if "from" not in rule
        for port in rule["ports"]
    ]
    assert open_to_all == [serve_configs()[1]["http_options"]["port"]]


def test_rays_autoscaler_reads_the_cluster_as_meant(on_ray: Manifest) -> None:
    cluster = {"metadata": {"name": "c", "namespace": "n"}, "spec": cluster_spec(on_ray)}
    types = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0
    workers = types["rollout-workers"]
    assert workers["resources"]["CPU"] == int(values()["worker_cpu"])
    assert workers["min_workers"] < workers["max_workers"]
    replicas = serve_configs()[1]["applications"][0]["args"]["min_replicas"]
    assert replicas <= workers["max_workers"] * workers["resources"]["CPU"]


def test_the_volume_that_pods_mount_is_the_shared_one(on_ray: Manifest) -> None:
    claim = load("deploy/kubernetes/shared/storage.yaml")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for template in templates(cluster_spec(on_ray)):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        mounts = template["spec"]["containers"][0]["volumeMounts"]
        assert {mount["name"] for mount in mounts} == set(volumes)
        assert mounts[0]["mountPath"] == last("train", "WORKDIR").text


def test_the_ray_service_is_the_application_of_serve_yaml() -> None:
    shipped, served = serve_configs()
    ServeDeploySchema.model_validate(served)
    shipped["http_options"]["host"] = "0.0.0.0"
    [application] = shipped["applications"]
    application["args"] |= {"policies": ["values:policy"], "token_file": "/etc/rl-service/tokens"}
    assert served == shipped


@needs_kustomize
def test_the_ray_service_serves_the_policy_of_the_values() -> None:
    [service] = render(KUBERNETES / "serving")
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    assert application["args"]["policies"] == [values()["policy"]]
    build_app(application["args"])


def test_tokens_that_the_pods_mount_are_where_the_application_looks() -> None:
    [container] = load("deploy/kubernetes/base/raycluster.yaml")["spec"]["workerGroupSpecs"][0][
        "template"
    ]["spec"]["containers"]
    [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "tokens"]
    token_file = serve_configs()[1]["applications"][0]["args"]["token_file"]
    assert Path(token_file).parent == Path(mount["mountPath"])
    guide = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert f"--from-literal={Path(token_file).name}=" in guide


def test_the_versions_are_those_of_the_package() -> None:
    spec = load("deploy/kubernetes/base/raycluster.yaml")["spec"]
    assert spec["rayVersion"] == pin("ray")
    assert values()["image"].endswith(f"/rl-service:{__version__}")
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert f"-t rl-service:{__version__} " in text
    images = {service["image"] for service in load("docker/compose.yaml")["services"].values()}
    assert images == {f"rl-service:{__version__}", f"rl-service:{__version__}-serve"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = arguments()["PYTHON_VERSION"]
    assert project["requires-python"].startswith(f">={python.rpartition('.')[0]},")
    # Torch and Ray come from pyproject.toml itself: no second list to keep.
    assert not re.search(r"\b(torch|ray)\S*==", text)
    assert pin("torch")
    [reads] = [step for step in steps("train") if "['dependencies']" in step.text]
    assert "pyproject.toml" in reads.text


def test_the_vm_cluster_is_one_that_ray_up_accepts() -> None:
    config = load("deploy/vm-cluster.yaml")
    prepared = prepare_config(config)
    validate_config(prepared)
    assert prepared["max_workers"] == len(config["provider"]["worker_ips"])
    with pytest.raises(jsonschema.ValidationError, match="setup_command"):
        validate_config(prepare_config({**config, "setup_command": []}))


def test_its_way_for_a_cloud_is_accepted_too() -> None:
    text = (ROOT / "deploy" / "vm-cluster.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^  (type: local|head_ip|worker_ips).*\n", "", text)
    text = re.sub(r"(?m)^( *)# ( *[\w-]+:( |$).*)$", r"\1\2", text)
    config = yaml.safe_load(text)
    assert config["provider"]["type"] == "aws"
    prepared = prepare_config(config)
    validate_config(prepared)
    assert set(prepared["available_node_types"]) == {"head", "rollout-workers"}


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_nodes_of_the_vm_cluster_have_the_switches_of_the_pods(commands: str) -> None:
    [container] = load("deploy/kubernetes/base/raycluster.yaml")["spec"]["headGroupSpec"][
        "template"
    ]["spec"]["containers"]
    start = load("deploy/vm-cluster.yaml")[commands][-1]
    assert "RAY_AUTH_MODE=token" in start
    switches = [f"{env['name']}={env['value']}" for env in container["env"]
                if not env["value"].startswith("values:")]  # fmt: skip
    switches = [switch.replace("=/usr/local/", "=$HOME/.rl-service-venv/") for switch in switches]
    assert [switch for switch in switches if switch not in start] == []


@needs_kustomize
def test_a_pod_of_the_policy_service_is_ready_when_the_service_says_so() -> None:
    [service] = render(KUBERNETES / "serving")
    head, worker = templates(cluster_spec(service))
    assert "readinessProbe" not in head["spec"]["containers"][0]  # no replica runs there
    [container] = worker["spec"]["containers"]
    asked = container["readinessProbe"]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert asked["path"] == "/readyz"
    assert ports[asked["port"]] == serve_configs()[1]["http_options"]["port"]


def test_compose_fits_its_specification() -> None:
    schema = json.loads((SCHEMAS / "compose.json").read_text(encoding="utf-8"))
    compose = load("docker/compose.yaml")
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(compose)) == []
    compose["services"]["head"]["healthchek"] = compose["services"]["head"].pop("healthcheck")
    assert list(validator.iter_errors(compose))


def test_compose_publishes_on_loopback_alone_and_never_without_tokens() -> None:
    services = load("docker/compose.yaml")["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    for name, variable in (
        ("head", "RAY_AUTH_TOKEN"),
        ("worker", "RAY_AUTH_TOKEN"),
        ("serve", "RL_SERVICE_TOKENS"),
    ):
        assert services[name]["environment"][variable].startswith(f"${{{variable}:?")
    assert parse_tokens("me:0123456789abcdef", "test")  # the form that its message names
    assert services["worker"]["depends_on"] == {"head": {"condition": "service_healthy"}}
    assert "healthcheck" in services["head"]


def test_compose_serves_as_the_image_does_on_the_port_that_it_publishes() -> None:
    service = load("docker/compose.yaml")["services"]["serve"]
    command = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in service["command"]]
    assert command == last("serve", "CMD").words()  # tests/slow/test_image.py runs that
    [published] = service["ports"]
    port = published.rpartition(":")[2]
    assert port == last("serve", "EXPOSE").text
    assert f":{port}/readyz" in last("serve", "HEALTHCHECK").text


def test_compose_builds_targets_that_there_are() -> None:
    for service in load("docker/compose.yaml")["services"].values():
        build = service["build"]
        assert steps(build["target"])
        assert (ROOT / "docker" / build["context"] / build["dockerfile"]).samefile(DOCKERFILE)


def test_the_tuning_job_runs_a_command_that_there_is() -> None:
    entrypoint = load("deploy/kubernetes/tuning/rayjob.yaml")["spec"]["entrypoint"]
    program, verb, file, option, storage = shlex.split(entrypoint)
    assert (program, verb, option, storage) == (
        "rl-service",
        "tune",
        "--storage",
        "$RL_SERVICE_STORAGE",
    )
    assert load_plan(Path(file)).name == "CartPole-v1"
    assert "storage" in inspect.signature(tune).parameters
