//! Changes to the configuration of container engines that add or remove this runtime.

use serde_json::{Map, Value, json};

use crate::containerd;

/// Name of this runtime in the configuration of engines.
pub const NAME: &str = "tollgate";

pub(crate) const BEGIN: &str = "# begin tollgate: `tollgate runtime uninstall` removes these lines";
pub(crate) const END: &str = "# end tollgate";

/// Names by which podman may know this runtime: that of the configuration, and the program's.
const NAMES: [&str; 2] = [NAME, "tollgate-runtime"];
/// Runtimes that report errors as JSON: podman's own list, which a file replaces, and this one.
const JSON: [&str; 8] = [
    "crun", "runc", "kata", "runsc", "youki", "krun", NAMES[0], NAMES[1],
];
/// Runtimes that can leave control groups alone: podman's own list, and this one if the underlying one can.
const NO_CGROUPS: [&str; 4] = ["crun", "krun", NAMES[0], NAMES[1]];

/// A container engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// containerd, for pods and nerdctl.
    Containerd,
    /// Docker.
    Docker,
    /// podman, which reads every file of a directory.
    Podman,
}

/// A configuration cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A runtime of this name exists and was not installed by this program.
    #[error("cannot add the runtime `{NAME}`: there is one already")]
    Taken,
    /// The version of the configuration is unknown.
    #[error("cannot change a configuration of containerd of version {version}")]
    Version {
        /// Version in the file.
        version: String,
    },
    /// The file is not a JSON object.
    #[error("cannot read the configuration")]
    Json(#[source] serde_json::Error),
    /// The file is not TOML, or cannot be extended by tables at its end.
    #[error("cannot read the configuration")]
    Toml(#[source] toml::de::Error),
    /// The JSON does not have the expected structure.
    #[error("cannot read the configuration: `{place}` is not an object")]
    Form {
        /// Path of the unexpected value.
        place: &'static str,
    },
    /// The marker of our addition has no end marker.
    #[error("cannot find the end of the added lines: no line `{END}`")]
    NoEnd,
}

impl Engine {
    /// All engines.
    pub const ALL: [Self; 3] = [Self::Containerd, Self::Docker, Self::Podman];

    /// Returns the name of the engine.
    pub fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// Returns the path of the file to change; for podman, a file of our own.
    pub fn file(self) -> &'static str {
        match self {
            Self::Containerd => "/etc/containerd/config.toml",
            Self::Docker => "/etc/docker/daemon.json",
            Self::Podman => "/etc/containers/containers.conf.d/tollgate.conf",
        }
    }

    /// Returns the command that makes the engine read the file.
    pub fn next_step(self) -> &'static str {
        match self {
            Self::Containerd => "systemctl restart containerd",
            Self::Docker => "systemctl reload docker",
            Self::Podman => "podman --runtime tollgate run IMAGE",
        }
    }

    /// Adds this runtime, whose path is `program`, to a configuration. `underlying` is the file name of the runtime
    /// that it stands in for.
    ///
    /// # Errors
    ///
    /// A runtime of this name exists already, or the configuration cannot be parsed.
    pub fn add(
        self,
        text: &str,
        program: &str,
        underlying: Option<&str>,
    ) -> Result<String, InstallError> {
        let text = self.remove(text)?;
        let knows_none = underlying.is_some_and(|name| NO_CGROUPS.contains(&name));
        let nocgroups = match knows_none {
            true => NO_CGROUPS.len(),
            false => NO_CGROUPS.len() - NAMES.len(),
        };
        match self {
            Self::Containerd => containerd::add(&text, program),
            Self::Docker => add_to_docker(&text, program),
            Self::Podman => {
                let program = quoted(program);
                // containers.conf(5) documents the plural key. Podman 4.3 reads only the singular one, and ignores keys
                // that it does not know.
                let (json, nocgroups) = (list(&JSON), list(&NO_CGROUPS[..nocgroups]));
                Ok(format!(
                    "{text}{BEGIN}\n[engine]\nruntime_supports_json = {json}\n\
                     runtime_supports_nocgroups = {nocgroups}\n\
                     runtime_supports_nocgroup = {nocgroups}\n\
                     [engine.runtimes]\n{NAME} = [{program}]\n{END}\n"
                ))
            }
        }
    }

    /// Removes this runtime from a configuration. Nothing else changes, except the layout of JSON.
    ///
    /// # Errors
    ///
    /// The configuration cannot be parsed.
    pub fn remove(self, text: &str) -> Result<String, InstallError> {
        match self {
            Self::Containerd | Self::Podman => remove_block(text),
            Self::Docker => remove_from_docker(text),
        }
    }
}

/// An array of strings in TOML.
fn list(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
    format!("[{}]", names.join(", "))
}

/// Quotes a TOML string, which accepts JSON's syntax.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn remove_block(text: &str) -> Result<String, InstallError> {
    let Some(start) = text.find(BEGIN) else {
        return Ok(text.to_owned());
    };
    let end = text[start..].find(END).ok_or(InstallError::NoEnd)? + start + END.len();
    let rest = &text[end..];
    let rest = rest.strip_prefix('\n').unwrap_or(rest);
    Ok(format!("{}{rest}", &text[..start]))
}

fn object(text: &str) -> Result<Map<String, Value>, InstallError> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(InstallError::Json)
}

fn add_to_docker(text: &str, program: &str) -> Result<String, InstallError> {
    let mut settings = object(text)?;
    let runtimes = settings.entry("runtimes").or_insert_with(|| json!({}));
    let runtimes = runtimes
        .as_object_mut()
        .ok_or(InstallError::Form { place: "runtimes" })?;
    if runtimes.contains_key(NAME) {
        return Err(InstallError::Taken);
    }
    runtimes.insert(NAME.to_owned(), json!({"path": program}));
    Ok(format!("{:#}\n", Value::Object(settings)))
}

