//! The `collector` channel: keeps alerts on disk until the collector has acknowledged them, and the protocol
//! between both.

mod capture;
mod inventory;
mod link;
mod reader;
mod settings;
mod spool;
mod standing;
#[cfg(feature = "testing")]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod waiting;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use labels::Labels;
use serde_json::Value;

use self::capture::{PATIENCE, Sending};
use self::link::{Introduced, Link, Sent};
pub use self::reader::CollectorReader;
pub use self::settings::CollectorOutput;
use self::spool::Spool;
use self::standing::{LocalError, Standing};
use self::waiting::Waiting;
use crate::capture::{CaptureOnAlert, on_alert_json};
use crate::channel::{Channel, Delivery, DeliveryError, Peer};
use crate::net::client::HttpError;
use crate::net::tls::TlsOptions;
use crate::report::ReportSlot;

/// Header of a batch: the sequence number of its first record, from 1 on.
pub const SEQUENCE_HEADER: &str = "tollgate-sequence";

/// Line of a batch in place of a record that its sender had to drop.
pub const DROPPED_RECORD: &str = spool::DROPPED;

/// Interval of signs of life.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Interval until the second sign of life if the engine had not started at the first.
const ENGINE_START: Duration = Duration::from_secs(1);

/// Pauses after a failure: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Duration of sending after which alerts that came meanwhile are first written to disk, for as long as that took. Otherwise a
/// collector that takes 100 ms for an answer, because it is far away or busy, would let the queue of this channel take ten alerts
/// a second.
const TURN: Duration = Duration::from_millis(50);

/// Time beyond [`CollectorOptions::timeout`], which the end of a run waits for all outputs, after which this
/// channel leaves alerts on disk.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// Options of the channel.
#[derive(Clone, Debug)]
struct CollectorOptions {
    /// URL of the collector, without a path.
    url: String,
    /// File with the token with which this agent enrols; `None` if it has a client certificate.
    token_file: Option<PathBuf>,
    tls: TlsOptions,
    /// Labels of this agent.
    labels: Labels,
    /// Folder of the spools.
    spool: PathBuf,
    /// Size of a spool in bytes.
    spool_limit: u64,
    /// How much memory captures around alerts may take, and how often there may be one.
    capture_on_alert: CaptureOnAlert,
    /// Time limit of one request.
    timeout: Duration,
}

/// How long records are sent before alerts that came meanwhile are written to disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendTime {
    /// For [`TURN`], with one request at least, and the one under way.
    Bounded,
    /// Until there are no more: no alerts come any more.
    Unbounded,
}

/// Sends alerts to a collector. What is delivered is acknowledged; what is not waits in a spool on disk, also
/// for the next start of this program.
struct CollectorChannel {
    options: CollectorOptions,
    link: Link,
    /// Opened by the thread of the channel, which no fork duplicates.
    spool: Option<Spool>,
    /// Number of the first record of this process; those before are an earlier one's.
    own_from: u64,
    pause: Duration,
    next_attempt: Instant,
    /// How long a short turn is: [`TURN`].
    turn: Duration,
    /// How long the collector may refuse or miss a part of a capture: [`PATIENCE`].
    patience: Duration,
    /// Before this, new alerts are written to disk alone.
    held_until: Instant,
    /// Number after a batch that the collector refused: each of its records is sent alone, to find which.
    alone_until: u64,
    heartbeat: Instant,
    reports: ReportSlot,
    /// The change of what is in force that the collector knows.
    reported: u64,
    /// A sign of life was shown.
    is_known: bool,
    /// Digest of the bundle that was passed on last.
    fetched: Option<String>,
    /// Why the last attempt to fetch one failed.
    fetch_trouble: Option<String>,
    /// Why it does not record around the alerts that the collector names.
    follow_trouble: Option<String>,
    /// Time at which the end of the run began to wait in vain.
    last_wait: Option<Instant>,
    /// Records that the end of the run leaves on disk.
    left: u64,
    /// The capture that is being sent.
    sending: Sending,
    standing: Standing,
    peer: Arc<Peer>,
}

