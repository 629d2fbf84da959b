//! Alerts for tests.

use std::sync::Arc;

use event::Pid;
use process_info::procfs::Proc;
use rules::{Alert, AlertDetails, AlertProcess, Priority};

/// An alert about no process.
pub(crate) fn alert() -> Alert {
    Alert {
        time_ns: 1,
        made_ns: 2,
        rule: "Mark".into(),
        priority: Priority::Warning,
        source: "syscall".into(),
        tags: Arc::new([]),
        hostname: "box".into(),
        message: "text".to_owned(),
        fields: Vec::new(),
        details: AlertDetails::default(),
    }
}

/// An alert about a process that runs.
pub(crate) fn alert_of(pid: u32) -> Alert {
    let pid = Pid(pid.cast_signed());
    let stat = Proc::open().unwrap().stat(pid.0).unwrap();
    let mut alert = alert();
    alert.details.process = Some(AlertProcess {
        pid,
        start: stat.start,
        ancestors: Vec::new(),
    });
    alert
}
