//! `container:quarantine`: cuts the container of a process off from the network.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bound::{Bound, NotBound};
use crate::group::Group;
use crate::outcome::{Outcome, Status};
use crate::parameters::{Network, QuarantineOptions};
use crate::tree::Selection;

/// Cuts control groups off from the network.
pub trait Quarantiner: Send + Sync {
    /// Cuts a control group off from all but these networks. Returns the folder by whose removal that ends, and false if it was
    /// cut off before.
    ///
    /// # Errors
    ///
    /// Why nothing was cut off.
    fn begin(&self, group: &File, allowed: &[Network]) -> Result<(PathBuf, bool), String>;

    /// Ends a quarantine.
    ///
    /// # Errors
    ///
    /// Why it goes on.
    fn end(&self, folder: &Path) -> Result<(), String>;
}

/// Control groups that are cut off for a time.
#[derive(Default)]
pub(crate) struct Quarantines {
    timed: Mutex<Timed>,
    changed: Condvar,
}

#[derive(Default)]
struct Timed {
    folders: Vec<(PathBuf, Instant)>,
    is_closed: bool,
}

/// How often a quarantine that could not be ended is tried to be ended again.
const AGAIN: Duration = Duration::from_secs(1);

impl Quarantines {
    fn timed(&self) -> MutexGuard<'_, Timed> {
        self.timed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, folder: PathBuf, until: Instant) {
        self.timed().folders.push((folder, until));
        self.changed.notify_all();
    }

    /// Ends quarantines whose time is over until they are closed.
    pub(crate) fn keep_time(&self, quarantiner: &dyn Quarantiner) {
        let mut timed = self.timed();
        while !timed.is_closed {
            let now = Instant::now();
            let mut is_left = false;
            timed.folders.retain(|(folder, until)| {
                let goes_on = *until > now || quarantiner.end(folder).is_err();
                is_left |= goes_on && *until <= now;
                goes_on
            });
            let next = timed.folders.iter().map(|(_, until)| *until).min();
            let wait = match next {
                _ if is_left => AGAIN,
                Some(next) => next.saturating_duration_since(now),
                None => Duration::MAX,
            };
            let waited = self.changed.wait_timeout(timed, wait);
            timed = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends all quarantines that would end later, which nobody would do.
    pub(crate) fn end(&self, quarantiner: &dyn Quarantiner) {
        for (folder, _) in self.timed().folders.drain(..) {
            // What cannot be ended stays cut off; its report says how to end it.
            let _ = quarantiner.end(&folder);
        }
    }

    /// Ends [`Quarantines::keep_time`].
    pub(crate) fn close(&self) {
        self.timed().is_closed = true;
        self.changed.notify_all();
    }
}

/// Cuts the container of a process off, unless a process in it must not be hit.
pub(crate) fn quarantine(
    select: &Selection<'_>,
    root: &Arc<Bound>,
    options: &QuarantineOptions,
    (quarantiner, timed): (&dyn Quarantiner, &Quarantines),
) -> Outcome {
    let group = match find(select, root) {
        Ok(group) => group,
        Err(outcome) => return outcome,
    };
    let (folder, is_new) = match quarantiner.begin(&group.0.file, &options.networks) {
        Ok(begun) => begun,
        Err(error) => {
            let text = format!("cannot cut off {}: {error}", group.0.path.display());
            return Outcome::new(Status::Failed, text);
        }
    };
    let verb = match is_new {
        true => "cut off",
        false => "nothing changed: cut off before is",
    };
    let mut outcome = describe(verb, &group, options);
    outcome.status = Status::Done;
    outcome.undo = Some(format!("rm -r {}", folder.display()));
    if let (true, Some(duration)) = (is_new, options.duration) {
        timed.add(folder, Instant::now() + duration);
    }
    outcome
}

/// Describes what would be cut off.
pub(crate) fn dry_run(
    select: &Selection<'_>,
    root: &Arc<Bound>,
    options: &QuarantineOptions,
) -> Outcome {
    match find(select, root) {
        Ok(group) => describe("would have cut off", &group, options),
        Err(outcome) => outcome,
    }
}

/// A control group with its processes.
type Found = (Group, Vec<event::Pid>);

/// Finds the control group, in which no process may be one that must not be hit.
fn find(select: &Selection<'_>, root: &Arc<Bound>) -> Result<Found, Outcome> {
    let refused = |text: String| Outcome::new(Status::Refused, text);
    let group = Group::of_container(select.proc, root).map_err(|why| match root.is_unreaped() {
        true => refused(format!("pid {}: {why}", root.pid.0)),
        false => Outcome::new(Status::Gone, "the process had ended"),
    })?;
    let name = group.path.display();
    let members = group
        .members()
        .map_err(|why| refused(format!("{name}: {why}")))?;
    for pid in &members {
        let member = match Bound::open(select.proc, *pid) {
            Ok(member) => member,
            Err(NotBound::Gone | NotBound::Reused) => continue,
            Err(why) => return Err(refused(format!("pid {} in {name}: {why}", pid.0))),
        };
        if let Err(refusal) = select.guard.check(select.proc, &member, select.allowed)
            && !member.now(select.proc).has_ended()
        {
            return Err(refused(format!("pid {} in {name}: {refusal}", pid.0)));
        }
    }
    Ok((group, members))
}

fn describe(verb: &str, (group, members): &Found, options: &QuarantineOptions) -> Outcome {
    let (path, container) = (group.path.display(), &group.container);
    let mut text = format!("{verb} the container {container} ({path}) from the network");
    if !options.networks.is_empty() {
        let networks = options.networks.iter();
        let networks = networks.map(|(address, bits)| format!("{address}/{bits}"));
        text += &format!(" except {}", networks.collect::<Vec<_>>().join(", "));
    }
    if let Some(duration) = options.duration {
        text += &format!(" for {} s", duration.as_secs());
    }
    let mut outcome = Outcome::new(Status::DryRun, text);
    outcome.processes.clone_from(members);
    outcome
}
