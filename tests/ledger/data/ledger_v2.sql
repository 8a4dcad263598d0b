-- A ledger of schema version 2, dumped: the one of version 1 as that version's code left it.
PRAGMA application_id = 1718383731;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE cards (
        agent TEXT PRIMARY KEY, fetched_at INTEGER NOT NULL, body TEXT NOT NULL, sum INTEGER NOT NULL DEFAULT 0);
INSERT INTO "cards" VALUES('a',1767225600000000,'{"agent":"a","url":"http://a.test","fetched_at":"2026-01-01T00:00:00Z","card":{"name":"Agent"}}',546556215);
CREATE TABLE events (
        seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, topic TEXT NOT NULL, body TEXT NOT NULL, sum INTEGER NOT NULL DEFAULT 0);
INSERT INTO "events" VALUES(1,1767225601000000,'agent.skill.update','{"seq":1,"at":"2026-01-01T00:00:01Z","topic":"agent.skill.update","level":"info","correlation_id":null,"parent_id":null,"agent":null,"skill":null,"task_id":null,"payload":{"n":1}}',401174501);
INSERT INTO "events" VALUES(2,1767225602000000,'agent.skill.update','{"seq":2,"at":"2026-01-01T00:00:02Z","topic":"agent.skill.update","level":"info","correlation_id":null,"parent_id":null,"agent":null,"skill":null,"task_id":null,"payload":{"n":2}}',3713140686);
CREATE TABLE outcomes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        correlation_id TEXT NOT NULL UNIQUE REFERENCES requests (correlation_id),
        agent TEXT NOT NULL, skill TEXT NOT NULL, kind TEXT NOT NULL, success INTEGER NOT NULL,
        ended_at INTEGER NOT NULL, body TEXT NOT NULL, sum INTEGER NOT NULL DEFAULT 0, chain BLOB NOT NULL DEFAULT x'', announced INTEGER NOT NULL DEFAULT 0);
INSERT INTO "outcomes" VALUES(1,'c-1','a','echo','completed',1,1767225607000000,'{"correlation_id":"c-1","agent":"a","skill":"echo","system_actor":"user","kind":"completed","success":true,"blame":"nobody","started_at":"2026-01-01T00:00:00Z","ended_at":"2026-01-01T00:00:07Z","duration_ms":7000,"text":"done","reason":"","parent_id":null,"task_id":null,"context_id":null,"via":"local","usage":null,"cost_usd":null,"model":null,"confidence":null,"confidence_explanation":null,"effects":[]}',514942518,X'F4451567B4DA785B3497154717D9739C96C995909086A4D0B6664FA0A731A703',1);
INSERT INTO "outcomes" VALUES(2,'c-3','a','echo','completed',1,1767225609000000,'{"correlation_id":"c-3","agent":"a","skill":"echo","system_actor":"user","kind":"completed","success":true,"blame":"nobody","started_at":"2026-01-01T00:00:00Z","ended_at":"2026-01-01T00:00:09Z","duration_ms":9000,"text":"done","reason":"","parent_id":null,"task_id":null,"context_id":null,"via":"local","usage":null,"cost_usd":null,"model":null,"confidence":null,"confidence_explanation":null,"effects":[]}',1276423282,X'0879E86BBB34A1974A3844291C751BC59081499EBDE63EA91F4163069D83F4E5',1);
CREATE TABLE questions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, question_id TEXT NOT NULL UNIQUE,
        correlation_id TEXT NOT NULL REFERENCES requests (correlation_id),
        state TEXT NOT NULL, body TEXT NOT NULL, answer TEXT, answered_at INTEGER, sum INTEGER NOT NULL DEFAULT 0);
INSERT INTO "questions" VALUES(1,'q-1','c-2','answered','{"question_id":"q-1","correlation_id":"c-2","agent":"a","skill":"echo","task_id":"t","context_id":"k","kind":"input-required","text":"which one?","asked_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-02T00:00:00Z","checkpoint":1,"system_actor":"user"}','{"question_id":"q-1","text":"that one","by":"operator","decision":"answer"}',1767225603000000,110545428);
CREATE TABLE requests (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, correlation_id TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL, phase TEXT NOT NULL, accepted_at INTEGER NOT NULL,
        run_id TEXT REFERENCES runs (run_id), body TEXT NOT NULL, sum INTEGER NOT NULL DEFAULT 0);
