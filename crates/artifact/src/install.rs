//! Installs artefacts with what they need: all are read and verified, then checked together, then written.

mod dependencies;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use semver::Version;

use crate::fetch::{self, Fetched};
use crate::form::{self, Dependency, NameAndVersion, version_of};
use crate::state::Store;
use crate::steps::{Candidate, Checker, Done, Step};
use crate::{
    ArtifactError, Digest, Index, Installed, Kind, Reference, Source, State, TestFile, Trust,
    Wanted, limits,
};

/// How artefacts are installed.
#[derive(Debug)]
pub struct InstallOptions {
    /// Folder of rule files.
    pub folder: PathBuf,
    /// Who has to have signed them.
    pub trust: Trust,
    /// Install an older version than the installed one, or other content of the same version.
    pub allow_rollback: bool,
    /// Version of Falco's engine that this program is compatible with.
    pub engine_version: Version,
    /// Where names are looked up.
    pub index: Index,
}

/// Opens the repository of a reference.
type Open<'i> = dyn Fn(&Reference) -> Result<Box<dyn Source>, ArtifactError> + 'i;

/// Installs artefacts.
pub struct Installer<'i> {
    options: InstallOptions,
    open: Box<Open<'i>>,
}

impl std::fmt::Debug for Installer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.options.fmt(f)
    }
}

/// An artefact that was read and is to be written.
struct Planned {
    step: Step,
    rules: String,
    tests: Vec<TestFile>,
}

/// What one installation has found out so far.
struct Plan<'s> {
    store: &'s Store,
    state: State,
    planned: Vec<Planned>,
    /// Names on the way to the present artefact, to notice circles.
    open: Vec<String>,
}

impl<'i> Installer<'i> {
    /// Makes an installer, which asks `open` for repositories.
    pub fn new(
        options: InstallOptions,
        open: impl Fn(&Reference) -> Result<Box<dyn Source>, ArtifactError> + 'i,
    ) -> Self {
        Self {
            options,
            open: Box::new(open),
        }
    }

    /// Returns the reference that is meant.
    ///
    /// # Errors
    ///
    /// A name is in no index, or is one of no rules.
    pub fn resolve(&self, wanted: &Wanted) -> Result<Reference, ArtifactError> {
        let (kind, reference) = self.options.index.locate(wanted)?;
        if let Some((name, kind)) = kind {
            installable(name, kind)?;
        }
        Ok(reference)
    }

    /// Installs an artefact and what it needs.
    ///
    /// # Errors
    ///
    /// Something of it cannot be read, verified or written, is older than what is installed, or the checker refuses it.
    /// Nothing is changed then, unless the disk fails between the files of several artefacts.
    pub fn install(&self, wanted: &Wanted, checker: &dyn Checker) -> Result<Done, ArtifactError> {
        let reference = self.resolve(wanted)?;
        let store = Store::open(&self.options.folder)?;
        let mut plan = Plan {
            store: &store,
            state: store.read()?,
            planned: Vec::new(),
            open: Vec::new(),
        };
        let source = (self.open)(&reference)?;
        let root = fetch::root(&*source, &reference)?;
        if let Some(done) = self.is_installed(&store, &plan.state, &reference, &root.0)? {
            return Ok(done);
        }
        let fetched = fetch::fetch_root(&*source, &reference, &self.options.trust, root)?;
        let (name, version) = fetched.config.identity()?;
        if let Wanted::Name { name: asked, .. } = wanted
            && *asked != name
        {
            let problem = format!("the index calls it `{asked}`, and it calls itself `{name}`");
            return Err(ArtifactError::form("the configuration", problem));
        }
        let digest = fetched.digest.clone();
        self.plan(&mut plan, &reference, fetched)?;
        let candidates = self.candidates(&plan);
        if let Err(problem) = checker.check(&candidates) {
            let names: Vec<_> = plan.planned.iter().map(|it| &*it.step.name).collect();
            return Err(ArtifactError::Rules {
                names: names.join(", "),
                problem,
            });
        }
        self.commit(&store, &plan, &candidates)?;
        Ok(Done {
            name,
            version,
            digest,
            steps: plan.planned.into_iter().map(|it| it.step).collect(),
        })
    }

