"""A policy over HTTP: Ray Serve around pure inference, sessions, tokens, updates without a gap."""
