//! containerd: what its configuration needs to run containers by this program, and whether the configuration
//! in force has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use probe::{Support, fix};
use toml::{Table, Value};

use crate::install::{BEGIN, END, Engine, InstallError, NAME, quoted};
use crate::{annotations, installer};

/// Pattern of this program's annotations, which containerd passes on only if its configuration lists them.
const PATTERN: &str = "tollgate.*";
/// The lists of annotations that are passed on: those of pods, and those of their containers.
const LISTS: [&str; 2] = ["pod_annotations", "container_annotations"];
/// Time by which the kernel's start time of a process may be too early, and more.
const CLOCK_TICKS: Duration = Duration::from_secs(1);
/// Part of the path of the configuration with which docker starts a containerd of its own, which serves no pods.
const DOCKERS: &str = "docker/containerd";
/// The runtime that containerd starts by default.
const DEFAULT: &str = "runc";
/// File name of this program under the name of a runtime.
const PROGRAM: &str = "tollgate-runtime";

/// Adds this runtime, whose path is `program`, to a configuration.
pub(crate) fn add(text: &str, program: &str) -> Result<String, InstallError> {
    let config = parse(text)?;
    let version = config.get("version");
    let unknown = |version: String| Err(InstallError::Version { version });
    let plugin = match version.map(Value::as_integer) {
        // An empty file counts as missing.
        None if config.is_empty() => "io.containerd.grpc.v1.cri",
        None => return unknown("1".to_owned()),
        Some(Some(2)) => "io.containerd.grpc.v1.cri",
        Some(Some(3)) => "io.containerd.cri.v1.runtime",
        Some(Some(other)) => return unknown(other.to_string()),
        Some(None) => return unknown(format!("{version:?}")),
    };
    if runtimes(&config).any(|runtime| runtime.name == NAME) {
        return Err(InstallError::Taken);
    }
    let mut added = String::new();
    if version.is_none() {
        added.push_str("version = 2\n");
    }
    added.push_str(&addition(&config, plugin, program));
    let newline = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let extended = format!("{text}{newline}{BEGIN}\n{added}{END}\n");
    // A table that is written on one line, as `plugins = {}`, cannot be extended.
    parse(&extended)?;
    Ok(extended)
}

/// Returns the tables of this runtime, and of the default one if the configuration has no runtime.
fn addition(config: &Table, plugin: &str, program: &str) -> String {
    let mut added = String::new();
    let prefix = format!("plugins.\"{plugin}\".containerd.runtimes");
    // A file that has any runtime replaces the built-in list up to containerd 1.7, and without its default
    // runtime containerd serves no pods at all.
    if !runtimes(config).any(|runtime| runtime.plugin == plugin) {
        added.push_str(&format!(
            "[{prefix}.{DEFAULT}]\n  runtime_type = \"io.containerd.runc.v2\"\n"
        ));
    }
    added.push_str(&format!(
        "[{prefix}.{NAME}]\n  runtime_type = \"io.containerd.runc.v2\"\n"
    ));
    for list in LISTS {
        added.push_str(&format!("  {list} = [{}]\n", quoted(PATTERN)));
    }
    added.push_str(&format!(
        "[{prefix}.{NAME}.options]\n  BinaryName = {}\n",
        quoted(program)
    ));
    // The kubelet and all runtimes of a node must agree on who manages control groups.
    let mut defaults = runtimes(config).filter(|runtime| runtime.name == DEFAULT);
    if defaults.any(|runtime| runtime.option("SystemdCgroup") == Some(&Value::Boolean(true))) {
        added.push_str("  SystemdCgroup = true\n");
    }
    added
}

fn parse(text: &str) -> Result<Table, InstallError> {
    text.parse().map_err(InstallError::Toml)
}

/// A runtime of a configuration.
#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    plugin: &'a str,
    name: &'a str,
    settings: &'a Value,
}

