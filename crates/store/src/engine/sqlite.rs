//! The embedded durable engine: SQLite in write-ahead mode, one table of numbered rows. Chosen by measurement, see
//! `docs/decisions/0001-embedded-engine.md`. It knows neither revisions nor records; only the committer's thread uses it.
#![allow(clippy::disallowed_methods, reason = "blocking: on the committer's own thread; opened in the lane for files")]

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use kelson_platform::files;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi, params};

use super::ballast::Ballast;
use super::position::{PositionFile, check_database, check_log, log_of};
use super::{Engine, EngineError, Entry, Op, Sink};

/// The file in the data directory; the write-ahead log stands beside it with `-wal` appended.
const FILE: &str = "store.db";
/// Marks the file as Kelson's in its SQLite header ("KLSN").
const APPLICATION_ID: i64 = 0x4b4c_534e;
/// Pages of the write-ahead log (4 KiB each) after which it is carried over into the table.
const CHECKPOINT_PAGES: u32 = 2000;
/// The write-ahead log is cut back to this after it was carried over.
const WAL_BYTES_KEPT: u64 = 8 << 20;
/// Page cache in KiB. Everything is read once, at the start; later only the pages being written matter.
const CACHE_KIB: u32 = 2048;
/// Free pages that are not worth giving back to the file system.
const FREE_PAGES_KEPT: i64 = 1024;
/// Free pages given back by one call of `maintain`, so that a write never waits long for it.
const VACUUM_PAGES: i64 = 256;

/// A store in one directory. The directory is locked for other processes as long as this lives.
pub struct SqliteEngine {
    path: PathBuf,
    connection: Connection,
    /// The write-ahead log, as soon as there is one. It is the same file for as long as the connection lives.
    log: Option<File>,
    /// The bytes of a row are put together here.
    row: Vec<u8>,
    /// How far the log is written. Absent in a store that is only read, and where the disk was too full to make it.
    position: Option<PositionFile>,
    ballast: Ballast,
    /// Whether the end may carry the log over into the database and remove it.
    carries_over: bool,
}

impl SqliteEngine {
    /// The name of the database's file; its log and what is noted of it have names that begin alike.
    pub const FILE: &'static str = FILE;

    /// Opens the store in `dir`, or makes one (directory mode 0700, file mode 0600).
    ///
    /// # Errors
    /// [`EngineError::InUse`], [`EngineError::Corrupt`], or what the disk says.
    pub fn open(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join(FILE);
        check_database(&path)?;
        create_files(dir, &path)?;
        let fault = |error| explain(&path, "open the store", error);
        let connection = Connection::open(&path).map_err(fault)?;
        // What is found to be damaged must not be carried over: closing would do it.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(fault)?;
        // Exclusive before write-ahead mode: then the index of the log lives in memory and no second process gets in.
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
            // Unsynced until all is there, then synced at once by the checkpoint: several syncs fewer at a first start.
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
        // NORMAL leaves the sync of commits to `sync`, and still syncs the log's head, and the log before it is carried over.
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

    /// Opens a store that nobody has open, to read it; every page of the file is checked.
    ///
    /// # Errors
    /// As [`SqliteEngine::open`]; damage is named.
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

    /// Carries the write-ahead log over into the file, syncs it, and closes it: the file is then all there is of the store.
    ///
    /// # Errors
    /// What the disk says.
    pub fn close(mut self) -> Result<(), EngineError> {
        self.connection
            .execute_batch("PRAGMA synchronous=FULL; PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode=DELETE;")
            .map_err(|error| explain(&self.path, "close the store", error))?;
        self.carries_over = false;
        let gone = |source| EngineError::Io { context: "close the store", source };
        self.position.take().map_or(Ok(()), PositionFile::remove).map_err(gone)
    }

    /// Syncs the log's data. SQLite would sync its times as well at each commit, for which most file systems write their own log.
    fn sync_log(&mut self) -> std::io::Result<()> {
        let log = match self.log.take() {
            Some(log) => log,
            // Kept open: what is opened after a failed write-back need not hear of it, if SQLite has. No lock is on this file, so that
            // closing it some day beside SQLite releases none.
            None => files::open_to_sync(&log_of(&self.path))?,
        };
        self.log.insert(log).sync_data()
    }

    /// A sync that failed, after which the files stay as they are.
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
        // A commit that fails is rolled back when the transaction is dropped.
        transaction.commit()
    }