impl fmt::Debug for CollectorChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorChannel")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl CollectorChannel {
    /// Reads certificates and the token, so that a mistake is an error at the start.
    fn open(options: CollectorOptions) -> Result<Self, HttpError> {
        let now = Instant::now();
        Ok(Self {
            link: Link::open(&options)?,
            options,
            spool: None,
            own_from: 1,
            pause: Duration::ZERO,
            next_attempt: now,
            turn: TURN,
            patience: PATIENCE,
            held_until: now,
            alone_until: 0,
            heartbeat: now,
            reports: ReportSlot::default(),
            reported: 0,
            is_known: false,
            fetched: None,
            fetch_trouble: None,
            follow_trouble: None,
            last_wait: None,
            left: 0,
            sending: Sending::default(),
            standing: Standing::default(),
            peer: Arc::default(),
        })
    }

    fn spool(&mut self) -> io::Result<&mut Spool> {
        if self.spool.is_none() {
            let folder = &self.options.spool;
            let spool = Spool::open(folder, self.options.spool_limit);
            let spool = spool.map_err(LocalError::of("open the spool", folder))?;
            self.own_from = spool.next();
            self.link.identify(spool.folder())?;
            self.spool = Some(spool);
        }
        self.spool
            .as_mut()
            .ok_or_else(|| io::Error::other("the spool is not open"))
    }

    /// Number of records of this process that are not acknowledged.
    fn unacknowledged(&self) -> u64 {
        let spool = self.spool.as_ref();
        spool.map_or(0, |spool| spool.next() - spool.first().max(self.own_from))
    }

    /// Sends what waits until it is acknowledged, or sending fails, or the turn is over. Returns false in that last case.
    fn send_records(&mut self, turn: SendTime) -> io::Result<bool> {
        let Some(spool) = &mut self.spool else {
            return Ok(true);
        };
        let began = Instant::now();
        let folder = spool.folder().to_owned();
        let read = || LocalError::of("read the spool", &folder);
        let write = || LocalError::of("write the spool", &folder);
        let mut is_first = true;
        loop {
            let is_alone = spool.first() < self.alone_until;
            let at_most = if is_alone { 1 } else { usize::MAX };
            let Some(pending) = spool.pending(at_most).map_err(read())? else {
                return Ok(true);
            };
            // The first one goes in any case: reading it may have taken the whole turn, on a slow disk.
            let is_over = turn == SendTime::Bounded && began.elapsed() >= self.turn;
            if is_over && !std::mem::take(&mut is_first) {
                return Ok(false);
            }
            is_first = false;
            match self.link.send(&pending)? {
                Sent::Acknowledged(up_to) => spool.acknowledge(up_to).map_err(write())?,
                // One record among many: found by sending each alone.
                Sent::Refused(_) if pending.lines > 1 => {
                    self.alone_until = pending.first + pending.lines as u64;
                }
                Sent::Refused(why) => {
                    self.link.skip(&pending, &why)?;
                    spool.acknowledge(pending.first).map_err(write())?;
                }
                Sent::Unknown => {
                    self.heartbeat = Instant::now();
                    return Err(io::Error::other("the collector does not know this agent"));
                }
            }
        }
    }

    /// Sends the inventory if it is due: at intervals, and when something else is in force.
    fn show_life(&mut self) -> io::Result<()> {
        let changes = self.reports.changes();
        if changes == self.reported && Instant::now() < self.heartbeat {
            return Ok(());
        }
        let report = self.reports.report();
        let source = self.reports.captures();
        let mut inventory =
            inventory::of_agent(&self.options.labels, report.as_ref(), source.is_some());
        if let Some(source) = source {
            inventory["captures_on_alert"] = on_alert_json(&**source);
        }
        if let Some(spool) = &mut self.spool {
            inventory["spool"] = Waiting::of(spool)?.as_json();
        }
        self.link.renew(&self.options).map_err(io::Error::other)?;
        let mut introduced = self.link.introduce(&inventory)?;
        if matches!(introduced, Introduced::Enrolled) {
            if let Some(spool) = &mut self.spool {
                // The collector knows another agent now, which begins with 1.
                let before = spool.first();
                spool.renumber()?;
                self.alone_until = 0;
                self.own_from = (self.own_from + 1).saturating_sub(before).max(1);
            }
            introduced = self.link.introduce(&inventory)?;
        }
        if let Introduced::Known {
            bundle,
            capture,
            capture_on,
        } = introduced
        {
            self.follow_alerts(capture_on.as_ref());
            if let Some(digest) = bundle {
                self.fetch(&digest);
            }
            if let Some(order) = capture {
                self.begin_capture(&order);
            }
        }
        self.reported = changes;
        let is_early = !std::mem::replace(&mut self.is_known, true) && changes == 0;
        self.heartbeat = Instant::now() + if is_early { ENGINE_START } else { HEARTBEAT };
        Ok(())
    }

    /// Records around the alerts that the collector names, if captures are allowed. What it names beyond the limits changes nothing.
    fn follow_alerts(&mut self, wanted: Option<&Value>) {
        let (Some(source), Some(wanted)) = (self.reports.captures(), wanted) else {
            return;
        };
        let wanted = CaptureOnAlert::of_json(wanted, &self.options.capture_on_alert);
        self.follow_trouble = match wanted {
            Ok(wanted) => {
                source.follow(wanted);
                None
            }
            Err(error) => Some(format!(
                "cannot record around the alerts that the collector names: {error}"
            )),
        };
    }

    /// Returns what fails without keeping alerts from the collector.
    fn lesser_trouble(&self) -> Option<String> {
        let troubles = [
            &self.fetch_trouble,
            &self.follow_trouble,
            &self.sending.retry.trouble,
        ];
        troubles.into_iter().flatten().next().cloned()
    }

    /// Fetches a bundle, unless it is in force or was refused, and passes it on. Alerts do not wait for bundles: what
    /// fails here is tried again with the next sign of life.
    fn fetch(&mut self, digest: &str) {
        let Some(sink) = self.reports.bundles() else {
            return;
        };
        let report = self.reports.report().and_then(|report| report.bundle);
        if self.fetched.as_deref() == Some(digest) || report.is_some_and(|it| it.knows(digest)) {
            return;
        }
        match self.link.bundle() {
            Ok(text) => {
                self.fetch_trouble = None;
                let is_taken = sink(text);
                self.fetched = is_taken.then(|| digest.to_owned());
            }
            Err(error) => self.fetch_trouble = Some(format!("cannot fetch the bundle: {error}")),
        }
    }

    /// Shows a sign of life if one is due, sends what waits and a capture, and plans the next attempt after a failure.
    fn attempt(&mut self, turn: SendTime) {
        let known = self
            .spool()
            .map(|_spool| ())
            .and_then(|()| self.show_life());
        let began = Instant::now();
        let sent = known.and_then(|()| self.send_records(turn));
        match &sent {
            Ok(_) => self.standing.works(),
            Err(error) => {
                let spool = self.spool.as_ref().map(|_| &*self.options.spool);
                self.standing.fails(error, spool, Instant::now());
                // What keeps everything from the collector says nothing of a capture.
                self.sending.retry.refused = None;
            }
        }
        let before = Instant::now();
        // After alerts, which do not wait for it. It has attempts of its own.
        let sent = sent.map(|is_all| is_all && self.send_capture(turn));
        let now = Instant::now();
        // Alerts have waited for a capture that was not taken: they do not wait again as long.
        let is_in_vain = self.sending.retry.due.is_some_and(|due| due > now);
        let end = if is_in_vain { before } else { now };
        let took = end - began;
        self.held_until = if took >= self.turn { end + took } else { end };
        match sent {
            Ok(is_all) => {
                self.pause = Duration::ZERO;
                self.last_wait = None;
                let due = self.capture_due();
                self.next_attempt = match is_all {
                    true => due.map_or(self.heartbeat, |due| due.min(self.heartbeat)),
                    // At once, unless there are alerts to write.
                    false => now,
                };
                self.peer.set_trouble(self.lesser_trouble());
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::TimedOut {
                    self.peer.count_timeout();
                }
                self.peer.set_trouble(Some(error.to_string()));
                self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                self.next_attempt = now + self.pause;
            }
        }
    }

    /// Sends alerts that were just written to disk, unless they have to wait.
    fn follow(&mut self) {
        let now = Instant::now();
        if !self.pause.is_zero() {
            // After a failure.
            if now >= self.next_attempt {
                self.attempt(SendTime::Bounded);
            }
        } else if now >= self.held_until {
            self.attempt(SendTime::Bounded);
        } else {
            self.next_attempt = self.next_attempt.min(self.held_until);
        }
    }

    /// Waits at the end of a run. Returns false once it has waited for long enough.
    fn wait(&mut self) -> bool {
        let since = *self.last_wait.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.options.timeout + LAST_WAIT || self.peer.is_killed() {
            return false;
        }
        std::thread::sleep(FIRST_PAUSE);
        true
    }
}

