//! `tollgate policy init`: writes a starting policy with comments.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;

use agent::policy_files;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::{terminal, text_file};
use policy::Enforcers;
use policy::builtin::{self, Class};
use policy::compile::accept_list;

use super::args::{Init, Kind};

/// The rules of a kind of policy, and those that it offers in comments.
struct Template {
    about: &'static str,
    rules: &'static [&'static [&'static str]],
    offered: &'static [&'static str],
}

/// Rules that no ordinary command breaks.
const COMMON: &[&str] = &[
    "disallow-mount",
    "disallow-umount",
    "disallow-create-user-ns",
    "disallow-load-all-bpf-prog",
    "disallow-userfaultfd-creation",
    "disable-cap-privileged",
    "disable-access-shadow",
    "disable-chmod-s-bit",
    "dirty-pipe-mitigation",
    "copy-fail-mitigation",
];
/// Rules that a server does not break once it runs.
const SERVICE: &[&str] = &[
    "disable-write-etc",
    "disable-shell",
    "disable-su-sudo",
    "disable-chmod-x-bit",
];
/// Rules that a build does not break.
const BUILD: &[&str] = &[
    "disable-access-ssh-dir",
    "disable-su-sudo",
    "disable-write-etc",
];

impl Kind {
    fn template(self) -> Template {
        match self {
            Self::Command => Template {
                about: "a command",
                rules: &[COMMON],
                offered: &[
                    "disable-network",
                    "disable-udp",
                    "disable-access-ssh-dir",
                    "disable-su-sudo",
                ],
            },
            Self::Service => Template {
                about: "a network server",
                rules: &[COMMON, SERVICE],
                offered: &[
                    "disable-udp",
                    "disable-icmp",
                    "disable-inet6",
                    "disable-cap-all",
                ],
            },
            Self::Build => Template {
                about: "a build or a test",
                rules: &[COMMON, BUILD],
                offered: &[
                    "disable-network",
                    "disable-udp",
                    "disable-curl",
                    "disable-wget",
                ],
            },
            Self::Untrusted => Template {
                about: "code that is not trusted",
                rules: &[COMMON, BUILD, &["disable-network", "disable-cap-all"]],
                offered: &[
                    "disable-shell",
                    "disable-chmod-x-bit",
                    "disable-access-passwd",
                ],
            },
        }
    }
}

/// Runs the verb.
pub(crate) fn execute(args: &Init) -> Outcome {
    let template = args.kind.template();
    let draft = text(&template, args.enforcer, &BTreeSet::new());
    let partial = policy_files::partial_rules("policy.yaml", &draft);
    let text = text(&template, args.enforcer, &partial);
    if args.file == Path::new("-") {
        return terminal::print(&text);
    }
    write(&args.file, &text, args.force)?;
    let file = args.file.display();
    terminal::print(&format!(
        "wrote {file}; try it without denials: tollgate enforce --policy {file} --audit -- CMD\n"
    ))
}

/// Writes the policy; what was there before stays if it is not to be replaced, or cannot be.
fn write(path: &Path, text: &str, replace: bool) -> Result<(), Failure> {
    let written = match replace {
        true => text_file::replace(path, text),
        false => text_file::create(path, text.as_bytes(), 0o666),
    };
    written.map_err(|error| {
        let help = match error.kind() {
            ErrorKind::AlreadyExists => "name another file, or replace it with --force",
            kind => text_file::next_step(kind),
        };
        let message = format!("cannot write {}: {error}", path.display());
        Failure::new(Exit::BadInput, message).help(help)
    })
}

/// Formats the policy. `partial`: rules that are enforced only partially.
fn text(template: &Template, enforcers: Enforcers, partial: &BTreeSet<String>) -> String {
    let mut text = format!(
        "# A starting policy for {}, made by `tollgate policy init`.\n\
         # `tollgate policy list` shows all built-in rules, `tollgate policy explain FILE` what these do.\n\
         policy:\n  \
         # Seccomp and Landlock need no privileges; Caps takes capabilities from root.\n  \
         enforcer: {}\n  mode: EnhanceProtect\n",
        template.about,
        enforcers.joined()
    );
    if !partial.is_empty() {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  # These rules have known ways around them: `tollgate policy explain --long FILE`.\n  \
             acceptPartial: {}",
            accept_list(partial)
        );
    }
    text.push_str(
        "  enhanceProtect:\n    # Report each denial. Without it no process stays beside the command.\n    \
         auditViolations: true\n",
    );
    for class in [Class::Hardening, Class::Attack, Class::Vulnerability] {
        push_rules(&mut text, class, template);
    }
    text
}

/// Appends the rules of a class, each with what it denies, and the offered ones as comments.
fn push_rules(text: &mut String, class: Class, template: &Template) {
    let of_class = |name: &&str| builtin::find(name).filter(|rule| rule.class == class);
    let mut seen = BTreeSet::new();
    let all = template.rules.iter().flat_map(|rules| rules.iter());
    let rules: Vec<_> = all
        .filter_map(of_class)
        .filter(|rule| seen.insert(&rule.name))
        .collect();
    let offered: Vec<_> = template.offered.iter().filter_map(of_class).collect();
    if rules.is_empty() {
        return;
    }
    let _ = writeln!(text, "    {}:", class.key());
    let mut indent = "    ";
    if class == Class::Attack {
        text.push_str("    - rules:\n");
        indent = "      ";
    }
    for rule in rules {
        let _ = writeln!(text, "{indent}- {:32} # {}", rule.name, rule.about);
    }
    for rule in offered {
        let _ = writeln!(text, "{indent}# - {:30} # {}", rule.name, rule.about);
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn a_policy_is_replaced_only_with_force_and_never_in_place() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("p.yaml");
        write(&path, "first", false).expect("it is new");
        let failure = write(&path, "second", false).expect_err("it exists");
        assert!(failure.render().contains("--force"), "{}", failure.render());
        // What has the old policy open keeps it: a full disk meanwhile would leave it, too.
        let mut old = std::fs::File::open(&path).expect("it is there");
        write(&path, "third", true).expect("it is replaced");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut old, &mut text).expect("it is text");
        assert_eq!(text, "first");
        assert_eq!(
            std::fs::read_to_string(&path).expect("it is there"),
            "third"
        );
        let failure = write(std::path::Path::new("/dev/full"), "x", true).expect_err("it is full");
        assert!(
            failure.render().contains("free some space"),
            "{}",
            failure.render()
        );
    }

    #[test]
    fn every_template_loads_and_names_only_known_rules() {
        let enforcers = Enforcers::parse("SeccompLandlockCaps").expect("names of enforcers");
        for kind in Kind::value_variants() {
            let template = kind.template();
            let named = template.rules.iter().flat_map(|rules| rules.iter());
            for name in named.chain(template.offered) {
                assert!(builtin::find(name).is_some(), "{name}");
            }
            let text = text(
                &template,
                enforcers,
                &BTreeSet::from(["disallow-mount".to_owned()]),
            );
            let (policies, problems) = policy::load("policy.yaml", &text);
            assert!(problems.is_empty(), "{kind:?}: {problems:?}");
            assert_eq!(policies[0].accepted.len(), 1, "{kind:?}");
            assert!(
                policies[0].rules.iter().all(|rule| rule.verdict.audits()),
                "{kind:?}"
            );
        }
    }
}
