//! What of the sources that a node is to load comes into force.

use std::collections::{BTreeMap, BTreeSet};

use kinds::ObjectKey;
use serde::{Deserialize, Serialize};

use super::{ArtifactId, ArtifactKind, Desired, DesiredArtifact, Refusal, SourceText};

/// A problem that a compiler has with texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Name of the text; `None` if none can be named.
    pub text: Option<String>,
    /// The problem, with its place.
    pub message: String,
}

/// An object whose texts are in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedArtifact {
    /// Kind of the object.
    pub kind: ArtifactKind,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The texts.
    pub texts: Vec<SourceText>,
}

impl AcceptedArtifact {
    /// The object.
    #[must_use]
    pub fn id(&self) -> ArtifactId {
        ArtifactId {
            kind: self.kind,
            key: ObjectKey {
                namespace: self.namespace.clone(),
                name: self.name.clone(),
            },
        }
    }
}

/// The texts that are in force, by object. It can be kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedSources {
    /// The objects, in the order of their names.
    pub artifacts: Vec<AcceptedArtifact>,
}

impl AcceptedSources {
    /// The texts of a kind, in the order in which they are loaded.
    #[must_use]
    pub fn texts(&self, kind: ArtifactKind) -> Vec<&SourceText> {
        let artifacts = self.artifacts.iter().filter(|one| one.kind == kind);
        let mut texts: Vec<_> = artifacts.flat_map(|one| &one.texts).collect();
        texts.sort();
        texts
    }

    /// What of these sources a compiler still takes, such as that of another version of this program: an object that it refuses
    /// is left out, the others stay.
    #[must_use]
    pub fn settle_again(&self, check: impl FnMut(&Self) -> Result<(), Vec<Problem>>) -> Settled {
        let artifacts = self.artifacts.iter().map(|one| DesiredArtifact {
            id: one.id(),
            generation: 0,
            texts: Ok(one.texts.clone()),
        });
        let desired = Desired {
            artifacts: artifacts.collect(),
        };
        desired.settle(self, check)
    }

    /// The same without the objects of a kind.
    #[must_use]
    pub fn without(mut self, kind: ArtifactKind) -> Self {
        self.artifacts.retain(|one| one.kind != kind);
        self
    }

    fn to_map(&self) -> Texts {
        let artifacts = self.artifacts.iter();
        artifacts.map(|one| (one.id(), one.texts.clone())).collect()
    }

    fn of_map(map: Texts) -> Self {
        let artifacts = map.into_iter().map(|(id, texts)| AcceptedArtifact {
            kind: id.kind,
            namespace: id.key.namespace,
            name: id.key.name,
            texts,
        });
        Self {
            artifacts: artifacts.collect(),
        }
    }
}

/// Whether an object is in force as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactState {
    /// The object.
    pub id: ArtifactId,
    /// Generation of the spec that this is about.
    pub generation: i64,
    /// Why it is not in force; `None` if it is.
    pub problem: Option<Refusal>,
    /// An earlier version of it is in force.
    pub is_earlier_in_force: bool,
}

impl ArtifactState {
    /// Notes that the object is not in force, and why. The first reason stays.
    fn blame(&mut self, cause: &str, is_earlier_in_force: bool) {
        let refusal = || Refusal::invalid(cause.to_owned());
        self.problem.get_or_insert_with(refusal);
        self.is_earlier_in_force = is_earlier_in_force;
    }
}

/// What comes into force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The texts. The compiler has accepted them, unless [`Settled::unusable`] says otherwise.
    pub accepted: AcceptedSources,
    /// Every object that is for the node.
    pub states: Vec<ArtifactState>,
    /// Objects that were deleted and stay in force, because what is left cannot be used without them.
    pub kept: Vec<ArtifactId>,
    /// Why not even the texts without any object can be used; `None` if they can.
    pub unusable: Option<String>,
}

impl Settled {
    /// What may come into force after the sources could not be put in force for this cause, although they compile: the same
    /// with the Configs as they were, because it is their outputs that may be impossible here. Changed Configs have the cause.
    /// `None` if no Config was to change. What is left was not compiled in this form.
    #[must_use]
    pub fn without_changed_configs(&self, before: &AcceptedSources, cause: &str) -> Option<Self> {
        let (old, mut new) = (before.to_map(), self.accepted.to_map());
        let ids: BTreeSet<ArtifactId> = old.keys().chain(new.keys()).cloned().collect();
        let is_changed =
            |id: &ArtifactId| id.kind == ArtifactKind::Config && old.get(id) != new.get(id);
        let changed: Vec<ArtifactId> = ids.into_iter().filter(is_changed).collect();
        if changed.is_empty() {
            return None;
        }
        let mut rest = self.clone();
        for id in &changed {
            match old.get(id) {
                Some(texts) => new.insert(id.clone(), texts.clone()),
                None => new.remove(id),
            };
            match rest.states.iter_mut().find(|state| state.id == *id) {
                Some(state) => state.blame(cause, old.contains_key(id)),
                // It was deleted.
                None => rest.kept.push(id.clone()),
            }
        }
        rest.accepted = AcceptedSources::of_map(new);
        Some(rest)
    }

    /// What is in force after the sources could not be put in force for this cause: what was before. Every object that was
    /// to change has the cause.
    #[must_use]
    pub fn refused(mut self, before: &AcceptedSources, cause: &str) -> Self {
        let (old, new) = (before.to_map(), self.accepted.to_map());
        for state in &mut self.states {
            if old.get(&state.id) != new.get(&state.id) {
                state.blame(cause, old.contains_key(&state.id));
            }
        }
        self.accepted = before.clone();
        self.unusable = Some(cause.to_owned());
        self
    }
}

