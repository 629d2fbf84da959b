//! Looks into captures for the page, as `tollgate replay` does.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use collector::{
    BrowseCapture, CaptureQuery, CaptureView, CapturedEvent, CapturedProcess, FilterProblem,
};
use replay::{BrowseQuery, BrowsedEvent, BrowsedProcess, browse};

/// Events that are looked at for one page: more than an agent's capture of 16 MiB has.
const MAX_EVENTS: u64 = 500_000;

/// Time for one page.
const MAX_TIME: Duration = Duration::from_secs(10);

/// Returns what looks into captures.
pub(super) fn browsing() -> BrowseCapture {
    Arc::new(view)
}

fn view(capture: &mut dyn Read, asked: CaptureQuery<'_>) -> Result<CaptureView, FilterProblem> {
    let query = BrowseQuery {
        filter: asked.filter,
        after: asked.after,
        events: asked.events,
        processes: asked.processes,
        scanned: MAX_EVENTS,
        time: MAX_TIME,
    };
    let found = browse(capture, query).map_err(|error| FilterProblem {
        message: error.message,
        at: error.at,
        help: error.help,
    })?;
    Ok(CaptureView {
        events: found.events.into_iter().map(event).collect(),
        has_more: found.has_more,
        scanned: found.scanned,
        stopped: found.stopped,
        processes: found.processes.into_iter().map(process).collect(),
        has_more_processes: found.has_more_processes,
    })
}

fn event(event: BrowsedEvent) -> CapturedEvent {
    CapturedEvent {
        number: event.number,
        time: event.time,
        process: event.process,
        thread: event.thread,
        call: event.call,
        arguments: event.arguments,
    }
}

fn process(process: BrowsedProcess) -> CapturedProcess {
    CapturedProcess {
        pid: process.pid,
        parent: process.parent,
        name: process.name,
        command: process.command,
    }
}
