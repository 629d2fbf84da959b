//! What an artefact needs: found among what is installed, or planned from the index.

use std::collections::BTreeMap;

use super::*;
use crate::form::NameAndVersion;

/// Name and rank of what is there; else the versions of what is installed and does not count, by name.
type Found = Result<(String, u32), BTreeMap<String, String>>;

impl Installer<'_> {
    /// Finds or plans all that an artefact needs. Returns its rank and the names of what it needs.
    pub(super) fn depend_on_all(
        &self,
        plan: &mut Plan<'_>,
        name: &str,
        dependencies: &[Dependency],
    ) -> Result<(u32, Vec<String>), ArtifactError> {
        let (mut rank, mut needs) = (0, Vec::new());
        for dependency in dependencies {
            let (needed, its_rank) = self.depend(plan, name, dependency)?;
            rank = rank.max(1 + its_rank);
            needs.push(needed);
        }
        Ok((rank, needs))
    }

    /// Finds or plans what an artefact needs, and returns the name and rank of that.
    fn depend(
        &self,
        plan: &mut Plan<'_>,
        name: &str,
        dependency: &Dependency,
    ) -> Result<(String, u32), ArtifactError> {
        let choices = dependency.choices();
        let damaged = match self.installed_choice(plan, &choices)? {
            Ok(found) => return Ok(found),
            Err(damaged) => damaged,
        };
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

    /// Returns the first of some alternatives that is planned, or is installed and counts; else the versions of those that
    /// are installed and do not count.
    fn installed_choice(
        &self,
        plan: &Plan<'_>,
        choices: &[NameAndVersion],
    ) -> Result<Found, ArtifactError> {
        let mut damaged = BTreeMap::new();
        for choice in choices {
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
                return Ok(Ok((choice.name.clone(), known.rank)));
            }
            damaged.insert(choice.name.clone(), known.version.to_string());
        }
        Ok(Err(damaged))
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
}
