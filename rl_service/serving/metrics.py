"""Prometheus metrics of one replica, and how those of all replicas become one page."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_S = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class ServingMetrics:
    """What a replica counts. Labels hold names that the operator chose, nothing of a request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "rl_service_requests",
            "Requests by route, policy and status.",
            ("route", "policy", "status"),
            registry=self.registry,
        )
        self.latency = Histogram(
            "rl_service_request_latency_seconds",
            "Time from the request's first byte in the replica to the last of the reply.",
            ("route",),
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.errors = Counter(
            "rl_service_errors",
            "Refused or failed requests by code.",
            ("code",),
            registry=self.registry,
        )
        self.batch_rows = Histogram(
            "rl_service_batch_rows",
            "Observations that went through the net together.",
            ("policy",),
            buckets=_ROWS,
            registry=self.registry,
        )
        self.actions = Counter(
            "rl_service_actions",
            "Actions by policy and version.",
            ("policy", "version"),
            registry=self.registry,
        )
        self.ongoing = Gauge(
            "rl_service_ongoing_requests",
            "Requests that the replica is answering.",
            registry=self.registry,
        )
        self.version = Gauge(
            "rl_service_policy_version",
            "Version that takes the traffic.",
            ("policy",),
            registry=self.registry,
        )
        self.rejected = Counter(
            "rl_service_rejected_versions",
            "Versions that did not take over, by reason.",
            ("policy", "reason"),
            registry=self.registry,
        )

    def page(self) -> str:
        return generate_latest(self.registry).decode()


def sessions_page(num_sessions: int) -> str:
    """The one metric of the whole service."""
    return (
        "# HELP rl_service_sessions Sessions that are open.\n"
        "# TYPE rl_service_sessions gauge\n"
        f"rl_service_sessions {num_sessions}\n"
    )


def merged(pages: dict[str, str]) -> str:
    """One page of the pages of several replicas, each sample with its replica's label."""
    heads: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    for replica, page in sorted(pages.items()):
        for family in text_string_to_metric_families(page):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            heads[name] = f"# HELP {name} {family.documentation}\n# TYPE {name} {family.type}"
            samples.setdefault(name, []).extend(
                _line(s.name, {**s.labels, "replica": replica}.items(), s.value)
                for s in family.samples
                if not s.name.endswith("_created")
            )
    parts = [line for name, head in heads.items() for line in (head, *samples[name])]
    return "".join(f"{part}\n" for part in parts)


def _line(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{inner}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