impl<'a> Entry<'a> {
    fn option(self, key: &str) -> Option<&'a Value> {
        self.settings.get("options")?.get(key)
    }

    /// Returns the strings of a list; none if it is missing.
    fn strings(self, key: &str) -> Vec<&'a str> {
        let list = self.settings.get(key).and_then(Value::as_array);
        let list = list.into_iter().flatten();
        list.filter_map(Value::as_str).collect()
    }
}

/// Returns the runtimes of all plugins.
fn runtimes(config: &Table) -> impl Iterator<Item = Entry<'_>> {
    let plugins = config.get("plugins").and_then(Value::as_table);
    let lists = plugins.into_iter().flatten().filter_map(|plugin| {
        let (plugin, settings) = plugin;
        let runtimes = settings.get("containerd")?.get("runtimes")?;
        Some((plugin, runtimes.as_table()?))
    });
    lists.flat_map(|(plugin, runtimes)| {
        runtimes.iter().map(move |(name, settings)| Entry {
            plugin,
            name,
            settings,
        })
    })
}

/// A runtime of containerd's that is this program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Registered {
    name: String,
    /// The lists that do not pass all of this program's annotations on.
    lacking: Vec<&'static str>,
}

/// Returns the runtimes of a configuration that are this program.
fn registered(config: &Table) -> Vec<Registered> {
    let is_ours = |runtime: &Entry<'_>| {
        let program = runtime.option("BinaryName").and_then(Value::as_str);
        program.is_some_and(|program| Path::new(program).ends_with(PROGRAM))
    };
    let found = runtimes(config).filter(is_ours).map(|runtime| Registered {
        name: runtime.name.to_owned(),
        lacking: LISTS
            .into_iter()
            .filter(|list| !passes_all(&runtime.strings(list)))
            .collect(),
    });
    found.collect()
}

/// Returns true if these patterns match every annotation of ours.
fn passes_all(patterns: &[&str]) -> bool {
    let passes = |name: &str| patterns.iter().any(|pattern| matches(pattern, name));
    annotations::ALL.into_iter().all(passes)
}

/// Matches a name by a pattern in which `*` stands for any text, as containerd does for names without a slash.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len())
                .filter(|at| name.is_char_boundary(*at))
                .any(|at| matches(rest, &name[at..]))
        }),
    }
}

/// The configuration that containerd uses, and where it comes from.
#[derive(Debug)]
struct InForce {
    config: Table,
    file: PathBuf,
    /// The file was changed after the daemon had started.
    is_stale: bool,
}

/// A running daemon.
#[derive(Debug)]
struct Daemon {
    program: PathBuf,
    file: Option<PathBuf>,
    started: Duration,
}

/// Reports whether containerd runs containers by this program and passes its annotations on.
#[must_use]
pub fn support() -> Support {
    let config = match in_force() {
        Err(why) => return Support::no_unless_fixed(why, None),
        Ok(config) => config,
    };
    let file = config.file.display();
    let restart = fix::as_root(Engine::Containerd.next_step());
    if config.is_stale {
        let why = format!("containerd started before {file} was changed");
        return Support::partial_unless_fixed(why, Some(restart));
    }
    let installs = config.file == Path::new(Engine::Containerd.file());
    let install = format!(
        "{}{} && {restart}",
        match Path::new(installer::PROGRAM).exists() {
            true => String::new(),
            false => format!(
                "{} && ",
                fix::as_root(&format!(
                    "ln -s $(command -v tollgate) {}",
                    installer::PROGRAM
                ))
            ),
        },
        fix::as_root("tollgate runtime install containerd --yes")
    );
    let found = registered(&config.config);
    if found.is_empty() {
        let why = format!("containerd does not know {PROGRAM} ({file})");
        return Support::no_unless_fixed(why, installs.then_some(install));
    }
    let Some(lacking) = found.iter().find(|runtime| !runtime.lacking.is_empty()) else {
        let names: Vec<_> = found.iter().map(|runtime| runtime.name.as_str()).collect();
        return Support::yes(format!(
            "runtime {} of {file} gets the annotations of pods",
            names.join(", ")
        ));
    };
    let why = format!(
        "runtime {} of {file} lacks \"{PATTERN}\" in {}: what the annotations of pods ask for is ignored",
        lacking.name,
        lacking.lacking.join(" and ")
    );
    let is_written_by_us = std::fs::read_to_string(&config.file)
        .is_ok_and(|text| text.contains(BEGIN) && lacking.name == NAME);
    let fix = if installs && is_written_by_us {
        install
    } else {
        let lines: Vec<_> = (lacking.lacking.iter())
            .map(|list| format!("`{list} = [\"{PATTERN}\"]`"))
            .collect();
        format!(
            "add {} to the table of the runtime {} in {file}, then: {restart}",
            lines.join(" and "),
            lacking.name
        )
    };
    Support::partial_unless_fixed(why, Some(fix))
}

