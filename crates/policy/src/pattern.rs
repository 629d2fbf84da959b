//! Path patterns.

use std::fmt;

/// A path pattern: `*` matches any text without `/`, `**` any text. `/**/x` matches `/x` too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    text: String,
}

/// The reason why a text is not a valid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The text is empty.
    #[error("the pattern is empty")]
    Empty,
    /// The text contains a slash but does not begin with one.
    #[error("the pattern must start with `/`, or be a file name without `/`")]
    Relative,
    /// The text contains a character that no path of a policy needs.
    #[error("the pattern has the character {character:?}, which no pattern can have")]
    Character {
        /// The character.
        character: char,
    },
    /// The kernel never resolves a path to this form.
    #[error("the pattern has a part `{part}`, which no path that the kernel sees has")]
    Unreachable {
        /// The offending component: `.`, `..` or an empty one.
        part: String,
    },
    /// The text has more than [`MAX_WILDCARDS`] wildcards.
    #[error("the pattern has {count} wildcards, {MAX_WILDCARDS} are possible")]
    Wildcards {
        /// Number of wildcards.
        count: usize,
    },
    /// The text is longer than [`MAX_LENGTH`].
    #[error("the pattern has {length} bytes, {MAX_LENGTH} are possible")]
    Length {
        /// Length in bytes.
        length: usize,
    },
}

/// Maximum number of wildcards in a pattern: the tables of BPF LSM hold a prefix, a middle and a suffix.
pub const MAX_WILDCARDS: usize = 2;

/// `PATH_MAX` without the final zero.
pub const MAX_LENGTH: usize = 4095;

impl Pattern {
    /// Parses a pattern. A name without `/` matches files of that name in any folder.
    ///
    /// # Errors
    /// Returns a [`PatternError`] if the text is not a valid pattern.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.len() > MAX_LENGTH {
            return Err(PatternError::Length { length: text.len() });
        }
        let unfit = |c: &char| c.is_control() || matches!(c, '"' | '\\');
        if let Some(character) = text.chars().find(unfit) {
            return Err(PatternError::Character { character });
        }
        let text = match (text.starts_with('/'), text.contains('/')) {
            (true, _) => text.to_owned(),
            (false, true) => return Err(PatternError::Relative),
            (false, false) => format!("/**/{text}"),
        };
        let mut parts = text[1..].split('/').peekable();
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            if matches!(part, "." | "..") || part.is_empty() && !(is_last && text == "/") {
                return Err(PatternError::Unreachable {
                    part: part.to_owned(),
                });
            }
        }
        let count = wildcards(&text);
        if count > MAX_WILDCARDS {
            return Err(PatternError::Wildcards { count });
        }
        Ok(Self { text })
    }

    /// The pattern as text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The path, if the pattern has no wildcard.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        (wildcards(&self.text) == 0).then_some(&self.text)
    }

    /// The folder, if the pattern matches everything below one folder.
    #[must_use]
    pub fn subtree(&self) -> Option<&str> {
        let folder = self.text.strip_suffix("/**")?;
        (wildcards(folder) == 0).then_some(if folder.is_empty() { "/" } else { folder })
    }

    /// The longest folder prefix without wildcards, which every match shares: `/proc/` of `/proc/**/mem`.
    #[must_use]
    pub fn fixed_prefix(&self) -> &str {
        let end = self.text.find('*').unwrap_or(self.text.len());
        &self.text[..end]
    }

    /// Folders whose renaming would change the paths that the pattern matches, as far as it names them:
    /// `/home` and `/home/*/.ssh` of `/home/*/.ssh/id_rsa`. [`Self::has_wildcard_folder`] is about the others.
    #[must_use]
    pub fn folders_above(&self) -> Vec<Self> {
        let is_named = |folder: &&str| {
            let name = folder.rsplit_once('/').map_or(*folder, |(_, name)| name);
            name.chars().any(|c| c != '*')
        };
        let ends = self.text.match_indices('/');
        let folders = ends.map(|(at, _)| &self.text[..at]).filter(is_named);
        // What everything below is meant of: `/home/*` of `/home/*/**`.
        let whole = self.text.strip_suffix("/**");
        let whole = whole.filter(|folder| !is_named(folder));
        let parsed = folders
            .chain(whole)
            .filter_map(|text| Self::parse(text).ok());
        parsed.filter(|folder| folder != self).collect()
    }

    /// Returns true if matching files can be in a folder that [`Self::folders_above`] does not contain, and
    /// have a path that does not match once that folder is renamed: `/home/*` of `/home/*/.ssh/id_rsa`.
    #[must_use]
    pub fn has_wildcard_folder(&self) -> bool {
        let mut from = 0;
        while let Some(found) = self.text[from..].find('*') {
            let (before, stars) = self.text.split_at(from + found);
            let rest = stars.trim_start_matches('*');
            let is_whole = before.ends_with('/');
            let is_unnamed = match stars.len() - rest.len() {
                1 => is_whole && rest.starts_with('/') && rest != "/**",
                // Below the root, every path still matches. A folder before nothing but wildcards matches itself.
                _ => {
                    let is_last_name = rest.chars().all(|c| matches!(c, '/' | '*'));
                    let is_named = !is_whole && rest.starts_with('/');
                    before != "/" && !is_last_name && !is_named
                }
            };
            if is_unnamed {
                return true;
            }
            from = self.text.len() - rest.len();
        }
        false
    }

    /// Patterns for the part of a matching path that follows `folder` and a slash. The root folder is the
    /// empty text.
    #[must_use]
    pub fn below(&self, folder: &str) -> Vec<String> {
        let mut rests = Vec::new();
        let folder = format!("{folder}/");
        collect_rests(&self.text, &folder, &mut rests);
        rests.sort_unstable();
        rests.dedup();
        rests
    }

    /// Returns true if the pattern matches a path as the kernel resolved it.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        matches(self.text.as_bytes(), path.as_bytes())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Counts the wildcards `*` and `**`.
