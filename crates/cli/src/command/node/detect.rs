//! The engine that watches the node, in the program of the agent.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use agent::embedded::{
    self, Embedded, EmbeddedDetector, GivenFolders, GivenSources, SourceProblem,
};
use agent::options::{AlertStream, Detection as Options};
use cluster::artifacts::{AcceptedSources, ArtifactKind, Problem};
use container::registry::Registry;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::terminal;
use node::{Detection, Detector, DetectorFigures, PodEvents};

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
    /// reports why it does not detect. `events` gets the alerts of pods.
    ///
    /// Preconditions: the process has one thread.
    pub(super) fn start(args: &Node, node: &str, events: Option<Arc<PodEvents>>) -> Self {
        let containers = Arc::new(Registry::default());
        let form = Form {
            node: node.to_owned(),
            without_builtin: args.no_builtin_rules,
        };
        let folders = folders(&args.state);
        let options = Options {
            given_folders: Some(folders.clone()),
            stats_interval: 1000,
            stream: AlertStream::default(),
            containers: Some(Arc::clone(&containers)),
            observer: events.map(super::events::observer),
            ..Options::default()
        };
        let (started, in_force) = match make_private(&folders.written) {
            Ok(()) => start_with_last(last_sources(&args.state, &options, &form), &options, &form),
            Err(failure) => (Err(failure), AcceptedSources::default()),
        };
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

/// Folders of files that Configs name.
fn folders(state: &Path) -> GivenFolders {
    GivenFolders {
        written: state.join("out"),
        read: state.join("in"),
    }
}

/// Makes a folder that nobody else may write to, if it is not there: what a Config has written must not go through somebody
/// else's link to another file of the node.
fn make_private(folder: &Path) -> Result<(), Failure> {
    let unusable = |why: String| {
        let message = format!(
            "cannot use {} for files of Configs: {why}",
            folder.display()
        );
        Failure::new(Exit::BadInput, message).help(
            "make it a folder of the agent's account that nobody else may write to, or remove it",
        )
    };
    let parent = folder.parent().unwrap_or(folder);
    let made = fs::create_dir_all(parent).and_then(|()| {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    });
    made.map_err(|error| unusable(error.to_string()))?;
    let found = fs::symlink_metadata(folder).map_err(|error| unusable(error.to_string()))?;
    let is_ours = found.uid() == rustix::process::geteuid().as_raw();
    match found.is_dir() && is_ours && found.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(unusable("others can change it".to_owned())),
    }
}

/// Starts the engine with these sources, or else with what of them works here, and returns the sources with which it was
/// tried last.
fn start_with_last(
    last: AcceptedSources,
    options: &Options,
    form: &Form,
) -> (Result<Embedded, Failure>, AcceptedSources) {
    // Such as an output whose folder is gone: with the rules alone, or none of the cluster's, there may be a watch nevertheless.
    let rules = last.clone().without(ArtifactKind::Config);
    let mut sources = last;
    let mut started = embedded::start(options.clone(), form.given(&sources));
    for next in [rules, AcceptedSources::default()] {
        let Err(failure) = &started else {
            break;
        };
        if next == sources {
            continue;
        }
        let what = match next.artifacts.is_empty() {
            true => "the last rules of the cluster are",
            false => "the last Configs of the cluster are",
        };
        say_unused(what, &in_one_line(failure));
        sources = next;
        started = embedded::start(options.clone(), form.given(&sources));
    }
    (started, sources)
}

/// The sources that were in force last: the agent starts with them when there is no API server. One that this program refuses
/// is left out.
fn last_sources(state: &Path, options: &Options, form: &Form) -> AcceptedSources {
    let sources = match node::last_sources(state) {
        Ok(sources) => sources,
        Err(error) => {
            let failure = Failure::from_error(Exit::BadInput, &error);
            say_unused("the last rules of the cluster are", &in_one_line(&failure));
            return AcceptedSources::default();
        }
    };
    let settled = sources.settle_again(|sources| {
        let checked = embedded::check(options, &form.given(sources));
        checked.map_err(|problems| problems.into_iter().map(problem).collect())
    });
    for state in &settled.states {
        if let Some(refusal) = &state.problem {
            let what = format!(
                "the last version of {} {} is",
                state.id.kind.name(),
                state.id.key
            );
            say_unused(&what, &refusal.message);
        }
    }
    match settled.unusable {
        None => settled.accepted,
        // With none of them.
        Some(problem) => {
            say_unused("the last rules of the cluster are", &problem);
            AcceptedSources::default()
        }
    }
}

fn say_unused(what: &str, problem: &str) {
    terminal::complain(&format!(
        "tollgate: {what} not used until the API server gives them again: {problem}\n"
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn files_of_configs_go_to_a_folder_that_nobody_else_can_change() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = folders(&dir.path().join("state")).written;
        make_private(&folder).expect("it is new");
        make_private(&folder).expect("it is there");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert!(make_private(&folder).is_err(), "others may write to it");
        fs::remove_dir(&folder).expect("it is empty");
        symlink(dir.path(), &folder).expect("it is new");
        assert!(make_private(&folder).is_err(), "it is a link");
    }
}
