"""File tools for agents, over MCP: the router that clients talk to, and the worker in each session's jail.

Two walls say the same thing. The worker asks the validator and reopens what it allowed step by step, so that nothing
that is swapped in between leads out; and it runs in a jail of its session's worktree, so that a fault in the first wall
meets the kernel. The router never opens what lies in a worktree, and takes a worker's words for data from a stranger.

`paddock files` (`serve`) stands alone. A service that runs a workflow puts the same parts together:
`Sessions.of_workflow` over its contexts and graph, with `Tokens` that it issues to its agents; `Jails` for the
workers; a `Router` over both; and `mcp_server.application`, an ASGI application, at whatever address it listens.
"""
