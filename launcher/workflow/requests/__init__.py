"""The messages of a workflow: requests to agents, their results, and the results of a whole dispatch."""