    /// Whether an artefact with this digest is installed, and it and what it needs count.
    fn is_installed(
        &self,
        store: &Store,
        state: &State,
        reference: &Reference,
        digest: &Digest,
    ) -> Result<Option<Done>, ArtifactError> {
        let mut all = state.0.iter();
        let is_same = |it: &Installed| {
            it.digest == *digest
                && it.registry == reference.registry
                && it.repository == reference.repository
        };
        let Some((name, installed)) = all.find(|(_, it)| is_same(it)) else {
            return Ok(None);
        };
        if !self.counts(store, state, name)? {
            return Ok(None);
        }
        Ok(Some(Done {
            name: name.clone(),
            version: installed.version.clone(),
            digest: digest.clone(),
            steps: Vec::new(),
        }))
    }

    /// Whether an artefact of the state and all that it needs were verified as they are to be now, and their files are
    /// what the state says. The state is written before the files, and anybody may have changed these since.
    fn counts(&self, store: &Store, state: &State, name: &str) -> Result<bool, ArtifactError> {
        let mut seen = BTreeSet::new();
        let mut left = vec![name];
        while let Some(name) = left.pop() {
            if !seen.insert(name) {
                continue;
            }
            let Some(installed) = state.0.get(name) else {
                return Ok(false);
            };
            // A state of an older build does not say what it is that gives the rank.
            let is_complete = installed.rank == 0 || !installed.needs.is_empty();
            if !is_complete || !self.is_intact(store, installed)? {
                return Ok(false);
            }
            left.extend(installed.needs.iter().map(String::as_str));
        }
        Ok(true)
    }

    /// Whether an artefact was verified as it is to be now, and its file is what the state says.
    fn is_intact(&self, store: &Store, installed: &Installed) -> Result<bool, ArtifactError> {
        let is_trusted = match &self.options.trust {
            Trust::Nobody => true,
            Trust::Keys { keys, .. } => keys
                .iter()
                .any(|key| Some(key.fingerprint()) == installed.key),
        };
        Ok(is_trusted && store.digest(&installed.file)?.as_ref() == Some(&installed.file_digest))
    }

    /// Plans an artefact after what it needs, and returns its rank.
    fn plan(
        &self,
        plan: &mut Plan<'_>,
        reference: &Reference,
        fetched: Fetched,
    ) -> Result<u32, ArtifactError> {
        let (name, version) = fetched.config.identity()?;
        installable(&name, fetched.kind)?;
        if let Ok(tag) = Version::parse(&reference.tag)
            && reference.digest.is_none()
            && tag != version
        {
            let problem = format!("the tag is {tag}, and its version is {version}");
            return Err(ArtifactError::form("the configuration", problem));
        }
        let before = plan.state.0.get(&name).cloned();
        self.is_no_rollback(&name, &version, &fetched.digest, before.as_ref())?;
        self.is_supported(&name, &fetched.config.requirements)?;
        let is_planned = plan.planned.iter().any(|it| it.step.name == name);
        let is_open = is_planned || plan.open.contains(&name);
        if is_open || plan.open.len() + plan.planned.len() >= limits::STEPS {
            let problem = "its dependencies are a circle, too many, or of two versions".to_owned();
            return Err(ArtifactError::Unsupported { name, problem });
        }
        plan.open.push(name.clone());
        let (rank, needs) = self.depend_on_all(plan, &name, &fetched.config.dependencies)?;
        plan.open.pop();
        let content = fetched
            .content
            .ok_or_else(|| ArtifactError::form("the archive", "it has no rules"))?;
        let suites = content.tests.iter().filter(|test| test.is_suite()).count();
        let installed = Installed {
            version,
            digest: fetched.digest,
            registry: reference.registry.clone(),
            repository: reference.repository.clone(),
            asked: reference.version().to_owned(),
            key: fetched.key.map(|key| key.fingerprint()),
            file: format!("artifact-{rank:02}-{name}.yaml"),
            file_digest: Digest::of(content.rules.as_bytes()),
            rank,
            needs,
        };
        let step = Step {
            name,
            before: before.map(|before| before.version),
            suites,
            installed,
        };
        plan.planned.push(Planned {
            step,
            rules: content.rules,
            tests: content.tests,
        });
        Ok(rank)
    }

