//! The responder: takes alerts, binds their processes, and has threads act on them.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use event::{DenialId, StartTime};
use outputs::{Dispatcher, Throttle, ThrottleRate};
use process_info::procfs::{self, Proc};
use rules::{Alert, AlertProcess};

use crate::act::capture::Ending;
use crate::act::process::Immediate;
use crate::act::quarantine::Quarantines;
use crate::act::webhook::Webhook;
use crate::bound::{Bound, NotBound};
use crate::denials::Denials;
use crate::frozen::FrozenTrees;
use crate::guard::Guard;
use crate::load::{ResponseRule, Responses};
use crate::outcome;
use crate::parameters::Operation;
use crate::prepare::{self, Means, PrepareError};
use crate::worker::{Job, PATIENT_CAPACITY, Place, Subject, Worker};

/// Rate limits of rules whose actions are started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// For all rules together.
    pub total: ThrottleRate,
    /// For each rule.
    pub each: ThrottleRate,
}

/// Settings of a [`Responder`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Actions are reported and not done, whatever the rules say.
    pub dry_run: bool,
    /// Rate limits.
    pub limits: Limits,
    /// The engine holds the process of an alert while the alert is shown to [`Responder::offer`].
    pub caller_waits: bool,
    /// Pids of alerts are those of this process's pid namespace.
    pub has_local_pids: bool,
    /// Why no call can be withheld from the processes of the engine; `None` if it can.
    pub cannot_deny: Option<&'static str>,
}

/// Responses that are ready to be started. No thread exists yet, so that the process can still fork.
#[derive(Debug)]
pub struct Prepared {
    rules: Vec<Rule>,
    settings: Settings,
    means: Means,
    search_limit: Duration,
}

/// A rule with what its actions need.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) response: ResponseRule,
    /// For each action its web server, if it has one.
    pub(crate) webhooks: Vec<Option<Webhook>>,
    pub(crate) is_dry: bool,
    /// Position among the rules.
    number: u64,
    rate: Mutex<Throttle>,
}

impl Rule {
    /// Returns the name of the denials by an action of this rule.
    pub(crate) fn denial(&self, action: usize) -> DenialId {
        // Fewer actions than that fit any file.
        DenialId((self.number << 32) | (action as u64))
    }

    /// Returns true if all calls that this rule withholds are withheld from a process already.
    fn is_in_force(&self, denials: &Denials, process: &AlertProcess) -> bool {
        let process = (process.pid, process.start);
        let actions = self.response.actions.iter().enumerate();
        let mut ids = actions
            .filter(|(_, action)| matches!(action.act, Operation::Deny { .. }))
            .map(|(at, _)| self.denial(at))
            .peekable();
        ids.peek().is_some() && ids.all(|id| denials.is_denied(process, id))
    }
}

/// State that the responder and its threads share.
pub(crate) struct Shared {
    pub(crate) rules: Vec<Rule>,
    pub(crate) proc: Proc,
    pub(crate) guard: Guard,
    pub(crate) dispatcher: Dispatcher,
    /// Stopped trees, which a thread resumes in time.
    pub(crate) frozen: Arc<FrozenTrees>,
    /// What actions are done with.
    pub(crate) means: Means,
    /// Ends captures that run when nothing is left to record.
    pub(crate) ending: Ending,
    /// Control groups that are cut off for a time.
    pub(crate) quarantines: Arc<Quarantines>,
    /// Who withholds calls.
    pub(crate) denials: Denials,
    /// Jobs that wait for scripts and servers.
    pub(crate) waiting: AtomicUsize,
    pub(crate) settings: Settings,
    /// [`SEARCH_LIMIT`], except in tests.
    pub(crate) search_limit: Duration,
    rate: Mutex<Throttle>,
    load: Mutex<usize>,
    idle: Condvar,
    /// Pids are used again so late that a start time of 10 ms tells processes apart.
    has_many_pids: bool,
    dropped: AtomicUsize,
}

