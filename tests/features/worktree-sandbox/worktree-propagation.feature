@worktree-propagation @US1.1 @US1.2 @US1.3 @FR-001 @FR-003 @SC-001 @SC-008
Feature: Every request knows its worktree

  Background:
    Given a repository with the submodules "lib, doc"
    And an orchestrator in a worktree of its own

  Scenario: The orchestrator's request names its worktree, and a request of any type its parent's
    Then "the orchestrator" is told its own worktree with "lib, doc"
    When the orchestrator sends every type of request
    Then every receiver is told the orchestrator's worktree with "lib, doc"

  @EDGE-1
  Scenario: A request that comes before the worktree has none, and its session may do nothing
    Given an orchestrator without a worktree
    When the orchestrator sends "DiscoveryOrchestratorRequest"
    Then "the receiver" is told no worktree