/// Reads the configuration as containerd merges it from its files. The error says why it cannot be read.
fn in_force() -> Result<InForce, String> {
    let daemon = daemon();
    let path = std::env::var_os("PATH");
    let program = match &daemon {
        Some(daemon) => daemon.program.clone(),
        None => diagnostics::lookup::resolve("containerd".as_ref(), path.as_deref())
            .map_err(|_missing| "containerd not found".to_owned())?,
    };
    let usual = || PathBuf::from(Engine::Containerd.file());
    let named = daemon.as_ref().and_then(|daemon| daemon.file.clone());
    let file = named.clone().unwrap_or_else(usual);
    let mut command = Command::new(&program);
    if let Some(named) = &named {
        command.arg("--config").arg(named);
    }
    let output = command
        .args(["config", "dump"])
        .stdin(Stdio::null())
        .output();
    let program = program.display();
    let output = output.map_err(|cause| format!("cannot execute {program}: {cause}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said
            .lines()
            .last()
            .unwrap_or("it printed no reason")
            .to_owned();
        return Err(format!(
            "cannot read the configuration by {program}: {said}"
        ));
    }
    let config = String::from_utf8_lossy(&output.stdout)
        .parse()
        .map_err(|cause| format!("{program} prints a configuration that is not TOML: {cause}"))?;
    let changed = std::fs::metadata(&file).and_then(|data| data.modified());
    let changed = changed
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(InForce {
        config,
        file,
        is_stale: daemon
            .zip(changed)
            .is_some_and(|(daemon, changed)| changed > daemon.started + CLOCK_TICKS),
    })
}

/// Finds the daemon that runs here, by its name.
fn daemon() -> Option<Daemon> {
    let entries = std::fs::read_dir("/proc").ok()?;
    let mut pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find_map(|pid| {
        let file = |name: &str| format!("/proc/{pid}/{name}");
        let name = std::fs::read_to_string(file("comm")).ok()?;
        if name.trim_end() != "containerd" {
            return None;
        }
        let words = std::fs::read(file("cmdline")).ok()?;
        let stat = process_info::procfs::Proc::open().ok()?.stat(pid).ok()?;
        let started = process_info::procfs::start_ns(stat.start);
        let named = config_option(&words);
        if named
            .as_deref()
            .is_some_and(|file| file.to_string_lossy().contains(DOCKERS))
        {
            return None;
        }
        // An absolute path stays as it is.
        let folder = std::fs::read_link(file("cwd")).ok()?;
        Some(Daemon {
            program: std::fs::read_link(file("exe")).ok()?,
            file: named.map(|named| folder.join(named)),
            started: Duration::from_nanos(started),
        })
    })
}

/// Returns the file that a command line of containerd names.
fn config_option(words: &[u8]) -> Option<PathBuf> {
    let words = String::from_utf8_lossy(words);
    let mut words = words.split('\0');
    while let Some(word) = words.next() {
        let name = word.trim_start_matches('-');
        if name == word {
            continue;
        }
        match name.split_once('=') {
            Some(("config" | "c", file)) => return Some(file.into()),
            None if matches!(name, "config" | "c") => return words.next().map(PathBuf::from),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_pass_by_the_patterns_of_both_lists() {
        let of = |pod: &str, container: &str| {
            let config = format!(
                "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gate]\n\
                 pod_annotations = {pod}\ncontainer_annotations = {container}\n\
                 [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gate.options]\n\
                 BinaryName = '/opt/tollgate-runtime'\n\
                 [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n\
                 [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n\
                 BinaryName = ''\n"
            );
            let found = registered(&parse(&config).unwrap());
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].name, "gate");
            found[0].lacking.clone()
        };
        for good in [
            "['tollgate.*']",
            "[\"*\"]",
            "['tollgate.watch', 'tollgate.policy']",
        ] {
            assert!(of(good, good).is_empty(), "{good}");
        }
        assert_eq!(of("[]", "['tollgate.*']"), ["pod_annotations"]);
        assert_eq!(of("['tollgate.*']", "[]"), ["container_annotations"]);
        for bad in ["['tollgate.watch']", "['tollgate']", "['*.x']"] {
            assert_eq!(of(bad, bad), LISTS, "{bad}");
        }
    }

    #[test]
    fn a_file_without_runtimes_keeps_the_default_one() {
        let program = "/usr/local/bin/tollgate-runtime";
        for (text, plugin) in [
            ("", "io.containerd.grpc.v1.cri"),
            ("version = 3\n", "io.containerd.cri.v1.runtime"),
        ] {
            let added = add(text, program).unwrap();
            let runtimes = format!("[plugins.\"{plugin}\".containerd.runtimes");
            assert!(added.contains(&format!("{runtimes}.runc]\n")), "{added}");
            let found = registered(&parse(&added).unwrap());
            assert_eq!(found.len(), 1, "{added}");
            assert!(found[0].lacking.is_empty(), "{added}");
        }
        let theirs = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n\
                      [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n\
                      SystemdCgroup = true\n";
        let added = add(theirs, program).unwrap();
        assert_eq!(added.matches("runtimes.runc]").count(), 1, "{added}");
        assert_eq!(added.matches("SystemdCgroup = true").count(), 2, "{added}");
    }

    #[test]
    fn a_comment_is_no_runtime_and_a_table_that_cannot_be_extended_is_an_error() {
        let program = "/usr/local/bin/tollgate-runtime";
        let default = "containerd.runtimes.runc]\n";
        let plugin = "plugins.'io.containerd.grpc.v1.cri'";
        for without in [
            format!("version = 2\n# [{plugin}.containerd.runtimes.runc]\n"),
            "version = 2\nroot = \"/containerd.runtimes\"\n".to_owned(),
            format!("version = 2\n[{plugin}.containerd.runtimes]\n"),
        ] {
            let added = add(&without, program).unwrap();
            assert!(added[without.len()..].contains(default), "{added}");
        }
        let with = format!("version = 2\n[{plugin} . containerd.runtimes.\"kata\"]\n");
        let added = add(&with, program).unwrap();
        assert!(!added[with.len()..].contains(default), "{added}");
        for broken in ["version = 2\nplugins = {}\n", "version = 2\n[plugins\n"] {
            let error = add(broken, program).unwrap_err();
            assert!(matches!(error, InstallError::Toml(_)), "{error:?}");
        }
    }

    #[test]
    fn the_file_that_a_daemon_was_started_with_is_found() {
        for line in [
            "containerd\0-c\0/k3s.toml\0",
            "containerd\0--log-level\0info\0--config=/k3s.toml\0",
            "containerd\0-config\0/k3s.toml\0--root\0/r\0",
        ] {
            let found = config_option(line.as_bytes());
            assert_eq!(found.as_deref(), Some(Path::new("/k3s.toml")), "{line:?}");
        }
        assert_eq!(config_option(b"containerd\0--root\0/c\0"), None);
    }
}