/// Starts the actions of response rules. Clones share the threads, which end with the last clone.
#[derive(Clone)]
pub struct Responder {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
}

/// Actions that were begun, and that a thread has to go on with.
#[must_use]
pub struct Offered {
    job: Job,
    jobs: Sender<Job>,
}

impl Offered {
    /// Leaves the actions to a thread.
    pub fn start(self) {
        // The threads end with the last sender, so that there is a receiver.
        let sent = self.jobs.send(self.job);
        debug_assert!(sent.is_ok(), "the threads have ended");
    }
}

/// Alerts whose actions wait or are being done. More are dropped and reported.
pub(crate) const CAPACITY: usize = 1024;
/// Threads that act on processes, and as many that run scripts and send requests: each of those holds one of them.
const THREADS: usize = 4;
/// Time that a killed caller has to notice that it was killed.
const NOTICE_LIMIT: Duration = Duration::from_millis(10);
/// Time in which a dry run looks for descendants while the caller, and who received its call, wait.
const SEARCH_LIMIT: Duration = Duration::from_millis(10);
/// With fewer pids, one could be used again within [`YOUNG`].
const MANY_PIDS: u64 = 8192;
/// Two ticks of the clock that start times are given in.
const YOUNG: Duration = Duration::from_millis(20);

impl Prepared {
    /// Opens what can fail.
    ///
    /// # Errors
    ///
    /// A web server cannot be used as configured, or an action needs pids that the engine does not report.
    pub fn new(
        responses: Responses,
        settings: Settings,
        means: Means,
    ) -> Result<Self, PrepareError> {
        let now = Instant::now();
        let mut rules = Vec::new();
        for (number, response) in responses.rules.into_iter().enumerate() {
            let mut webhooks = Vec::new();
            for action in &response.actions {
                let actionner = action.act.actionner();
                if actionner.needs_process() && !settings.has_local_pids {
                    return Err(PrepareError::ForeignPids {
                        actionner: actionner.name(),
                        rule: response.name.to_string(),
                    });
                }
                prepare::check(&response.name, action, &settings, &means)?;
                webhooks.push(match &action.act {
                    Operation::Webhook(options) => {
                        let opened = Webhook::open(options);
                        Some(opened.map_err(|source| PrepareError::Webhook {
                            action: action.name.to_string(),
                            rule: response.name.to_string(),
                            source,
                        })?)
                    }
                    _ => None,
                });
            }
            rules.push(Rule {
                is_dry: settings.dry_run || response.dry_run,
                response,
                webhooks,
                number: number as u64,
                rate: Mutex::new(Throttle::new(settings.limits.each, now)),
            });
        }
        Ok(Self {
            rules,
            settings,
            means,
            search_limit: SEARCH_LIMIT,
        })
    }