    /// After a failed sync nothing may carry the log over into the table: the log's pages in memory may be ones that
    /// never reached the disk. Closing the connection would do it.
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

    /// Pages in the log, and how many of them are in the database.
    fn log_pages(&self, mode: &'static str) -> rusqlite::Result<(u32, u32)> {
        let mut statement = self.connection.prepare_cached(mode)?;
        // -1 where there is no log.
        let pages = |pages: i64| u32::try_from(pages).unwrap_or(0);
        statement.query_row([], |row| Ok((pages(row.get(1)?), pages(row.get(2)?))))
    }

    /// Notes how far the log is written after a commit.
    fn noted(&mut self, synced: bool) {
        match self.log_pages(LOOK) {
            Ok((pages, _)) => self.position.iter_mut().for_each(|position| position.note(pages, synced, false)),
            Err(error) => tracing::warn!(%error, "reading the length of the write-ahead log failed"),
        }
    }

    /// Carries the whole log over into the database, and notes that, so that the log may go. `false`: it stays as it is.
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

/// SQLite's `user_version` of a store in which nothing deleted can be read.
const ERASED: i64 = 1;

/// Asks for the length of the log, and does nothing.
const LOOK: &str = "PRAGMA wal_checkpoint(NOOP)";
const CARRY_OVER: &str = "PRAGMA wal_checkpoint(FULL)";

impl Drop for SqliteEngine {
    /// The connection's end carries the log over and removes it. That this is no loss is noted before.
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
            // Nothing was written since the store was opened.
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(self.unsynced(&source)),
            // The log holds all that is not yet synced; a checkpoint syncs before it forgets.
            Ok(()) => {
                self.noted(true);
                Ok(())
            }
        }
    }

    fn maintain(&mut self) -> Result<bool, EngineError> {
        let free = self.number("PRAGMA freelist_count")?;
        let pages = self.number("PRAGMA page_count")?;
        // Free pages are reused by later writes: giving back pays only if they are many, or the disk is full.
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
            // The log's file keeps pages of its former rounds until it is cut.
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
            // Pages of earlier times keep what was deleted from them; this writes all of them anew.
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

/// Looks whether the pages of the database belong together: rows have checksums, what leads to them has none.
fn check_pages(connection: &Connection, path: &Path) -> Result<(), EngineError> {
    let found = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    let found = found.map_err(|error| explain(path, "open the store", error))?;
    if found == "ok" { Ok(()) } else { Err(EngineError::Corrupt { path: path.to_path_buf(), reason: found }) }
}

fn create_directory(dir: &Path) -> Result<(), EngineError> {
    files::make_private_dir(dir).map_err(|source| EngineError::Io { context: "make the store's directory", source })
}

/// Makes the names of new files survive a power cut.
fn sync_directory(dir: &Path) -> Result<(), EngineError> {
    files::sync_names(dir).map_err(|source| EngineError::Io { context: "sync the store's directory", source })
}

fn create_file(path: &Path) -> Result<(), EngineError> {
    let file = files::private(OpenOptions::new().write(true).create(true).truncate(false)).open(path);
    file.map(drop).map_err(|source| EngineError::Io { context: "make the store's file", source })
}

/// Makes directory and file for their owner only. SQLite gives its log the mode of the file.
fn create_files(dir: &Path, path: &Path) -> Result<(), EngineError> {
    create_directory(dir)?;
    // A second opening and closing would release the locks of this process's own connection: only touch what is new.
    if !path.exists() {
        create_file(path)?;
    }
    files::make_private(path).map_err(|source| EngineError::Io { context: "set the store's permissions", source })
}

/// Whether it was a sync that failed, of the files or of their directory.
fn is_failed_sync(error: &rusqlite::Error) -> bool {
    const SYNCS: [i32; 2] = [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_DIR_FSYNC];
    error.sqlite_error().is_some_and(|error| SYNCS.contains(&error.extended_code))
}

/// What an error of SQLite means for the store.
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
