//! Index files: lists of artefacts with their places, in falcoctl's form.

use yaml::settings::{self, Node, Problem, Value};

use crate::form::check_name;
use crate::{ArtifactError, Digest, Kind, Reference, Wanted};

/// An artefact of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its name.
    pub name: String,
    /// What it has in it.
    pub kind: Kind,
    /// Host of its registry.
    pub registry: String,
    /// Its repository.
    pub repository: String,
    /// What it is for.
    pub description: String,
    /// Words for searches.
    pub keywords: Vec<String>,
}

/// The artefacts of index files. Of entries with one name, that of the later file counts.
#[derive(Clone, Debug, Default)]
pub struct Index {
    entries: Vec<IndexEntry>,
}

/// What is meant: for a name, that and its kind; and the reference.
pub(crate) type Located<'w> = (Option<(&'w str, Kind)>, Reference);

impl Index {
    /// Adds the entries of a file, whose name is for messages.
    ///
    /// # Errors
    ///
    /// It is no index, or has a name twice.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), ArtifactError> {
        let wrong = |problem: &Problem| {
            let at = &problem.origin;
            ArtifactError::form("the index", format!("{at}: {}", problem.message))
        };
        let root = settings::read(file, text).map_err(|problem| wrong(&problem))?;
        let nodes = root.list().map_err(|problem| wrong(&problem))?;
        let mut added: Vec<IndexEntry> = Vec::new();
        for node in nodes {
            let entry = entry(node).map_err(|problem| wrong(&problem))?;
            if added.iter().any(|known| known.name == entry.name) {
                let problem = format!("`{}` is in it twice", entry.name);
                return Err(wrong(&Problem::new(&node.origin, problem)));
            }
            added.push(entry);
        }
        self.entries
            .retain(|known| !added.iter().any(|new| new.name == known.name));
        self.entries.extend(added);
        Ok(())
    }

    /// Returns the entries that have each of the words in name, keywords or description; all without words.
    #[must_use]
    pub fn search(&self, words: &[String]) -> Vec<&IndexEntry> {
        let has = |entry: &IndexEntry, word: &str| {
            let word = word.to_lowercase();
            let mut texts = entry
                .keywords
                .iter()
                .chain([&entry.name, &entry.description]);
            texts.any(|text| text.to_lowercase().contains(&word))
        };
        let found = self.entries.iter();
        found
            .filter(|entry| words.iter().all(|word| has(entry, word)))
            .collect()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| &*entry.name)
    }

    /// Returns the reference that is meant, of whatever kind.
    ///
    /// # Errors
    ///
    /// The index does not have the name.
    pub fn reference(&self, wanted: &Wanted) -> Result<Reference, ArtifactError> {
        Ok(self.locate(wanted)?.1)
    }

    /// Returns the reference that is meant; for a name, with that and its kind.
    pub(crate) fn locate<'w>(&self, wanted: &'w Wanted) -> Result<Located<'w>, ArtifactError> {
        let (name, tag, digest) = match wanted {
            Wanted::Reference(reference) => return Ok((None, reference.clone())),
            Wanted::Name { name, tag, digest } => (name, tag.clone(), digest.clone()),
        };
        let found = self
            .find(name, tag, digest)
            .ok_or_else(|| ArtifactError::Unknown {
                name: name.clone(),
                near: closest(name, self.names()),
            });
        let (kind, reference) = found??;
        Ok((Some((name, kind)), reference))
    }

    /// Returns the kind of the artefact with a name, and where it is.
    pub(crate) fn find(
        &self,
        name: &str,
        tag: Option<String>,
        digest: Option<Digest>,
    ) -> Option<Result<(Kind, Reference), ArtifactError>> {
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        let reference = Reference::new(&entry.registry, &entry.repository);
        let reference = reference.map_err(|problem| ArtifactError::form("the index", problem));
        Some(reference.map(|reference| (entry.kind, reference.with(tag, digest))))
    }
}

/// Returns the name that is most like another one.
fn closest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<String> {
    /// Below this, names have little in common (Jaro-Winkler, 0 to 1).
    const ALIKE: f64 = 0.8;
    let rated = names.map(|known| (strsim::jaro_winkler(name, known), known));
    let near = rated.filter(|(rate, _)| *rate >= ALIKE);
    let best = near.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.map(|(_, known)| known.to_owned())
}

/// Reads an entry. Keys that are not known are left out: falcoctl's index has some for people alone.
fn entry(node: &Node) -> Result<IndexEntry, Problem> {
    node.group()?;
    let find = |key: &str| node.entry(key).map(|entry| &entry.node);
    let needed = |key: &str| {
        let missing = || Problem::new(&node.origin, format!("an entry has no `{key}`"));
        find(key).ok_or_else(missing)?.text()
    };
    let name = needed("name")?.to_owned();
    check_name(&name).map_err(|problem| Problem::new(&node.origin, problem))?;
    let kind = needed("type")?;
    let kind = Kind::named(kind).ok_or_else(|| {
        let problem = format!(
            "unknown type `{}` of `{name}`: expected rulesfile, plugin or asset",
            kind.escape_debug()
        );
        Problem::new(&node.origin, problem)
    })?;
    let optional = |key: &str| match find(key) {
        Some(node) if node.value != Value::Null => node.text().map(str::to_owned),
        _ => Ok(String::new()),
    };
    let keywords = match find("keywords") {
        Some(node) if node.value != Value::Null => node.texts()?,
        _ => Vec::new(),
    };
    Ok(IndexEntry {
        kind,
        registry: needed("registry")?.to_owned(),
        repository: needed("repository")?.to_owned(),
        description: optional("description")?,
        keywords,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
- name: web-rules
  type: rulesfile
  registry: localhost:5000
  repository: rules/web
  description: Rules for web servers
  home: https://example.org
  keywords: [nginx]
  maintainers: [{email: a@example.org, name: A}]
- name: cloudtrail
  type: plugin
  registry: ghcr.io
  repository: plugins/cloudtrail
";

    #[test]
    fn an_index_is_searched_and_resolved() {
        let mut index = Index::default();
        index.add("index.yaml", TEXT).expect("it is good");
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(index.search(&words("NGINX web")).len(), 1);
        assert_eq!(index.search(&[]).len(), 2);
        assert_eq!(index.search(&words("nginx trail")).len(), 0);
        let found = index.find("web-rules", Some("1".to_owned()), None);
        let (kind, reference) = found.expect("it is there").expect("it is good");
        assert_eq!(
            (kind, &*reference.to_string()),
            (Kind::Rulesfile, "localhost:5000/rules/web:1")
        );
        let later = TEXT.replace("rules/web", "rules/other");
        index.add("later.yaml", &later).expect("it is good");
        let (_, reference) = index
            .find("web-rules", None, None)
            .expect("it is there")
            .expect("good");
        assert_eq!(reference.repository, "rules/other");
    }

    #[test]
    fn a_bad_index_is_refused_with_its_line() {
        for (text, problem) in [
            ("a: b", "list"),
            ("- type: plugin\n", "index.yaml:1:3: an entry has no `name`"),
            (&TEXT.replace("plugin", "driver"), "unknown type `driver`"),
            (&TEXT.replace("cloudtrail", "web-rules"), "twice"),
            (
                &TEXT.replace("cloudtrail", "../x"),
                "no name of an artefact",
            ),
            ("- [", "index.yaml"),
        ] {
            let error = Index::default().add("index.yaml", text).expect_err(problem);
            assert!(error.to_string().contains(problem), "{error}");
        }
    }
}