    fn is_no_rollback(
        &self,
        name: &str,
        version: &Version,
        digest: &Digest,
        before: Option<&Installed>,
    ) -> Result<(), ArtifactError> {
        let Some(before) = before.filter(|_| !self.options.allow_rollback) else {
            return Ok(());
        };
        // Build metadata has no order: 1.0.0+b is no successor of 1.0.0+a.
        match version.cmp_precedence(&before.version) {
            std::cmp::Ordering::Less => Err(ArtifactError::RollBack {
                name: name.to_owned(),
                offered: version.clone(),
                installed: before.version.clone(),
            }),
            std::cmp::Ordering::Equal if *digest != before.digest => {
                Err(ArtifactError::Republished {
                    name: name.to_owned(),
                    version: version.clone(),
                    installed: before.digest.clone(),
                    offered: digest.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Checks what an artefact needs of the program.
    fn is_supported(
        &self,
        name: &str,
        requirements: &[NameAndVersion],
    ) -> Result<(), ArtifactError> {
        let refuse = |problem: String| ArtifactError::Unsupported {
            name: name.to_owned(),
            problem,
        };
        let have = &self.options.engine_version;
        for NameAndVersion { name, version } in requirements {
            let needed = match (&**name, version.parse::<u64>()) {
                // A bare number dates from before versions had three parts: 26 is 0.26.0.
                ("engine_version" | "engine_version_semver", Ok(minor)) => {
                    Version::new(0, minor, 0)
                }
                ("engine_version" | "engine_version_semver", Err(_)) => {
                    version_of(version).map_err(refuse)?
                }
                (other, _) => {
                    let other = other.escape_debug();
                    return Err(refuse(format!(
                        "it requires `{other}`, which this program does not know"
                    )));
                }
            };
            if !is_enough(have, &needed) {
                return Err(refuse(format!(
                    "it requires Falco's engine {needed}; this program has {have}"
                )));
            }
        }
        Ok(())
    }

    /// What `signed_as` says is about the artefact that was asked for alone.
    fn trust_of_dependencies(&self) -> Trust {
        match &self.options.trust {
            Trust::Nobody => Trust::Nobody,
            Trust::Keys { keys, .. } => Trust::Keys {
                keys: keys.clone(),
                signed_as: None,
            },
        }
    }

    fn candidates(&self, plan: &Plan<'_>) -> Vec<Candidate> {
        let planned = plan.planned.iter().map(|planned| {
            let step = &planned.step;
            let before = plan.state.0.get(&step.name).map(|before| &before.file);
            let replaces = before.filter(|file| **file != step.installed.file);
            Candidate {
                name: step.name.clone(),
                path: self.options.folder.join(&step.installed.file),
                replaces: replaces.map(|file| self.options.folder.join(file)),
                rules: planned.rules.clone(),
                tests: planned.tests.clone(),
            }
        });
        planned.collect()
    }

    /// Writes the state, then the files. A machine that stops in between has a state that allows no older version than
    /// the new one; the next installation writes the files, because they are not what the state says.
    fn commit(
        &self,
        store: &Store,
        plan: &Plan<'_>,
        candidates: &[Candidate],
    ) -> Result<(), ArtifactError> {
        let mut state: BTreeMap<_, _> = plan.state.0.clone();
        for planned in &plan.planned {
            let path = &planned.step.installed.file;
            let is_ours = state.values().any(|known| known.file == *path);
            if !is_ours && store.digest(path)?.is_some() {
                return Err(ArtifactError::Unsupported {
                    name: planned.step.name.clone(),
                    problem: format!(
                        "{} exists, and was not installed",
                        store.folder.join(path).display()
                    ),
                });
            }
        }
        for planned in &plan.planned {
            state.insert(planned.step.name.clone(), planned.step.installed.clone());
        }
        store.write(&State(state))?;
        for (planned, candidate) in plan.planned.iter().zip(candidates) {
            let written = store.replace(&candidate.path, planned.rules.as_bytes());
            if let Err(error) = written {
                // The message is about the cause; the state is put back as far as the disk allows.
                let _ = store.write(&plan.state);
                return Err(error);
            }
        }
        for planned in &plan.planned {
            let before = plan.state.0.get(&planned.step.name);
            if let Some(before) = before.filter(|before| before.file != planned.step.installed.file)
            {
                store.remove(&before.file)?;
            }
        }
        Ok(())
    }
}

/// Whether a version does where another one is needed: not older, and of the same major version.
fn is_enough(have: &Version, needed: &Version) -> bool {
    have.major == needed.major && have.cmp_precedence(needed).is_ge()
}

fn installable(name: &str, kind: Kind) -> Result<(), ArtifactError> {
    let problem = match kind {
        Kind::Rulesfile => return Ok(()),
        Kind::Plugin => "it is a plug-in, and this program installs none",
        Kind::Asset => "it is an asset of a plug-in, and this program installs none",
    };
    Err(ArtifactError::Unsupported {
        name: name.to_owned(),
        problem: problem.to_owned(),
    })
}

#[cfg(test)]
mod tests;
