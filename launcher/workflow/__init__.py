"""Requests that flow between agents: what they carry, who enriches them, and what is remembered about them."""
