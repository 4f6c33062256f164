@submodule-sandbox @US6.1 @US6.2 @FR-018 @SC-006
Feature: Submodules are granted one by one

  Background:
    Given a repository with the submodules "lib, doc"

  Scenario: Only the designated submodule, by commands and by the file tools
    Given an orchestrator in a worktree of its own that is granted "lib"
    And the "Ticket" agents "one" in worktrees of their own
    Then "one" is told its own worktree with "lib"
    When agent "one" does
      | operation | path     |
      | READ      | lib/file |
      | WRITE     | lib/new  |
      | EDIT      | lib/file |
      | WRITE     | file     |
    Then all of it is allowed
    When agent "one" does
      | operation | path            |
      | WRITE     | doc/new         |
      | WRITE     | lib/../doc/new  |
      | READ      | {main}/doc/file |
      | READ      | {main}/lib/file |
    Then all of it is denied
    When session "run" calls
      | tool  | path     |
      | read  | lib/file |
      | write | lib/new  |
    Then every answer is "done"
    When session "run" calls
      | tool  | path              |
      | write | doc/new           |
      | write | lib/../doc/new    |
      | list  | {main}/doc        |
    Then every answer is "SANDBOX_VIOLATION"

  Scenario: Every submodule has a worktree of its own
    Given an orchestrator in a worktree of its own
    And the "Ticket" agents "one" in worktrees of their own
    Then "one" is told its own worktree with "lib, doc"
    When agent "one" does
      | operation | path     |
      | EDIT      | doc/file |
      | EDIT      | lib/file |
    Then all of it is allowed
