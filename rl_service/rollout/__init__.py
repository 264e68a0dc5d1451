"""From environments to fragments with their context; the fleet of rollout workers."""
