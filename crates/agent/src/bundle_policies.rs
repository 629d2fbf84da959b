//! Policies of bundles: which one confines a command when it starts, and which ones are refused.
//!
//! A policy in force cannot be taken off a running process: seccomp and Landlock only narrow. So what a bundle brings waits for
//! the next start of the command. No bundle may bring a policy that allows more than the one before, unless the agent allows
//! that: the key decides what is detected, and may only tighten what is denied.

use std::sync::Arc;

use bundle::{Content, File};
use config::Config;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use enforce::{Confinement, Target};
use event::EngineKind;
use outputs::{BundledPolicy, BundledPolicyState};
use policy::{Mode, Policy};
use supervisor::handover_state::PolicyRecord;

use crate::bundles::{BundleFolder, said};
use crate::confine::{self, PolicyStrictness};
use crate::digest::sha256;
use crate::journal;
use crate::policy_files::{self, Loaded};
use crate::settings::configuration_with;
use crate::spec::{AgentSpec, StartMode};

/// How a command takes policies of bundles.
#[derive(Clone, Debug)]
pub(crate) enum PolicyTaker {
    /// It takes none, and refuses a bundle with some. The verb of the command.
    Not(&'static str),
    /// A policy takes the place of the command's own one.
    Takes(Arc<Taking>),
}

/// What a command that takes policies compares them with.
#[derive(Clone, Debug)]
pub(crate) struct Taking {
    /// The file of `--policy`.
    own: Option<Arc<Loaded>>,
    in_force: InForce,
    how: PolicyStrictness,
    /// Digest of the policy that the start did not use, and why.
    refused: Option<(String, String)>,
}

/// The policy that confines the running command.
#[derive(Clone, Debug)]
enum InForce {
    Nothing,
    Known(Arc<Loaded>),
    /// There is one, and its text is not here any more: the agent took over, and the files have changed since, or the one before
    /// kept no record of it.
    Unknown,
}

/// A bundle is refused because of its policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyRefusal {
    /// Why, with the name of the policy.
    pub(crate) problem: String,
    /// The policy, if it is one of the bundle.
    pub(crate) policy: Option<BundledPolicy>,
}

impl PolicyRefusal {
    fn of(file: &File, problem: &str) -> Self {
        let name = &file.name;
        Self {
            problem: format!("policy {name}: {problem}"),
            policy: Some(BundledPolicy {
                name: name.clone(),
                digest: sha256(file.text.as_bytes()),
                state: BundledPolicyState::Refused(problem.to_owned()),
            }),
        }
    }
}

impl PolicyTaker {
    /// Returns how the command of a specification takes policies, before it starts.
    pub(crate) fn of(spec: &AgentSpec) -> Self {
        match spec.mode {
            StartMode::Command if spec.confine.guard.is_some() => Self::Not("guard"),
            StartMode::Command => Self::Takes(Arc::new(Taking::of(spec))),
            StartMode::Learn => Self::Not("learn"),
            // The runtime reads the policy of a container in further processes, by its path.
            StartMode::Container { .. }
            | StartMode::ContainerOfHost { .. }
            | StartMode::Session { .. }
            | StartMode::Host { .. } => Self::Not("runtime"),
        }
    }

    /// Returns how the command of an agent that took over takes policies; `record` is the policy in force.
    pub(crate) fn after_handover(
        self,
        record: Option<&PolicyRecord>,
        config: &Config,
    ) -> Result<Self, Failure> {
        let folder = BundleFolder::of(&config.outputs.collector)?;
        Ok(self.taking_over(record, folder.as_ref()))
    }

    /// Returns the same with the policy in force of an agent that took over, found by its digest.
    pub(crate) fn taking_over(
        self,
        record: Option<&PolicyRecord>,
        folder: Option<&BundleFolder>,
    ) -> Self {
        let Self::Takes(taking) = &self else {
            return self;
        };
        let Some(record) = record else {
            // Without a policy of its own the command has none in force; else the record is what is missing.
            let in_force = match &taking.own {
                None => InForce::Nothing,
                Some(_) => InForce::Unknown,
            };
            return Self::Takes(Arc::new(Taking {
                in_force,
                ..Taking::clone(taking)
            }));
        };
        let own = taking.own.iter().cloned();
        // What cannot be read is not the policy in force.
        let kept = folder.and_then(|folder| folder.last_good().ok().flatten());
        let of_bundle = kept.iter().flat_map(|kept| &kept.content.policies);
        let mut known = own.chain(of_bundle.map(|file| Arc::new(parse(file))));
        let in_force = known.find(|it| it.digest() == record.digest);
        let in_force = in_force.map_or(InForce::Unknown, InForce::Known);
        Self::Takes(Arc::new(Taking {
            in_force,
            ..Taking::clone(taking)
        }))
    }

