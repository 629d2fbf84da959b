//! `tollgate guard learn`: proposes the smallest preset and options for a command, from what it does.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use agent::learn_command::{self, LearnOptions};
use agent::options::AlertStream;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::shell;
use diagnostics::terminal;
use policy::Model;

use crate::layout::Layout;
use crate::options::{BoxOptions, Learn, Preset};
use crate::places::resolved;

/// Presets from the smallest box to the largest.
const PRESETS: [Preset; 4] = [
    Preset::Strict,
    Preset::Build,
    Preset::Install,
    Preset::Agent,
];

/// Number of options that are fewer than a larger box is wide.
const FEW: usize = 3;

/// What a box lacks.
#[derive(Default)]
struct Needs {
    /// Options that allow it.
    options: BTreeSet<String>,
    /// Options that would, and that open too much.
    too_wide: BTreeSet<String>,
}

impl Needs {
    fn count(&self) -> usize {
        self.options.len() + self.too_wide.len()
    }
}

/// Folder of the records, which is removed in the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What remains in a folder for temporary files harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a command without a box, and prints the smallest preset and options that it needs.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// The command cannot be run or recorded.
pub fn learn(args: Learn) -> Outcome {
    let path = std::env::temp_dir().join(format!("tollgate-guard-{}", std::process::id()));
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&path)
        .map_err(|error| {
            Failure::new(
                Exit::Unsupported,
                format!("cannot make {}: {error}", path.display()),
            )
            .help("set TMPDIR to a folder that this user may write")
        })?;
    let folder = Folder(path);
    let model = folder.0.join("model");
    let outcome = learn_command::execute(LearnOptions {
        runs: 1,
        output: folder.0.join("policy.yaml"),
        model: Some(model.clone()),
        duration: None,
        enforcers: policy::Enforcers::ALL,
        stream: AlertStream {
            is_beside_command: true,
            ..AlertStream::default()
        },
        quiet: true,
        command: args.command.clone(),
    })?;
    let seen = agent::learn::read(&model)?.unwrap_or_default();
    let command = args.command.first().map(Path::new);
    let proposals: Result<Vec<_>, Failure> = PRESETS
        .iter()
        .map(|preset| {
            let options = BoxOptions {
                preset: *preset,
                ..BoxOptions::default()
            };
            let layout = Layout::of(&options, command)?;
            Ok((*preset, needed(&seen, &layout)))
        })
        .collect();
    let proposals = proposals?;
    // The smallest box that needs a few options; without one, the box that needs the fewest.
    let small = proposals.iter().find(|(_, needs)| needs.count() <= FEW);
    let best = small.or_else(|| proposals.iter().min_by_key(|(_, needs)| needs.count()));
    if let Some((preset, needs)) = best {
        terminal::complain(&text(*preset, needs, &args.command));
    }
    Ok(outcome)
}

/// The command line with the options, and what no option is proposed for.
fn text(preset: Preset, needs: &Needs, command: &[OsString]) -> String {
    let options: String = needs
        .options
        .iter()
        .map(|need| format!(" {need}"))
        .collect();
    let words = command
        .iter()
        .map(|word| shell::quoted(&word.to_string_lossy()));
    let words: Vec<_> = words.collect();
    let mut text = format!(
        "tollgate guard --preset {}{options} -- {}\n",
        preset.name(),
        words.join(" ")
    );
    for need in &needs.too_wide {
        text.push_str(&format!(
            "not proposed, because it opens too much of the system or of a home: {need}\n"
        ));
    }
    text
}

/// What a box lacks for what was seen.
fn needed(seen: &Model, layout: &Layout) -> Needs {
    let mut needs = Needs::default();
    let mut need = |access: &str, path: &str, letter| {
        let path = path.trim_end_matches("/**").trim_end_matches("/*");
        let path = if path.is_empty() { "/" } else { path };
        let path = &resolved(Path::new(path));
        if !path.exists() || layout.allows(path, letter) {
            return;
        }
        let option = format!(
            "--allow-{access} {}",
            shell::quoted(&path.to_string_lossy())
        );
        match layout.wide.are_opened_by(access, path) {
            true => needs.too_wide.insert(option),
            false => needs.options.insert(option),
        };
    };
    for (paths, access, letter) in [
        (&seen.reads, "read", 'r'),
        (&seen.programs, "read", 'x'),
        (&seen.writes, "write", 'w'),
        (&seen.makes, "write", 'w'),
    ] {
        paths.iter().for_each(|path| need(access, path, letter));
    }
    needs.options.extend(
        seen.peers
            .iter()
            .filter_map(|peer| peer_option(peer, layout)),
    );
    if seen.violated.contains_key("disallow-create-user-ns") {
        needs.options.insert("--allow namespaces".to_owned());
    }
    if seen.calls.contains("ptrace") {
        needs.options.insert("--allow ptrace".to_owned());
    }
    needs
}

/// The option for an address with its port.
fn peer_option(peer: &str, layout: &Layout) -> Option<String> {
    let (address, port) = peer.split_once(' ')?;
    let (address, port) = (
        address.parse::<std::net::IpAddr>().ok()?,
        port.parse().ok()?,
    );
    let list = layout.peers.as_ref()?;
    let parsed = list
        .iter()
        .filter_map(|peer| policy::AllowedPeer::parse(peer).ok());
    let mut known = parsed.filter(|peer| peer.may_be(address, port));
    // Whether an allowed name has this address is found out when it is connected to.
    known.next().is_none().then(|| {
        format!(
            "--allow-connect {}",
            std::net::SocketAddr::new(address, port)
        )
    })
}
