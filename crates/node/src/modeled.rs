//! Containers whose behaviour is modelled: they are observed, and not confined.

use kinds::{ModelingRun, ObjectKey, ProfileState};
use nri::message::Container;

use crate::agent::Agent;
use crate::behavior::now;
use crate::coverage::add;
use crate::index::Entry;
use crate::state::State;

impl Entry {
    /// Returns true if the containers of the profile are not confined, because their behaviour is modelled.
    pub(crate) fn is_modeled(&self) -> bool {
        self.modeling.is_some() && self.problem.is_none()
    }
}

impl Agent {
    /// Has a container observed whose behaviour is modelled: it is not confined.
    pub(crate) fn observe_new(&self, entry: &Entry, container: &Container) {
        let run = entry.modeling.filter(|run| !run.is_over);
        let (Some(run), Some(behavior)) = (run, &self.behavior) else {
            return;
        };
        if !run.is_active(now()) {
            return behavior.recorder.add_after(&entry.key, run);
        }
        let added = behavior.recorder.add(&container.id, &entry.key, run, false);
        if let Err(reason) = added {
            let mut state = self.state();
            state.unobserved.insert(container.id.clone(), reason);
        }
    }

    /// Notes that the runtime starts the program of such a container.
    pub(crate) fn start_observed(&self, container: &Container) {
        if let Some(behavior) = &self.behavior {
            behavior.recorder.start(&container.id);
        }
    }
}

impl State {
    /// Containers that run and whose behaviour is modelled, with profile and run.
    pub(crate) fn modeled(&self) -> Vec<(String, ObjectKey, ModelingRun)> {
        let running = self.seen.iter().filter_map(|(id, seen)| {
            // One of which it cannot be told is reported with its profiles.
            let entry = self.find_running(seen).ok()??;
            Some((id.clone(), entry.key.clone(), entry.modeling?))
        });
        running.collect()
    }

    /// Counts a container whose behaviour is modelled: it is observed, and not confined.
    pub(crate) fn add_modeled(&self, state: &mut ProfileState, id: &str, run: ModelingRun) {
        let recorder = self.recorder.as_ref();
        let from_start = recorder.and_then(|recorder| recorder.is_from_start(id));
        if !run.is_over && state.failure.is_none() {
            state.failure.clone_from(&self.behavior_failure);
        }
        match (from_start, self.unobserved.get(id)) {
            _ if run.is_over => state.enforced += 1,
            (Some(true), _) => state.enforced += 1,
            (_, Some(reason)) => {
                state.late += 1;
                state.failure.get_or_insert_with(|| reason.clone());
            }
            (Some(false) | None, None) => {
                state.late += 1;
                let reason = "it was not observed from its first program on";
                add(&mut state.reasons, vec![reason.to_owned()]);
            }
        }
    }
}
