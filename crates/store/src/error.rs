//! Errors of a store.

use std::io;
use std::path::{Path, PathBuf};

/// A store cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Too many batches wait to be written.
    #[error("the store is busy: too many batches wait")]
    Busy,
    /// The file is not a store.
    #[error("cannot open {}: it is not a store of tollgate", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The database cannot hold every text.
    #[error(
        "cannot open {}: its encoding is {found}, which cannot hold every alert; \
         create it with `createdb -E UTF8 -T template0`",
        path.display()
    )]
    Encoding {
        /// The database.
        path: PathBuf,
        /// Its encoding.
        found: String,
    },
    /// A newer build wrote the store.
    #[error(
        "cannot open {}: a newer build wrote it (schema {found}, this build knows up to {known})",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of the schema in the file.
        found: i64,
        /// Latest version that this build knows.
        known: i64,
    },
    /// The file already exists.
    #[error("cannot write {}: it exists", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file fails the check of its integrity.
    #[error("cannot use {}: it is damaged: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first finding of the database.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried, a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The thread that writes has ended, or cannot be created.
    #[error("the thread that writes to the store does not run")]
    Stopped,
    /// The database refuses a statement.
    #[error("the store fails")]
    Database(#[source] rusqlite::Error),
    /// PostgreSQL refuses a statement, or is away.
    #[error("the store fails")]
    Server(#[source] postgres::Error),
    /// PostgreSQL takes a connection, and then says nothing.
    #[error("cannot connect to PostgreSQL: the server does not answer within {seconds} seconds")]
    Silent {
        /// The time limit.
        seconds: u64,
    },
    /// The connection to PostgreSQL cannot be encrypted as the URL asks for.
    #[error("cannot connect to PostgreSQL by TLS: {problem}")]
    Encryption {
        /// What is wrong.
        problem: String,
    },
    /// A certificate or key cannot be used.
    #[error("cannot use {}: {problem}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The URL of a store is wrong.
    #[error("cannot use the URL of the store: {problem}")]
    Url {
        /// What is wrong. It names no password.
        problem: String,
    },
    /// A row has a value that this build does not know.
    #[error("cannot read a row of the store: {problem}")]
    Row {
        /// What is wrong.
        problem: String,
    },
    /// A batch is of an agent that the store does not have.
    #[error("cannot store a batch: there is no agent {id}")]
    UnknownAgent {
        /// Number of the agent.
        id: i64,
    },
    /// A batch has to follow what is stored of its agent, and does not.
    #[error("cannot store a batch from record {first} on: record {expected} is not stored yet")]
    OutOfOrder {
        /// Number of the first record of the batch.
        first: u64,
        /// Number of the record that has to come first.
        expected: u64,
    },
    /// The database has tools of its own for this.
    #[error("cannot {action} a store in PostgreSQL")]
    Elsewhere {
        /// What was asked, a verb.
        action: &'static str,
    },
    /// The transaction that held this change was not committed.
    #[error("the store cannot commit: {cause}")]
    Commit {
        /// The error of the commit, which other changes share.
        cause: String,
    },
}

/// What an error says about a store and about the change that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store does not answer. Every change and every question fails alike.
    Away,
    /// The store answers, and cannot take changes for the moment: it is busy, locked or full.
    Later,
    /// The database refuses the values of this change, and will do so again.
    Values,
    /// The error does not tell.
    Unclear,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

impl From<postgres::Error> for StoreError {
    fn from(error: postgres::Error) -> Self {
        match encryption_problem(&error) {
            Some(problem) => Self::Encryption { problem },
            None => Self::Server(error),
        }
    }
}

/// Returns what TLS has refused, or `None` if something else failed.
fn encryption_problem(error: &postgres::Error) -> Option<String> {
    let mut cause = std::error::Error::source(error);
    while let Some(found) = cause {
        let io = found.downcast_ref::<io::Error>();
        let inner = io.and_then(io::Error::get_ref);
        if let Some(error) = inner.and_then(|it| it.downcast_ref::<rustls::Error>()) {
            return Some(rejection(error));
        }
        // The client has no type for this.
        if found.to_string() == "server does not support TLS" {
            return Some("the server does not offer it".to_owned());
        }
        cause = found.source();
    }
    None
}

/// Returns true if an error of the connection is the cause.
fn is_of_connection(error: &postgres::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(found) = cause {
        if found.is::<io::Error>() {
            return true;
        }
        cause = found.source();
    }
    false
}

/// Returns what a code of PostgreSQL says, by its class.
fn server_fault(code: &str) -> Fault {
    match code.get(..2) {
        // A cancelled query is one that took too long.
        _ if code == "57014" => Fault::Later,
        // Connections, logins, databases that are gone, and servers that end or begin.
        Some("08" | "28" | "3D" | "57") => Fault::Away,
        // Transactions, resources, locks, the disk.
        Some("25" | "40" | "53" | "55" | "58") => Fault::Later,
        // Values, constraints, and what exceeds a limit of the server.
        Some("21" | "22" | "23" | "54") => Fault::Values,
        _ => Fault::Unclear,
    }
}

/// Returns what a code of SQLite says.
fn file_fault(code: rusqlite::ErrorCode) -> Fault {
    use rusqlite::ErrorCode::{
        CannotOpen, ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull, OutOfMemory,
        ParameterOutOfRange, ReadOnly, SystemIoFailure, TooBig, TypeMismatch,
    };
    match code {
        CannotOpen | SystemIoFailure => Fault::Away,
        DatabaseBusy | DatabaseLocked | DiskFull | OutOfMemory | ReadOnly => Fault::Later,
        ConstraintViolation | TypeMismatch | TooBig | ParameterOutOfRange => Fault::Values,
        _ => Fault::Unclear,
    }
}

/// Says in words what rustls names by its types.
fn rejection(error: &rustls::Error) -> String {
    use rustls::CertificateError::{BadSignature, UnknownIssuer};
    let text = error.to_string();
    match error {
        // An authority of the same name with another key has not issued it, either.
        rustls::Error::InvalidCertificate(BadSignature | UnknownIssuer) => {
            "no authority that is trusted issued the server's certificate".to_owned()
        }
        _ if text.contains("CaUsedAsEndEntity") => {
            "the server presents the certificate of an authority (CA:TRUE) and not one of its own"
                .to_owned()
        }
        _ => text,
    }
}

impl StoreError {
    /// Returns what the error says about the store and about the change.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Silent { .. } | Self::Stopped | Self::Encryption { .. } => Fault::Away,
            Self::Busy | Self::Commit { .. } | Self::OutOfOrder { .. } => Fault::Later,
            Self::Server(error) => match error.code() {
                Some(code) => server_fault(code.code()),
                None if error.is_closed() || is_of_connection(error) => Fault::Away,
                None => Fault::Unclear,
            },
            Self::Database(error) => error.sqlite_error_code().map_or(Fault::Unclear, file_fault),
            _ => Fault::Unclear,
        }
    }

    /// Names the file, if the database says that it is none of its own.
    pub(crate) fn foreign_if_no_database(self, path: &Path) -> Self {
        match self {
            Self::Database(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) =>
            {
                Self::Foreign {
                    path: path.to_owned(),
                }
            }
            other => other,
        }
    }
}
