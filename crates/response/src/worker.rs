//! The threads that act.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rules::Alert;

use crate::act::process::{self, Immediate, KILLED, STOPPED};
use crate::act::{capture, deny, quarantine, script, webhook::Webhook};
use crate::bound::{Bound, NotBound, SIGCONT, has_ended};
use crate::denials::WithheldCalls;
use crate::frozen::Frozen;
use crate::load::Action;
use crate::outcome::{self, Outcome, Status, Timing};
use crate::parameters::{Operation, QuarantineOptions};
use crate::responder::{CAPACITY, Rule, Shared, since};
use crate::tree::Selection;

/// An alert with the rules that it starts.
pub(crate) struct Job {
    pub(crate) alert: Alert,
    /// Positions of the rules.
    pub(crate) rules: Vec<usize>,
    pub(crate) subject: Subject,
    /// What was done to the process already.
    pub(crate) immediate: Immediate,
    /// Time from the alert to that.
    pub(crate) acted: Duration,
    /// What is to be done next.
    pub(crate) next: Place,
}

/// A place in the actions of a job.
#[derive(Default)]
pub(crate) struct Place {
    /// Position in the job's rules.
    rule: usize,
    /// Position in the rule's actions.
    action: usize,
    /// Number that only this alert has for this rule, by which a thaw knows what was stopped before it. Given at the first
    /// action.
    owner: Option<u64>,
}

/// The process that an alert is about.
pub(crate) enum Subject {
    /// A process that can be hit.
    Process(Arc<Bound>),
    /// A process that cannot be hit, with the reason.
    NotBound(NotBound),
    /// The alert is about no process of this host.
    None,
}

/// A thread that acts.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    /// Locked by the thread that waits for the next one.
    jobs: Arc<Mutex<Receiver<Job>>>,
    /// Threads that go on with a job where it has to wait for a script or a server; `None` for those themselves. So
    /// nothing that waits keeps a process from being ended.
    patient: Option<Sender<Job>>,
}

/// Jobs that wait for scripts and servers at most: what is left of all jobs is for those that wait for nothing.
pub(crate) const PATIENT_CAPACITY: usize = CAPACITY / 2;

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        jobs: Arc<Mutex<Receiver<Job>>>,
        patient: Option<Sender<Job>>,
    ) -> Self {
        Self {
            shared,
            jobs,
            patient,
        }
    }

    /// Acts until there is no responder any more.
    pub(crate) fn run(self) {
        while let Ok(mut job) = self.next() {
            if self.is_script(&job) {
                if let (Subject::Process(process), Immediate::Stopped) =
                    (&job.subject, &job.immediate)
                {
                    // Whatever fails here means that it has ended.
                    let _ = process.signal(SIGCONT);
                }
                self.shared.leave_script(&job.alert, job.rules[0]);
                self.shared.release();
            } else if self.respond(&mut job) {
                if self.patient.is_none() {
                    self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                }
                self.shared.release();
            } else if let Some(patient) = &self.patient {
                // Those threads end with the last sender, so that there is a receiver.
                let sent = patient.send(job);
                debug_assert!(sent.is_ok(), "the threads have ended");
            }
        }
    }

    fn next(&self) -> Result<Job, RecvError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.recv()
    }

    /// Returns true if a job that was not begun is about a script, whose start was not known when the job was made.
    fn is_script(&self, job: &Job) -> bool {
        let scripts = &self.shared.guard.scripts;
        let process = job.alert.details.process.as_ref();
        self.patient.is_some() && process.is_some_and(|process| scripts.have_raised(process))
    }

    /// Does the actions of a job. Returns false if the next one is for a thread that may wait.
    fn respond(&self, job: &mut Job) -> bool {
        while let Some(position) = job.rules.get(job.next.rule) {
            let rule = &self.shared.rules[*position];
            while let Some(action) = rule.response.actions.get(job.next.action) {
                let has_to_wait = self.patient.is_some() && !rule.is_dry && action.act.waits();
                if has_to_wait && self.shared.may_wait() {
                    return false;
                }
                let outcome = has_to_wait.then(|| {
                    let why = "too many scripts and requests wait already";
                    Outcome::new(Status::Failed, why)
                });
                let outcome = self.take(rule, action, job, outcome);
                job.next.action += 1;
                if !action.continues || outcome.is_error() && !action.ignores_errors {
                    break;
                }
            }
            job.next = Place {
                rule: job.next.rule + 1,
                ..Place::default()
            };
        }
        true
    }

    /// Takes an action, unless its outcome is known, and reports it.
    fn take(&self, rule: &Rule, action: &Action, job: &mut Job, known: Option<Outcome>) -> Outcome {
        let begun = Instant::now();
        // That was the beginning of the first action.
        let immediate = std::mem::replace(&mut job.immediate, Immediate::None);
        let latency = match immediate {
            Immediate::None => since(job.alert.made_ns),
            _ => job.acted,
        };
        let owner = *job
            .next
            .owner
            .get_or_insert_with(|| self.shared.frozen.owner());
        let webhook = rule.webhooks.get(job.next.action).and_then(Option::as_ref);
        let attempt = Attempt {
            shared: &self.shared,
            rule,
            job,
            immediate,
            owner,
        };
        let outcome = known.unwrap_or_else(|| attempt.act(action, webhook));
        let timing = Timing {
            latency,
            duration: begun.elapsed(),
        };
        let name = &rule.response.name;
        let report = outcome::report(name, action, &job.alert, &outcome, timing);
        // The rate limits of responses bound these alerts.
        self.shared.dispatcher.emit_internal_once(report);
        outcome
    }
}

/// What an action of a rule is done with.
struct Attempt<'a> {
    shared: &'a Shared,
    rule: &'a Rule,
    job: &'a Job,
    immediate: Immediate,
    /// See [`Place::owner`].
    owner: u64,
}

