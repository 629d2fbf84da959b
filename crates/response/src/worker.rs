//! The threads that act.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rules::Alert;

use crate::act::process::{self, Immediate};
use crate::act::{script, webhook::Webhook};
use crate::bound::{Bound, NotBound, has_ended};
use crate::load::Action;
use crate::outcome::{self, Outcome, Status, Timing};
use crate::parameters::Operation;
use crate::responder::{Rule, Shared, since};
use crate::tree::{Selection, Tree};

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

/// A stopped tree.
pub(crate) struct Frozen {
    pub(crate) tree: Tree,
    /// When it goes on.
    pub(crate) until: Option<Instant>,
}

/// A thread that acts.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    /// Locked by the thread that waits for the next one.
    jobs: Arc<Mutex<Receiver<Job>>>,
}

/// How often stopped trees are looked at.
const TICK: Duration = Duration::from_millis(100);

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, jobs: Arc<Mutex<Receiver<Job>>>) -> Self {
        Self { shared, jobs }
    }

    /// Acts until there is no responder any more.
    pub(crate) fn run(self) {
        loop {
            match self.next() {
                Ok(job) => {
                    self.respond(job);
                    self.shared.release();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.resume_due();
        }
    }

    fn next(&self) -> Result<Job, RecvTimeoutError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.recv_timeout(TICK)
    }

    /// Resumes trees whose time is up, and forgets those that have ended.
    fn resume_due(&self) {
        let now = Instant::now();
        let mut frozen = self
            .shared
            .frozen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        frozen.retain_mut(|frozen| {
            let is_due = frozen.until.is_some_and(|until| until <= now);
            if is_due {
                frozen.tree.resume();
            }
            !is_due && !frozen.tree.has_ended()
        });
    }

    fn respond(&self, job: Job) {
        // That was the beginning of the first rule.
        let mut immediate = job.immediate.clone();
        for position in &job.rules {
            let rule = &self.shared.rules[*position];
            self.follow(
                rule,
                &job,
                std::mem::replace(&mut immediate, Immediate::None),
            );
        }
    }

    /// Does the actions of a rule.
    fn follow(&self, rule: &Rule, job: &Job, mut immediate: Immediate) {
        let mut frozen = Vec::new();
        for (action, webhook) in rule.response.actions.iter().zip(&rule.webhooks) {
            let begun = Instant::now();
            let latency = match immediate {
                Immediate::None => since(job.alert.made_ns),
                Immediate::Refused(_) | Immediate::Stopped | Immediate::Killed => job.acted,
            };
            let attempt = Attempt {
                shared: &self.shared,
                rule,
                job,
                immediate: std::mem::replace(&mut immediate, Immediate::None),
            };
            let outcome = attempt.act(action, webhook.as_ref(), &mut frozen);
            let timing = Timing {
                latency,
                duration: begun.elapsed(),
            };
            let name = &rule.response.name;
            let report = outcome::report(name, action, &job.alert, &outcome, timing);
            // The rate limits of responses bound these alerts.
            self.shared.dispatcher.emit_internal_once(report);
            if !action.continues || outcome.is_error() && !action.ignores_errors {
                break;
            }
        }
        let mut left = self
            .shared
            .frozen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        left.append(&mut frozen);
    }
}

/// What an action of a rule is done with.
struct Attempt<'a> {
    shared: &'a Shared,
    rule: &'a Rule,
    job: &'a Job,
    immediate: Immediate,
}

impl Attempt<'_> {
    fn act(&self, action: &Action, webhook: Option<&Webhook>, frozen: &mut Vec<Frozen>) -> Outcome {
        match (&action.act, self.rule.is_dry) {
            (Operation::Terminate { allowed }, true) => self.on_process(allowed, |select, root| {
                process::rehearse(select, root, "killed")
            }),
            (Operation::Freeze { allowed, .. }, true) => self
                .on_process(allowed, |select, root| {
                    process::rehearse(select, root, "stopped")
                }),
            (Operation::Thaw, true) => dry("would have resumed what the actions before stopped"),
            (Operation::Script(options), true) => {
                dry(&format!("would have run {}", script::name(options)))
            }
            (Operation::Webhook(_), true) => {
                let url = webhook.map_or("", Webhook::url);
                dry(&format!("would have sent the alert to {url}"))
            }
            (Operation::Terminate { allowed }, false) => self
                .on_process(allowed, |select, root| {
                    process::terminate(select, root, &self.immediate)
                }),
            (Operation::Freeze { allowed, duration }, false) => {
                self.on_process(allowed, |select, root| {
                    let (outcome, tree) = process::freeze(select, root, &self.immediate);
                    let until = duration.map(|duration| Instant::now() + duration);
                    frozen.extend(tree.map(|tree| Frozen { tree, until }));
                    outcome
                })
            }
            (Operation::Thaw, false) => {
                let trees = frozen.drain(..).map(|frozen| frozen.tree);
                process::thaw(trees.collect())
            }
            (Operation::Script(options), false) => {
                script::run(options, &self.rule.response.name, &self.job.alert)
            }
            (Operation::Webhook(_), false) => match webhook {
                Some(webhook) => webhook.send(&self.job.alert),
                None => Outcome::new(Status::Failed, "there is no web server"),
            },
        }
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
            Immediate::None => self.shared.guard.check(select.proc, root, allowed).err(),
            Immediate::Refused(refusal) => Some(refusal.clone()),
            // What was done at once was allowed.
            Immediate::Stopped | Immediate::Killed => None,
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