type Texts = BTreeMap<ArtifactId, Vec<SourceText>>;

impl Desired {
    /// Finds what comes into force, given what is. `check` compiles sources, and says what is wrong with them.
    ///
    /// An object that is wrong keeps its earlier texts. If what is left does not compile because of another object that was
    /// changed or deleted, that change waits. An object that was never in force, or no longer compiles, is left out.
    pub fn settle(
        &self,
        before: &AcceptedSources,
        mut check: impl FnMut(&AcceptedSources) -> Result<(), Vec<Problem>>,
    ) -> Settled {
        let mut settling = Settling::new(self, before);
        let unusable = loop {
            let candidate = AcceptedSources::of_map(settling.candidate.clone());
            match check(&candidate) {
                Ok(()) => break None,
                Err(problems) => {
                    if !settling.give_way(&problems) {
                        break Some(joined(&problems));
                    }
                }
            }
        };
        settling.finish(self, unusable)
    }
}

/// Sources that are compared with a compiler, again and again.
struct Settling {
    before: Texts,
    candidate: Texts,
    problems: BTreeMap<ArtifactId, Refusal>,
}

impl Settling {
    fn new(desired: &Desired, before: &AcceptedSources) -> Self {
        let before = before.to_map();
        let mut candidate = Texts::new();
        let mut problems = BTreeMap::new();
        for DesiredArtifact { id, texts, .. } in &desired.artifacts {
            match texts {
                Ok(texts) => {
                    candidate.insert(id.clone(), texts.clone());
                }
                Err(problem) => {
                    problems.insert(id.clone(), problem.clone());
                    if let Some(texts) = before.get(id) {
                        candidate.insert(id.clone(), texts.clone());
                    }
                }
            }
        }
        Self {
            before,
            candidate,
            problems,
        }
    }

    /// Takes back what the problems are about; false if nothing is left to take back.
    fn give_way(&mut self, problems: &[Problem]) -> bool {
        let blamed = self.blamed(problems);
        let changed = self.changed();
        let own: BTreeSet<_> = blamed.intersection(&changed).cloned().collect();
        // A change of one object may break another: then all changes wait.
        let taken_back = if own.is_empty() { changed } else { own };
        if !taken_back.is_empty() {
            for id in taken_back {
                self.take_back(&id, problems);
            }
            return true;
        }
        // Even what was in force cannot be used, such as by another version of this program.
        let left_out = if blamed.is_empty() {
            self.candidate.keys().cloned().collect()
        } else {
            blamed
        };
        for id in &left_out {
            self.note(id, problems);
            self.candidate.remove(id);
            self.before.remove(id);
        }
        !left_out.is_empty()
    }

    /// Objects that have a text with a problem.
    fn blamed(&self, problems: &[Problem]) -> BTreeSet<ArtifactId> {
        let names: BTreeSet<&str> = problems
            .iter()
            .filter_map(|one| one.text.as_deref())
            .collect();
        let has = |texts: &[SourceText]| texts.iter().any(|text| names.contains(&*text.name));
        let blamed = self.candidate.iter().filter(|(_, texts)| has(texts));
        blamed.map(|(id, _)| id.clone()).collect()
    }

    /// Objects that differ from what is in force.
    fn changed(&self) -> BTreeSet<ArtifactId> {
        let ids: BTreeSet<_> = self.candidate.keys().chain(self.before.keys()).collect();
        let changed = ids
            .into_iter()
            .filter(|id| self.candidate.get(*id) != self.before.get(*id));
        changed.cloned().collect()
    }

    fn take_back(&mut self, id: &ArtifactId, problems: &[Problem]) {
        self.note(id, problems);
        match self.before.get(id) {
            Some(texts) => self.candidate.insert(id.clone(), texts.clone()),
            None => self.candidate.remove(id),
        };
    }

    /// Notes why an object is not in force: its own problems, else all. The first reason stays.
    fn note(&mut self, id: &ArtifactId, problems: &[Problem]) {
        let texts = self.candidate.get(id).map_or(&[][..], Vec::as_slice);
        let is_own = |one: &&Problem| {
            texts
                .iter()
                .any(|text| one.text.as_deref() == Some(&*text.name))
        };
        let own: Vec<Problem> = problems.iter().filter(is_own).cloned().collect();
        let text = match own.is_empty() {
            true => joined(problems),
            false => joined(&own),
        };
        self.problems
            .entry(id.clone())
            .or_insert(Refusal::invalid(text));
    }

    fn finish(self, desired: &Desired, unusable: Option<String>) -> Settled {
        let state = |one: &DesiredArtifact| {
            let problem = self.problems.get(&one.id).cloned();
            ArtifactState {
                id: one.id.clone(),
                generation: one.generation,
                is_earlier_in_force: problem.is_some() && self.candidate.contains_key(&one.id),
                problem,
            }
        };
        let states: Vec<_> = desired.artifacts.iter().map(state).collect();
        let is_desired = |id: &ArtifactId| desired.artifacts.iter().any(|one| one.id == *id);
        let kept = self.candidate.keys().filter(|id| !is_desired(id));
        Settled {
            states,
            kept: kept.cloned().collect(),
            accepted: AcceptedSources::of_map(self.candidate),
            unusable,
        }
    }
}

/// Maximum number of problems that are said of an object: it has to stay small however many there are.
const MAX_SAID: usize = 3;

fn joined(problems: &[Problem]) -> String {
    let said = problems.iter().take(MAX_SAID);
    let mut text: Vec<String> = said.map(|one| one.message.clone()).collect();
    if problems.len() > MAX_SAID {
        text.push(format!("and {} more", problems.len() - MAX_SAID));
    }
    text.join("; ")
}