INSERT INTO "requests" VALUES(1,'c-1','a','closed',1767225600000000,NULL,'{"request":{"correlation_id":"c-1","text":"it''s done; or is it?\nline two","skill":"echo","targets":["a"],"parent_id":null,"context_id":null,"task_id":null,"system_actor":"user","dispatcher_agent":null,"source":{"interface":"api","channel_id":null,"user_id":null},"metadata":{},"timeout_s":null,"first_turn":false},"agent":"a","skill":"echo","accepted_at":"2026-01-01T00:00:00Z","deadline_at":"2026-01-01T01:00:00Z","message_id":"m-c-1","phase":"intent","dialect":null,"streaming":false,"push":false,"register_push":false,"token_epoch":1,"task":null,"answers":0,"cancel_wanted":false}',2467932153);
INSERT INTO "requests" VALUES(2,'c-2','a','accepted',1767225600000000,'r-1','{"request":{"correlation_id":"c-2","text":"do it","skill":"echo","targets":["a"],"parent_id":null,"context_id":null,"task_id":null,"system_actor":"user","dispatcher_agent":null,"source":{"interface":"api","channel_id":null,"user_id":null},"metadata":{},"timeout_s":null,"first_turn":false},"agent":"a","skill":"echo","accepted_at":"2026-01-01T00:00:00Z","deadline_at":"2026-01-01T01:00:00Z","message_id":"m-c-2","phase":"accepted","dialect":null,"streaming":false,"push":false,"register_push":false,"token_epoch":1,"task":{"task_id":"t","context_id":"k","status":{"state":"working","message":null,"timestamp":"2026-01-01T00:00:00Z"},"artifacts":[{"artifact_id":"x","parts":[{"text":"done","media_type":null,"metadata":{}}],"name":null,"description":null,"extensions":[],"metadata":{}}],"history":[],"metadata":{}},"answers":0,"cancel_wanted":false}',3863328119);
INSERT INTO "requests" VALUES(3,'c-3','a','closed',1767225600000000,NULL,'{"request":{"correlation_id":"c-3","text":"do it","skill":"echo","targets":["a"],"parent_id":null,"context_id":null,"task_id":null,"system_actor":"user","dispatcher_agent":null,"source":{"interface":"api","channel_id":null,"user_id":null},"metadata":{},"timeout_s":null,"first_turn":false},"agent":"a","skill":"echo","accepted_at":"2026-01-01T00:00:00Z","deadline_at":"2026-01-01T01:00:00Z","message_id":"m-c-3","phase":"intent","dialect":null,"streaming":false,"push":false,"register_push":false,"token_epoch":1,"task":null,"answers":0,"cancel_wanted":false}',2641712303);
CREATE TABLE runs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL UNIQUE,
        ceremony_id TEXT NOT NULL, scheduled_at INTEGER NOT NULL, status TEXT NOT NULL,
        started_at INTEGER NOT NULL, body TEXT NOT NULL, sum INTEGER NOT NULL DEFAULT 0,
        UNIQUE (ceremony_id, scheduled_at));
INSERT INTO "runs" VALUES(1,'r-1','daily',1767225600000000,'running',1767225600000000,'{"claim":{"ceremony_id":"daily","scheduled_at":"2026-01-01T00:00:00Z","run_id":"r-1","trigger":"cron"},"status":"running","started_at":"2026-01-01T00:00:00Z","ended_at":null,"children":[],"error":""}',675332430);
CREATE TABLE schema_version (
        version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL);
INSERT INTO "schema_version" VALUES(1,'requests, outcomes, questions, runs, cards, events',1767225600000000);
INSERT INTO "schema_version" VALUES(2,'sums on every row, a chain over outcomes, announced outcomes',1767237912144794);
CREATE INDEX runs_by_ceremony ON runs (ceremony_id, seq);
CREATE INDEX requests_open ON requests (seq) WHERE phase <> 'closed';
CREATE INDEX requests_by_run ON requests (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX outcomes_by_end ON outcomes (ended_at, seq);
CREATE INDEX questions_open ON questions (seq) WHERE state IN ('open', 'answered');
CREATE INDEX questions_by_request ON questions (correlation_id);
CREATE INDEX outcomes_unannounced ON outcomes (seq) WHERE announced = 0;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',1);
INSERT INTO "sqlite_sequence" VALUES('requests',3);
INSERT INTO "sqlite_sequence" VALUES('outcomes',2);
INSERT INTO "sqlite_sequence" VALUES('questions',1);
COMMIT;
