"""Connectors of kvtier for inference engines. Nothing here is imported unless asked for by name."""
