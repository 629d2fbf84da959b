//! Resource usage and counters of a detector.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use serde_json::Value;

/// Time limit of a metrics endpoint.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Number of bytes read from the end of a stats file; no line is longer.
const TAIL: u64 = 64 << 10;

/// Measurements of a detector at one moment. Unknown values are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// CPU time since the detector's start, in seconds.
    pub(super) cpu_s: Option<f64>,
    /// Resident memory in bytes.
    pub(super) resident: Option<u64>,
    /// Size of the address space in bytes.
    pub(super) virtual_size: Option<u64>,
    /// Number of calls that were inspected, and the time of the counter in seconds.
    pub(super) calls: Option<(u64, f64)>,
    /// Number of lost events.
    pub(super) drops: Option<u64>,
}

/// Sources of the measurements.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    pub(super) pid: Option<i32>,
    pub(super) stats: Option<PathBuf>,
    pub(super) metrics: Option<String>,
    pub(super) began: Option<Instant>,
}

impl Meter {
    pub(super) fn read(&self) -> Reading {
        let mut reading = Reading::default();
        if let Some(pid) = self.pid {
            process(pid, &mut reading);
        }
        if let Some(file) = &self.stats {
            if let Some(line) = last_line(file) {
                counters(&line, &mut reading);
            }
        } else if let Some(url) = &self.metrics
            // A detector that is gone gives no counters, which the missing values show.
            && let Ok(text) = fetch(url)
        {
            let now = self
                .began
                .map_or(0.0, |began| began.elapsed().as_secs_f64());
            prometheus(&text, now, &mut reading);
        }
        reading
    }

    /// Checks that the detector's own counters can be read, if they are requested.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let unread = |what: String, help: &str| Err(Failure::new(Exit::BadInput, what).help(help));
        if let Some(file) = &self.stats
            && let Err(error) = fs::File::open(file)
        {
            let what = format!("cannot open {}: {error}", file.display());
            return unread(what, "start the detector first, with -s FILE");
        }
        let Some(url) = &self.metrics else {
            return Ok(());
        };
        let help = "set webserver.enabled, webserver.prometheus_metrics_enabled and metrics.enabled \
                    of the detector; the address is like http://localhost:8765/metrics";
        match fetch(url) {
            Err(problem) => unread(format!("cannot read the metrics at {url}: {problem}"), help),
            Ok(text) => {
                let mut reading = Reading::default();
                prometheus(&text, 0.0, &mut reading);
                match reading.calls {
                    Some(_) => Ok(()),
                    None => unread(
                        format!("cannot find {EVENTS} in the metrics at {url}"),
                        help,
                    ),
                }
            }
        }
    }
}

fn process(pid: i32, reading: &mut Reading) {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return;
    };
    // The name may contain anything. Fields 14, 15: time in ticks; 23, 24: bytes, pages (proc(5)).
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return;
    };
    let field = |number: usize| rest.split(' ').nth(number - 3)?.parse::<u64>().ok();
    let ticks = rustix::param::clock_ticks_per_second();
    if let (Some(user), Some(system)) = (field(14), field(15)) {
        reading.cpu_s = Some(float(user + system) / float(ticks));
    }
    reading.virtual_size = field(23);
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    reading.resident = field(24).map(|pages| pages * page);
}

/// Converts a counter for computation; counters stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counters stay far below 2^53")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

fn last_line(file: &Path) -> Option<Value> {
    let mut file = fs::File::open(file).ok()?;
    let length = file.seek(SeekFrom::End(0)).ok()?;
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))
        .ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    // The last line may be incomplete.
    let whole = &text[..text.rfind('\n')?];
    serde_json::from_str(whole.lines().last()?).ok()
}

fn counters(line: &Value, reading: &mut Reading) {
    let current = &line["cur"];
    let filtered = line["filtered_in_kernel"].as_u64().unwrap_or(0);
    let seconds = line["elapsed_ms"].as_f64().map(|ms| ms / 1e3);
    if let (Some(events), Some(seconds)) = (current["events"].as_u64(), seconds) {
        reading.calls = Some((events + filtered, seconds));
    }
    reading.drops = current["drops"].as_u64();
}

fn prometheus(text: &str, now: f64, reading: &mut Reading) {
    let sum = |name: &str| {
        let values: Vec<f64> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (head, value) = line.rsplit_once(' ')?;
                let found = head.split('{').next()?;
                (found == name).then(|| value.parse().ok()).flatten()
            })
            .collect();
        (!values.is_empty()).then(|| whole(values.iter().sum()))
    };
    // Events that Falco's drivers discard are not in its counter.
    let filtered = sum(FILTERED).unwrap_or(0);
    reading.calls = sum(EVENTS).map(|events| (events + filtered, now));
    reading.drops = sum(DROPS);
}

/// Names of the counters in Prometheus.
const EVENTS: &str = "falcosecurity_scap_n_evts_total";
const DROPS: &str = "falcosecurity_scap_n_drops_total";
const FILTERED: &str = "tollgate_filtered_in_kernel_total";

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a counter of events, limited first"
)]
fn whole(value: f64) -> u64 {
    value.clamp(0.0, 9e15) as u64
}

/// Fetches a page by plain HTTP and returns its body.
fn fetch(url: &str) -> Result<String, String> {
    let rest = url
        .strip_prefix("http://")
        .ok_or("it is not an http:// address")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let text = ask(host, path).map_err(|error| error.to_string())?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or("the answer is not HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(format!("the answer is {status}"))
    }
}

fn ask(host: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let request = format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_measured() {
        let own = std::process::id().cast_signed();
        let reading = Meter {
            pid: Some(own),
            ..Meter::default()
        }
        .read();
        assert!(reading.cpu_s.is_some() && reading.resident.unwrap() > 1 << 20);
        assert!(reading.virtual_size.unwrap() >= reading.resident.unwrap());
        assert_eq!(reading.calls, None);
    }

    #[test]
    fn the_last_whole_line_of_a_stats_file_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stats");
        fs::write(&path, "{\"cur\":{\"events\":1}}\n{\"elapsed_ms\":500,\"cur\":{\"events\":7,\"drops\":2},\"filtered_in_kernel\":3}\n{\"cu").unwrap();
        let reading = Meter {
            stats: Some(path),
            ..Meter::default()
        }
        .read();
        assert_eq!((reading.calls, reading.drops), (Some((10, 0.5)), Some(2)));
    }

    #[test]
    fn metrics_are_summed_over_their_labels() {
        let text = "# HELP x\nfalcosecurity_scap_n_evts_total 12\ntollgate_filtered_in_kernel_total 5\n\
                    falcosecurity_scap_n_drops_total{cpu=\"0\"} 1\nfalcosecurity_scap_n_drops_total{cpu=\"1\"} 2\n";
        let mut reading = Reading::default();
        prometheus(text, 4.0, &mut reading);
        assert_eq!((reading.calls, reading.drops), (Some((17, 4.0)), Some(3)));
    }
}
