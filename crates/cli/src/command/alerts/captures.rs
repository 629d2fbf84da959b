//! `tollgate fleet capture`, `fleet captures` and `fleet download`: some seconds of events of an agent.

use std::fmt::Write as _;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::{terminal, text_file};
use serde_json::json;

use super::args::{Captures, Download, RequestCapture};
use super::client::{Client, json_text};
use super::{rows, text, time};

pub(super) fn request(args: &RequestCapture) -> Outcome {
    let client = Client::open(&args.asked)?;
    let body = json!({"agent": args.agent, "seconds": args.seconds});
    let answer = client.post("/api/v1/captures", &body)?;
    let id = text(&answer, "capture");
    terminal::print(&format!(
        "asked agent {} for {} s, capture {id}; `tollgate fleet captures` shows when it is complete\n",
        args.agent, args.seconds
    ))
}

pub(super) fn list(args: &Captures) -> Outcome {
    let client = Client::open(&args.asked)?;
    let answer = client.get("/api/v1/captures")?;
    if args.json {
        return terminal::print(&(json_text(&answer) + "\n"));
    }
    let mut out = format!(
        "{:<8} {:<7} {:>7} {:<20} {:<10} {:>9} {:>8} {:>6}  REASON\n",
        "CAPTURE", "AGENT", "SECONDS", "REQUESTED (UTC)", "STATE", "BYTES", "EVENTS", "LOST"
    );
    for row in rows(&answer, "captures") {
        let of = |name: &str| text(row, name);
        let _ = writeln!(
            out,
            "{:<8} {:<7} {:>7} {:<20} {:<10} {:>9} {:>8} {:>6}  {}",
            of("id"),
            of("agent"),
            of("seconds"),
            time(row, "requested"),
            of("state"),
            of("bytes"),
            of("events"),
            of("lost"),
            of("reason")
        );
    }
    terminal::print(&out)
}

pub(super) fn download(args: &Download) -> Outcome {
    let client = Client::open(&args.asked)?;
    let data = client.bytes(&format!("/api/v1/captures/{}/file", args.capture))?;
    let path = &args.file;
    text_file::create(path, &data, 0o600).map_err(|error| {
        let message = format!("cannot write {}: {error}", path.display());
        Failure::new(Exit::BadInput, message).help(text_file::next_step(error.kind()))
    })?;
    terminal::print(&format!(
        "wrote {}, {} bytes; `tollgate replay` and sysdig -r read it\n",
        path.display(),
        data.len()
    ))
}
