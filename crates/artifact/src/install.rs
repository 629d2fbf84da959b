//! Installs artefacts with what they need: all are read and verified, then checked together, then written.

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
        let (mut rank, mut needs) = (0, Vec::new());
        for dependency in &fetched.config.dependencies {
            let (needed, its_rank) = self.depend(plan, &name, dependency)?;
            rank = rank.max(1 + its_rank);
            needs.push(needed);
        }
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

    /// Finds or plans what an artefact needs, and returns the name and rank of that.
    fn depend(
        &self,
        plan: &mut Plan<'_>,
        name: &str,
        dependency: &Dependency,
    ) -> Result<(String, u32), ArtifactError> {
        let choices = dependency.choices();
        // Versions of those that are installed and do not count.
        let mut damaged = BTreeMap::new();
        for choice in &choices {
            let needed = version_of(&choice.version)
                .map_err(|problem| ArtifactError::form("the configuration", problem))?;
            let mut planned = plan.planned.iter().map(|it| &it.step);
            let planned = planned.find(|step| step.name == choice.name);
            let known = match planned {
                Some(step) => Some(&step.installed),
                None => plan.state.0.get(&choice.name),
            };
            let Some(known) = known.filter(|known| is_enough(&known.version, &needed)) else {
                continue;
            };
            if planned.is_some() || self.counts(plan.store, &plan.state, &choice.name)? {
                return Ok((choice.name.clone(), known.rank));
            }
            damaged.insert(&choice.name, known.version.to_string());
        }
        let mut problems = Vec::new();
        for choice in &choices {
            form::check_name(&choice.name)
                .map_err(|problem| ArtifactError::form("the configuration", problem))?;
            let damaged = damaged.get(&choice.name);
            // The needed version may be older than the installed one, which would be a roll-back.
            let tag = match damaged {
                Some(version) if !self.options.allow_rollback => version,
                _ => &choice.version,
            };
            match self
                .options
                .index
                .find(&choice.name, Some(tag.clone()), None)
            {
                None if damaged.is_some() => problems.push(format!(
                    "`{}` is installed, but it or what it needs was not verified with these keys, or a file of it was \
                     changed; no index has it",
                    choice.name
                )),
                None => problems.push(format!("no index has `{}`", choice.name)),
                Some(Err(error)) => return Err(error),
                Some(Ok((kind, _))) if kind != Kind::Rulesfile => {
                    problems.push(format!(
                        "`{}` is a {}, which this program cannot install",
                        choice.name,
                        kind.name()
                    ));
                }
                Some(Ok((_, reference))) => {
                    let fetched = self.fetch_dependency(&choice.name, &reference)?;
                    let rank = self.plan(plan, &reference, fetched)?;
                    return Ok((choice.name.clone(), rank));
                }
            }
        }
        Err(ArtifactError::Unsupported {
            name: name.to_owned(),
            problem: format!(
                "it needs `{}` {}: {}",
                dependency.name,
                dependency.version,
                problems.join("; ")
            ),
        })
    }

    /// Reads an artefact that another one needs.
    fn fetch_dependency(
        &self,
        name: &str,
        reference: &Reference,
    ) -> Result<Fetched, ArtifactError> {
        let source = (self.open)(reference)?;
        let root = fetch::root(&*source, reference)?;
        let trust = self.trust_of_dependencies();
        let fetched = fetch::fetch_root(&*source, reference, &trust, root)?;
        let (found, _) = fetched.config.identity()?;
        if found == name {
            return Ok(fetched);
        }
        let problem = format!("the index calls it `{name}`, and it calls itself `{found}`");
        Err(ArtifactError::form("the configuration", problem))
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
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::{Config, Layout, Package, PublicKey, push};

    const KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt
6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==
-----END PUBLIC KEY-----
";

    struct NoCheck;

    impl Checker for NoCheck {
        fn check(&self, _: &[Candidate]) -> Result<(), String> {
            Ok(())
        }
    }

    fn publish(folder: &Path, name: &str, version: &str, needs: &[&str]) {
        let reference = Reference::new("localhost:1", name).expect("it is good");
        let reference = reference.with(Some(version.to_owned()), None);
        let needs = needs.iter().map(|text| Dependency::parse(text));
        let package = Package {
            config: Config {
                name: Some(name.to_owned()),
                version: Some(version.to_owned()),
                dependencies: needs.collect::<Result<_, _>>().expect("they are good"),
                requirements: Vec::new(),
            },
            file: format!("{name}.yaml"),
            rules: format!("- list: {name}\n  items: []\n"),
            tests: Vec::new(),
        };
        let layout = Layout::create(&folder.join(name)).expect("it can be written");
        push(&layout, &reference, &package, &[], None).expect("it can be written");
    }

    fn installer(folder: &Path, trust: Trust, names: &[&str]) -> Installer<'static> {
        let mut index = Index::default();
        for name in names {
            let text = format!(
                "[{{name: {name}, type: rulesfile, registry: 'localhost:1', repository: {name}}}]"
            );
            index.add(name, &text).expect("it is good");
        }
        let options = InstallOptions {
            folder: folder.join("rules"),
            trust,
            allow_rollback: false,
            engine_version: Version::new(0, 57, 0),
            index,
        };
        let folder = folder.to_owned();
        Installer::new(options, move |reference: &Reference| {
            let layout = Layout::open(&folder.join(&reference.repository));
            Ok(Box::new(layout) as Box<dyn Source>)
        })
    }

    fn wanted(text: &str) -> Wanted {
        Wanted::parse(text).expect("it is good")
    }

    #[test]
    fn an_installed_dependency_counts_only_with_its_file_and_a_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        publish(folder, "base", "1.0.0", &[]);
        publish(folder, "base", "1.2.0", &[]);
        publish(folder, "middle", "1.0.0", &["base:1.0.0"]);
        publish(folder, "web", "1.0.0", &["middle:1.0.0"]);
        publish(folder, "web", "1.1.0", &["middle:1.0.0"]);
        let here = installer(folder, Trust::Nobody, &["base", "middle", "web"]);
        let install = |text: &str| {
            let done = here.install(&wanted(text), &NoCheck).expect(text);
            let steps = done.steps.into_iter();
            let steps = steps.map(|step| format!("{} {}", step.name, step.installed.version));
            steps.collect::<Vec<_>>()
        };
        assert_eq!(install("base:1.2.0"), ["base 1.2.0"]);
        assert_eq!(install("web:1.0.0"), ["middle 1.0.0", "web 1.0.0"]);
        assert_eq!(install("web:1.0.0"), [""; 0]);
        let file = folder.join("rules/artifact-00-base.yaml");
        let good = fs::read_to_string(&file).expect("it is there");
        // Of what the dependency needs, on the way that reads the digest alone. The version stays the newer one.
        fs::write(&file, "").expect("it can be written");
        let all = ["base 1.2.0", "middle 1.0.0", "web 1.0.0"];
        assert_eq!(install("web:1.0.0"), all);
        assert_eq!(fs::read_to_string(&file).expect("it is there"), good);
        fs::remove_file(&file).expect("it is there");
        let without = installer(folder, Trust::Nobody, &["web", "middle"]);
        let error = without
            .install(&wanted("web:1.1.0"), &NoCheck)
            .expect_err("there is no base");
        assert!(
            error.to_string().contains("`base` is installed, but"),
            "{error}"
        );
        assert_eq!(
            install("web:1.1.0"),
            ["base 1.2.0", "middle 1.0.0", "web 1.1.0"]
        );
        assert_eq!(fs::read_to_string(&file).expect("it is there"), good);
        // Whoever asks for a key does not take what was installed without one, or with another one.
        let key = PublicKey::from_pem(KEY).expect("it is a key");
        let trust = Trust::Keys {
            keys: vec![key.clone()],
            signed_as: None,
        };
        let strict = installer(folder, trust, &[]);
        let store = Store::open(&folder.join("rules")).expect("it is free");
        let mut state = store.read().expect("it is there");
        let mut counts = |name: &str, by: Option<Digest>| {
            let installed = state.0.get_mut(name).expect("it is installed");
            installed.key = by;
            strict
                .counts(&store, &state, "web")
                .expect("it can be read")
        };
        let by = Some(key.fingerprint());
        assert!(!counts("web", by.clone()));
        assert!(!counts("middle", by.clone()));
        assert!(!counts("base", Some(Digest::of(b"another key"))));
        assert!(counts("base", by));
    }
}