    /// Returns the policy in force, if that is one whose text is known.
    pub(crate) fn policy_in_force(&self) -> Option<Policy> {
        match self {
            Self::Takes(taking) => match &taking.in_force {
                InForce::Known(known) => known.policies.first().cloned(),
                InForce::Nothing | InForce::Unknown => None,
            },
            Self::Not(_) => None,
        }
    }

    /// Checks the policies of a bundle that is to follow the last one.
    ///
    /// # Errors
    ///
    /// The command takes none, one cannot be used, or one allows more than the one before and `allows_looser` is not set.
    pub(crate) fn check(
        &self,
        new: &Content,
        last: Option<&Content>,
        allows_looser: bool,
    ) -> Result<(), PolicyRefusal> {
        if let (Self::Not(verb), Some(file)) = (self, new.policies.first()) {
            return Err(PolicyRefusal::of(
                file,
                &format!(
                    "`tollgate {verb}` takes no policies from bundles, `tollgate run` and `tollgate enforce` do: \
                     hand them a bundle of their own, by class or labels"
                ),
            ));
        }
        for file in &new.policies {
            let loaded = document(file).map_err(|problem| PolicyRefusal::of(file, &problem))?;
            if let Self::Takes(taking) = self
                && taking.is_own(file)
            {
                let usable = taking.usable(loaded);
                usable.map_err(|problem| PolicyRefusal::of(file, &problem))?;
            }
        }
        if allows_looser {
            return Ok(());
        }
        // All of them, not only the command's: agents of a host share the last bundle.
        for before in last.map_or(&[][..], |last| &last.policies) {
            self.not_looser(new, &before.name, Some(&parse(before)))?;
        }
        match self {
            Self::Takes(taking) => match (&taking.in_force, taking.name()) {
                (InForce::Known(before), Some(name)) => self.not_looser(new, name, Some(before)),
                (InForce::Unknown, Some(name)) => self.not_looser(new, name, None),
                _ => Ok(()),
            },
            Self::Not(_) => Ok(()),
        }
    }

    /// Checks that the policy of a name does not become looser. `before` is `None` if the one in force is not known.
    fn not_looser(
        &self,
        new: &Content,
        name: &str,
        before: Option<&Loaded>,
    ) -> Result<(), PolicyRefusal> {
        let file = new.policies.iter().find(|file| file.name == name);
        let own = match self {
            Self::Takes(taking) => taking.own.as_ref().filter(|_| taking.name() == Some(name)),
            Self::Not(_) => None,
        };
        let after = match (file, own) {
            (Some(file), _) => Some(Arc::new(parse(file))),
            (None, own) => own.cloned(),
        };
        let why = match (&after, before) {
            (Some(after), Some(before)) => looser(after, before),
            // As long as the bundle says nothing of it, the next start uses the command's own one, as this one may have.
            (Some(_), None) if file.is_none() => None,
            (Some(_), None) => {
                Some("the one in force is not known, so they cannot be compared".to_owned())
            }
            (None, _) => Some("the bundle does without it".to_owned()),
        };
        let Some(why) = why else {
            return Ok(());
        };
        let problem = format!(
            "it allows more than the one before: {why}; agents with --allow-loosening take it"
        );
        Err(match file {
            Some(file) => PolicyRefusal::of(file, &problem),
            None => PolicyRefusal {
                problem: format!("policy {name}: {problem}"),
                policy: None,
            },
        })
    }

