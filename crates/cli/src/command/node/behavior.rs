//! The engine that observes containers whose behaviour is modelled.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent::behavior::{BehaviorEngine as Engine, BehaviorObserver};
use container::registry::Registry;
use node::{Behavior, BehaviorEngine, Recorder};
use policy::model::WorkloadAction;

/// Behaviour modelling by the engine `ebpf`. Nothing is started before a policy asks for it.
pub(super) fn behavior() -> Behavior {
    let recorder = Arc::new(Recorder::default());
    let engine = NodeEngine {
        recorder: Arc::clone(&recorder),
        running: Mutex::new(None),
    };
    Behavior {
        engine: Arc::new(engine),
        recorder,
    }
}

/// The engine as the agent sees it.
struct NodeEngine {
    recorder: Arc<Recorder>,
    running: Mutex<Option<Engine>>,
}

impl NodeEngine {
    fn running(&self) -> MutexGuard<'_, Option<Engine>> {
        // The value is replaced as a whole.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BehaviorEngine for NodeEngine {
    fn start(&self) -> Result<(), String> {
        let observer = Arc::new(ToRecorder(Arc::clone(&self.recorder)));
        // Ids of containers come from their control groups: what a runtime says of them besides is not needed.
        let started = Engine::start(observer, Arc::new(Registry::default()));
        let started = started.map_err(|failure| failure.render().trim_end().replace('\n', " "))?;
        // The one before ends now.
        let before = self.running().replace(started);
        drop(before);
        Ok(())
    }

    fn stop(&self) {
        let running = self.running().take();
        drop(running);
    }

    fn is_running(&self) -> bool {
        let running = self.running();
        running.as_ref().is_some_and(|engine| !engine.has_ended())
    }
}

/// Gives the recorder what the engine sees.
struct ToRecorder(Arc<Recorder>);

impl BehaviorObserver for ToRecorder {
    fn watches(&self, container: &str) -> bool {
        self.0.watches(container)
    }

    fn observe(&self, container: &str, starts_program: bool, actions: &[WorkloadAction]) {
        self.0.observe(container, starts_program, actions);
    }

    fn unread(&self, container: &str, call: &str) {
        self.0.unread(container, call);
    }

    fn lost(&self, events: u64) {
        self.0.lost(events);
    }

    fn trouble(&self, cause: String) {
        self.0.trouble(&cause);
    }
}