fn remove_from_docker(text: &str) -> Result<String, InstallError> {
    let mut settings = object(text)?;
    let Some(runtimes) = settings.get_mut("runtimes") else {
        return Ok(text.to_owned());
    };
    let runtimes = runtimes
        .as_object_mut()
        .ok_or(InstallError::Form { place: "runtimes" })?;
    let is_ours = |runtime: &Value| {
        let path = runtime["path"].as_str().unwrap_or_default();
        path.ends_with("/tollgate-runtime")
    };
    if !runtimes.get(NAME).is_some_and(is_ours) {
        return Ok(text.to_owned());
    }
    runtimes.remove(NAME);
    if runtimes.is_empty() {
        settings.remove("runtimes");
    }
    if settings.is_empty() {
        return Ok(String::new());
    }
    Ok(format!("{:#}\n", Value::Object(settings)))
}

/// Returns the differing lines of two texts with context, like `diff -u`.
pub fn difference(before: &str, after: &str) -> String {
    const AROUND: usize = 3;
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(old, new)| old == new).count()
    };
    let head = same(&mut old.iter().zip(&new));
    let tail = same(&mut old[head..].iter().rev().zip(new[head..].iter().rev()));
    let mut text = String::new();
    let mut put = |mark: char, lines: &[&str]| {
        for line in lines {
            text.push(mark);
            text.push_str(line);
            text.push('\n');
        }
    };
    put(' ', &old[head.saturating_sub(AROUND)..head]);
    put('-', &old[head..old.len() - tail]);
    put('+', &new[head..new.len() - tail]);
    let end = old.len() - tail;
    put(' ', &old[end..(end + AROUND).min(old.len())]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "/usr/local/bin/tollgate-runtime";

    #[test]
    fn what_was_added_is_taken_out_to_the_byte() {
        for (engine, text) in [
            (Engine::Containerd, ""),
            (Engine::Containerd, "version = 2\n\n[plugins]\n  a = 1"),
            (Engine::Containerd, "version = 3\n[plugins]\n"),
            (Engine::Podman, ""),
            (Engine::Docker, ""),
            (Engine::Docker, "{\n  \"debug\": true\n}\n"),
        ] {
            let added = engine.add(text, PROGRAM, None).unwrap();
            assert!(added.contains(PROGRAM), "{added}");
            // A second installation replaces the first.
            assert_eq!(engine.add(&added, PROGRAM, None).unwrap(), added);
            let removed = engine.remove(&added).unwrap();
            assert_eq!(removed.trim_end(), text.trim_end(), "{engine:?}");
            assert_eq!(engine.remove(text).unwrap(), text);
        }
    }

    #[test]
    fn each_version_of_containerds_has_its_plugin() {
        let of = |text: &str| Engine::Containerd.add(text, PROGRAM, None);
        assert!(
            of("version = 2\n")
                .unwrap()
                .contains("\"io.containerd.grpc.v1.cri\"")
        );
        assert!(
            of("version = 3 # new\n")
                .unwrap()
                .contains("\"io.containerd.cri.v1.runtime\"")
        );
        assert!(of("").unwrap().contains("version = 2\n"));
        for text in ["version = 1\n", "[plugins]\n", "version = 9\n"] {
            assert!(
                matches!(of(text), Err(InstallError::Version { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn podman_is_told_what_the_underlying_runtime_can_do() {
        let file = |under| Engine::Podman.add("", PROGRAM, under).unwrap();
        let keys = ["runtime_supports_nocgroup", "runtime_supports_nocgroups"];
        for under in [None, Some("runc"), Some("youki")] {
            let text = file(under);
            for key in keys {
                let line = format!("\n{key} = [\"crun\", \"krun\"]\n");
                assert!(text.contains(&line), "{text}");
            }
            assert!(text.contains("\"krun\", \"tollgate\", \"tollgate-runtime\"]\n"));
        }
        let text = file(Some("crun"));
        for key in keys {
            let line =
                format!("\n{key} = [\"crun\", \"krun\", \"tollgate\", \"tollgate-runtime\"]\n");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn what_belongs_to_others_stays() {
        let theirs = "version = 2\n[plugins.\"x\".containerd.runtimes.tollgate]\n";
        assert!(matches!(
            Engine::Containerd.add(theirs, PROGRAM, None),
            Err(InstallError::Taken)
        ));
        let theirs = "{\"runtimes\": {\"tollgate\": {\"path\": \"/opt/other\"}}}";
        assert!(matches!(
            Engine::Docker.add(theirs, PROGRAM, None),
            Err(InstallError::Taken)
        ));
        assert_eq!(Engine::Docker.remove(theirs).unwrap(), theirs);
        for text in ["[]", "{", "{\"runtimes\": 1}"] {
            assert!(Engine::Docker.add(text, PROGRAM, None).is_err(), "{text}");
        }
        let cut = format!("{BEGIN}\n[engine.runtimes]\n");
        assert!(matches!(
            Engine::Podman.remove(&cut),
            Err(InstallError::NoEnd)
        ));
    }

    #[test]
    fn a_difference_shows_what_changes_and_a_little_more() {
        let (before, after) = ("1\n2\n3\n4\n5\n6\n", "1\n2\n3\n4\nx\n6\n");
        assert_eq!(difference(before, after), " 2\n 3\n 4\n-5\n+x\n 6\n");
        assert_eq!(difference("", "a\n"), "+a\n");
        assert_eq!(difference("a\n", ""), "-a\n");
        assert_eq!(difference("a\na\n", "a\n"), " a\n-a\n");
    }
}
