//! `tollgate serve bundle`: bundles of rules for agents. They are made and signed in files, where the key is, and assigned
//! in the store itself, as tokens are.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use bundle::{BundleError, Content, File, MAX_BYTES, PrivateKey, Signed};
use collector::Choices;
use config::rule_files;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::{terminal, text_file};
use serde_json::json;
use store::{Agent, Assigned, Assignment, Bundle, Gate, NewBundle, Rollout, Target};

use super::args::{
    AssignBundle, BundleKey, BundleVerb, CreateBundle, ListBundles, RollOut, SignBundle,
};
use super::server::{broken, open};
use super::tokens::{actor, time};

pub(super) fn execute(verb: BundleVerb) -> Outcome {
    match verb {
        BundleVerb::Key(args) => key(&args),
        BundleVerb::Create(args) => create(args),
        BundleVerb::Sign(args) => sign(&args),
        BundleVerb::Assign(args) => assign(args),
        BundleVerb::Unassign(args) => unassign(&args),
        BundleVerb::Rollback(args) => roll_back(&args),
        BundleVerb::List(args) => list(&args),
    }
}

fn cannot(action: &str, path: &Path, cause: &dyn std::fmt::Display) -> Failure {
    let path = path.display();
    Failure::new(Exit::BadInput, format!("cannot {action} {path}: {cause}"))
}

/// Reads a text file that can be no bundle if it is larger than one.
fn read(path: &Path) -> Result<String, Failure> {
    let length = fs::metadata(path).map(|meta| meta.len());
    match length {
        Ok(length) if length > 3 * MAX_BYTES as u64 => {
            Err(cannot("read", path, &"it is too large"))
        }
        Ok(_) => fs::read_to_string(path).map_err(|error| cannot("read", path, &error)),
        Err(error) => Err(cannot("read", path, &error)),
    }
}

/// Returns the failure of writing a file.
fn unwritten(path: &Path, error: &io::Error) -> Failure {
    cannot("write", path, error).help(text_file::next_step(error.kind()))
}

/// Writes a new file.
fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    text_file::create(path, text.as_bytes(), mode).map_err(|error| unwritten(path, &error))
}

fn key(args: &BundleKey) -> Outcome {
    let key =
        PrivateKey::generate().map_err(|error| Failure::from_error(Exit::Unsupported, &error))?;
    write_new(&args.file, &key.to_text(), 0o600)?;
    terminal::complain(&format!(
        "tollgate: wrote the private key to {}; agents pin the public key that follows by --bundle-key\n",
        args.file.display()
    ));
    terminal::print(&format!("{}\n", key.public().to_text()))
}

fn create(args: CreateBundle) -> Outcome {
    let mut rules = Vec::new();
    for path in &args.rules {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        rules.push(File {
            name: name.unwrap_or_default(),
            text: read(path)?,
        });
    }
    // As agents will load them: a rule may be about one of an earlier file.
    if !args.rules.is_empty() {
        rule_files::load(&args.rules).usable()?;
    }
    let content = Content {
        version: args.version,
        rules,
        policies: agent::pack_policies(&args.policies)?,
        settings: args.settings,
    };
    let bundle = content.pack().map_err(|error| refused(&error))?;
    let bundle = bundle.into_signed();
    write_new(&args.output, &bundle.to_text(), 0o644)?;
    terminal::print(&format!(
        "wrote {}, version {}, not signed\n",
        args.output.display(),
        args.version
    ))
}

fn refused(error: &BundleError) -> Failure {
    Failure::from_error(Exit::BadInput, error)
}

fn bundle_of(path: &Path) -> Result<(Signed, Content), Failure> {
    let signed = Signed::parse(&read(path)?).map_err(|error| refused(&error))?;
    let content = signed.content().map_err(|error| refused(&error))?;
    Ok((signed, content))
}

