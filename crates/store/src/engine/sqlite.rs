//! The embedded durable engine: SQLite in write-ahead mode with one table of numbered rows. `docs/decisions/0001-embedded-engine.md`
//! has the measurements behind this choice. The engine has no notion of revisions or records; only the committer's thread uses it.
#![allow(clippy::disallowed_methods, reason = "blocking: on the committer's own thread; opened in the lane for files")]

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use kelson_platform::files;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi, params};

use super::ballast::Ballast;
use super::position::{PositionFile, check_database, check_log, log_of};
use super::{Engine, EngineError, Entry, Op, Sink};

/// The file in the data directory. The write-ahead log is beside it, with the suffix `-wal`.
const FILE: &str = "store.db";
/// The application ID ("KLSN") in the file's SQLite header.
const APPLICATION_ID: i64 = 0x4b4c_534e;
/// The number of pages (4 KiB each) in the write-ahead log after which it is checkpointed.
const CHECKPOINT_PAGES: u32 = 2000;
/// The size in bytes to which the write-ahead log is truncated after a checkpoint.
const WAL_BYTES_KEPT: u64 = 8 << 20;
/// The size of the page cache in KiB. Everything is read once, at the start; after that only the pages being written matter.
const CACHE_KIB: u32 = 2048;
/// The number of free pages that are kept for later writes.
const FREE_PAGES_KEPT: i64 = 1024;
/// The number of free pages that one call of `maintain` returns to the file system, so that a write never waits long for it.
const VACUUM_PAGES: i64 = 256;

/// The store in one directory. The directory is locked for other processes while this value exists.
pub struct SqliteEngine {
    path: PathBuf,
    connection: Connection,
    /// The write-ahead log, once it exists. It is the same file while the connection is open.
    log: Option<File>,
    /// A buffer in which rows are assembled.
    row: Vec<u8>,
    /// The recorded position of the log. Absent in a store that is only read, and if the disk was too full to create the file.
    position: Option<PositionFile>,
    ballast: Ballast,
    /// Whether closing may checkpoint the log into the database and remove it.
    carries_over: bool,
}

impl SqliteEngine {
    /// The name of the database file. The names of the log and of the position file begin with it.
    pub const FILE: &'static str = FILE;

    /// Opens the store in `dir`, or creates it (directory mode 0700, file mode 0600).
    ///
    /// # Errors
    /// Returns [`EngineError::InUse`], [`EngineError::Corrupt`], or the disk's error.
    pub fn open(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join(FILE);
        check_database(&path)?;
        create_files(dir, &path)?;
        let fault = |error| explain(&path, "open the store", error);
        let connection = Connection::open(&path).map_err(fault)?;
        // A damaged log must not be checkpointed into the database. Closing the connection would do that.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(fault)?;
        // The exclusive lock must come before write-ahead mode: then the log's index lives in memory and no second process can open it.
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(fault)?;
        let id: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(fault)?;
        check_log(&path)?;
        let tables: i64 =
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(fault)?;
        if id != APPLICATION_ID && (id != 0 || tables != 0) {
            let reason = "it belongs to another program".to_owned();
            return Err(EngineError::Corrupt { path, reason });
        }
        if tables == 0 {
            // The schema is written unsynced and then synced once by the checkpoint, which saves several syncs at a first start.
            connection
                .execute_batch(&format!(
                    "PRAGMA page_size=4096; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA synchronous=OFF;
                     PRAGMA journal_mode=WAL; BEGIN IMMEDIATE; PRAGMA application_id={APPLICATION_ID};
                     CREATE TABLE records (id INTEGER PRIMARY KEY, value BLOB NOT NULL);
                     CREATE TABLE marks (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID; COMMIT;
                     PRAGMA synchronous=FULL; PRAGMA wal_checkpoint(TRUNCATE);"
                ))
                .map_err(fault)?;
        }
        check_pages(&connection, &path)?;
        let position = PositionFile::open(&path)
            .inspect_err(|error| tracing::warn!(%error, "recording the position of the write-ahead log is off; damage of it will not be detected"))
            .ok();
        if tables == 0 {
            sync_directory(dir)?;
        }
        // With NORMAL, SQLite leaves the sync of commits to `sync`, but still syncs the log's header, and the log before a checkpoint.
        connection
            .execute_batch(&format!(
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-{CACHE_KIB};
                 PRAGMA temp_store=MEMORY; PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES};
                 PRAGMA journal_size_limit={WAL_BYTES_KEPT};"
            ))
            .map_err(fault)?;
        let ballast = Ballast::of(dir);
        Ok(Self { path, connection, log: None, row: Vec::new(), position, ballast, carries_over: false })
    }

