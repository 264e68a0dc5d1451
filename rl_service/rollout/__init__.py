"""From environments to fragments with their context, and from fragments to advantages."""
