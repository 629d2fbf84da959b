//! The engine that watches the node, in the program of the agent.

use std::path::Path;
use std::sync::Arc;

use agent::embedded::{self, Embedded, EmbeddedDetector, GivenSources, SourceProblem};
use agent::options::{AlertStream, Detection as Options};
use cluster::artifacts::{AcceptedSources, ArtifactKind, Problem};
use container::registry::Registry;
use diagnostics::failure::Failure;
use diagnostics::terminal;
use node::{Detection, Detector, DetectorFigures};

use super::args::Node;

/// Fields that every alert has besides its rule's, and the form of the lines that the container runtime collects. Configs
/// come after it, and go before it.
fn defaults(node: &str) -> (String, String) {
    let text = format!(
        "json_output: true\nappend_output:\n- extra_fields: [container.id, container.name, container.image.repository, \
         container.image.tag, k8s.ns.name, k8s.pod.name, k8s.pod.uid, k8s.pod.labels]\n- extra_fields:\n  \
         - k8s.node.name: {node:?}\n"
    );
    ("defaults of `tollgate node`".to_owned(), text)
}

/// Detection that was asked for.
pub(super) struct Detecting {
    /// The engine, or why there is none.
    engine: Result<Embedded, String>,
    in_force: AcceptedSources,
    containers: Arc<Registry>,
    form: Form,
}

/// How sources become those of the engine.
#[derive(Clone)]
struct Form {
    node: String,
    without_builtin: bool,
}

impl Form {
    fn given(&self, sources: &AcceptedSources) -> GivenSources {
        let texts = |kind| {
            let texts = sources.texts(kind).into_iter();
            texts.map(|text| (text.name.clone(), text.text.clone()))
        };
        let settings = [defaults(&self.node)].into_iter();
        GivenSources {
            without_builtin: self.without_builtin,
            rules: texts(ArtifactKind::Rulesfile).collect(),
            settings: settings.chain(texts(ArtifactKind::Config)).collect(),
        }
    }
}

impl Detecting {
    /// Starts the engine with the sources that were in force last. An agent without an engine confines nevertheless, and
    /// reports why it does not detect.
    ///
    /// Preconditions: the process has one thread.
    pub(super) fn start(args: &Node, node: &str) -> Self {
        let containers = Arc::new(Registry::default());
        let form = Form {
            node: node.to_owned(),
            without_builtin: args.no_builtin_rules,
        };
        let options = Options {
            stats_interval: 1000,
            stream: AlertStream::default(),
            containers: Some(Arc::clone(&containers)),
            ..Options::default()
        };
        let mut in_force = last_sources(&args.state, &options, &form);
        let mut started = embedded::start(options.clone(), form.given(&in_force));
        if let (Err(failure), false) = (&started, in_force.artifacts.is_empty()) {
            // Such as an output whose folder is gone: without the cluster's sources there may be a watch nevertheless.
            say_unused(&in_one_line(failure));
            in_force = AcceptedSources::default();
            started = embedded::start(options, form.given(&in_force));
        }
        let engine = started.map_err(|failure| {
            let cause = in_one_line(&failure);
            terminal::complain(&format!("tollgate: cannot watch the node: {cause}\n"));
            cause
        });
        Self {
            engine,
            in_force,
            containers,
            form,
        }
    }

    pub(super) fn engine(&self) -> Option<&Embedded> {
        self.engine.as_ref().ok()
    }

    /// What the agent needs of it.
    pub(super) fn detection(&self) -> Detection {
        let engine = self.engine.as_ref().map_err(Clone::clone);
        let engine = engine.map(|engine| {
            let detector = NodeDetector {
                engine: engine.detector(),
                form: self.form.clone(),
            };
            let detector: Arc<dyn Detector> = Arc::new(detector);
            (detector, self.in_force.clone())
        });
        Detection {
            engine,
            containers: Arc::clone(&self.containers),
        }
    }

    /// Delivers what is left, and ends the engine.
    pub(super) fn finish(self) {
        if let Ok(engine) = self.engine {
            engine.finish();
        }
    }
}

/// The sources that were in force last, if they can be used: the agent starts with them when there is no API server.
fn last_sources(state: &Path, options: &Options, form: &Form) -> AcceptedSources {
    let problem = match node::last_sources(state) {
        Ok(sources) => match embedded::check(options, &form.given(&sources)) {
            Ok(()) => return sources,
            Err(problems) => {
                let messages: Vec<_> = problems.into_iter().map(|one| one.message).collect();
                messages.join("; ")
            }
        },
        Err(error) => in_one_line(&Failure::from_error(
            diagnostics::exit::Exit::BadInput,
            &error,
        )),
    };
    say_unused(&problem);
    AcceptedSources::default()
}

fn say_unused(problem: &str) {
    terminal::complain(&format!(
        "tollgate: the last rules of the cluster are not used until it gives rules again: {problem}\n"
    ));
}

fn in_one_line(failure: &Failure) -> String {
    failure.render().trim_end().replace('\n', " ")
}

/// The engine as the agent sees it.
struct NodeDetector {
    engine: EmbeddedDetector,
    form: Form,
}

impl Detector for NodeDetector {
    fn check(&self, sources: &AcceptedSources) -> Result<(), Vec<Problem>> {
        let checked = self.engine.check(&self.form.given(sources));
        checked.map_err(|problems| problems.into_iter().map(problem).collect())
    }

    fn replace(&self, sources: &AcceptedSources) -> Result<(), String> {
        self.engine.replace(self.form.given(sources))
    }

    fn figures(&self) -> DetectorFigures {
        let embedded::Figures {
            rules,
            alerts,
            lost,
        } = self.engine.figures();
        DetectorFigures {
            rules,
            alerts,
            lost,
        }
    }
}

fn problem(problem: SourceProblem) -> Problem {
    Problem {
        text: problem.text,
        message: problem.message,
    }
}