    /// Opens a store that no process has open, for reading. Every page of the file is checked.
    ///
    /// # Errors
    /// As [`SqliteEngine::open`]; the error describes the damage.
    pub fn open_to_read(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join(FILE);
        let fault = |error| explain(&path, "open the store", error);
        check_database(&path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(fault)?;
        let id: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(fault)?;
        if id != APPLICATION_ID {
            return Err(EngineError::Corrupt { path, reason: "it belongs to another program".to_owned() });
        }
        check_log(&path)?;
        check_pages(&connection, &path)?;
        let ballast = Ballast::default();
        Ok(Self { path, connection, log: None, row: Vec::new(), position: None, ballast, carries_over: false })
    }

    /// Checkpoints the write-ahead log into the file, syncs it, and closes it. After that the file is the complete store.
    ///
    /// # Errors
    /// Returns the disk's error.
    pub fn close(mut self) -> Result<(), EngineError> {
        self.connection
            .execute_batch("PRAGMA synchronous=FULL; PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode=DELETE;")
            .map_err(|error| explain(&self.path, "close the store", error))?;
        self.carries_over = false;
        let gone = |source| EngineError::Io { context: "close the store", source };
        self.position.take().map_or(Ok(()), PositionFile::remove).map_err(gone)
    }

    /// Syncs the log's data. SQLite would also sync its timestamps at each commit, for which most file systems write their own journal.
    fn sync_log(&mut self) -> std::io::Result<()> {
        let log = match self.log.take() {
            Some(log) => log,
            // The file stays open: a descriptor that is opened after a failed write-back may not report the failure if SQLite's did. No
            // lock is held on this file, so that closing it beside SQLite releases none.
            None => files::open_to_sync(&log_of(&self.path))?,
        };
        self.log.insert(log).sync_data()
    }

    /// Handles a failed sync: the files are left unchanged from now on.
    fn unsynced(&mut self, source: &std::io::Error) -> EngineError {
        self.leave_files_alone();
        EngineError::Sync { context: "sync the store", reason: source.to_string() }
    }

    fn write(&mut self, batch: &[Op]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let mut put = transaction.prepare_cached("INSERT OR REPLACE INTO records (id, value) VALUES (?1, ?2)")?;
            let mut remove = transaction.prepare_cached("DELETE FROM records WHERE id = ?1")?;
            let mut mark = transaction.prepare_cached("INSERT OR REPLACE INTO marks (name, value) VALUES (?1, ?2)")?;
            for op in batch {
                match op {
                    Op::Put { id, head, body } => {
                        self.row.clear();
                        self.row.extend_from_slice(head);
                        self.row.extend_from_slice(body);
                        put.execute(params![id.cast_signed(), self.row])?;
                    }
                    Op::Remove { id } => drop(remove.execute([id.cast_signed()])?),
                    Op::Mark { name, value } => drop(mark.execute(params![name, value])?),
                }
            }
        }
        // If the commit fails, dropping the transaction rolls it back.
        transaction.commit()
    }

    /// Keeps the connection open after a failed sync. Closing it would checkpoint the log into the table, whose pages
    /// in memory may never have reached the disk.
    fn leave_files_alone(&mut self) {
        self.carry_over_at_end(false);
    }