fn sign(args: &SignBundle) -> Outcome {
    let key = PrivateKey::parse(&read(&args.key)?)
        .map_err(|error| refused(&error).help("`tollgate serve bundle key FILE` makes one"))?;
    let (bundle, content) = bundle_of(&args.bundle)?;
    let signed = bundle.sign(&key);
    // What is killed meanwhile leaves the bundle as it was, not half of it.
    let replaced = text_file::replace(&args.bundle, &signed.to_text());
    replaced.map_err(|error| unwritten(&args.bundle, &error))?;
    terminal::print(&format!(
        "signed version {} with {}, sha256:{}\n",
        content.version,
        key.public().to_text(),
        signed.digest()
    ))
}

fn assign(args: AssignBundle) -> Outcome {
    let (signed, content) = bundle_of(&args.bundle)?;
    let unsigned = || {
        refused(&BundleError::Unsigned)
            .help("`tollgate serve bundle sign BUNDLE --key FILE` signs it")
    };
    let key = *signed.key().ok_or_else(unsigned)?;
    // Every agent would refuse it.
    signed.verify(&key).map_err(|error| refused(&error))?;
    let store = open(&args.store.place, true)?;
    let id = store.add_bundle(NewBundle {
        version: content.version,
        digest: signed.digest(),
        key: key.to_text(),
        text: signed.to_text(),
        actor: actor(),
    });
    let target = Target::from(&args.target);
    let assignment = Assignment {
        target: target.clone(),
        priority: args.priority,
        bundle: id.map_err(|error| broken(&error))?,
        percent: args.percent,
        gate: Gate {
            failures: Some(args.max_failures),
            losses: args.max_losses,
            alerts: args.max_alerts,
        },
        actor: actor(),
    };
    match store.assign(assignment).map_err(|error| broken(&error))? {
        Assigned::Done => terminal::print(&format!(
            "assigned version {} to {} % of {target}\n",
            content.version, args.percent
        )),
        Assigned::Conflict(other) => {
            let message = format!(
                "cannot assign the bundle to {target}: the roll-out of {other} has the same rank, and agents can match both"
            );
            Err(Failure::new(Exit::BadInput, message)
                .help("say by --priority which of them decides, or add a test to the selector"))
        }
        Assigned::UnknownBundle => {
            let message = "cannot assign the bundle: the store has lost it";
            Err(Failure::new(Exit::Internal, message))
        }
    }
}

fn unassign(args: &RollOut) -> Outcome {
    let target = Target::from(&args.target);
    let store = open(&args.store.place, false)?;
    let ended = store.unassign(&target, &actor());
    match ended.map_err(|error| broken(&error))? {
        true => terminal::print(&format!("ended the roll-out of {target}\n")),
        false => {
            let message = format!("cannot end the roll-out of {target}: there is none");
            Err(Failure::new(Exit::BadInput, message).help("see `tollgate serve bundle list`"))
        }
    }
}

fn roll_back(args: &RollOut) -> Outcome {
    let store = open(&args.store.place, false)?;
    let target = Target::from(&args.target);
    let rolled_back = store.roll_back(&target, &actor());
    match rolled_back.map_err(|error| broken(&error))? {
        true => terminal::print(&format!("rolled {target} back\n")),
        false => {
            let message = format!("cannot roll {target} back: it has no bundle before");
            Err(Failure::new(Exit::BadInput, message).help("see `tollgate serve bundle list`"))
        }
    }
}

