//! containerd: what its configuration needs to run containers by this program, and whether the configuration
//! in force has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use probe::{Support, fix};

use crate::install::{BEGIN, END, Engine, InstallError, NAME, quoted};
use crate::toml_tables::{Table, tables};
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
    let tables = tables(text);
    let version = tables.first().and_then(|top| top.value("version"));
    let plugin = match version {
        // An empty file counts as missing.
        None if text.trim().is_empty() => "io.containerd.grpc.v1.cri",
        Some("2") => "io.containerd.grpc.v1.cri",
        Some("3") => "io.containerd.cri.v1.runtime",
        version => {
            let version = version.unwrap_or("1").to_owned();
            return Err(InstallError::Version { version });
        }
    };
    if tables.iter().any(|table| is_runtime(table, NAME)) {
        return Err(InstallError::Taken);
    }
    let mut added = String::new();
    if version.is_none() {
        added.push_str("version = 2\n");
    }
    let runtimes = format!("plugins.\"{plugin}\".containerd.runtimes");
    // A file that has any runtime replaces the built-in list up to containerd 1.7, and without its default
    // runtime containerd serves no pods at all.
    if !text.contains("containerd.runtimes") {
        added.push_str(&format!(
            "[{runtimes}.{DEFAULT}]\n  runtime_type = \"io.containerd.runc.v2\"\n"
        ));
    }
    added.push_str(&format!(
        "[{runtimes}.{NAME}]\n  runtime_type = \"io.containerd.runc.v2\"\n"
    ));
    for list in LISTS {
        added.push_str(&format!("  {list} = [{}]\n", quoted(PATTERN)));
    }
    added.push_str(&format!(
        "[{runtimes}.{NAME}.options]\n  BinaryName = {}\n",
        quoted(program)
    ));
    // The kubelet and all runtimes of a node must agree on who manages control groups.
    let of_default = ["containerd", "runtimes", DEFAULT, "options"];
    let mut options = tables.iter().filter(|table| table.ends_in(&of_default));
    if options.any(|options| options.value("SystemdCgroup") == Some("true")) {
        added.push_str("  SystemdCgroup = true\n");
    }
    let newline = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    Ok(format!("{text}{newline}{BEGIN}\n{added}{END}\n"))
}

fn is_runtime(table: &Table, name: &str) -> bool {
    table.ends_in(&["containerd", "runtimes", name])
}

/// A runtime of containerd's that is this program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Registered {
    name: String,
    /// The lists that do not pass all of this program's annotations on.
    lacking: Vec<&'static str>,
}

/// Returns the runtimes of a configuration that are this program.
fn registered(config: &str) -> Vec<Registered> {
    let tables = tables(config);
    let of_name = |table: &Table| match table.path.as_slice() {
        [.., containerd, runtimes, name]
            if containerd == "containerd" && runtimes == "runtimes" =>
        {
            Some(name.clone())
        }
        _ => None,
    };
    let is_ours = |name: &str| {
        let mut options = tables
            .iter()
            .filter(|table| table.ends_in(&["containerd", "runtimes", name, "options"]));
        options.any(|options| {
            let program = options.string("BinaryName");
            program.is_some_and(|program| Path::new(&program).ends_with(PROGRAM))
        })
    };
    let found = tables.iter().filter_map(|table| {
        let name = of_name(table)?;
        let lacks = |list: &&str| !passes_all(&table.strings(list));
        is_ours(&name).then(|| Registered {
            name: name.clone(),
            lacking: LISTS.into_iter().filter(lacks).collect(),
        })
    });
    found.collect()
}

/// Returns true if these patterns match every annotation of ours.
fn passes_all(patterns: &[String]) -> bool {
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
    text: String,
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
    let found = registered(&config.text);
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
    let changed = std::fs::metadata(&file).and_then(|data| data.modified());
    let changed = changed
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(InForce {
        text: String::from_utf8_lossy(&output.stdout).into_owned(),
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
            let found = registered(&config);
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
            let found = registered(&added);
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