    fn carry_over_at_end(&mut self, carries: bool) {
        self.carries_over = carries;
        let done = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !carries);
        if let Err(error) = done {
            tracing::warn!(%error, "leaving the write-ahead log for the next start failed");
        }
    }

    /// The number of pages in the log, and how many of them the database has.
    fn log_pages(&self, mode: &'static str) -> rusqlite::Result<(u32, u32)> {
        let mut statement = self.connection.prepare_cached(mode)?;
        // SQLite returns -1 if there is no log.
        let pages = |pages: i64| u32::try_from(pages).unwrap_or(0);
        statement.query_row([], |row| Ok((pages(row.get(1)?), pages(row.get(2)?))))
    }

    /// Records the position of the log after a commit.
    fn noted(&mut self, synced: bool) {
        match self.log_pages(LOOK) {
            Ok((pages, _)) => self.position.iter_mut().for_each(|position| position.note(pages, synced, false)),
            Err(error) => tracing::warn!(%error, "reading the length of the write-ahead log failed"),
        }
    }

    /// Checkpoints the whole log into the database and records that, so that the log may be removed. Returns `false` if it could not.
    fn carry_over(&mut self) -> rusqlite::Result<bool> {
        let (pages, carried) = self.log_pages(CARRY_OVER)?;
        if pages == carried {
            self.position.iter_mut().for_each(|position| position.note(pages, true, true));
        }
        Ok(pages == carried)
    }

    fn fault(&self, context: &'static str, error: rusqlite::Error) -> EngineError {
        explain(&self.path, context, error)
    }

    fn number(&self, sql: &str) -> Result<i64, EngineError> {
        self.connection.query_row(sql, [], |row| row.get(0)).map_err(|error| self.fault("read the store", error))
    }

    fn load_table(&self, sql: &str, each: &mut LoadRow<'_>) -> Result<(), EngineError> {
        let fault = |error| self.fault("read the store", error);
        let mut statement = self.connection.prepare(sql).map_err(fault)?;
        let mut rows = statement.query([]).map_err(fault)?;
        while let Some(row) = rows.next().map_err(fault)? {
            each(row)?;
        }
        Ok(())
    }
}

/// The value of SQLite's `user_version` in a store whose file has no remains of deleted rows.
const ERASED: i64 = 1;

/// Returns the length of the log and does nothing else.
const LOOK: &str = "PRAGMA wal_checkpoint(NOOP)";
const CARRY_OVER: &str = "PRAGMA wal_checkpoint(FULL)";

impl Drop for SqliteEngine {
    /// Records that the log is complete in the database, since closing the connection checkpoints the log and removes it.
    fn drop(&mut self) {
        if !self.carries_over {
            return;
        }
        match self.carry_over() {
            Ok(true) => self.position.iter().for_each(PositionFile::sync),
            Ok(false) => self.leave_files_alone(),
            Err(error) => {
                tracing::warn!(%error, "leaving the write-ahead log for the next start");
                self.leave_files_alone();
            }
        }
    }
}

type LoadRow<'a> = dyn FnMut(&rusqlite::Row<'_>) -> Result<(), EngineError> + 'a;

impl Engine for SqliteEngine {
    fn load(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        let odd = |_| EngineError::Corrupt { path: self.path.clone(), reason: "a row has the wrong type".to_owned() };
        self.load_table("SELECT name, value FROM marks ORDER BY name <> 'format'", &mut |row| {
            let name = row.get_ref(0).and_then(|name| Ok(name.as_str()?)).map_err(odd)?;
            let value = row.get_ref(1).and_then(|value| Ok(value.as_blob()?)).map_err(odd)?;
            sink(Entry::Mark { name, value })
        })?;
        self.load_table("SELECT id, value FROM records", &mut |row| {
            let id = row.get::<_, i64>(0).map_err(odd)?.cast_unsigned();
            let value = row.get_ref(1).and_then(|value| Ok(value.as_blob()?)).map_err(odd)?;
            sink(Entry::Record { id, value })
        })
    }

    fn append(&mut self, batch: &[Op], sync: bool) -> Result<(), EngineError> {
        self.write(batch).map_err(|error| {
            if is_failed_sync(&error) {
                self.leave_files_alone();
            }
            self.fault("write to the store", error)
        })?;
        if !self.carries_over {
            self.carry_over_at_end(true);
        }
        if sync {
            self.sync_log().map_err(|source| self.unsynced(&source))?;
        }
        self.noted(sync);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), EngineError> {
        match self.sync_log() {
            // There is no log yet: nothing was written since the store was opened.
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(self.unsynced(&source)),
            // The log has everything that is not synced yet, since a checkpoint syncs before it drops pages.
            Ok(()) => {
                self.noted(true);
                Ok(())
            }
        }
    }