impl Channel for CollectorChannel {
    fn name(&self) -> &str {
        "collector"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        let lines: Vec<String> = alerts.iter().map(|alert| alert.json()).collect();
        let written = self.spool().and_then(|spool| spool.append(&lines));
        let dropped = written.map_err(DeliveryError::of_all)?;
        self.follow();
        if dropped == 0 {
            return Ok(());
        }
        Err(DeliveryError::of_all(io::Error::other(format!(
            "the spool is full: {dropped} older alerts were dropped"
        ))))
    }

    fn held(&self) -> usize {
        usize::try_from(self.unacknowledged() - self.left.min(self.unacknowledged()))
            .unwrap_or(usize::MAX)
    }

    fn due(&self) -> Option<Instant> {
        Some(self.next_attempt)
    }

    fn release(&mut self, everything: bool) -> Result<(), DeliveryError> {
        if let Some(source) = self.reports.captures().filter(|_| everything) {
            // Nothing more happens: what there is is the capture.
            source.end();
        }
        self.attempt(if everything {
            SendTime::Unbounded
        } else {
            SendTime::Bounded
        });
        if !everything || self.pause.is_zero() || self.wait() {
            return Ok(());
        }
        self.left = self.unacknowledged();
        let folder = self.options.spool.display();
        let message = format!("{} alerts wait in {folder} for the next start", self.left);
        Err(DeliveryError::of_all(io::Error::other(message)))
    }

    /// Reads certificates and the token again.
    fn reopen(&mut self) -> io::Result<()> {
        self.link.reopen(&self.options).map_err(io::Error::other)?;
        self.next_attempt = Instant::now();
        Ok(())
    }

    /// Looks when the capture that has begun is over.
    fn woken(&mut self) {
        // After a failure the next attempt looks.
        if let Some(due) = self.capture_due().filter(|_| self.pause.is_zero()) {
            self.next_attempt = self.next_attempt.min(due);
        }
    }

    fn keep_reports(&mut self, reports: &ReportSlot) {
        self.reports = reports.clone();
        if let Some(source) = self.reports.captures() {
            // This channel takes the place of another one: the settings have changed.
            source.set_own(&self.options.capture_on_alert);
        }
    }

    fn receiver_notice(&mut self) -> Option<String> {
        self.standing.news()
    }

    fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }
}