fn list(args: &ListBundles) -> Outcome {
    let store = open(&args.store.place, false)?;
    let bundles = store.bundles().map_err(|error| broken(&error))?;
    let rollouts = store.rollouts().map_err(|error| broken(&error))?;
    let mut agents = store.agents().map_err(|error| broken(&error))?;
    agents.retain(|agent| !agent.is_direct && !agent.is_ended);
    let choices = Choices::new(&rollouts);
    if args.json {
        let bundles: Vec<_> = bundles.iter().map(bundle_json).collect();
        let listed: Vec<_> = rollouts.iter().map(rollout_json).collect();
        let agents: Vec<_> = agents.iter().map(|it| agent_json(it, &choices)).collect();
        let answer = json!({"bundles": bundles, "rollouts": listed, "agents": agents});
        return terminal::print(&format!("{answer}\n"));
    }
    let mut text = format!("{:<9} {:<14} {:<21} KEY\n", "VERSION", "DIGEST", "ADDED");
    for bundle in &bundles {
        let digest: String = bundle.digest.chars().take(12).collect();
        let (version, added) = (bundle.version, time(bundle.created_ns));
        let _ = writeln!(text, "{version:<9} {digest:<14} {added:<21} {}", bundle.key);
    }
    list_rollouts(&mut text, &rollouts);
    list_agents(&mut text, &agents, &choices);
    terminal::print(&text)
}

fn list_rollouts(text: &mut String, rollouts: &[Rollout]) {
    let _ = writeln!(
        text,
        "\n{:<16} {:<9} {:<6} {:<9} {:<8} {:<8} {:<24} STATE",
        "CLASS", "VERSION", "PART", "IN FORCE", "REFUSED", "PRIORITY", "SELECTOR"
    );
    for rollout in rollouts {
        let health = &rollout.health;
        let _ = writeln!(
            text,
            "{:<16} {:<9} {:<6} {:<9} {:<8} {:<8} {:<24} {}",
            rollout.target.class,
            rollout.bundle.version,
            format!("{} %", rollout.percent),
            format!("{}/{}", health.in_force, health.agents),
            health.refused,
            rollout.priority,
            match rollout.target.selector.tests() {
                0 => "-".to_owned(),
                _ => rollout.target.selector.to_string(),
            },
            match &rollout.halted {
                Some(why) => format!("halted: {}", why.escape_debug()),
                None => "open".to_owned(),
            }
        );
    }
}

/// Lists agents with their labels, the bundle that each is to have, and why.
fn list_agents(text: &mut String, agents: &[Agent], choices: &Choices<'_>) {
    if agents.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<7} {:<24} {:<16} {:<9} {:<32} WHY",
        "AGENT", "HOST", "CLASS", "VERSION", "LABELS"
    );
    for agent in agents {
        let choice = choices.of(agent);
        let version = choice.bundle.map(|bundle| bundle.version.to_string());
        let labels = agent.labels.to_string();
        let _ = writeln!(
            text,
            "{:<7} {:<24} {:<16} {:<9} {:<32} {}",
            agent.id.0,
            agent.host.escape_debug().to_string(),
            agent.class,
            version.as_deref().unwrap_or("none"),
            if labels.is_empty() { "-" } else { &labels },
            choice.why
        );
    }
}

fn agent_json(agent: &Agent, choices: &Choices<'_>) -> serde_json::Value {
    let choice = choices.of(agent);
    json!({
        "agent": agent.id.0,
        "host": agent.host,
        "class": agent.class,
        "labels": agent.labels.iter().collect::<serde_json::Value>(),
        "version": choice.bundle.map(|bundle| bundle.version),
        "why": choice.why,
    })
}

fn bundle_json(bundle: &Bundle) -> serde_json::Value {
    json!({
        "version": bundle.version,
        "digest": bundle.digest,
        "key": bundle.key,
        "created": time(bundle.created_ns),
        "created_by": bundle.created_by,
    })
}

fn rollout_json(rollout: &Rollout) -> serde_json::Value {
    json!({
        "class": rollout.target.class,
        "selector": rollout.target.selector.to_string(),
        "priority": rollout.priority,
        "version": rollout.bundle.version,
        "previous": rollout.previous.as_ref().map(|bundle| bundle.version),
        "percent": rollout.percent,
        "halted": rollout.halted,
        "agents": rollout.health.agents,
        "in_force": rollout.health.in_force,
        "refused": rollout.health.refused,
    })
}
