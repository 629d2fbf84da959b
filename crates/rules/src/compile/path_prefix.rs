//! Falco's `pmatch`: tests whether one of many paths is a component-wise prefix of another.

use event::glob::Glob;

/// Search paths as a tree of their components.
#[derive(Debug, Default)]
pub(crate) struct PathPrefixes {
    root: Directory,
}

#[derive(Debug, Default)]
struct Directory {
    /// Whether a search path ends here.
    ends: bool,
    /// Plain components, sorted by name.
    plain: Vec<(Box<[u8]>, Directory)>,
    patterns: Vec<(Box<[u8]>, Glob, Directory)>,
}

impl PathPrefixes {
    /// Builds the tree from search paths; components may be shell patterns.
    pub(crate) fn new<'a>(paths: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut prefixes = Self::default();
        for path in paths {
            let mut directory = &mut prefixes.root;
            for component in components(path) {
                directory = directory.entry(component);
            }
            directory.ends = true;
        }
        prefixes
    }

    /// Returns true if some search path is `path` or an ancestor of it.
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        self.root.matches(components(path))
    }
}

impl Directory {
    fn entry(&mut self, name: &[u8]) -> &mut Self {
        if Glob::is_pattern(name) {
            let known = self.patterns.iter().position(|(text, ..)| **text == *name);
            let index = known.unwrap_or_else(|| {
                self.patterns
                    .push((name.into(), Glob::new(name, false), Self::default()));
                self.patterns.len() - 1
            });
            return &mut self.patterns[index].2;
        }
        let index = match self.plain.binary_search_by(|(text, _)| (**text).cmp(name)) {
            Ok(index) => index,
            Err(index) => {
                self.plain.insert(index, (name.into(), Self::default()));
                index
            }
        };
        &mut self.plain[index].1
    }

    fn matches<'a>(&self, mut rest: impl Iterator<Item = &'a [u8]> + Clone) -> bool {
        if self.ends {
            return true;
        }
        let Some(name) = rest.next() else {
            return false;
        };
        let plain = self.plain.binary_search_by(|(text, _)| (**text).cmp(name));
        if plain.is_ok_and(|index| self.plain[index].1.matches(rest.clone())) {
            return true;
        }
        self.patterns
            .iter()
            .any(|(_, glob, below)| glob.matches(name) && below.matches(rest.clone()))
    }
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::PathPrefixes;

    #[test]
    fn a_prefix_ends_at_a_component() {
        let paths: [&[u8]; 4] = [b"/var/run", b"/etc/", b"/usr/lib", b"/home/*/.ssh"];
        let prefixes = PathPrefixes::new(paths);
        for path in [
            "/var/run",
            "/var/run/docker",
            "//etc//passwd",
            "/home/u/.ssh/id",
            "etc/x",
        ] {
            assert!(prefixes.matches(path.as_bytes()), "{path}");
        }
        for path in [
            "/var",
            "/var/running",
            "/",
            "",
            "/usr",
            "/home/.ssh",
            "/home/u/v/.ssh",
        ] {
            assert!(!prefixes.matches(path.as_bytes()), "{path}");
        }
        assert!(PathPrefixes::new([b"/".as_slice()]).matches(b"/x"));
        assert!(!PathPrefixes::new([]).matches(b"/x"));
    }
}
