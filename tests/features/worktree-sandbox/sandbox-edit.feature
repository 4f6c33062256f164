@sandbox-edit @FR-012 @SC-002 @SC-005
Feature: Agents edit in their own worktree

  Background:
    Given a repository with the submodules ""
    And an orchestrator in a worktree of its own
    And the "Ticket" agents "one, two" in worktrees of their own

  @US4.1 @US4.2 @FR-019
  Scenario: Inside and not outside, by commands and by the file tools
    When agent "one" does
      | operation | path     |
      | EDIT      | file     |
      | EDIT      | dir/file |
    Then all of it is allowed
    When agent "one" does
      | operation | path               |
      | EDIT      | {two}/file         |
      | EDIT      | ../{two.name}/file |
      | EDIT      | {main}/file        |
    Then all of it is denied
    When session "run/dispatch/one" calls
      | tool | path     |
      | edit | dir/file |
    Then every answer is "done"
    When session "run/dispatch/one" calls
      | tool | path               |
      | edit | {two}/dir/file     |
      | edit | ../{two.name}/file |
    Then every answer is "SANDBOX_VIOLATION"
