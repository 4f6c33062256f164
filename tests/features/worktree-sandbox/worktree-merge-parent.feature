@MF-014 @MF-016 @MF-017 @MF-018 @MF-019 @MF-020 @MF-021 @SM-MF-002 @SM-MF-003 @SM-MF-004 @SM-MF-006
Feature: The agents' work comes to the trunk

  Background:
    Given a repository with the submodules "lib"
    And an orchestrator in a worktree of its own

  @MF-001 @MF-003 @MF-004 @MF-005 @MF-009 @MF-010 @MF-012 @MF-013
  Scenario Outline: Agents of every family have worktrees of their own, get the trunk's work, and are merged
    Given the "<family>" agents "one, two" in worktrees of their own
    Then "one" is told its own worktree with "lib"
    And "two" is told its own worktree with "lib"
    Given "the orchestrator" commits "trunk" to "new"
    And "one" commits "1" to "new-1"
    And "two" commits "2" to "new-2"
    When the results come in
    Then the result of "one" has arrived
    And the result of "two" has arrived
    And "new" of "one" holds "trunk"
    And the dispatch says "merged: one, two; conflicted: ; pending: "
    And "new-1" of "the orchestrator" holds "1"
    And "new-2" of "the orchestrator" holds "2"

    Examples:
      | family    |
      | Ticket    |
      | Planning  |
      | Discovery |

  @SM-MF-005 @MF-022 @EC-MF-008
  Scenario: It stops at the first conflict, and the routing model decides
    Given the "Ticket" agents "one, two, three, four" in worktrees of their own
    And "one" commits "1" to "new-1"
    And "two" commits "2" to "file"
    And "three" commits "3" to "file"
    And "four" commits "4" to "new-4"
    When the results come in
    Then the dispatch says "merged: one, two; conflicted: three; pending: four"
    And "file" of "the orchestrator" holds "2"
    And "new-4" of "the orchestrator" is missing
    And the routing model is told "CONFLICTS, one, two, three, file, four, MergerRequest, MergerInterruptRequest"

  Scenario: Submodules come first for every agent
    Given the "Ticket" agents "one, two" in worktrees of their own
    And "one" commits "1" to "lib/new-1"
    And "two" commits "2" to "lib/new-2"
    When the results come in
    Then the dispatch says "merged: one, two; conflicted: ; pending: "
    And the merge of "two" has arrived, and "lib" came before the rest
    And "lib/new-1" of "the orchestrator" holds "1"
    And "lib/new-2" of "the orchestrator" holds "2"

  @EC-MF-001 @MF-025
  Scenario: A submodule that merged is taken back when the rest conflicts
    Given the "Ticket" agents "one, two" in worktrees of their own
    And "one" commits "1" to "file"
    And "two" commits "2" to "file"
    And "two" commits "2" to "lib/new-2"
    When the results come in
    Then the dispatch says "merged: one; conflicted: two; pending: "
    And "lib/new-2" of "the orchestrator" is missing

  @EC-MF-007
  Scenario: A conflict of phase one is resolved before phase two
    Given the "Ticket" agents "one" in worktrees of their own
    And "the orchestrator" commits "trunk" to "file"
    And "one" commits "mine" to "file"
    When the result of "one" comes in
    Then the result of "one" conflicts in "file" and moves nothing
    When "one" resolves it in its jail with "both"
    And the results are collected
    Then the dispatch says "merged: one; conflicted: ; pending: "
    And "file" of "the orchestrator" holds "both"

  @EDGE-3
  Scenario: Two agents share a worktree
    Given the "Ticket" agents "one, two, three" in worktrees of their own
    And "three" works in the worktree of "one"
    And "one" commits "1" to "new-1"
    And "two" commits "2" to "new-2"
    And "three" commits "3" to "new-3"
    When the results come in
    Then the dispatch says "merged: one, two, three; conflicted: ; pending: "
    And the merge of "three" brings nothing new
    And "new-1" of "the orchestrator" holds "1"
    And "new-2" of "the orchestrator" holds "2"
    And "new-3" of "the orchestrator" holds "3"
