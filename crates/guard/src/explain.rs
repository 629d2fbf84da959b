//! `tollgate guard explain`: the layers that are active here, and what each does not cover.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use policy::EnforcerKind;
use policy::compile::Grade;
use serde_json::json;

use crate::layout::Layout;
use crate::options::Explain;
use crate::{available, read};

/// What no layer of a box covers.
const UNCOVERED: [&str; 6] = [
    "names, sizes and times of files that may not be read (stat), and changes of mode, owner and times of the \
     user's own files",
    "descriptors that the command inherits",
    "signals to other processes of the same user",
    "connections that others make to the command, and what a peer that is allowed does for it",
    "programs that are given to an interpreter as data: `sh FILE` reads FILE and executes sh",
    "processor time, memory and disk",
];

/// What a list of peers refuses besides peers.
const REFUSED: &str = "datagrams (UDP) to every peer, so QUIC and DNS by datagrams: names are looked up over TCP \
                       (RES_OPTIONS=use-vc); --allow network allows them";

/// A layer of the box.
struct Layer {
    name: &'static str,
    is_active: bool,
    gaps: BTreeSet<String>,
    rules: usize,
}

/// Prints the layers of a box that are active here, and what each does not cover.
///
/// # Errors
///
/// The box cannot be composed here, or printed.
pub fn explain(args: &Explain) -> Outcome {
    let layout = Layout::of(&args.options, args.command.first().map(Path::new))?;
    let text = layout.policy(false);
    if args.policy {
        return terminal::print(&text);
    }
    let layers = layers(&text)?;
    match args.json {
        true => terminal::print(&format!("{}\n", as_json(&layers, &layout, args, &text))),
        false => terminal::print(&as_text(&layers, &layout, args)),
    }
}

fn layers(text: &str) -> Result<Vec<Layer>, Failure> {
    let read = read(text)?;
    let kinds: Vec<EnforcerKind> = read.enforcers.iter().collect();
    let policy = available(&read);
    let layer = |kind: EnforcerKind| {
        let assessed = policy.rules.iter().map(|rule| policy.assess(rule, kind));
        let enforced: Vec<_> = assessed.filter(|found| found.grade > Grade::None).collect();
        Layer {
            name: kind.name(),
            is_active: policy.enforcers.contains(kind),
            rules: enforced.len(),
            gaps: enforced.into_iter().flat_map(|found| found.notes).collect(),
        }
    };
    let layers: Vec<Layer> = kinds.into_iter().map(layer).collect();
    match layers.is_empty() {
        true => Err(Failure::new(Exit::Internal, "the policy has no layer").help("report this")),
        false => Ok(layers),
    }
}

fn as_text(layers: &[Layer], layout: &Layout, args: &Explain) -> String {
    let mut text = format!("preset {}\n\n", args.options.preset.name());
    // Writing to a String cannot fail.
    for layer in layers {
        let state = if layer.is_active {
            "active"
        } else {
            "NOT ACTIVE HERE"
        };
        let _ = writeln!(text, "{}: {state}, {} rules", layer.name, layer.rules);
        for gap in &layer.gaps {
            let _ = writeln!(text, "  does not cover: {gap}");
        }
    }
    let _ = writeln!(text, "\nno layer covers:");
    for gap in UNCOVERED {
        let _ = writeln!(text, "  {gap}");
    }
    let _ = writeln!(text, "\nmay not read ({}):", layout.denied.len());
    for path in &layout.denied {
        let _ = writeln!(text, "  {}", path.display());
    }
    match &layout.peers {
        None => text.push_str("\nmay connect to every peer\n"),
        Some(peers) => {
            let _ = writeln!(text, "\nmay connect to ({}):", peers.len());
            for peer in peers {
                let _ = writeln!(text, "  {peer}");
            }
            let _ = writeln!(text, "refused as well: {REFUSED}");
        }
    }
    text.push_str(
        "\n`tollgate guard explain --policy` prints the policy, with the line numbers of reports\n",
    );
    text
}

fn as_json(layers: &[Layer], layout: &Layout, args: &Explain, policy: &str) -> serde_json::Value {
    let layers: Vec<_> = layers
        .iter()
        .map(|layer| {
            json!({"layer": layer.name, "active": layer.is_active, "rules": layer.rules, "not_covered": layer.gaps})
        })
        .collect();
    json!({
        "preset": args.options.preset.name(),
        "layers": layers,
        "not_covered": UNCOVERED,
        "denied": layout.denied,
        "peers": layout.peers,
        "refused_as_well": layout.peers.as_ref().map(|_| REFUSED),
        "policy": policy,
    })
}