    fn maintain(&mut self) -> Result<bool, EngineError> {
        let free = self.number("PRAGMA freelist_count")?;
        let pages = self.number("PRAGMA page_count")?;
        // Later writes reuse free pages, so returning them is worthwhile only if there are many, or if the disk is full.
        if !self.ballast.is_given_up() && (free <= FREE_PAGES_KEPT || free < pages / 4) || free == 0 {
            return Ok(false);
        }
        self.load_table(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"), &mut |_| Ok(()))?;
        self.noted(false);
        Ok(true)
    }

    fn erase(&mut self) -> Result<(), EngineError> {
        self.load_table("PRAGMA incremental_vacuum", &mut |_| Ok(()))?;
        self.noted(false);
        let cut = match self.carry_over() {
            Ok(false) => return Ok(()),
            // The log's file keeps old pages until it is truncated.
            Ok(true) => self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"),
            Err(error) => Err(error),
        };
        cut.map_err(|error| self.fault("erase what was deleted", error))?;
        self.noted(true);
        Ok(())
    }

    fn set_erasing(&mut self, erases: bool) -> Result<(), EngineError> {
        let fault = |error| explain(&self.path, "erase what was deleted", error);
        let kept = self.number("PRAGMA user_version")? != ERASED;
        if !erases {
            if !kept {
                self.connection.pragma_update(None, "user_version", 0).map_err(fault)?;
                self.noted(false);
            }
            return Ok(());
        }
        self.connection.pragma_update(None, "secure_delete", true).map_err(fault)?;
        if kept {
            // Pages may keep data that was deleted earlier. VACUUM rewrites all of them.
            if self.number("SELECT EXISTS (SELECT 1 FROM records)")? != 0 {
                self.connection.execute_batch("VACUUM").map_err(fault)?;
            }
            self.connection.pragma_update(None, "user_version", ERASED).map_err(fault)?;
        }
        self.erase()
    }

    fn keep_room(&mut self) -> bool {
        self.ballast.keep()
    }

    fn make_room(&mut self) -> bool {
        self.ballast.give_up()
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn blocks(&self) -> bool {
        true
    }
}

/// Checks the structure of the database's pages. Rows have checksums, but the pages that lead to them have none.
fn check_pages(connection: &Connection, path: &Path) -> Result<(), EngineError> {
    let found = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    let found = found.map_err(|error| explain(path, "open the store", error))?;
    if found == "ok" { Ok(()) } else { Err(EngineError::Corrupt { path: path.to_path_buf(), reason: found }) }
}

fn create_directory(dir: &Path) -> Result<(), EngineError> {
    files::make_private_dir(dir).map_err(|source| EngineError::Io { context: "create the store's directory", source })
}

/// Makes the directory entries of new files survive a power cut.
fn sync_directory(dir: &Path) -> Result<(), EngineError> {
    files::sync_names(dir).map_err(|source| EngineError::Io { context: "sync the store's directory", source })
}

fn create_file(path: &Path) -> Result<(), EngineError> {
    let file = files::private(OpenOptions::new().write(true).create(true).truncate(false)).open(path);
    file.map(drop).map_err(|source| EngineError::Io { context: "create the store's file", source })
}

/// Creates the directory and the file with access for their owner only. SQLite gives its log the mode of the file.
fn create_files(dir: &Path, path: &Path) -> Result<(), EngineError> {
    create_directory(dir)?;
    // Opening and closing the file a second time would release the locks of this process's own connection, so only new files are touched.
    if !path.exists() {
        create_file(path)?;
    }
    files::make_private(path).map_err(|source| EngineError::Io { context: "set the store's permissions", source })
}

/// Whether the error is a failed sync, of the files or of their directory.
fn is_failed_sync(error: &rusqlite::Error) -> bool {
    const SYNCS: [i32; 2] = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC];
    error.sqlite_error().is_some_and(|error| SYNCS.contains(&error.extended_code))
}

/// Translates an error of SQLite.
fn explain(path: &Path, context: &'static str, error: rusqlite::Error) -> EngineError {
    if is_failed_sync(&error) {
        return EngineError::Sync { context, reason: error.to_string() };
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            EngineError::InUse(path.parent().unwrap_or(path).to_path_buf())
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            EngineError::Corrupt { path: path.to_path_buf(), reason: error.to_string() }
        }
        Some(ErrorCode::DiskFull) => {
            EngineError::Io { context, source: std::io::Error::new(std::io::ErrorKind::StorageFull, error.to_string()) }
        }
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly) => {
            EngineError::Io { context, source: std::io::Error::other(error.to_string()) }
        }
        _ => EngineError::Other { context, reason: error.to_string() },
    }
}
