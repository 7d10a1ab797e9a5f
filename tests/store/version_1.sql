-- A database of store version 1 as it was first released: never edit.
BEGIN TRANSACTION;
CREATE TABLE flyball_candidate (
            lease TEXT NOT NULL,
            id TEXT NOT NULL,
            boot TEXT NOT NULL,
            until_s REAL NOT NULL,
            ttl_s REAL NOT NULL,
            PRIMARY KEY (lease, id)
        );
CREATE TABLE flyball_document (
            space TEXT NOT NULL,
            key TEXT NOT NULL,
            version INTEGER NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (space, key)
        );
INSERT INTO "flyball_document" VALUES('groups','g',7,'{"members": ["a"]}');
CREATE TABLE flyball_document_version (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL);
INSERT INTO "flyball_document_version" VALUES(1,7);
CREATE TABLE flyball_lease (
            name TEXT PRIMARY KEY,
            holder TEXT,
            token INTEGER NOT NULL,
            boot TEXT NOT NULL,
            until_s REAL NOT NULL,
            ttl_s REAL NOT NULL
        );
INSERT INTO "flyball_lease" VALUES('lead','a',3,'some boot',10.0,3.0);
CREATE TABLE flyball_loop_state (name TEXT PRIMARY KEY, state TEXT NOT NULL);
INSERT INTO "flyball_loop_state" VALUES('prefetch','{"integral": 0.5}');
CREATE TABLE flyball_outbox (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL,
            channel TEXT NOT NULL,
            urgency INTEGER NOT NULL CHECK (urgency BETWEEN 0 AND 9),
            accepted_s REAL NOT NULL,
            size_bytes INTEGER NOT NULL,
            key BLOB,
            headers TEXT,
            event_time_s REAL,
            content_type TEXT,
            body BLOB NOT NULL
        );
INSERT INTO "flyball_outbox" VALUES(1,'first','orders',4,1.0,85,X'01','{"n": 1}',NULL,NULL,X'00FF');
INSERT INTO "flyball_outbox" VALUES(2,'second','orders',4,2.0,85,NULL,NULL,NULL,NULL,X'');
CREATE TABLE flyball_outbox_total (
            one INTEGER PRIMARY KEY CHECK (one = 1),
            messages INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            max_bytes INTEGER
        );
INSERT INTO "flyball_outbox_total" VALUES(1,2,170,NULL);
CREATE TABLE flyball_schema (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL);
INSERT INTO "flyball_schema" VALUES(1,1);
CREATE INDEX flyball_outbox_order ON flyball_outbox (urgency, seq);
CREATE TRIGGER flyball_outbox_in AFTER INSERT ON flyball_outbox BEGIN
            UPDATE flyball_outbox_total SET messages = messages + 1, bytes = bytes + NEW.size_bytes;
        END;
CREATE TRIGGER flyball_outbox_out AFTER DELETE ON flyball_outbox BEGIN
            UPDATE flyball_outbox_total SET messages = messages - 1, bytes = bytes - OLD.size_bytes;
        END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('flyball_outbox',2);
COMMIT;
