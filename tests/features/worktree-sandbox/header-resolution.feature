@header-resolution @FR-017
Feature: A session's id leads to its worktree

  Background:
    Given a repository with the submodules ""
    And an orchestrator in a worktree of its own
    And the "Ticket" agents "one" in worktrees of their own

  @US5.1 @US5.3 @FR-016 @EDGE-3
  Scenario: Sessions that are known, and two in one worktree
    Then the worktree of session "run" is that of "the orchestrator"
    And the worktree of session "run/dispatch/one" is that of "one"
    When session "run" calls
      | tool | path                     |
      | read | {the orchestrator}/file  |
    Then every answer is "done"
    When session "run/dispatch/one" calls
      | tool  | path |
      | write | file |
    Then every answer is "done"
    And only the worktree of "one" has changed
    Given the "Ticket" agents "two, three" in worktrees of their own
    And "three" works in the worktree of "two"
    When session "run/dispatch/two" calls
      | tool  | path |
      | write | new  |
    Then every answer is "done"
    When session "run/dispatch/three" calls
      | tool | path |
      | edit | new  |
    Then every answer is "done"

  @US5.2
  Scenario: Sessions that have ended, and sessions that nobody knows
    Given the session of "one" has ended
    Then session "run/dispatch/one" has no worktree
    And session "run/dispatch/one/more" has no worktree
    And session "stranger" has no worktree
    And session "../run" has no worktree
    When session "run/dispatch/one" calls
      | tool  | path |
      | read  | file |
      | write | file |
    Then every answer is "WORKTREE_UNRESOLVED"
    When session "stranger" calls
      | tool  | path       |
      | read  | {one}/file |
      | shell | .          |
    Then every answer is "WORKTREE_UNRESOLVED"

  @EDGE-5
  Scenario: A worktree that was deleted during work
    Given the worktree of "one" is deleted
    When agent "one" does
      | operation | path       |
      | READ      | {one}/file |
      | WRITE     | {one}/file |
    Then all of it is denied
    When session "run/dispatch/one" calls
      | tool  | path       |
      | read  | {one}/file |
      | write | {one}/file |
    Then every answer is "SANDBOX_VIOLATION"
