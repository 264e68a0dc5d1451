"""The nets of rl-service in plain torch, and the one file that adapts them to RLlib."""
