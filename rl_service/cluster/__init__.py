"""A Ray cluster on this machine: started, looked at and ended; and talking to any Ray dashboard."""