    /// Returns what became of the policies of the bundle that is kept.
    pub(crate) fn report(&self, kept: &Content) -> Vec<BundledPolicy> {
        let state = |file: &File, digest: &str| match self {
            Self::Not(verb) => BundledPolicyState::Unused(format!(
                "`tollgate {verb}` takes no policies from bundles"
            )),
            Self::Takes(taking) => taking.state(file, digest),
        };
        let policies = kept.policies.iter();
        policies
            .map(|file| {
                let digest = sha256(file.text.as_bytes());
                BundledPolicy {
                    name: file.name.clone(),
                    state: state(file, &digest),
                    digest,
                }
            })
            .collect()
    }
}

impl Taking {
    fn of(spec: &AgentSpec) -> Self {
        let own = spec.confine.policy.as_deref().map(policy_files::read);
        Self {
            own: own.map(Arc::new),
            in_force: InForce::Nothing,
            how: spec.confine.how.clone(),
            refused: None,
        }
    }

    /// Returns the name of the command's own policy; `None` if it has none, or not one.
    fn name(&self) -> Option<&str> {
        match &self.own.as_ref()?.policies[..] {
            [policy] => Some(&policy.name),
            _ => None,
        }
    }

    fn is_own(&self, file: &File) -> bool {
        self.name() == Some(&*file.name)
    }

    fn state(&self, file: &File, digest: &str) -> BundledPolicyState {
        if !self.is_own(file) {
            let why = "the command has no --policy of this name";
            return BundledPolicyState::Unused(why.to_owned());
        }
        let is_in_force = matches!(&self.in_force, InForce::Known(it) if it.digest() == digest);
        match &self.refused {
            _ if is_in_force => BundledPolicyState::InForce,
            Some((refused, why)) if refused == digest => BundledPolicyState::Refused(why.clone()),
            _ => BundledPolicyState::NextStart,
        }
    }

    /// Checks that this machine enforces a policy, as far as that shows without the start of a command.
    fn usable(&self, loaded: Loaded) -> Result<(), String> {
        let mut accepted = self.how.accept_partial.clone();
        if self.how.audit {
            let rules = loaded.policies.iter().flat_map(|policy| &policy.rules);
            accepted.extend(rules.map(|rule| rule.id.clone()));
        }
        let machine = policy_files::machine();
        first_error(&policy_files::checked(loaded, &accepted, &machine))
    }

    /// Returns the policy of the last bundle that takes the place of the command's own one, and whether it may allow more.
    fn kept(&self, spec: &AgentSpec) -> Result<Option<(File, bool)>, Failure> {
        if self.name().is_none() {
            // The start says what is wrong with the file.
            return Ok(None);
        }
        let (config, _) = configuration_with(&spec.detection, &spec.interception, None)?;
        let output = &config.outputs.collector;
        let Some(folder) = BundleFolder::of(output)? else {
            return Ok(None);
        };
        // One that is not believed is reported with the rules, and the command's own policy is used.
        let Ok(Some(last)) = folder.last_good() else {
            return Ok(None);
        };
        let mut policies = last.content.policies.into_iter();
        let file = policies.find(|file| self.is_own(file));
        Ok(file.map(|file| (file, output.allow_loosening)))
    }

    /// Prepares a policy of the last bundle.
    fn prepare(
        &self,
        file: &File,
        allows_looser: bool,
        engine: EngineKind,
        place: Target,
    ) -> Result<confine::PreparedPolicy, String> {
        let loaded = document(file)?;
        if let (false, Some(own)) = (allows_looser, &self.own)
            && let Some(why) = looser(&loaded, own)
        {
            // The file may have been tightened since.
            return Err(format!(
                "it allows more than the command's own one: {why}; --allow-loosening has it used"
            ));
        }
        let prepared = confine::prepare_file(loaded, &self.how, place);
        let prepared = prepared.map_err(|failure| said(&failure))?;
        if engine != EngineKind::Notify
            && let Err(failure) = confine::needs_listener(&prepared.confinement, engine.name())
        {
            prepared.confinement.discard();
            return Err(said(&failure));
        }
        Ok(prepared)
    }
}

/// A policy that is prepared, and how the command takes those of bundles.
pub(crate) type Prepared = (Option<(Confinement, PolicyRecord)>, PolicyTaker);

