use clap::Command;
use workload::split_words;

use super::pages::PAGES;
use super::{Example, GROUPS, Page, command_line, visible};
use crate::args::Cli;
use crate::command;

/// Words that a user of Linux, Falco or containerd would not understand here.
const RETIRED: &[&str] = &[
    "agent",
    "anew",
    "befits",
    "carried",
    "carries",
    "carry",
    "comes to",
    "customs",
    "dearer",
    "front",
    "gets told",
    "judge",
    "judged",
    "keeper",
    "learnt",
    "looked at",
    "looks at",
    "nobody",
    "play",
    "played",
    "plays",
    "somebody",
    "stay",
    "stays",
    "told",
    "undecided",
    "untold",
    "vouches",
    "what becomes",
    "whatever",
];

/// Fixed names that contain a retired word: options, keys and values.
const FIXED: &[&str] = &[
    // Programs of others, and the preset for them.
    "coding agent",
    "agent reads everything",
    "--agent",
    "runtime.agent",
    "--on-agent-death",
    "--agent-timeout",
];

/// Returns every visible command with its path.
fn all() -> Vec<(String, Command)> {
    let mut program = visible();
    program.build();
    let mut open = vec![(String::new(), program)];
    let mut all = Vec::new();
    while let Some((path, command)) = open.pop() {
        open.extend(command.get_subcommands().map(|verb| {
            let path = format!("{path} {}", verb.get_name());
            (path.trim_start().to_owned(), verb.clone())
        }));
        all.push((path, command));
    }
    assert!(all.len() > 40, "{}", all.len());
    all
}

fn assert_plain(path: &str, text: &str) {
    let first = text.chars().next();
    assert!(
        first.is_some_and(|first| first.is_uppercase()),
        "{path}: {text:?}"
    );
    assert!(!text.contains('\n'), "{path}: broken by hand: {text:?}");
    assert!(!text.ends_with('.'), "{path}: {text:?}");
    assert_no_retired(path, text);
}

fn assert_no_retired(path: &str, text: &str) {
    let mut text = text.to_lowercase();
    for name in FIXED {
        text = text.replace(name, "");
    }
    let words = text
        .split(|c: char| !c.is_alphanumeric())
        .collect::<Vec<_>>();
    let text = format!(" {} ", words.join(" "));
    for word in RETIRED {
        assert!(
            !text.contains(&format!(" {word} ")),
            "{path}: `{word}` in {text:?}"
        );
    }
}

#[test]
fn every_verb_and_option_has_plain_help() {
    for (path, command) in all() {
        let about = command.get_about().map(ToString::to_string);
        // `assert_plain` refuses an empty text; notes are optional.
        assert_plain(&path, &about.unwrap_or_default());
        let notes = command.get_after_help().map(ToString::to_string);
        assert_no_retired(&path, &notes.unwrap_or_default());
        for arg in command.get_arguments() {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert_plain(&format!("{path} {}", arg.get_id()), &help);
        }
    }
}

#[test]
fn every_verb_is_in_one_group_and_has_examples() {
    let mut program = visible();
    program.build();
    for verb in program.get_subcommands() {
        let groups = GROUPS
            .iter()
            .filter(|(_, verbs)| verbs.contains(&verb.get_name()));
        assert_eq!(groups.count(), 1, "{}", verb.get_name());
    }
    for (path, _) in all() {
        let page = Page::of(&path).unwrap_or_else(|| panic!("`{path}` has no page"));
        assert!((2..=4).contains(&page.examples.len()), "{path}");
        for other in page.see_also {
            assert!(Page::of(other).is_some(), "{path} refers to `{other}`");
        }
    }
    for page in PAGES {
        assert!(
            all().iter().any(|(path, _)| path == page.path),
            "no verb `{}`",
            page.path
        );
    }
}

#[test]
fn every_verb_with_many_options_has_them_under_headings() {
    for (path, command) in all() {
        let options = command
            .get_opts()
            .filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"));
        let (with, without): (Vec<_>, Vec<_>) =
            options.partition(|arg| arg.get_help_heading().is_some());
        assert!(
            with.len() + without.len() < 8 || without.is_empty(),
            "{path}: {without:?}"
        );
    }
}

#[test]
fn every_example_is_a_valid_command_line() {
    for page in PAGES {
        for Example(line, what) in page.examples {
            assert!(
                what.chars().next().is_some_and(char::is_lowercase),
                "{what}"
            );
            assert!(line.len() <= 90, "too long for a terminal: {line}");
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            let line = line
                .split([' '])
                .take_while(|word| !matches!(*word, "|" | ">"));
            let line = line.collect::<Vec<_>>().join(" ");
            if !line.starts_with("tollgate ") {
                continue;
            }
            let words = split_words(&line).expect("its quotes are paired");
            let parsed = command_line().try_get_matches_from(&words);
            if let Err(error) = parsed {
                panic!("{line}: {error}");
            }
        }
    }
}

#[test]
fn help_of_a_verb_is_what_its_option_help_prints() {
    for (path, _) in all() {
        let mut words = vec!["tollgate"];
        words.extend(path.split_whitespace());
        words.push("--help");
        let by_option = command_line().try_get_matches_from(&words).unwrap_err();
        let verbs: Vec<_> = path.split_whitespace().map(str::to_owned).collect();
        let mut command = command::help::find(command_line(), &verbs).unwrap();
        assert_eq!(
            command.render_help().to_string(),
            by_option.render().to_string(),
            "{path}"
        );
    }
}

#[test]
fn completions_have_every_visible_option_and_no_hidden_one() {
    use clap::CommandFactory;
    use clap_complete::Shell;

    let mut hidden = Vec::new();
    let mut shown = vec!["help"];
    let program = Cli::command();
    let run = program.find_subcommand("run").expect("it is a verb");
    for arg in run.get_arguments().chain(program.get_arguments()) {
        let name = arg.get_long().unwrap_or("help");
        (if arg.is_hide_set() {
            &mut hidden
        } else {
            &mut shown
        })
        .push(name);
    }
    assert!(hidden.contains(&"pretend-kernel") && shown.contains(&"rules"));
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut visible(), "tollgate", &mut script);
        let script = String::from_utf8(script).unwrap();
        for name in &hidden {
            assert!(!script.contains(name), "{shell}: {name}");
        }
        for name in &shown {
            assert!(script.contains(name), "{shell}: {name}");
        }
        for option in ["scratch", "oracle"] {
            assert!(!script.contains(option), "{shell}: {option}");
        }
    }
}