    /// Starts the threads. Actions are reported to `dispatcher`.
    ///
    /// # Errors
    ///
    /// `/proc` cannot be opened, or a thread cannot be created.
    pub fn start(self, dispatcher: Dispatcher) -> io::Result<Responder> {
        let proc = Proc::open().map_err(io::Error::other)?;
        let most = proc.contents("sys/kernel/pid_max").ok();
        let most = most.and_then(|text| text.trim().parse::<u64>().ok());
        let (jobs, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let shared = Arc::new(Shared {
            rules: self.rules,
            guard: Guard::new(&proc),
            proc,
            dispatcher,
            frozen: Arc::default(),
            means: self.means,
            ending: Ending::default(),
            quarantines: Arc::default(),
            denials: Denials::default(),
            waiting: AtomicUsize::new(0),
            rate: Mutex::new(Throttle::new(self.settings.limits.total, Instant::now())),
            settings: self.settings,
            search_limit: self.search_limit,
            load: Mutex::default(),
            idle: Condvar::new(),
            has_many_pids: most.is_some_and(|most| most >= MANY_PIDS),
            dropped: AtomicUsize::new(0),
        });
        let (patient, patient_receiver) = channel();
        let patient_receiver = Arc::new(Mutex::new(patient_receiver));
        let spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name).spawn(run).map(drop)
        };
        for number in 0..THREADS {
            let prompt = Worker::new(
                Arc::clone(&shared),
                Arc::clone(&receiver),
                Some(patient.clone()),
            );
            spawn(format!("response-{number}"), Box::new(|| prompt.run()))?;
            let waiter = Worker::new(Arc::clone(&shared), Arc::clone(&patient_receiver), None);
            spawn(format!("response-w{number}"), Box::new(|| waiter.run()))?;
        }
        // On a thread of its own: other threads may be busy.
        let frozen = Arc::clone(&shared.frozen);
        let keep_time = move || frozen.keep_time();
        spawn("response-time".to_owned(), Box::new(keep_time))?;
        if let Ok(quarantiner) = &shared.means.quarantine {
            let (quarantines, quarantiner) =
                (Arc::clone(&shared.quarantines), Arc::clone(quarantiner));
            let keep_time = move || quarantines.keep_time(&*quarantiner);
            spawn("response-net".to_owned(), Box::new(keep_time))?;
        }
        Ok(Responder { shared, jobs })
    }
}

impl Responder {
    /// Shows an alert. If a rule matches, binds the process of the alert, and stops or kills it if that is the first
    /// action. The rest is left to a thread when the returned value is started. Waits for nothing but the end of a
    /// process that it has killed, and 10 ms at most. In a dry run it looks for the descendants of a process that waits,
    /// 10 ms at most, too.
    #[must_use]
    pub fn offer(&self, alert: &Alert) -> Option<Offered> {
        let shared = &self.shared;
        let matching = shared.matching(alert);
        let first = *matching.first()?;
        let process = alert.details.process.as_ref();
        if process.is_some_and(|process| shared.guard.scripts.have_surely_raised(process)) {
            shared.leave_script(alert, first);
            return None;
        }
        let rules = shared.admitted(alert, matching);
        if rules.is_empty() {
            return None;
        }
        if !shared.reserve() {
            let dropped = shared.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            let why = format!("too many actions wait; {dropped} alerts were not answered so far");
            shared.not_started(rules[0], alert, &why);
            return None;
        }
        let subject = shared.bind(alert);
        let immediate = match &subject {
            Subject::Process(process) => shared.act_at_once(&shared.rules[rules[0]], process),
            Subject::None | Subject::NotBound(_) => Immediate::None,
        };
        let acted = since(alert.made_ns);
        if let (Subject::Process(process), Immediate::Killed) = (&subject, &immediate) {
            // The kernel makes a call that is answered before the killed caller has noticed.
            process.ends_before(Instant::now() + NOTICE_LIMIT);
        }
        let job = Job {
            alert: alert.clone(),
            rules,
            subject,
            immediate,
            acted,
            next: Place::default(),
        };
        Some(Offered {
            job,
            jobs: self.jobs.clone(),
        })
    }

    /// Returns who withholds calls from processes. An engine adds itself before its first event.
    #[must_use]
    pub fn denials(&self) -> Denials {
        self.shared.denials.clone()
    }

    /// Ends captures that run: nothing is left to record. Waits until every started action is done, or the deadline has passed. Returns the number of alerts left.
    pub fn flush(&self, deadline: Instant) -> usize {
        self.shared.ending.end();
        let mut load = self
            .shared
            .load
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while *load > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.idle.wait_timeout(load, left);
            load = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *load
    }

    /// Resumes processes that were stopped for a limited time, and ends quarantines that have one, which nobody would do later. Returns the number of
    /// those that stay stopped.
    pub fn end(&self) -> usize {
        if let Ok(quarantiner) = &self.shared.means.quarantine {
            self.shared.quarantines.end(&**quarantiner);
        }
        self.shared.frozen.end()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.frozen.close();
        self.quarantines.close();
    }
}

