//! Messages about the program's own operation: to the standard error, and to syslog if configured.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use config::{CompatMode, Log};
use diagnostics::terminal;
use outputs::SyslogChannel;
use rules::Priority;

/// Destination of messages. Global, because every thread must be able to report; set when a
/// configuration is read.
static JOURNAL: RwLock<Option<Journal>> = RwLock::new(None);

/// Time limit of the syslog daemon for one message.
const SYSLOG_TIMEOUT: Duration = Duration::from_millis(200);

struct Journal {
    log: Log,
    manner: CompatMode,
    is_iso_8601: bool,
    syslog: Option<Mutex<SyslogChannel>>,
}

/// Sets the destination of messages. Before this call, and in commands that never make it, messages
/// go to the standard error.
pub fn open(log: Log, manner: CompatMode, is_iso_8601: bool) {
    let syslog = log.syslog.then(|| {
        let path = PathBuf::from(SyslogChannel::PATH);
        Mutex::new(SyslogChannel::new(path, SYSLOG_TIMEOUT))
    });
    let journal = Journal {
        log,
        manner,
        is_iso_8601,
        syslog,
    };
    *JOURNAL.write().unwrap_or_else(PoisonError::into_inner) = Some(journal);
}

/// Sets the destination again after a reload.
pub fn reopen(log: Log, is_iso_8601: bool) {
    let manner = {
        let journal = JOURNAL.read().unwrap_or_else(PoisonError::into_inner);
        journal.as_ref().map(|journal| journal.manner)
    };
    open(log, manner.unwrap_or(CompatMode::Tollgate), is_iso_8601);
}

/// Returns true if messages are those of Falco's personality.
#[must_use]
pub fn is_falcos() -> bool {
    let journal = JOURNAL.read().unwrap_or_else(PoisonError::into_inner);
    journal
        .as_ref()
        .is_some_and(|journal| journal.manner == CompatMode::Falco)
}

/// Writes a warning that requires action.
pub fn warn(text: &str) {
    say(Priority::Warning, text);
}

/// Writes a message if its priority is high enough.
pub fn say(priority: Priority, text: &str) {
    // Messages of this kind are news, which the configuration may leave out.
    let _is_written = write(priority, text);
}

/// Writes a message if its priority is high enough. Returns false if it went nowhere.
pub(crate) fn write(priority: Priority, text: &str) -> bool {
    let journal = JOURNAL.read().unwrap_or_else(PoisonError::into_inner);
    let Some(journal) = &*journal else {
        terminal::complain(&line(CompatMode::Tollgate, false, text));
        return true;
    };
    if priority > journal.log.level {
        return false;
    }
    if journal.log.stderr {
        terminal::complain(&line(journal.manner, journal.is_iso_8601, text));
    }
    if let Some(syslog) = &journal.syslog {
        let mut syslog = syslog.lock().unwrap_or_else(PoisonError::into_inner);
        // A machine without a log daemon, such as a container, is no reason for a message, which
        // would have no destination either.
        return syslog.log(priority, text).is_ok() || journal.log.stderr;
    }
    journal.log.stderr
}

fn line(manner: CompatMode, is_iso_8601: bool, text: &str) -> String {
    match manner {
        CompatMode::Tollgate => format!("tollgate: {text}\n"),
        CompatMode::Falco => format!("{}: {text}\n", outputs::log_stamp(is_iso_8601)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_manner_has_its_prefix() {
        assert_eq!(line(CompatMode::Tollgate, false, "x"), "tollgate: x\n");
        let falco = line(CompatMode::Falco, true, "x");
        assert!(falco.ends_with("+0000: x\n"), "{falco}");
        // As in `Sat Nov 21 13:53:31 2026: x`.
        let falco = line(CompatMode::Falco, false, "x");
        assert_eq!(falco.split(' ').filter(|word| !word.is_empty()).count(), 6);
    }
}
