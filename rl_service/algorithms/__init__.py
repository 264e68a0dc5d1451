"""On-policy algorithms as RLlib `Algorithm` + `Policy` pairs."""
