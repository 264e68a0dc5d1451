"""The nets on one GPU against what the arithmetic and the memory need: `make bench-gpu`.

Needs torch and what the nets import; neither Ray nor the rest of the service.
"""
