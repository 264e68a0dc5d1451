"""The manifests of deploy/kubernetes as kustomize writes them, and the schemas that they fit."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import referencing
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
SCHEMAS = ROOT / "tests" / "unit" / "deploy" / "schemas"
CORE_KINDS = {
    "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
}


def kustomize() -> list[str] | None:
    """The command that renders a folder, if this machine has one."""
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            return command
    return None


def render(folder: Path) -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k FOLDER` would create."""
    command = kustomize()
    assert command is not None
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def problems(manifest: dict[str, Any]) -> list[str]:
    """What the schemas of Kubernetes and KubeRay do not allow, with its place."""
    kuberay, kubernetes = _schemas()
    name = CORE_KINDS.get(manifest["kind"])
    schema = (
        {"$ref": f"{kuberay['$id']}#/$defs/{manifest['kind']}"}
        if name is None
        else {"$ref": f"{kubernetes['$id']}#/$defs/{name}"}
    )
    registry: referencing.Registry[Any] = referencing.Registry().with_resources(
        (schema["$id"], referencing.Resource.from_contents(schema))
        for schema in (kuberay, kubernetes)
    )
    validator = jsonschema.Draft202012Validator(schema, registry=registry)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


@cache
def _schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        yaml.safe_load((SCHEMAS / "kuberay.yaml").read_text(encoding="utf-8")),
        json.loads((SCHEMAS / "kubernetes.json").read_text(encoding="utf-8")),
    )