impl Attempt<'_> {
    fn act(&self, action: &Action, webhook: Option<&Webhook>) -> Outcome {
        match (&action.act, self.rule.is_dry) {
            (Operation::Terminate { allowed }, true) => self.rehearse(allowed, KILLED),
            (Operation::Freeze { allowed, .. }, true) => self.rehearse(allowed, STOPPED),
            (act @ Operation::Deny { allowed, .. }, is_dry) => self.deny(allowed, act, is_dry),
            (Operation::Quarantine { allowed, options }, is_dry) => {
                self.quarantine(allowed, options, is_dry)
            }
            (Operation::Capture(options), true) => capture::dry_run(options),
            (Operation::Capture(options), false) => match &self.shared.means.capture {
                Ok(source) => capture::run(options, source, &self.shared.ending, &self.job.alert),
                Err(why) => Outcome::new(Status::Failed, *why),
            },
            (Operation::Thaw, true) => dry("would have resumed what the actions before stopped"),
            (Operation::Script(options), true) => {
                dry(&format!("would have run {}", script::name(options)))
            }
            (Operation::Webhook(_), true) => {
                let server = webhook.map_or("", Webhook::server);
                dry(&format!("would have sent the alert to {server}"))
            }
            (Operation::Terminate { allowed }, false) => {
                // None of them may go on while the tree is searched.
                let own = self.shared.frozen.take(self.owner);
                let outcome = self.on_process(allowed, |select, root| {
                    process::terminate(select, root, &self.immediate)
                });
                self.shared.frozen.keep(own);
                outcome
            }
            (Operation::Freeze { allowed, duration }, false) => {
                self.on_process(allowed, |select, root| {
                    let (outcome, tree) = process::freeze(select, root, &self.immediate);
                    // Known to the other threads at once: the actions after this one may take long.
                    self.shared.frozen.keep(tree.map(|tree| Frozen {
                        tree,
                        until: duration.map(|duration| Instant::now() + duration),
                        owner: self.owner,
                    }));
                    outcome
                })
            }
            (Operation::Thaw, false) => {
                let own = self.shared.frozen.take(self.owner).into_iter();
                process::thaw(own.map(|frozen| frozen.tree).collect())
            }
            (Operation::Script(options), false) => {
                let scripts = (&self.shared.guard.scripts, &self.shared.proc);
                script::run(options, &self.rule.response.name, &self.job.alert, scripts)
            }
            (Operation::Webhook(_), false) => match webhook {
                Some(webhook) => webhook.send(&self.job.alert),
                None => Outcome::new(Status::Failed, "there is no web server"),
            },
        }
    }

    fn quarantine(&self, allowed: &[String], options: &QuarantineOptions, is_dry: bool) -> Outcome {
        let shared = self.shared;
        self.on_process(allowed, |select, root| {
            match (&shared.means.quarantine, is_dry) {
                (_, true) => quarantine::dry_run(select, root, options),
                (Ok(quarantiner), false) => {
                    let means = (&**quarantiner, &*shared.quarantines);
                    quarantine::quarantine(select, root, options, means)
                }
                (Err(why), false) => Outcome::new(Status::Failed, why.clone()),
            }
        })
    }

    fn deny(&self, allowed: &[String], act: &Operation, is_dry: bool) -> Outcome {
        let Some(withheld) = WithheldCalls::of(act) else {
            return Outcome::new(Status::Failed, "nothing is to be withheld");
        };
        self.on_process(allowed, |select, root| {
            if is_dry {
                return deny::dry_run(select, root, withheld, &self.immediate);
            }
            let id = self.rule.denial(self.job.next.action);
            let denials = &self.shared.denials;
            deny::deny(select, root, denials, (id, withheld), &self.immediate)
        })
    }

    /// Says what would have been done to the process of the alert.
    fn rehearse(&self, allowed: &[String], verb: &str) -> Outcome {
        self.on_process(allowed, |select, root| {
            process::rehearse(select, root, verb, &self.immediate)
        })
    }

    /// Acts on the process of the alert, if the guard allows that.
    fn on_process(
        &self,
        allowed: &[String],
        act: impl FnOnce(&Selection<'_>, &Arc<Bound>) -> Outcome,
    ) -> Outcome {
        let root = match &self.job.subject {
            Subject::Process(root) => root,
            Subject::NotBound(why @ (NotBound::Gone | NotBound::Reused)) => {
                return Outcome::new(Status::Gone, why.to_string());
            }
            Subject::NotBound(why) => return Outcome::new(Status::Refused, why.to_string()),
            Subject::None => {
                return Outcome::new(Status::Failed, "the alert is about no process of this host");
            }
        };
        let select = Selection {
            proc: &self.shared.proc,
            guard: &self.shared.guard,
            allowed,
        };
        if has_ended(&root.stat) {
            return Outcome::new(Status::Gone, "the process had ended");
        }
        let refusal = match &self.immediate {
            Immediate::None => {
                let checked = self.shared.guard.check(select.proc, root, allowed);
                // Little can be read of a process that has ended meanwhile and is not reaped.
                if checked.is_err() && root.now(select.proc).has_ended() {
                    return Outcome::new(Status::Gone, "the process had ended");
                }
                checked.err()
            }
            Immediate::Refused(refusal) => Some(refusal.clone()),
            // What was done at once was allowed.
            _ => None,
        };
        if let Some(refusal) = refusal {
            let text = format!("pid {}: {refusal}", root.pid.0);
            return Outcome::new(Status::Refused, text);
        }
        act(&select, root)
    }
}

fn dry(text: &str) -> Outcome {
    Outcome::new(Status::DryRun, text)
}
