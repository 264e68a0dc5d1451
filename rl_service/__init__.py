"""Train transformer policies with RLlib, tune them on a Ray cluster, serve the best over HTTP."""

__version__ = "0.1.0"
