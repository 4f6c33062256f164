-- State that 0.1.0 wrote: sessions, a ticket run and a worktree. A release adds a file like this one; none is changed.

-- service/service.db
PRAGMA user_version = 4;
BEGIN TRANSACTION;
CREATE TABLE context (
    key TEXT PRIMARY KEY, content TEXT NOT NULL, version INTEGER NOT NULL, used REAL NOT NULL,
    expired INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "context" VALUES('session/first','{"artifact_key":"session/first","state":"enriched","current_request":null,"previous_request":null,"result":null,"worktree_context":{"main_worktree":{"worktree_id":"project-tabs-7b499adaa2c1","worktree_path":"/home/me/project-tabs","submodule_worktree_ids":[],"parent_worktree_id":null},"submodule_worktrees":[],"ungranted_submodules":[],"denied_paths":[],"read_only_paths":[],"writable_paths":[],"unpopulated_submodules":[],"freeze_root":false},"tool_context":null,"prompt_context":null,"operation_context":null,"orchestrator_node_id":null,"ticket_node_id":null,"metadata":{"session":"first"},"created_at":"2026-11-26T21:51:13.573198Z","last_updated_at":"2026-11-26T21:51:13.697459Z"}',3,1.79572987369760417937e+09,1);
INSERT INTO "context" VALUES('r1','{"artifact_key":"r1","state":"enriched","current_request":{"context_id":"r1","artifact_key":"r1","worktree_context":{"main_worktree":{"worktree_id":"project-tabs-7b499adaa2c1","worktree_path":"/home/me/project-tabs","submodule_worktree_ids":[],"parent_worktree_id":"project-6320105152ce"},"submodule_worktrees":[],"ungranted_submodules":[],"denied_paths":[],"read_only_paths":[],"writable_paths":[],"unpopulated_submodules":[],"freeze_root":false},"goal":"","kind":"OrchestratorRequest"},"previous_request":null,"result":null,"worktree_context":{"main_worktree":{"worktree_id":"project-tabs-7b499adaa2c1","worktree_path":"/home/me/project-tabs","submodule_worktree_ids":[],"parent_worktree_id":"project-6320105152ce"},"submodule_worktrees":[],"ungranted_submodules":[],"denied_paths":[],"read_only_paths":[],"writable_paths":[],"unpopulated_submodules":[],"freeze_root":false},"tool_context":{"tools":["read","list","glob","grep"],"metadata":{}},"prompt_context":null,"operation_context":{"agent_name":"ticket-run","action":"begin","method":"launcher.service.ticket_work","metadata":{}},"orchestrator_node_id":"r1","ticket_node_id":null,"metadata":{},"created_at":"2026-11-26T21:51:15.249360Z","last_updated_at":"2026-11-26T21:51:15.253493Z"}',4,1.79572987525355291368e+09,1);
CREATE TABLE event (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, session TEXT NOT NULL, data TEXT NOT NULL
);
INSERT INTO "event" VALUES(1795729871223687,1795729873.573,'session','first','{"state": "created", "why": "accepted"}');
INSERT INTO "event" VALUES(1795729871223688,1795729873.576,'session','first','{"state": "starting", "why": "a slot was free"}');
INSERT INTO "event" VALUES(1795729871223689,1795729873.681,'session','first','{"state": "running", "why": "its command runs, in landlock+namespaces"}');
INSERT INTO "event" VALUES(1795729871223690,1795729873.704,'session','first','{"state": "ended", "why": "exited, status 0", "reason": "exited", "status": 0, "signal": null, "limit": null, "refusal": null}');
CREATE TABLE idempotency (
    key TEXT NOT NULL, client_uid INTEGER NOT NULL, digest TEXT NOT NULL, session TEXT NOT NULL,
    created REAL NOT NULL, forgotten REAL, PRIMARY KEY (client_uid, key)
);
CREATE TABLE repository (common_dir TEXT PRIMARY KEY, merging INTEGER NOT NULL);
INSERT INTO "repository" VALUES('/home/me/project/.git',0);
CREATE TABLE session (
    name TEXT PRIMARY KEY, state TEXT NOT NULL, attempt INTEGER NOT NULL, request TEXT NOT NULL,
    client_uid INTEGER NOT NULL, created REAL NOT NULL, started REAL, ended REAL,
    process INTEGER, process_started INTEGER, cgroup TEXT NOT NULL DEFAULT '',
    worktree TEXT NOT NULL DEFAULT '', worktree_id TEXT NOT NULL DEFAULT '', backend TEXT NOT NULL DEFAULT '',
    network TEXT NOT NULL DEFAULT '', spawn_seconds REAL, outcome TEXT, moves INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "session" VALUES('first','ended',1,'{"command": ["true"], "options": [], "directory": "/home/me/project-tabs", "name": "first", "environment": ["HOME", "PATH"], "stdin": "null", "window": [24, 80], "umask": 18, "restart": {"policy": "never", "most": 5}, "bridge": null, "wait_for_client": false, "labels": {}}',0,1.79572987357196521759e+09,1.79572987368046832088e+09,1.79572987370131278038e+09,NULL,NULL,'','/home/me/project-tabs','project-tabs-7b499adaa2c1','landlock+namespaces','none',1.0470964600017396151e-01,'{"reason": "exited", "status": 0, "signal": null, "limit": null, "denials": 0, "refusal": null, "harvest": null, "handoff": [], "notes": []}',3);
CREATE TABLE ticket (
    run TEXT NOT NULL REFERENCES ticket_run (name) ON DELETE CASCADE, number INTEGER NOT NULL,
    ticket TEXT NOT NULL, state TEXT NOT NULL, changed REAL NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,
    session TEXT NOT NULL DEFAULT '', worktree TEXT NOT NULL DEFAULT '', worktree_id TEXT NOT NULL DEFAULT '',
    agent TEXT, merged TEXT, PRIMARY KEY (run, number)
);
INSERT INTO "ticket" VALUES('r1',1,'T-1','merged',1.79572987572161865232e+09,1,'r1.1','/home/me/project-T-1','project-T-1-68d8095b4f08','{"ticket": "T-1", "session": "r1.1", "session_id": "r1/tickets/dispatch/1", "worktree": "/home/me/project-T-1", "state": "ended", "reason": "exited", "status": 0, "harvest": null, "refusal": null, "why": "", "log": "/home/me/.local/state/paddock/service/logs/r1.1", "next": []}','{"agent_result_id": "r1/tickets/dispatch/1", "worktree_context": {"main_worktree": {"worktree_id": "project-T-1-68d8095b4f08", "worktree_path": "/home/me/project-T-1", "submodule_worktree_ids": [], "parent_worktree_id": "project-tabs-7b499adaa2c1"}, "submodule_worktrees": [], "ungranted_submodules": [], "denied_paths": [], "read_only_paths": [], "writable_paths": [], "unpopulated_submodules": [], "freeze_root": false}, "merge_descriptor": {"merge_direction": "CHILD_TO_TRUNK", "successful": true, "conflict_files": [], "submodule_merge_results": [], "main_worktree_merge_result": {"source": "agent/T-1", "target": "agent/tabs", "successful": true, "no_op": true, "fast_forward": false, "commit_id": "", "previous_commit_id": "902a6aa17cfe8272aa96d7606d042ae2070579fd", "repository": "/home/me/project/.git", "target_ref": "refs/heads/agent/tabs", "conflicts": [], "error_message": null}, "error_message": null, "hint": null, "merge_commands": null, "run_id": null}, "child_merge_descriptor": {"merge_direction": "TRUNK_TO_CHILD", "successful": true, "conflict_files": [], "submodule_merge_results": [], "main_worktree_merge_result": {"source": "agent/tabs", "target": "agent/T-1", "successful": true, "no_op": true, "fast_forward": false, "commit_id": "", "previous_commit_id": "902a6aa17cfe8272aa96d7606d042ae2070579fd", "repository": "/home/me/project/.git", "target_ref": "refs/heads/agent/T-1", "conflicts": [], "error_message": null}, "error_message": null, "hint": null, "merge_commands": null, "run_id": null}}');
CREATE TABLE ticket_run (
    name TEXT PRIMARY KEY, state TEXT NOT NULL, request TEXT NOT NULL, client_uid INTEGER NOT NULL,
    created REAL NOT NULL, ended REAL, common_dir TEXT NOT NULL DEFAULT '', result TEXT,
    key TEXT, digest TEXT NOT NULL DEFAULT ''
);
INSERT INTO "ticket_run" VALUES('r1','ended','{"name": "r1", "repository": "/home/me/project-tabs", "goal": "", "tickets": [{"command": ["true"], "options": [], "timeout": null, "ticket": "T-1", "details": "", "cpus": 1.0, "memory": 0, "resources": {}}], "agent": null, "orchestrator": null, "parallel": 4, "merge": true, "merge_failed": false, "on_conflict": "stop", "context_manager": null, "review": null, "merger": null, "file_tools": false, "timeout": null, "remove": true, "engine": "local", "address": null, "environment": ["HOME", "PATH"]}',0,1.79572987491595959658e+09,1.79572987608471679689e+09,'','{"trunk": "/home/me/project-tabs", "agents": [{"ticket": "T-1", "session": "r1.1", "session_id": "r1/tickets/dispatch/1", "worktree": "/home/me/project-T-1", "state": "ended", "reason": "exited", "status": 0, "harvest": null, "refusal": null, "why": "", "log": "/home/me/.local/state/paddock/service/logs/r1.1", "next": []}], "aggregation": {"merged": [{"agent_result_id": "r1/tickets/dispatch/1", "worktree_context": {"main_worktree": {"worktree_id": "project-T-1-68d8095b4f08", "worktree_path": "/home/me/project-T-1", "submodule_worktree_ids": [], "parent_worktree_id": "project-tabs-7b499adaa2c1"}, "submodule_worktrees": [], "ungranted_submodules": [], "denied_paths": [], "read_only_paths": [], "writable_paths": [], "unpopulated_submodules": [], "freeze_root": false}, "merge_descriptor": {"merge_direction": "CHILD_TO_TRUNK", "successful": true, "conflict_files": [], "submodule_merge_results": [], "main_worktree_merge_result": {"source": "agent/T-1", "target": "agent/tabs", "successful": true, "no_op": true, "fast_forward": false, "commit_id": "", "previous_commit_id": "902a6aa17cfe8272aa96d7606d042ae2070579fd", "repository": "/home/me/project/.git", "target_ref": "refs/heads/agent/tabs", "conflicts": [], "error_message": null}, "error_message": null, "hint": null, "merge_commands": null, "run_id": null}, "child_merge_descriptor": {"merge_direction": "TRUNK_TO_CHILD", "successful": true, "conflict_files": [], "submodule_merge_results": [], "main_worktree_merge_result": {"source": "agent/tabs", "target": "agent/T-1", "successful": true, "no_op": true, "fast_forward": false, "commit_id": "", "previous_commit_id": "902a6aa17cfe8272aa96d7606d042ae2070579fd", "repository": "/home/me/project/.git", "target_ref": "refs/heads/agent/T-1", "conflicts": [], "error_message": null}, "error_message": null, "hint": null, "merge_commands": null, "run_id": null}}], "pending": [], "conflicted": null}, "conflicts": [], "summary": "1 of 1 merged\n  merged      r1/tickets/dispatch/1 (nothing new)", "clean": true, "results": [{"context_id": "r1/tickets/dispatch/1", "artifact_key": "r1/tickets/dispatch/1", "worktree_context": {"main_worktree": {"worktree_id": "project-T-1-68d8095b4f08", "worktree_path": "/home/me/project-T-1", "submodule_worktree_ids": [], "parent_worktree_id": "project-tabs-7b499adaa2c1"}, "submodule_worktrees": [], "ungranted_submodules": [], "denied_paths": [], "read_only_paths": [], "writable_paths": [], "unpopulated_submodules": [], "freeze_root": false}, "output": "exited, status 0", "merge_descriptor": {"merge_direction": "TRUNK_TO_CHILD", "successful": true, "conflict_files": [], "submodule_merge_results": [], "main_worktree_merge_result": {"source": "agent/tabs", "target": "agent/T-1", "successful": true, "no_op": true, "fast_forward": false, "commit_id": "", "previous_commit_id": "902a6aa17cfe8272aa96d7606d042ae2070579fd", "repository": "/home/me/project/.git", "target_ref": "refs/heads/agent/T-1", "conflicts": [], "error_message": null}, "error_message": null, "hint": null, "merge_commands": null, "run_id": null}, "kind": "TicketAgentResult"}], "uncommitted": {}, "removed": {"r1/tickets/dispatch/1": ""}}',NULL,'d5c617f04e6a8710c8927f35dbefc41a9cb83848457984c5e658f393f7963dbe');
CREATE TABLE transition (
    session TEXT NOT NULL REFERENCES session (name) ON DELETE CASCADE, time REAL NOT NULL,
    before TEXT NOT NULL, after TEXT NOT NULL, attempt INTEGER NOT NULL, why TEXT NOT NULL
);
INSERT INTO "transition" VALUES('first',1.79572987357491302496e+09,'created','starting',1,'a slot was free');
INSERT INTO "transition" VALUES('first',1.79572987368047618864e+09,'starting','running',1,'its command runs, in landlock+namespaces');
INSERT INTO "transition" VALUES('first',1.7957298737013173103e+09,'running','ended',1,'exited, status 0');
CREATE INDEX session_state ON session (state, created);
CREATE INDEX transition_session ON transition (session);
CREATE INDEX context_used ON context (used);
CREATE UNIQUE INDEX ticket_run_key ON ticket_run (client_uid, key);
COMMIT;

-- worktrees.db
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE trunks (
    worktree_id TEXT PRIMARY KEY,
    path BLOB NOT NULL
) STRICT;
INSERT INTO "trunks" VALUES('project-tabs-7b499adaa2c1',X'2F686F6D652F6D652F70726F6A6563742D74616273');
CREATE TABLE worktrees (
    worktree_id TEXT PRIMARY KEY,
    repository BLOB NOT NULL,
    path BLOB NOT NULL UNIQUE,
    state TEXT NOT NULL,
    document TEXT NOT NULL
) STRICT;
INSERT INTO "worktrees" VALUES('project-tabs-7b499adaa2c1',X'2F686F6D652F6D652F70726F6A6563742F2E676974',X'2F686F6D652F6D652F70726F6A6563742D74616273','ready','{"ticket":"tabs","main":{"name":"","worktree_id":"project-tabs-7b499adaa2c1","path":"/home/me/project-tabs","common_dir":"/home/me/project/.git","git_dir":"/home/me/project/.git/worktrees/project-tabs","branch":"agent/tabs","branch_made":true,"base":"0ecff62eeac654799645a8c27f876d138b251771"},"submodules":[],"unpopulated":[],"parent_worktree_id":"project-6320105152ce","parent_path":"/home/me/project","created":1795729870.012677,"adopted":false,"state":"ready","staging":"/home/me/.project-tabs.paddock-b0b6235a017e"}');
CREATE INDEX by_repository ON worktrees (repository);
COMMIT;