/// Prepares the policy of a command: that of the last bundle if it has one of the same name, else the command's own.
///
/// Preconditions: the process has one thread.
pub(crate) fn prepare(
    spec: &AgentSpec,
    engine: EngineKind,
    place: Target,
) -> Result<Prepared, Failure> {
    let taker = PolicyTaker::of(spec);
    let quiet = spec.detection.quiet;
    let PolicyTaker::Takes(taking) = &taker else {
        return Ok((spec.confine.prepare(quiet, place)?, taker));
    };
    let mut taking = Taking::clone(taking);
    if let Some((file, allows_looser)) = taking.kept(spec)? {
        match taking.prepare(&file, allows_looser, engine, place) {
            Ok(prepared) => {
                prepared.tell(quiet);
                taking.in_force = InForce::Known(Arc::new(parse(&file)));
                let prepared = prepared.into_parts();
                return Ok((Some(prepared), PolicyTaker::Takes(Arc::new(taking))));
            }
            // As for rules: a bundle keeps no command from starting, and the command's own policy is one that somebody chose.
            Err(why) => {
                journal::warn(&format!(
                    "warning: the policy {} of the last bundle is not used, the command's own one is: {why}",
                    file.name
                ));
                taking.refused = Some((sha256(file.text.as_bytes()), why));
            }
        }
    }
    let prepared = spec.confine.prepare(quiet, place)?;
    let own = taking.own.clone().filter(|_| prepared.is_some());
    taking.in_force = own.map_or(InForce::Nothing, InForce::Known);
    Ok((prepared, PolicyTaker::Takes(Arc::new(taking))))
}

/// Returns the policy of a file. What messages call it is no path, and its stem is the name.
fn parse(file: &File) -> Loaded {
    policy_files::parse(&format!("bundle/{}.yaml", file.name), &file.text)
}

/// Returns the policy of a file if it is one that can be enforced, of the name of the file.
fn document(file: &File) -> Result<Loaded, String> {
    let loaded = parse(file);
    first_error(&loaded)?;
    match &loaded.policies[..] {
        [policy] if policy.mode == Mode::BehaviorModeling => {
            Err("its mode records behaviour, and enforces nothing".to_owned())
        }
        [policy] if policy.name == file.name => Ok(loaded),
        [policy] => Err(format!("its document is called {}", policy.name)),
        policies => Err(format!("it has {} policies, not one", policies.len())),
    }
}

fn first_error(loaded: &Loaded) -> Result<(), String> {
    match loaded.diagnostics.iter().find(|problem| problem.is_error()) {
        None => Ok(()),
        Some(problem) => Err(problem.render(None).trim_end().replace('\n', " ")),
    }
}

/// Returns why a policy allows more than another one on this machine. Those that cannot be read count as looser.
fn looser(new: &Loaded, old: &Loaded) -> Option<String> {
    if new.digest() == old.digest() {
        return None;
    }
    let ([new], [old]) = (&new.policies[..], &old.policies[..]) else {
        return Some("they cannot be compared".to_owned());
    };
    let machine = policy_files::machine();
    let on_machine = |policy| policy_files::narrowed(policy, &machine);
    on_machine(new).looser_than(&on_machine(old))
}

/// Checks policy files and returns them as a bundle holds them, as `tollgate policy check` does on this machine.
///
/// # Errors
///
/// [`Exit::BadInput`] or [`Exit::Unsupported`] if a file has an error, or not one policy.
pub fn pack(paths: &[std::path::PathBuf]) -> Result<Vec<File>, Failure> {
    let machine = policy_files::machine();
    let packed = paths.iter().map(|path| {
        let loaded = policy_files::checked(policy_files::read(path), &[], &machine);
        let cannot = |exit, cause: &str| {
            let message = format!("cannot put {} into a bundle: {cause}", path.display());
            Failure::new(exit, message).help("`tollgate policy check FILE` shows the same")
        };
        match policy_files::exit(loaded.diagnostics.iter()) {
            Exit::Ok => {}
            exit => return Err(cannot(exit, loaded.render().trim_end())),
        }
        let [policy] = &loaded.policies[..] else {
            let count = loaded.policies.len();
            let cause = format!("it has {count} policies, and a bundle one a file");
            return Err(cannot(Exit::BadInput, &cause));
        };
        let file = File {
            name: policy.name.clone(),
            text: loaded.text().to_owned(),
        };
        document(&file).map_err(|problem| cannot(Exit::BadInput, &problem))?;
        Ok(file)
    });
    packed.collect()
}

#[cfg(test)]
mod tests;
