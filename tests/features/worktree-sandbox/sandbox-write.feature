@sandbox-write @FR-011 @SC-002 @SC-005
Feature: Agents write in their own worktree

  Background:
    Given a repository with the submodules ""
    And an orchestrator in a worktree of its own
    And the "Ticket" agents "one, two" in worktrees of their own

  @US3.1 @US3.2 @US3.3 @FR-013 @FR-019 @SC-004 @EDGE-4
  Scenario: Inside and not outside, by commands and by the file tools; the root itself is for reading
    When agent "one" does
      | operation | path          |
      | WRITE     | dir/file      |
      | WRITE     | {one}/new     |
      | WRITE     | dir/../newer  |
      | READ      | {one}         |
    Then all of it is allowed
    When agent "one" does
      | operation | path                     |
      | WRITE     | {two}/file               |
      | WRITE     | {two}/new                |
      | WRITE     | ../new                   |
      | WRITE     | dir/../../{two.name}/new |
      | WRITE     | {main}/file              |
      | DELETE    | {one}                    |
    Then all of it is denied
    When session "run/dispatch/one" calls
      | tool  | path       |
      | write | file       |
      | write | {one}/n/ew |
    Then every answer is "done"
    And only the worktree of "one" has changed
    When session "run/dispatch/one" calls
      | tool  | path                     |
      | write | {two}/file               |
      | write | dir/../../{two.name}/new |
      | write | {one}                    |
      | write | .git/config              |
    Then every answer is "SANDBOX_VIOLATION"

  @EDGE-2
  Scenario: Symbolic links that lead out
    Given a symbolic link "away" to "{two}" in the worktree of "one"
    And a symbolic link "out" to "{two}/file" in the worktree of "one"
    And a symbolic link "next" to "{two}/next" in the worktree of "one"
    When agent "one" does
      | operation | path      |
      | WRITE     | away/file |
      | WRITE     | away/new  |
      | READ      | away/file |
      | WRITE     | out       |
      | READ      | out       |
      | WRITE     | next      |
    Then all of it is denied