fn wildcards(text: &str) -> usize {
    let stars = text.split('*').count() - 1;
    stars - text.matches("**").count()
}

/// Matches with backtracking, which [`MAX_WILDCARDS`] bounds.
fn matches(pattern: &[u8], path: &[u8]) -> bool {
    match pattern {
        [] => path.is_empty(),
        // Any number of folders, including none.
        [b'/', b'*', b'*', b'/', rest @ ..] => {
            let folder = |at: &usize| path.get(*at) == Some(&b'/');
            (0..path.len())
                .filter(folder)
                .any(|at| matches(rest, &path[at + 1..]))
                && path.first() == Some(&b'/')
        }
        [b'*', b'*', rest @ ..] => (0..=path.len()).any(|at| matches(rest, &path[at..])),
        [b'*', rest @ ..] => {
            let end = path.iter().position(|c| *c == b'/').unwrap_or(path.len());
            (0..=end).any(|at| matches(rest, &path[at..]))
        }
        [first, rest @ ..] => path.first() == Some(first) && matches(rest, &path[1..]),
    }
}

/// Collects the rest of a pattern for each way in which its beginning matches `text`, which ends with a
/// slash.
fn collect_rests(pattern: &str, text: &str, rests: &mut Vec<String>) {
    let slashes = |text: &str| -> Vec<usize> {
        let each = text.bytes().enumerate();
        each.filter(|(_, byte)| *byte == b'/')
            .map(|(at, _)| at)
            .collect()
    };
    if text.is_empty() {
        if !pattern.is_empty() {
            rests.push(pattern.to_owned());
        }
    } else if let Some(rest) = pattern.strip_prefix("/**/") {
        if !text.starts_with('/') {
            return;
        }
        // The wildcard matches the folders in `text`, and any number of further folders.
        rests.push(format!("**/{rest}"));
        for at in slashes(text) {
            if at + 1 < text.len() {
                collect_rests(rest, &text[at + 1..], rests);
            }
        }
    } else if let Some(rest) = pattern.strip_prefix("**") {
        rests.push(pattern.to_owned());
        for (at, _) in text.char_indices() {
            collect_rests(rest, &text[at..], rests);
        }
    } else if let Some(rest) = pattern.strip_prefix('*') {
        let end = text.find('/').unwrap_or(text.len());
        for at in (0..=end).filter(|at| text.is_char_boundary(*at)) {
            collect_rests(rest, &text[at..], rests);
        }
    } else if let Some(first) = pattern.chars().next()
        && let Some(text) = text.strip_prefix(first)
    {
        collect_rests(&pattern[first.len_utf8()..], text, rests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(pattern: &str, path: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(path)
    }

    #[test]
    fn folders_above_are_those_whose_renaming_would_free_a_file() {
        let of = |text: &str| -> Vec<String> {
            let pattern = Pattern::parse(text).unwrap();
            let folders = pattern.folders_above();
            folders.iter().map(ToString::to_string).collect()
        };
        assert_eq!(of("/etc/shadow"), ["/etc"]);
        assert_eq!(of("/**/.ssh/**"), ["/**/.ssh"]);
        assert_eq!(of("/a/b/**"), ["/a", "/a/b"]);
        assert!(of("/**/sh").is_empty());
        assert_eq!(of("/home/*/.ssh/id_rsa"), ["/home", "/home/*/.ssh"]);
        assert_eq!(of("/a/*/b/c"), ["/a", "/a/*/b"]);
        assert_eq!(of("/**/.ssh/id_rsa"), ["/**/.ssh"]);
        assert_eq!(of("/home/*/**"), ["/home", "/home/*"]);
        assert_eq!(of("/home/u*/x"), ["/home", "/home/u*"]);
        assert!(of("/*/x").is_empty() && of("/").is_empty() && of("/**").is_empty());
    }

    #[test]
    fn a_folder_that_no_name_keeps_is_said() {
        let patterns = [
            ("/a/b", false),
            ("/a/**", false),
            ("/**/b", false),
            ("/**/a/b", false),
            ("/**/a/**", false),
            ("/a/*", false),
            ("/a/*/**", false),
            ("/a*/b", false),
            ("/a**/b", false),
            ("/a**", false),
            ("/a/**/*", false),
            ("/**b", false),
            ("/a/*/b", true),
            ("/a/*/*", true),
            ("/*/b", true),
            ("/a/**/b", true),
            ("/a**b", true),
            ("/a**b/b", true),
            ("/**/a/*/b", true),
        ];
        let names = ["a", "b", "ab"];
        let longer = |paths: &[String]| -> Vec<String> {
            let each = paths
                .iter()
                .flat_map(|path| names.map(|name| format!("{path}/{name}")));
            each.collect()
        };
        let mut folders = vec![String::new()];
        for _ in 0..3 {
            let more = longer(&folders);
            folders.extend(more);
        }
        folders.sort_unstable();
        folders.dedup();
        for (text, is_open) in patterns {
            let pattern = Pattern::parse(text).unwrap();
            assert_eq!(pattern.has_wildcard_folder(), is_open, "{text}");
            let above = pattern.folders_above();
            let is_kept = |folder: &str| {
                pattern.matches(folder) || above.iter().any(|above| above.matches(folder))
            };
            // For every folder that can be renamed: is a file in it freed by that?
            let renamed = folders.iter().filter(|f| !f.is_empty() && !is_kept(f));
            let rests = folders.iter().filter(|rest| !rest.is_empty());
            let frees = |folder: &String| {
                let mut files = rests
                    .clone()
                    .filter(|r| pattern.matches(&format!("{folder}{r}")));
                files.any(|r| {
                    let to = |to: &String| !to.is_empty() && !pattern.matches(&format!("{to}{r}"));
                    folders.iter().any(to)
                })
            };
            let freed: Vec<_> = renamed.filter(|folder| frees(folder)).collect();
            assert_eq!(!freed.is_empty(), is_open, "{text}: {freed:?}");
        }
    }

    #[test]
    fn a_path_without_wildcards_is_that_path_and_no_prefix_of_it() {
        assert!(hits("/etc/passwd", "/etc/passwd"));
        assert!(!hits("/etc/passwd", "/etc/passwd-"));
        assert!(!hits("/dev/sda", "/dev/sda1"));
        assert!(!hits("/etc/passwd", "/etc/passw"));
    }

    #[test]
    fn wildcards_stop_at_folders_or_do_not() {
        assert!(hits("/etc/**", "/etc/a/b"));
        assert!(!hits("/etc/**", "/etc"));
        assert!(hits("/proc/**/mem", "/proc/1/mem"));
        assert!(hits("/proc/**/mem", "/proc/mem"));
        assert!(hits("/proc/**/mem", "/proc/1/task/2/mem"));
        assert!(!hits("/proc/**/mem", "/proc/1/kmem"));
        assert!(hits("/tmp/*.sock", "/tmp/a.sock"));
        assert!(!hits("/tmp/*.sock", "/tmp/a/b.sock"));
        assert!(hits("/**/.ssh/**", "/root/.ssh/id"));
        assert!(hits("/**/.ssh/**", "/.ssh/id"));
        assert!(!hits("/**/.ssh/**", "/root/a.ssh/id"));
    }

    #[test]
    fn a_bare_name_is_a_file_of_that_name_anywhere() {
        assert!(hits("sh", "/bin/sh"));
        assert!(hits("sh", "/sh"));
        assert!(!hits("sh", "/bin/bash"));
        assert!(hits("*.key", "/a/b/my.key"));
    }

    #[test]
    fn what_lies_below_a_folder_is_what_follows_it() {
        let below = |pattern: &str, folder: &str| Pattern::parse(pattern).unwrap().below(folder);
        assert_eq!(below("/y/shadow", "/y"), ["shadow"]);
        assert_eq!(below("/y/shadow", ""), ["y/shadow"]);
        assert_eq!(below("/y/shadow", "/x"), [""; 0]);
        assert_eq!(below("/y", "/y"), [""; 0]);
        assert_eq!(below("/y/**", "/y/z"), ["**"]);
        assert_eq!(below("/y*/a", "/yz"), ["a"]);
        assert_eq!(below("/**/.ssh/**", "/a"), ["**/.ssh/**"]);
        assert_eq!(below("/**/.ssh/**", "/a/.ssh"), ["**", "**/.ssh/**"]);
        assert_eq!(below("/proc/**/mem", "/proc/1"), ["**/mem"]);
        // For every folder and pattern, the two parts match exactly what the whole matches.
        let patterns = [
            "/a/b", "/**/b", "/a/**", "/*/b", "/a*/**/b", "/**", "/a/**/b", "/**/a/*",
        ];
        let folders = ["", "/a", "/b", "/a/b", "/ab/a"];
        let rests = ["a", "b", "a/b", "b/a", "b/b", "ab", "a/a/b"];
        for (pattern, folder) in patterns.iter().flat_map(|p| folders.map(|f| (p, f))) {
            for rest in rests {
                let whole = hits(pattern, &format!("{folder}/{rest}"));
                let below = below(pattern, folder);
                let found = below
                    .iter()
                    .any(|text| hits(&format!("/{text}"), &format!("/{rest}")));
                assert_eq!(whole, found, "{pattern} {folder} {rest}: {below:?}");
            }
        }
    }

    #[test]
    fn what_can_be_no_path_is_refused() {
        for bad in [
            "",
            "a/b",
            "/a\nb",
            "/a\"b",
            "/a/../b",
            "/a//b",
            "/**/a/**/b/**",
            "/a/",
        ] {
            assert!(Pattern::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Pattern::parse("/").is_ok());
    }
}
