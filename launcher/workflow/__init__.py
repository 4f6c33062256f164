"""Requests that flow between agents: what they carry, who enriches them, and what is remembered about them.

What the specification leaves open (its edge cases), and what happens here:

- A request before the worktree exists goes on without one and nothing is written down; file tools that ask for its
  session find no boundaries. The next request of the session finds the worktree as soon as the node has it.
- Symbolic links that lead out are followed by the validator and judged by where they lead: denied.
- Two agents may share a worktree. Each session has the boundaries under its own id; work in the trunk itself counts as
  merged, and of two agents in one worktree the second brings nothing new.
- The worktree's root itself can be read and listed, and neither removed, renamed nor overwritten.
- A worktree that is deleted during work stops the next request with `worktree-gone`. The session's boundaries stay as
  they were written down, so its tools are denied everything instead of being let out.
"""