impl Shared {
    /// Returns the positions of the rules that an alert starts.
    fn matching(&self, alert: &Alert) -> Vec<usize> {
        let mut matching = Vec::new();
        for (position, rule) in self.rules.iter().enumerate() {
            if !rule.response.matcher.matches(alert) {
                continue;
            }
            // A rule whose actions were all left out only keeps its alerts from the rules after it.
            // A process that is hit tries again, and what it tries raises alerts. They must not use up the rate at which the
            // alerts of other processes are answered.
            let process = alert.details.process.as_ref();
            let is_hit = process.is_some_and(|process| rule.is_in_force(&self.denials, process));
            if !rule.response.actions.is_empty() && !is_hit {
                matching.push(position);
            }
            if !rule.response.continues {
                break;
            }
        }
        matching
    }

    /// Notes that a job waits for a script or a server. Returns false if too many do.
    pub(crate) fn may_wait(&self) -> bool {
        let more = |waiting: usize| (waiting < PATIENT_CAPACITY).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Reports an alert about a script of this program, which starts nothing: the script would start itself for ever.
    pub(crate) fn leave_script(&self, alert: &Alert, rule: usize) {
        self.not_started(rule, alert, "a script of a response has raised the alert");
    }

    /// Returns those rules that the rate limits admit.
    fn admitted(&self, alert: &Alert, rules: Vec<usize>) -> Vec<usize> {
        let now = Instant::now();
        let admit = |throttle: &Mutex<Throttle>| {
            let mut throttle = throttle.lock().unwrap_or_else(PoisonError::into_inner);
            throttle.admit(now)
        };
        let is_admitted = |position: &usize| {
            let is_admitted = admit(&self.rules[*position].rate) && admit(&self.rate);
            if !is_admitted {
                self.not_started(*position, alert, "the rate limit of responses is reached");
            }
            is_admitted
        };
        rules.into_iter().filter(is_admitted).collect()
    }

    fn not_started(&self, rule: usize, alert: &Alert, why: &str) {
        let rule = &self.rules[rule].response.name;
        // One a second; the rest are counted.
        self.dispatcher
            .emit_internal(outcome::not_started(rule, alert, why));
    }

    fn reserve(&self) -> bool {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = *load < CAPACITY;
        *load += usize::from(has_room);
        has_room
    }

    /// Notes that the actions for an alert are done.
    pub(crate) fn release(&self) {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        *load -= 1;
        if *load == 0 {
            self.idle.notify_all();
        }
    }

    fn bind(&self, alert: &Alert) -> Subject {
        let Some(process) = &alert.details.process else {
            return Subject::None;
        };
        if !self.settings.has_local_pids {
            return Subject::None;
        }
        let (pid, start) = (process.pid, process.start);
        if !self.tells_apart(alert, start) {
            let why = "this pid namespace has so few pids that one may have been used again";
            return Subject::NotBound(NotBound::Unknown(why));
        }
        match Bound::of_alert(&self.proc, pid, start) {
            Ok(bound) => Subject::Process(Arc::new(bound)),
            Err(why) => Subject::NotBound(why),
        }
    }

    /// Returns true if no other process can have the pid and the start time of the alert's process, which is given in
    /// ticks of 10 ms. A successor starts after the event, so that an event that is later than the tick tells them apart.
    fn tells_apart(&self, alert: &Alert, start: StartTime) -> bool {
        let is_old = || {
            let age = alert.time_ns.saturating_sub(procfs::start_ns(start));
            Duration::from_nanos(age) > YOUNG
        };
        self.settings.caller_waits || self.has_many_pids || is_old()
    }
}

/// Returns the time since a moment of the real-time clock, for reports; 0 if that was set back, also to before 1970.
pub(crate) fn since(moment_ns: u64) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default()
        .saturating_sub(Duration::from_nanos(moment_ns))
}

#[cfg(test)]
mod tests;
