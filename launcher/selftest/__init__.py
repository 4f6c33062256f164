"""`paddock selftest`: attacks and everyday controls, run in any sandbox, and judged from outside of it."""
