"""Sandboxes for other programmes, by their own interfaces; each module needs its programme's package."""
