@sandbox-read @FR-010 @SC-002 @SC-005
Feature: Agents read in their own worktree

  Background:
    Given a repository with the submodules ""
    And an orchestrator in a worktree of its own
    And the "Ticket" agents "one, two" in worktrees of their own

  @US2.1 @US2.2 @US2.3 @FR-013 @FR-019 @SC-004
  Scenario: Inside and not outside, by commands and by the file tools
    When agent "one" does
      | operation | path        |
      | READ      | file        |
      | READ      | {one}/file  |
      | READ      | dir/../file |
      | READ      | {one}       |
    Then all of it is allowed
    When agent "one" does
      | operation | path                      |
      | READ      | {two}/file                |
      | READ      | ../{two.name}/file        |
      | READ      | dir/../../{two.name}/file |
      | READ      | {main}/file               |
      | READ      | {two}                     |
    Then all of it is denied
    When session "run/dispatch/one" calls
      | tool  | path        |
      | read  | file        |
      | read  | {one}/file  |
      | list  | {one}       |
      | shell | dir         |
    Then every answer is "done"
    When session "run/dispatch/one" calls
      | tool  | path                      |
      | read  | {two}/file                |
      | read  | dir/../../{two.name}/file |
      | list  | {main}                    |
      | shell | {two}                     |
    Then every answer is "SANDBOX_VIOLATION"
